"""A model on disk: `config.json`, `model.safetensors`, `processor.json` (settings of the modalities) and their files.

Embedders that were added later lie beside them, see `graft`.

Nothing is ever unpickled. A checkpoint is written beside its place and renamed, so a directory of that name is
complete or absent.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from watersmeet.core.config import ModelConfig
from watersmeet.core.errors import CheckpointError
from watersmeet.core.files import written_beside
from watersmeet.core.graft import grafted_tensors
from watersmeet.core.model import Model
from watersmeet.core.model.model import FLOAT32_NAMES
from watersmeet.core.model.moe import Router
from watersmeet.core.model.stored import from_stored, stored_views

CONFIG, WEIGHTS, PROCESSOR = "config.json", "model.safetensors", "processor.json"

EmbedderFactory = Callable[[str, int, Mapping[str, Any]], nn.Module]
"""(modality, hidden size, settings) -> embedder; the registry's `embedder` is one."""


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """What a checkpoint holds: the model in evaluation mode, its config, the processor settings, files by name."""

    model: Model
    config: ModelConfig
    processor: dict[str, Any]
    files: dict[str, bytes]


def save_checkpoint(
    directory: str | os.PathLike[str],
    model: Model,
    config: ModelConfig | None = None,
    processor: Mapping[str, Any] | None = None,
    files: Mapping[str, bytes] | None = None,
    *,
    dtype: torch.dtype | None = None,
) -> None:
    """Write a checkpoint, replacing an older one of the same name.

    processor: JSON-able; its "modalities" maps each modality to its encoder's settings, from which `load_checkpoint`
    builds the embedders. files: what encoders need besides, by plain file name. dtype: torch.bfloat16 halves the file;
    what K3 keeps in float32 stays so. None: as the parameters are.
    """
    target, files = Path(directory), dict(files or {})
    for name in files:
        if name in (CONFIG, WEIGHTS, PROCESSOR) or Path(name).name != name or name.startswith("."):
            raise CheckpointError(f"checkpoint: file name {name!r} is reserved or not a plain name; rename it")
    with written_beside(target) as partial:
        (partial / CONFIG).write_text((config or model.config).to_json())
        description = {"files": sorted(files), "processor": dict(processor or {})}
        (partial / PROCESSOR).write_text(json.dumps(description, indent=2) + "\n")
        for name, data in files.items():
            (partial / name).write_bytes(data)
        save_file(_tensors(model, dtype), partial / WEIGHTS, metadata={"format": "pt"})


def _tensors(model: Model, dtype: torch.dtype | None) -> dict[str, Tensor]:
    parameters = set(stored_views(model.named_parameters()))
    out = {}
    for name, tensor in stored_views(model.state_dict().items()).items():
        castable = dtype is not None and name in parameters and not name.endswith(FLOAT32_NAMES)
        out[name] = tensor.detach().cpu().to(dtype if castable else tensor.dtype).contiguous()
    return out


def load_checkpoint(
    directory: str | os.PathLike[str], embedder_factory: EmbedderFactory, dtype: torch.dtype = torch.float32
) -> Loaded:
    """Read a checkpoint; every tensor of the file must be used and every parameter filled.

    dtype: of the trunk's matrices and of the computation, float32 or bfloat16. Embedders are float32 in any case.
    Raises CheckpointError naming the file, and the tensors that are missing, unknown or of another shape.
    """
    path = Path(directory)
    config = ModelConfig.from_json(_read(path / CONFIG))
    try:
        description = json.loads(_read(path / PROCESSOR))
        processor, names = dict(description["processor"]), list(description["files"])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path / PROCESSOR}: not the description of a processor ({error!r})") from error
    files = {name: _read(path / Path(name).name) for name in names}
    embedders = {
        name: embedder_factory(name, config.hidden_size, settings)
        for name, settings in processor.get("modalities", {}).items()
    }
    with torch.device("meta"):  # no memory and no random numbers for weights that are replaced at once
        model = Model(config, embedders)
    load_weights(model, path / WEIGHTS)
    model.to_dtype(dtype).eval()
    return Loaded(model=model, config=config, processor=processor, files=files)


def load_weights(model: Model, path: Path) -> None:
    """Fill `model` from a safetensors file and the added embedders beside it, strictly. Embedders become float32."""
    try:
        tensors = load_file(path) | grafted_tensors(path.parent)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: cannot be read as safetensors ({error})") from error
    wanted = stored_views(model.state_dict().items())
    problems = [
        *_list("missing", sorted(set(wanted) - set(tensors))),
        *_list("unknown", sorted(set(tensors) - set(wanted))),
        *_list(
            "of another shape",
            [
                f"{name} {list(tensors[name].shape)} instead of {list(wanted[name].shape)}"
                for name in sorted(set(wanted) & set(tensors))
                if tensors[name].shape != wanted[name].shape
            ],
        ),
    ]
    if problems:
        raise CheckpointError(f"{path}: does not fit the model of its config.json: " + "; ".join(problems))
    for name, tensor in tensors.items():
        if name.startswith("embedders.") and tensor.is_floating_point():
            tensors[name] = tensor.float()
    requires_grad = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    model.load_state_dict(from_stored(tensors), strict=True, assign=True)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(requires_grad[name])
    for module in model.modules():
        if isinstance(module, Router):
            module.counts = torch.zeros(module.counts.shape, dtype=torch.int64)


def _list(what: str, names: list[str]) -> list[str]:
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return [f"{len(names)} tensors {what} ({shown})"] if names else []


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be read ({error.strerror}); a checkpoint is a directory with {CONFIG}, {WEIGHTS}, {PROCESSOR}"
        ) from error

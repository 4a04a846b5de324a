"""A model loaded from a checkpoint folder, with the encoders and settings that were saved in it."""

from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from watersmeet.core.checkpoint import load_checkpoint
from watersmeet.core.errors import CheckpointError
from watersmeet.core.official.config import OfficialConfig
from watersmeet.core.official.load import is_official
from watersmeet.pipelines.models.official import load_official_folder
from watersmeet.plugins.registry import get_registry

BUILT_IN = "nano"


@dataclass(frozen=True, kw_only=True)
class LocalModel:
    """`model` is ready for generation; `encoders` holds one encoder for each modality that the checkpoint names.

    recipe: what the checkpoint says about its modalities. official: the published configuration, of a model that has
    one. stop_ids: every id that ends an output. files: what lay beside the weights, by name.
    """

    name: str
    model: Any
    encoders: dict[str, Any]
    recipe: dict[str, Any]
    official: OfficialConfig | None = None
    stop_ids: tuple[int, ...] = ()
    files: dict[str, bytes] = field(default_factory=dict)


def built_in_folder() -> Path:
    """Where the weights that come with the package lie."""
    return Path(str(resources.files("watersmeet").joinpath("models", BUILT_IN)))


def find_local(spec: str) -> Path:
    """The checkpoint folder that `spec` names: the built-in model's name or a path. Raises CheckpointError if there is none."""
    folder = built_in_folder() if spec == BUILT_IN else Path(spec)
    try:
        found = (folder / "config.json").is_file()
    except PermissionError as error:
        raise CheckpointError(f"{folder}: cannot be read ({error.strerror}); give the right to read it") from error
    if not found:
        known = f"{BUILT_IN!r}, a checkpoint folder, or openai:NAME@URL"
        hint = f"; did you mean {BUILT_IN!r}?" if _alike(spec) else f"; give {known}"
        raise CheckpointError(f"there is no model {spec!r}{hint}")
    return folder


def _alike(spec: str) -> bool:
    from difflib import get_close_matches

    return spec != BUILT_IN and bool(get_close_matches(spec.lower(), [BUILT_IN], cutoff=0.6))


def load_local(
    spec: str,
    *,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    packed_experts: bool = False,
    embedders_alone: bool = False,
) -> LocalModel:
    """Load the checkpoint that `spec` names: our own layout or a published one, which config.json tells.

    packed_experts: keep MXFP4 experts packed; only published checkpoints have them. embedders_alone: of a published
    checkpoint read nothing but the embedders; the model can then only `embed`.
    """
    folder = find_local(spec)
    registry = get_registry()
    if is_official(folder):
        loaded, official, encoders = load_official_folder(
            folder,
            registry,
            dtype=dtype,
            device=device,
            packed_experts=packed_experts,
            embedders_alone=embedders_alone,
        )
        return LocalModel(
            name=spec,
            model=loaded.model,
            encoders=encoders,
            recipe=loaded.processor,
            official=official,
            stop_ids=official.eos_ids,
            files=loaded.files,
        )
    if packed_experts:
        raise CheckpointError(f"{folder}: packed experts are read from published MXFP4 checkpoints, which this is not")
    loaded = load_checkpoint(folder, registry.embedder, dtype=dtype)
    loaded.model.to(device).eval()
    modalities = loaded.processor["modalities"]
    kept = loaded.processor.get("official")
    # a model that came from a published directory without tokenizer files reads ids alone, as it did there
    wordless = kept is not None and "model" not in modalities.get("text", {"model": ""})
    encoders = {
        name: registry.encoder(name, settings, files=loaded.files)
        for name, settings in modalities.items()
        if name != "text" or not wordless
    }
    # a published configuration names no modality
    described = None if kept is None else OfficialConfig.from_dict(kept, loaded.config.replace(output_modality=""))
    ends = getattr(encoders.get(loaded.config.output_modality), "eos_id", -1)
    return LocalModel(
        name=spec,
        model=loaded.model,
        encoders=encoders,
        recipe=loaded.processor,
        official=described,
        stop_ids=described.eos_ids if described is not None else (ends,) if ends >= 0 else (),
        files=loaded.files,
    )

"""Further embedders for a model that is there already, without touching a byte of it.

A grafted directory holds the files of its base (weights as hard links where the file system allows it) and two of our own:

    embedders.safetensors   embedders.<modality>.<parameter>, of the added modalities alone
    processor.json          their settings, beside those of a base of our own format

So it loads wherever the base loads, costs the new embedders in space, and what reads text alone gives the same numbers.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from watersmeet.core.errors import CheckpointError
from watersmeet.core.files import written_beside

GRAFTED, PROCESSOR, CONFIG = "embedders.safetensors", "processor.json", "config.json"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")

EmbedderFactory = Callable[[str, int, Mapping[str, Any]], nn.Module]


@dataclass(frozen=True, kw_only=True)
class Graft:
    """One added modality: the complete settings of its encoder, the encoder's files, and its embedder."""

    settings: Mapping[str, Any]
    files: Mapping[str, bytes] = field(default_factory=dict)
    embedder: nn.Module


def read_processor(directory: Path) -> dict[str, Any]:
    """The object of processor.json, {"files": [...], "processor": {"modalities": {...}}}; empty lists where there is none."""
    path = directory / PROCESSOR
    if not path.is_file():
        return {"files": [], "processor": {"modalities": {}}}
    try:
        found = json.loads(path.read_bytes())
        files, processor = list(found["files"]), dict(found["processor"])
        processor["modalities"] = dict(processor.get("modalities", {}))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: not the description of a processor ({error!r})") from error
    return {"files": files, "processor": processor}


def grafted_tensors(directory: Path) -> dict[str, Tensor]:
    """Tensors of the added embedders by full name; {} where the directory has none."""
    path = directory / GRAFTED
    if not path.is_file():
        return {}
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: cannot be read as safetensors ({error})") from error
    if strange := [name for name in tensors if not name.startswith("embedders.") or name.count(".") < 2]:
        raise CheckpointError(f"{path}: holds {strange[0]!r}, expected names embedders.<modality>.<parameter>")
    return tensors


def grafted_names(directory: Path) -> tuple[str, ...]:
    """Modalities that were added to the base."""
    return tuple(sorted({name.split(".")[1] for name in grafted_tensors(directory)}))


def write_graft(base: Path, out: Path, grafts: Mapping[str, Graft]) -> None:
    """Write directory `out`: `base` with `grafts` added. `base` may be of either layout, or grafted before.

    `out` appears when it is complete and not before. Raises CheckpointError where `base` is no model directory, `out` is
    there already, or a file of a new encoder has the name of another file.
    """
    if not (base / CONFIG).is_file():
        raise CheckpointError(f"{base}: has no {CONFIG}; a base is a directory with a model")
    description = read_processor(base)
    taken = description["processor"]["modalities"]
    tensors = grafted_tensors(base)
    for name, graft in grafts.items():
        if name in taken:
            raise CheckpointError(f"{base}: reads {name!r} already; leave it out")
        taken[name] = dict(graft.settings)
        tensors |= {f"embedders.{name}.{key}": value for key, value in graft.embedder.state_dict().items()}
    files: dict[str, bytes] = {}
    for name, graft in grafts.items():
        for file, content in graft.files.items():
            present = files.get(file, (base / file).read_bytes() if (base / file).is_file() else content)
            if Path(file).name != file or file in (CONFIG, GRAFTED, PROCESSOR) or present != content:
                raise CheckpointError(
                    f"{base}: modality {name!r} brings a file {file!r}, whose name is taken or not a plain one"
                )
            files[file] = content
    description["files"] = sorted({*description["files"], *files})
    _write(base, out, tensors, description, files)


def write_trained(base: Path, out: Path, embedders: Mapping[str, nn.Module], *, replace: bool = False) -> None:
    """Write directory `out`: the grafted directory `base` with the values that its added embedders have now.

    replace: an older `out` gives way once the new one is complete. Raises CheckpointError like `write_graft`.
    """
    tensors = {
        f"embedders.{name}.{key}": value
        for name in grafted_names(base)
        for key, value in embedders[name].state_dict().items()
    }
    _write(base, out, tensors, read_processor(base), {}, replace=replace)


def _write(
    base: Path,
    out: Path,
    tensors: Mapping[str, Tensor],
    description: Mapping[str, Any],
    files: Mapping[str, bytes],
    *,
    replace: bool = False,
) -> None:
    if out.exists() and not replace:
        raise CheckpointError(f"{out}: is there already; remove it or write to another place")
    with written_beside(out) as partial:
        for path in sorted(base.iterdir()):
            # weights in pickle files are never read, so they are not passed on either
            pickled = path.name.endswith(_PICKLES) and path.name not in description["files"]
            if path.is_file() and path.name not in (GRAFTED, PROCESSOR) and not pickled:
                _pass_on(path, partial / path.name)
        for name, content in files.items():
            if not (partial / name).exists():
                (partial / name).write_bytes(content)
        (partial / PROCESSOR).write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
        kept = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        save_file(kept, partial / GRAFTED, metadata={"format": "pt"})


def _pass_on(source: Path, target: Path) -> None:
    """A second name for a file of weights, a copy of any other; links of a download cache are followed."""
    source = source.resolve()
    if source.suffix == ".safetensors":
        try:
            os.link(source, target)
            return
        except OSError:
            pass  # another file system, or one without hard links
    shutil.copyfile(source, target)


def add_grafted(
    embedders: nn.ModuleDict,
    directory: Path,
    hidden_size: int,
    factory: EmbedderFactory,
    device: torch.device | str = "cpu",
) -> dict[str, dict[str, Any]]:
    """Build the added embedders of `directory`, fill them (float32) and put them into `embedders`; their settings by name.

    Raises CheckpointError naming tensors that are missing, unknown or of another shape.
    """
    tensors = grafted_tensors(directory)
    described = read_processor(directory)["processor"]["modalities"]
    found = {}
    for name in sorted({full.split(".")[1] for full in tensors}):
        if name not in described:
            raise CheckpointError(f"{directory / PROCESSOR}: has no settings for {name!r}, which is in {GRAFTED}")
        embedder = factory(name, hidden_size, described[name])
        start = f"embedders.{name}."
        mine = {full.removeprefix(start): value for full, value in tensors.items() if full.startswith(start)}
        wanted = embedder.state_dict()
        wrong = [key for key in wanted if key in mine and wanted[key].shape != mine[key].shape]
        for what, keys in (("missing", wanted.keys() - mine.keys()), ("unknown", mine.keys() - wanted.keys()), ("of another shape", wrong)):  # fmt: skip
            if keys:
                raise CheckpointError(
                    f"{directory / GRAFTED}: {len(keys)} tensors {what} for {name!r} with the settings of {PROCESSOR} "
                    f"(first: {start}{min(keys)})"
                )
        embedder.load_state_dict({key: v.float() if v.is_floating_point() else v for key, v in mine.items()})
        embedders[name] = embedder.float().to(device)
        found[name] = described[name]
    return found

"""A model loaded from a checkpoint folder, with the encoders and settings that were saved in it."""

from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from watersmeet.core.checkpoint import load_checkpoint
from watersmeet.core.errors import CheckpointError
from watersmeet.plugins.registry import get_registry

BUILT_IN = "nano"


@dataclass(frozen=True, kw_only=True)
class LocalModel:
    """`model` is ready for generation; `encoders` holds one encoder for each modality that the checkpoint names."""

    name: str
    model: Any
    encoders: dict[str, Any]
    recipe: dict[str, Any]


def built_in_folder() -> Path:
    """Where the weights that come with the package lie."""
    return Path(str(resources.files("watersmeet").joinpath("models", BUILT_IN)))


def find_local(spec: str) -> Path:
    """The checkpoint folder that `spec` names: the built-in model's name or a path. Raises CheckpointError if there is none."""
    folder = built_in_folder() if spec == BUILT_IN else Path(spec)
    if not (folder / "config.json").is_file():
        known = f"{BUILT_IN!r}, a checkpoint folder, or openai:NAME@URL"
        hint = f"; did you mean {BUILT_IN!r}?" if _alike(spec) else f"; give {known}"
        raise CheckpointError(f"there is no model {spec!r}{hint}")
    return folder


def _alike(spec: str) -> bool:
    from difflib import get_close_matches

    return spec != BUILT_IN and bool(get_close_matches(spec.lower(), [BUILT_IN], cutoff=0.6))


def load_local(spec: str, *, dtype: torch.dtype = torch.float32) -> LocalModel:
    """Load the checkpoint that `spec` names."""
    folder = find_local(spec)
    registry = get_registry()
    loaded = load_checkpoint(folder, registry.embedder, dtype=dtype)
    loaded.model.eval()
    modalities = loaded.processor["modalities"]
    encoders = {name: registry.encoder(name, settings, files=loaded.files) for name, settings in modalities.items()}
    return LocalModel(name=spec, model=loaded.model, encoders=encoders, recipe=loaded.processor)

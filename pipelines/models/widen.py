"""A model with a larger vocabulary and further modalities, everything that it knew kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from watersmeet.core.checkpoint import save_checkpoint
from watersmeet.core.errors import CheckpointError, ConfigError
from watersmeet.core.model import Model
from watersmeet.pipelines.models.local import load_local
from watersmeet.pipelines.models.modalities import TEXT
from watersmeet.plugins.registry import get_registry

_TABLES = (f"embedders.{TEXT}.", "lm_head.")  # a row for each id


def widen(
    base: str,
    out: Path,
    *,
    vocabulary: bytes | None = None,
    modalities: Mapping[str, Mapping[str, Any]] | None = None,
    like: Mapping[str, str] | None = None,
    seed: int = 0,
) -> Model:
    """Write the model folder `out`: `base` with another vocabulary and more modalities. Returns the model.

    vocabulary: a sentencepiece model; ids with a name that `base` knows keep their rows, others get small random ones.
    modalities: settings by name of the new ones. like: for some of these a modality of `base`, whose weights they take
    over where they have ones of the same name; of longer tables the beginning. Raises CheckpointError where `out` is
    there already, ConfigError for a modality that `base` has.
    """
    if out.exists():
        raise CheckpointError(f"{out}: is there already; remove it or write to another place")
    loaded = load_local(base)
    registry = get_registry()
    settings = {name: dict(encoder.settings) for name, encoder in loaded.encoders.items()}
    files = dict(loaded.files)
    if vocabulary is not None:
        encoder = registry.encoder(TEXT, {"model": vocabulary})
        settings[TEXT], files = encoder.settings, files | encoder.files
    for name, values in (modalities or {}).items():
        if name in settings:
            raise ConfigError(f"{base} reads {name!r} already; leave it out")
        settings[name] = registry.encoder(name, values).settings
    text = registry.encoder(TEXT, settings[TEXT], files=files)
    config = loaded.model.config.replace(vocab_size=text.vocab_size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        embedders = {name: registry.embedder(name, config.hidden_size, values) for name, values in settings.items()}
        model = Model(config, embedders)
    rows = _rows(loaded.encoders[TEXT].vocabulary, text.vocabulary)
    _take_over(model, loaded.model, rows)
    for name, other in (like or {}).items():
        _copy(model.embedders[name], loaded.model.embedders[other])
    save_checkpoint(out, model, config, {"modalities": settings}, files)
    return model


def _rows(old: Any, new: Any) -> list[tuple[int, int]]:
    """(id in the old vocabulary, id in the new one) of every name in both."""
    known = {old.name(index): index for index in range(old.size)}
    return [(known[name], index) for index in range(new.size) if (name := new.name(index)) in known]


def _take_over(model: Model, base: Model, rows: list[tuple[int, int]]) -> None:
    old, new = base.state_dict(), model.state_dict()
    sources, targets = (torch.tensor(ids) for ids in zip(*rows, strict=True))
    with torch.no_grad():
        for name, tensor in new.items():
            if name not in old:
                continue
            if name.startswith(_TABLES) and tensor.shape[1:] == old[name].shape[1:]:
                tensor[targets] = old[name][sources].to(tensor.dtype)
            elif tensor.shape == old[name].shape:
                tensor.copy_(old[name])
            else:
                raise ConfigError(f"{name} is {tuple(old[name].shape)}, which does not fit {tuple(tensor.shape)}")


def _copy(target: nn.Module, source: nn.Module) -> None:
    """Weights of the same name, of tables of another length as many rows as both have."""
    old: dict[str, Tensor] = source.state_dict()
    with torch.no_grad():
        for name, tensor in target.state_dict().items():
            if name in old and tensor.shape[1:] == old[name].shape[1:]:
                count = min(len(tensor), len(old[name])) if tensor.dim() else 0
                tensor[:count].copy_(old[name][:count])

"""A model folder that nothing has been taught yet: a preset's shape, a vocabulary made of given texts, any modalities."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from watersmeet.core.checkpoint import save_checkpoint
from watersmeet.core.config import preset
from watersmeet.core.errors import CheckpointError, ConfigError
from watersmeet.core.model import Model
from watersmeet.pipelines.models.modalities import TEXT
from watersmeet.plugins.registry import get_registry


def new_model(
    out: Path,
    *,
    texts: Iterable[str],
    symbols: Sequence[str] = (),
    modalities: Mapping[str, Mapping[str, Any]] | None = None,
    shape: str = "micro",
    vocab_size: int = 512,
    seed: int = 0,
) -> Model:
    """Write the model folder `out` and return the model.

    texts, symbols, vocab_size: of the vocabulary, see `Encoder.train` of the text modality; fewer ids than `vocab_size` are kept
    where the texts give no more. modalities: settings by name, besides text. shape: a preset. Equal arguments give equal weights.
    Raises ConfigError for a vocabulary or preset that cannot be, CheckpointError where `out` is there already, PluginError for a
    modality that is not.
    """
    if out.exists():
        raise CheckpointError(f"{out}: is there already; remove it or write to another place")
    registry = get_registry()
    encoder = registry.resolve_modality(TEXT, "encoder").train(texts, list(symbols), vocab_size)
    encoders = {TEXT: encoder}
    for name, values in (modalities or {}).items():
        if name == TEXT:
            raise ConfigError("a new model reads text in any case; leave it out of the modalities")
        encoders[name] = registry.encoder(name, values)
    config = preset(shape).replace(vocab_size=encoder.vocab_size, output_modality=TEXT)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        embedders = {
            name: registry.embedder(name, config.hidden_size, made.settings) for name, made in encoders.items()
        }
        model = Model(config, embedders)
    files: dict[str, bytes] = {}
    for name, made in encoders.items():
        if taken := sorted(set(files) & set(made.files)):
            raise ConfigError(f"modality {name!r} brings a file {taken[0]!r}, and so does another one")
        files |= made.files
    save_checkpoint(out, model, config, {"modalities": {name: made.settings for name, made in encoders.items()}}, files)
    return model

"""Which modalities a model directory reads, known without reading a weight."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from watersmeet.core.checkpoint import Loaded
from watersmeet.core.config import ModelConfig
from watersmeet.core.errors import CheckpointError, PluginError
from watersmeet.core.graft import add_grafted, grafted_names, read_processor
from watersmeet.core.official.load import carried_files, is_official, read_official_config
from watersmeet.core.official.shards import Shards
from watersmeet.plugins.guard import attempt
from watersmeet.plugins.registry import get_registry

TEXT = "text"
"""The modality that official checkpoints write."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """hidden_size: width of an embedding. modalities: names of what the model reads. official: whose layout it has."""

    hidden_size: int
    modalities: tuple[str, ...]
    official: bool


def model_facts(folder: Path) -> Facts:
    """What can be said of a model directory from its configuration and the headers of its files.

    Raises CheckpointError or ConfigError naming what is wrong with it.
    """
    if not is_official(folder):
        try:
            config = ModelConfig.from_json((folder / "config.json").read_text(encoding="utf-8"))
        except OSError as error:
            raise CheckpointError(f"{folder / 'config.json'}: cannot be read ({error.strerror})") from error
        names = tuple(read_processor(folder)["processor"]["modalities"])
        return Facts(hidden_size=config.hidden_size, modalities=names, official=False)
    shards = Shards(folder)
    official = read_official_config(folder, shards)
    published = published_modalities(shards.shapes, official.raw, carried_files(folder))
    names = tuple(dict.fromkeys((TEXT, *published, *grafted_names(folder))))
    return Facts(hidden_size=official.model.hidden_size, modalities=names, official=True)


def published_modalities(
    shapes: Mapping[str, tuple[int, ...]], config: Mapping[str, Any], files: Mapping[str, bytes]
) -> dict[str, dict[str, Any]]:
    """Settings of the modalities, besides text, whose embedders' tensors are among `shapes`.

    An embedder class that can stand in published files says so in `published_settings(shapes, config, files)`, which
    gives its settings or None. Arguments: shapes of all tensors by name, the object of config.json, small files by name.
    """
    if all(name.startswith(("model.", "language_model.", "lm_head.")) for name in shapes):
        return {}  # a model of text alone: no plugin need be imported
    registry, found = get_registry(), {}
    for spec in registry.modalities():
        try:
            embedder = registry.resolve_modality(spec.name, "embedder")
        except PluginError:
            continue  # somebody else's plugin that is broken; `watersmeet plugins` says so
        read = getattr(embedder, "published_settings", None)
        if read is None:
            continue
        settings, error = attempt(functools.partial(read, shapes, config, files), strict=False)
        if error is not None and registry.modality_owner(spec.name).own:
            raise error
        # a fault of somebody else's plugin must not keep a model from being read
        if settings is not None:
            found[spec.name] = settings
    return found


def add_grafted_modalities(loaded: Loaded, folder: Path) -> Loaded:
    """An official model with the embedders that were added to its directory, if any."""
    device = loaded.model.lm_head.weight.device
    factory = get_registry().embedder
    added = add_grafted(loaded.model.embedders, folder, loaded.config.hidden_size, factory, device)
    processor = dict(loaded.processor)
    processor["modalities"] = {**processor["modalities"], **added}
    return dataclasses.replace(loaded, processor=processor)

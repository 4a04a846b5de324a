"""What a model folder reads with: its encoders and what it says about them, without its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from watersmeet.core.config import ModelConfig
from watersmeet.core.errors import CheckpointError, UsageError
from watersmeet.core.graft import read_processor
from watersmeet.core.official.load import carried_files, is_official, read_official_config
from watersmeet.core.official.shards import Shards
from watersmeet.pipelines.models.local import LocalModel, find_local
from watersmeet.pipelines.models.modalities import TEXT, published_modalities
from watersmeet.pipelines.models.official import modality_settings
from watersmeet.pipelines.models.video import reads_clips
from watersmeet.plugins.registry import Registry, get_registry


@dataclass(frozen=True, kw_only=True)
class Reading:
    """encoders: one a modality (none for text without tokenizer files). settings: of every modality, plain values. recipe:
    what processor.json says besides."""

    name: str
    encoders: Mapping[str, Any]
    settings: Mapping[str, dict[str, Any]]
    recipe: Mapping[str, Any]
    output: str
    vocab_size: int

    @property
    def writer(self) -> Any:
        """The encoder of what the model writes. Raises CheckpointError where the folder has no vocabulary."""
        if self.output not in self.encoders:
            raise CheckpointError(
                f"{self.name}: has no tokenizer files, so {self.output!r} cannot be encoded; put them there"
            )
        return self.encoders[self.output]


def reading_of(local: LocalModel) -> Reading:
    """The same of a model that is loaded."""
    config = local.model.config
    return Reading(
        name=local.name,
        encoders=local.encoders,
        settings=local.recipe["modalities"],
        recipe=local.recipe,
        output=str(config.output_modality),
        vocab_size=int(config.vocab_size),
    )


def read_folder(spec: str) -> Reading:
    """Encoders of the model that `spec` names. Raises CheckpointError or ConfigError naming what is wrong with it."""
    folder, registry = find_local(spec), get_registry()
    described = read_processor(folder)["processor"]
    if is_official(folder):
        shards = Shards(folder)
        official = read_official_config(folder, shards)
        files = carried_files(folder)
        settings = modality_settings(official, files)
        settings |= published_modalities(shards.shapes, official.raw, files) | described["modalities"]
        vocab, output = official.model.vocab_size, TEXT
    else:
        config = ModelConfig.from_json(_bytes(folder / "config.json").decode())
        files = {name: _bytes(folder / Path(name).name) for name in read_processor(folder)["files"]}
        settings, vocab, output = described["modalities"], config.vocab_size, config.output_modality
    encoders = _encoders(registry, settings, files)
    full = {name: dict(getattr(encoders.get(name), "settings", values)) for name, values in settings.items()}
    return Reading(name=spec, encoders=encoders, settings=full, recipe=described, output=output, vocab_size=vocab)


def _encoders(
    registry: Registry, settings: Mapping[str, Mapping[str, Any]], files: Mapping[str, bytes]
) -> dict[str, Any]:
    # a text modality without a vocabulary reads ids alone
    named = {name: values for name, values in settings.items() if name != TEXT or "model" in values}
    return {name: registry.encoder(name, values, files=files) for name, values in named.items()}


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error


def modality_for(kind: str, reading: Reading) -> str:
    """The modality of a model that reads a part of type `kind`: one of that name, else the one that reads such media.

    Raises UsageError when no modality does, or several.
    """
    if kind in reading.settings:
        return kind
    registry = get_registry()
    media = f"{kind}/"
    # regions are what was read of a picture; they stand beside it and are none themselves
    fitting = [
        name
        for name in reading.settings
        if name != "regions" and any(known.startswith(media) for known in registry.modality(name).media_types)
    ]
    if not fitting and kind == "video":
        # what reads pictures reads clips where its settings leave room for frames
        fitting = [name for name in reading.settings if reads_clips(name, reading.settings)]
    if len(fitting) == 1:
        return fitting[0]
    known = ", ".join(reading.settings)
    if fitting:
        raise UsageError(
            f"{' and '.join(fitting)} of {reading.name} read {kind!r}; name the modality as the part's type"
        )
    raise UsageError(
        f"no modality of {reading.name} reads {kind!r} (it reads {known}); add one with `watersmeet graft`"
    )

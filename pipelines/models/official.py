"""A model directory in the published layout: which modalities its files hold, and with which settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from watersmeet.core.checkpoint import Loaded
from watersmeet.core.official.config import OfficialConfig
from watersmeet.core.official.load import carried_files, load_official, read_official_config, refuse_pickled
from watersmeet.core.official.shards import Shards
from watersmeet.pipelines.models.modalities import add_grafted_modalities, published_modalities
from watersmeet.plugins.registry import Registry

RANKS, PIECES = "tiktoken.model", "tokenizer.model"
"""Vocabularies of text: the releases' own, and sentencepiece's in exports of models of our own layout."""

VISION = ("vision_tower.", "mm_projector.")


def load_official_folder(
    folder: Path,
    registry: Registry,
    *,
    dtype: torch.dtype,
    device: str | torch.device = "cpu",
    packed_experts: bool = False,
    embedders_alone: bool = False,
) -> tuple[Loaded, OfficialConfig, dict[str, Any]]:
    """Model, configuration and encoders of a published directory.

    Without tokenizer files there is no encoder for text, and only ids can be given. What is wrong with any file is an
    error before weights are read.
    """
    refuse_pickled(folder)
    shards = Shards(folder)
    official = read_official_config(folder, shards)
    files = carried_files(folder)
    published = published_modalities(shards.shapes, official.raw, files)
    modalities = modality_settings(official, files) | published
    encoders = {}
    for name, settings in modalities.items():
        if name != "text" or "model" in settings:
            encoders[name] = registry.encoder(name, settings, files=files)
            modalities[name] = encoders[name].settings
    with torch.device("meta"):
        width = official.model.hidden_size
        embedders = {name: registry.embedder(name, width, settings) for name, settings in modalities.items()}
    loaded = load_official(
        folder,
        embedders=embedders,
        output_modality="text",
        modalities=modalities,
        dtype=dtype,
        device=device,
        packed_experts=packed_experts,
        skip=() if published else VISION,
        official=official,
        embedders_alone=embedders_alone,
    )
    for name in published:
        # computed in the dtype of the model, as it was trained; for embedders of our own float32 is the rule
        loaded.model.embedders[name].to(dtype)
    loaded = add_grafted_modalities(loaded, folder)
    for name, settings in loaded.processor["modalities"].items():
        if name not in modalities:
            encoders[name] = registry.encoder(name, settings, files=files)
    return loaded, official, encoders


def modality_settings(official: OfficialConfig, files: Mapping[str, bytes]) -> dict[str, dict[str, Any]]:
    """Settings of the encoder and embedder of every modality that the files are read with."""
    text: dict[str, Any] = {"vocab_size": official.model.vocab_size}
    if RANKS in files:
        text |= {"tokenizer": "tiktoken", "model": RANKS, "family": official.family}
    elif PIECES in files:
        text |= {"model": PIECES}
    return {"text": text}

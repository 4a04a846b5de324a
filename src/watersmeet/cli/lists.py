"""What is here, one line each: pipelines, modalities, models, plugins. Nothing heavy is imported."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources
from typing import Any

from watersmeet.plugins.registry import get_registry


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines with columns of equal width, the last one ragged."""
    if not rows:
        return []
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def pipeline_lines() -> list[str]:
    """Name, inputs and summary of each pipeline."""
    registry = get_registry()
    rows = [(spec.name, ", ".join(spec.inputs), spec.summary) for spec in registry.pipelines()]
    return table(rows) or ["no pipelines; `watersmeet plugins` says why"]


def modality_lines() -> list[str]:
    """Name, directions, media types and summary of each modality."""
    rows = []
    for spec in get_registry().modalities():
        directions = "+".join(word for word, on in (("reads", spec.reads), ("writes", spec.writes)) if on)
        rows.append((spec.name, directions, ", ".join(spec.media_types), spec.summary))
    return table(rows) or ["no modalities; `watersmeet plugins` says why"]


def plugin_lines() -> list[str]:
    """Name, state, package and what it brings, or the reason why it brings nothing."""
    rows = []
    for record in get_registry().records():
        brings = [f"modality {spec.name}" for spec in record.modalities]
        brings += [f"pipeline {spec.name}" for spec in record.pipelines]
        reason = record.error or ", ".join(brings)
        rows.append((record.plugin, record.state, f"{record.distribution} {record.version}".strip(), reason))
    return table(rows) or ["no plugins are installed"]


def model_lines() -> list[str]:
    """Models that come with the package, then the two other forms that --model takes."""
    rows = []
    folder = resources.files("watersmeet").joinpath("models")
    if folder.is_dir():
        for entry in sorted(folder.iterdir(), key=lambda item: item.name):
            if entry.joinpath("config.json").is_file():
                rows.append((entry.name, _describe(entry)))
    rows.append(("PATH", "a checkpoint folder, e.g. the one `watersmeet train` writes"))
    rows.append(("openai:NAME@URL", "a model behind an OpenAI-compatible server"))
    return table(rows)


def _describe(folder: Any) -> str:
    """Shape of a model in words, from its configuration alone."""
    config = json.loads(folder.joinpath("config.json").read_text(encoding="utf-8"))
    weights = folder.joinpath("model.safetensors")
    size = f", {len(weights.read_bytes()) / 1e6:.1f} MB" if weights.is_file() else ", weights missing"
    return f"built in: {config.get('num_hidden_layers', '?')} layers of width {config.get('hidden_size', '?')}{size}"

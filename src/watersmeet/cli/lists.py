"""What is here, one line each: pipelines, modalities, models, plugins. Nothing heavy is imported."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import resources
from typing import Any

from watersmeet.plugins.loader import FAILED, LOADED
from watersmeet.plugins.survey import Brought, Seen, collisions, survey


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines with columns of equal width, the last one ragged."""
    if not rows:
        return []
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def pipeline_lines() -> list[str]:
    """Name, inputs and summary of each pipeline."""
    rows = [(name, ", ".join(item.takes), item.summary) for name, item in _brought("pipeline")]
    return table(rows) or ["no pipelines; `watersmeet plugins` says why"]


def modality_lines() -> list[str]:
    """Name, directions, media types and summary of each modality."""
    rows = [(name, item.directions, ", ".join(item.takes), item.summary) for name, item in _brought("modality")]
    return table(rows) or ["no modalities; `watersmeet plugins` says why"]


def _brought(kind: str) -> list[tuple[str, Brought]]:
    """What the plugins bring of a kind, under the name by which it is asked for."""
    seen = survey()
    taken = collisions(seen)
    rows: dict[str, Brought] = {}
    for one in seen:
        for item in one.brings:
            if item.kind == kind:
                rows[_asked_for(one, item, taken)] = item
    return sorted(rows.items())


def _asked_for(one: Seen, item: Brought, taken: Mapping[tuple[str, str], list[Seen]]) -> str:
    owners = taken.get((item.kind, item.name))
    if owners is None or one.own:
        return item.name
    packages = {owner.distribution for owner in owners}
    word = one.plugin if len(packages) < len(owners) else one.distribution
    return f"{word}:{item.name}"


def plugin_lines(seen: Sequence[Seen]) -> list[str]:
    """Name, state, package and what it brings, or the reason why it brings nothing; below that, what is odd."""
    taken = collisions(list(seen))
    rows = []
    for one in seen:
        brings = []
        for item in one.brings:
            word = _asked_for(one, item, taken)
            brings.append(f"{item.kind} {item.name}" + (f" (ask for {word})" if word != item.name else ""))
        package = f"{one.distribution} {one.version}".strip()
        nothing = "brings nothing" if one.state == LOADED else ""
        rows.append((one.plugin, one.state, package, one.error or ", ".join(brings) or nothing))
    return table(rows) or ["no plugins are installed"]


def plugin_oddities(seen: Sequence[Seen]) -> list[str]:
    """One sentence for each thing that works and should not be so."""
    sentences = []
    for (kind, name), owners in collisions(list(seen)).items():
        names = " and ".join(owner.owner for owner in owners)
        ours = "; the bare name means watersmeet's own" if any(owner.own for owner in owners) else ""
        sentences.append(f"{kind} {name!r} is brought by {names}{ours}")
    for one in seen:
        if one.heavy:
            sentences.append(f"{one.plugin} imports {one.heavy[0]} when it is only looked at, which makes lists slow")
        if one.printed:
            sentences.append(f"{one.plugin} prints when it is imported: {' '.join(one.printed.split())[:60]!r}")
    return sentences


def plugins_as_json(seen: Sequence[Seen]) -> str:
    """The same as one JSON list."""
    return json.dumps([asdict(one) for one in seen], indent=1, ensure_ascii=False)


def failures(seen: Sequence[Seen]) -> str:
    """One sentence that names every plugin that failed to load, "" where none did."""
    failed = [f"{one.owner}: {one.error}" for one in seen if one.state == FAILED]
    return f"{len(failed)} plugin(s) failed to load: {'; '.join(failed)}" if failed else ""


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

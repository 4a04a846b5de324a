"""`watersmeet graft`: a model that reads one more modality, made from one that does not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from watersmeet.cli.run import parse_assignments
from watersmeet.core.errors import PluginError, UsageError
from watersmeet.plugins.registry import Registry, get_registry


def graft_command(base: str, modality: str, out: Path, *, assignments: Sequence[str] = (), seed: int = 0) -> str:
    """Write `out`: the model `base` with fresh embedders for the named modalities (words joined by commas).

    assignments: MODALITY.KEY=VALUE for the encoders' settings. seed: of the new weights. Returns the closing line. The
    weights of the base are neither read nor written. Raises UsageError for a modality that is unknown or cannot be
    added, CheckpointError for a base that is no model directory or an `out` that is there already.
    """
    registry = get_registry()
    names = check_names(registry, modality)
    settings = modality_settings(names, assignments)
    import torch

    from watersmeet.core.graft import Graft, write_graft
    from watersmeet.pipelines.models.local import find_local
    from watersmeet.pipelines.models.modalities import model_facts

    folder = find_local(base)
    facts = model_facts(folder)
    if present := [name for name in names if name in facts.modalities]:
        raise UsageError(f"the model {base} reads {present[0]!r} already; leave it out of --modality")
    grafts, sizes = {}, []
    for index, name in enumerate(names):
        encoder = registry.encoder(name, settings[name])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed + index)
            embedder = registry.embedder(name, facts.hidden_size, encoder.settings)
        grafts[name] = Graft(settings=encoder.settings, files=encoder.files, embedder=embedder)
        sizes.append(f"{name} ({sum(p.numel() for p in embedder.parameters()):,} parameters)")
    write_graft(folder, out, grafts)
    return f"{out}: {base} with {', '.join(sizes)} added; train them before you use them, e.g. {_example(names[0])}"


def _example(name: str) -> str:
    return f'with trainable = ["embedders.{name}"] in a recipe'


def check_names(registry: Registry, modality: str) -> list[str]:
    """The modalities that a list joined by commas names. Raises UsageError for one that is unknown or is not read."""
    names = [word.strip() for word in modality.split(",")]
    if "" in names or len(set(names)) != len(names):
        raise UsageError(
            f"--modality {modality!r} is not a list of different names joined by commas, e.g. image,regions"
        )
    known = ", ".join(sorted({spec.name for spec in registry.modalities() if spec.reads}))
    for name in names:
        try:
            spec = registry.modality(name)
        except PluginError as error:
            raise UsageError(f"{error}; modalities that can be added: {known}") from error
        if not spec.reads:
            raise UsageError(f"modality {name!r} is only written, not read; modalities that can be added: {known}")
        if "." in name or ":" in name:
            raise UsageError(f"modality {name!r}: give the plain name; modalities that can be added: {known}")
    return names


def modality_settings(names: Sequence[str], assignments: Sequence[str]) -> dict[str, dict[str, Any]]:
    settings: dict[str, dict[str, Any]] = {name: {} for name in names}
    for key, value in parse_assignments(assignments).items():
        name, dot, field = key.partition(".")
        if not dot or name not in settings:
            raise UsageError(
                f"--set {key} is not of the form MODALITY.KEY=VALUE for an added modality, e.g. --set {names[0]}.KEY=VALUE"
            )
        settings[name][field] = value
    return settings

"""`watersmeet run` and the benchmarks of the built-in pipelines."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from watersmeet.cli.console import show_progress
from watersmeet.core.errors import DecodeError, UsageError
from watersmeet.plugins.registry import get_registry
from watersmeet.plugins.result import Result


def run_pipeline(
    name: str,
    inputs: Sequence[str],
    *,
    out: Path,
    model: str = "nano",
    target: str | None = None,
    assignments: Sequence[str] = (),
) -> Result:
    """Run pipeline `name` on `inputs`, print progress and warnings to stderr and the closing line to stdout.

    Raises PluginError for an unknown pipeline and UsageError for a wrong --set, before anything slow is imported;
    CheckpointError for an unknown model; otherwise what the pipeline raises.
    """
    registry = get_registry()
    spec = registry.pipeline(name)  # says which names there are before anything slow is imported
    settings = parse_assignments(assignments)
    if target is not None:
        if settings.get("target", target) != target:
            raise UsageError(f"--target {target} contradicts --set target={settings['target']}; give one of them")
        settings["target"] = target
    for item in inputs:
        if "://" not in item and not Path(item).exists():
            raise DecodeError(f"there is no file {item}")
    from watersmeet.pipelines.models import open_model

    with show_progress() as progress:
        # a wrong setting should be told before a model is read, so the pipeline comes first
        pipeline = registry.resolve_pipeline(name)(settings)
        if not spec.own_model:
            progress(f"loading model {model}", 0.0)
        opened = None if spec.own_model else open_model(model)
        result: Result = pipeline.run(list(inputs), opened, out, progress)
    for warning in result.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    sys.stderr.flush()
    print(result.summary or f"{len(result.files)} files in {result.out_dir}", flush=True)
    return result


def parse_assignments(assignments: Sequence[str]) -> dict[str, Any]:
    """Settings from words KEY=VALUE; a value that is JSON is read as such (3, 0.5, true, [1, 2]), else it is text.

    Raises UsageError for a word without "=", an empty or odd key, and a key given twice.
    """
    settings: dict[str, Any] = {}
    for word in assignments:
        key, equals, value = word.partition("=")
        key = key.strip()
        if not equals or not key.replace("_", "a").replace("-", "a").replace(".", "a").isalnum():
            raise UsageError(f"--set {word!r} is not of the form KEY=VALUE, e.g. --set target=html")
        if key in settings:
            raise UsageError(f"--set gives {key!r} twice")
        try:
            settings[key] = json.loads(value)
        except ValueError:
            settings[key] = value
    return settings


def bench_screenshots(
    *,
    models: Sequence[str],
    out: Path,
    limit: int | None,
    data: Path,
    ablations: bool,
    pages: Sequence[Path],
    with_baselines: bool,
    regions: Path | None,
) -> None:
    """Run the benchmark of screenshot-to-code and print its tables."""
    from watersmeet.pipelines.browser.find import find_pages
    from watersmeet.pipelines.screenshot_to_code.bench import run

    _each_once(models)
    with show_progress() as progress:
        text = run(
            models=models,
            out_dir=out,
            limit=limit,
            progress=progress,
            data=data,
            ablations=ablations,
            pages=find_pages(pages) if pages else (),
            with_baselines=with_baselines,
            regions=regions,
        )
    print(text)


def bench_videos(
    *, models: Sequence[str], data: Path, out: Path, limit: int | None, blank: bool, with_baseline: bool
) -> None:
    """Run the benchmark of video-to-spec and print its tables."""
    from watersmeet.pipelines.video_to_spec.bench import run

    _each_once(models)
    with show_progress() as progress:
        text = run(
            models=models,
            data=data,
            out_dir=out,
            limit=limit,
            blank=blank,
            with_baseline=with_baseline,
            progress=progress,
        )
    print(text)


def _each_once(models: Sequence[str]) -> None:
    if len(set(models)) < len(models):
        raise UsageError(f"--model names {max(models, key=models.count)} twice")

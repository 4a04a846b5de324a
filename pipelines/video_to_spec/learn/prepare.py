"""Recordings with their truth -> lessons: each is looked at as it would be in use."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from watersmeet.core.errors import UsageError
from watersmeet.pipelines.data.workers import run_chunks
from watersmeet.pipelines.video_to_spec.labels import labels
from watersmeet.pipelines.video_to_spec.learn.store import write_lesson
from watersmeet.pipelines.video_to_spec.prompt import VIDEO
from watersmeet.pipelines.video_to_spec.truth import read_truth
from watersmeet.pipelines.video_to_spec.watch.look import look


def prepare(
    recordings: Path, out: Path, *, processes: int = 1, say: Callable[[str], None] = print
) -> tuple[int, list[str]]:
    """Write a lesson below `out` for each recording in a folder; what is there stays. Returns (how many lessons there are,
    names of the recordings that none could be made of).

    Raises UsageError for a folder without recordings.
    """
    truths = sorted(path for path in recordings.glob("*.json") if path.with_suffix(".mp4").exists())
    if not truths:
        raise UsageError(f"{recordings} holds no recordings; make some with `watersmeet data recordings`")
    out.mkdir(parents=True, exist_ok=True)
    tasks = [(out / path.name, (path,)) for path in truths]
    lost = run_chunks(teach, tasks, processes=processes, per_process=24, limit_s=600, say=say)
    return sum(path.exists() for path, _ in tasks), [path.stem for path in lost]


@cache
def _encoders() -> dict[str, Any]:
    from watersmeet.plugins.registry import get_registry

    registry = get_registry()
    return {"video": registry.encoder("video", VIDEO), "regions": registry.encoder("regions", {})}


def teach(truth_file: Path, path: Path) -> None:
    """Make the lesson `path` of one recording."""
    truth = read_truth(truth_file)
    encoders = _encoders()
    sight = look(truth_file.with_suffix(".mp4"), encoders=encoders)
    written = labels(truth.spec, [turn.observed for turn in sight.turns])
    write_lesson(sight, written, encoders["video"].settings, path)

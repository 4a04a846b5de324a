"""Many recordings, in a few processes, each written whole or not at all; what is there already stays."""

import os
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from watersmeet.core.errors import UsageError
from watersmeet.pipelines.browser.render import Browser
from watersmeet.pipelines.data.workers import run_chunks
from watersmeet.pipelines.video_to_spec.recordings.make import PLACES, SPLITS, make
from watersmeet.pipelines.video_to_spec.truth import read_truth


@dataclass(frozen=True, kw_only=True)
class Made:
    """What a folder of recordings holds after a build. variations: how many recordings have each."""

    recordings: int
    steps: int
    seconds: float
    actions: dict[str, int]
    variations: dict[str, int]
    lost: tuple[str, ...]


def build(
    out: Path,
    packages: Path,
    *,
    count: int,
    split: str,
    seed: int,
    seconds: float | None = None,
    processes: int = 1,
    say: Callable[[str], None] = print,
) -> Made:
    """Write `count` recordings as `SPLIT-NUMBER.mp4` with `SPLIT-NUMBER.json` below `out`, numbers from `seed` on.

    packages: the folder of unpacked packages. Raises UsageError for an unknown split or when packages are missing.
    """
    if split not in SPLITS:
        raise UsageError(f"--split is {split!r}, expected train or val")
    missing = [name for name in PLACES[split] if not (packages / name).is_dir()]
    if missing:
        raise UsageError(
            f"{packages} lacks {', '.join(missing)}; fetch with `watersmeet data fetch --split {split}` first"
        )
    out.mkdir(parents=True, exist_ok=True)
    files = [out / f"{split}-{number:06d}.json" for number in range(seed, seed + count)]
    tasks = [(path, (number, split, str(packages), seconds)) for number, path in enumerate(files, seed)]
    lost = run_chunks(record, tasks, processes=processes, per_process=8, say=say)
    return _made([path for path in files if path.exists()], tuple(path.stem for path in lost))


@cache
def _browser() -> Browser:
    """One browser a process; it ends with it."""
    return Browser(timeout_s=60)


def record(number: int, split: str, packages: str, seconds: float | None, path: Path) -> None:
    """Make one recording; `path` is its .json, which is put in place last."""
    with tempfile.TemporaryDirectory(prefix=f".{path.stem}-", dir=path.parent) as folder:
        video = Path(folder) / f"{path.stem}.mp4"
        make(number, split, Path(packages), _browser(), video, seconds=seconds)
        os.replace(video, path.with_suffix(".mp4"))
        os.replace(video.with_suffix(".json"), path)


def _made(files: list[Path], lost: tuple[str, ...]) -> Made:
    truths = [read_truth(path) for path in files]
    return Made(
        recordings=len(truths),
        steps=sum(len(truth.spec.steps) for truth in truths),
        seconds=sum(truth.spec.source.duration_s for truth in truths),
        actions=dict(Counter(step.action for truth in truths for step in truth.spec.steps).most_common()),
        variations=dict(Counter(name for truth in truths for name in truth.variations).most_common()),
        lost=lost,
    )

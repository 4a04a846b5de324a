"""Build training data: plan -> pictures and walker records (`raw/`) -> samples (`nano/`, `val/`)."""

import json
from collections.abc import Callable
from pathlib import Path

from watersmeet.pipelines.data.collect import CHUNK, collect_chunk
from watersmeet.pipelines.data.generator.pictures import write_pictures
from watersmeet.pipelines.data.plan import Job, plan
from watersmeet.pipelines.data.workers import run_chunks


def _collect(jobs: list[Job], root: Path, path: Path) -> None:
    from watersmeet.pipelines.browser.render import Browser

    collect_chunk(jobs, root, path, Browser)


def collect(
    root: Path,
    split: str,
    *,
    real: int,
    generated: int,
    first: int = 0,
    name: str | None = None,
    processes: int = 2,
    limit: int | None = None,
    say: Callable[[str], None] = print,
) -> Path:
    """Render the plan's views into `root`/raw/`name`; a plan that was begun goes on where it stopped. Returns the folder."""
    folder = root / "raw" / (name or split)
    folder.mkdir(parents=True, exist_ok=True)
    listing = folder / "plan.json"
    if listing.exists():
        jobs = [Job(**item) for item in json.loads(listing.read_text("utf-8"))]
    else:
        write_pictures(root / "pictures")
        jobs = plan(root, split, real=real, generated=generated, first=first)
        part = listing.with_suffix(".part")
        part.write_text(json.dumps([job.to_json() for job in jobs]), "utf-8")
        part.replace(listing)
    tasks = [(folder / f"chunk-{k // CHUNK:05d}.zip", (jobs[k : k + CHUNK], root)) for k in range(0, len(jobs), CHUNK)]
    run_chunks(_collect, tasks[:limit], processes=processes, say=say)
    return folder

"""Build training data: plan -> pictures and walker records (`raw/`) -> samples (`nano/`, `val/`)."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from watersmeet.pipelines.data.collect import CHUNK, collect_chunk
from watersmeet.pipelines.data.generator.pictures import write_pictures
from watersmeet.pipelines.data.plan import Job, plan
from watersmeet.pipelines.data.samples import measure_chunk
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


def measure(
    root: Path,
    name: str,
    out: Path,
    *,
    variants: int = 3,
    processes: int = 2,
    say: Callable[[str], None] = print,
) -> dict[str, int]:
    """Samples in `out` from all chunks collected as `name`; chunks that are there already stay. Returns counts."""
    out.mkdir(parents=True, exist_ok=True)
    sources = sorted((root / "raw" / name).glob("chunk-*.zip"))
    tasks = [(out / source.stem, (source, variants)) for source in sources]
    run_chunks(measure_chunk, tasks, processes=processes, say=say)
    return stats(out)["counts"]


def stats(out: Path) -> dict[str, Any]:
    """What `out` holds: counts of kept and dropped views, by package, by size, and spreads of the samples."""
    counts: Counter[str] = Counter()
    packages: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    texts, shapes, symbols = [], [], []
    for file in sorted(out.glob("chunk-*/index.json")):
        index = json.loads(file.read_text("utf-8"))
        counts.update(index["counts"])
        for entry in index["samples"]:
            packages[entry["package"]] += 1
            sizes[f"{entry['width']}x{entry['height']}"] += 1
            texts.append(entry["texts"])
            shapes.append(entry["shapes"])
            symbols.append(entry["variants"][0][3])
    return {
        "counts": dict(counts),
        "packages": dict(packages.most_common()),
        "sizes": dict(sizes),
        "texts": _spread(texts),
        "shapes": _spread(shapes),
        "symbols": _spread(symbols),
    }


def _spread(values: list[int]) -> dict[str, int]:
    if not values:
        return {}
    ordered = sorted(values)
    return {f"p{p}": ordered[min(len(ordered) - 1, len(ordered) * p // 100)] for p in (5, 25, 50, 75, 95)} | {"max": ordered[-1]}

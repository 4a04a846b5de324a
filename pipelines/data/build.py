"""Build training data: plan -> pictures and walker records (`raw/`) -> samples (`nano/`, `val/`)."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from watersmeet.pipelines.data.collect import CHUNK, collect_chunk
from watersmeet.pipelines.data.generator.pictures import write_pictures
from watersmeet.pipelines.data.plan import Job, plan
from watersmeet.pipelines.data.samples import VARIANTS, measure_chunk
from watersmeet.pipelines.data.workers import run_chunks


def planned(root: Path, split: str, *, real: int, generated: int, first: int = 0) -> list[Job]:
    """The views of `split`; a plan that was begun (`raw/<split>/plan.json`) is kept, so that a build can go on."""
    listing = root / "raw" / split / "plan.json"
    if listing.exists():
        return [Job(**item) for item in json.loads(listing.read_text("utf-8"))]
    write_pictures(root / "pictures")
    jobs = plan(root, split, real=real, generated=generated, first=first)
    listing.parent.mkdir(parents=True, exist_ok=True)
    part = listing.with_suffix(".part")
    part.write_text(json.dumps([job.to_json() for job in jobs]), "utf-8")
    part.replace(listing)
    return jobs


def make_chunk(jobs: list[Job], root: Path, raw: Path, variants: int, path: Path) -> None:
    """One chunk through both stages: render `jobs` to `raw` unless that is done, then write the samples to `path`."""
    from watersmeet.pipelines.browser.render import Browser

    if not raw.exists():
        collect_chunk(jobs, root, raw, Browser)
    measure_chunk(raw, variants, path)


def build(
    root: Path,
    split: str,
    out: Path,
    *,
    real: int,
    generated: int,
    first: int = 0,
    variants: int = VARIANTS,
    processes: int = 2,
    limit: int | None = None,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Samples of `split` in the folder `out`; whatever is there already stays. Returns `stats`.

    Stop it at any moment and call it again: chunks are written beside and renamed. Delete a chunk below `out` to have
    it measured anew, and its file below `raw` to have it rendered anew. `limit` takes only so many chunks of the plan.
    """
    jobs = planned(root, split, real=real, generated=generated, first=first)
    raw = root / "raw" / split
    tasks = []
    for number, at in enumerate(range(0, len(jobs), CHUNK)):
        name = f"chunk-{number:05d}"
        tasks.append((out / name, (jobs[at : at + CHUNK], root, raw / f"{name}.zip", variants)))
    out.mkdir(parents=True, exist_ok=True)
    # a chunk takes one or two minutes; a browser that stopped answering never ends
    run_chunks(make_chunk, tasks[:limit], processes=processes, limit_s=600, say=say)
    return stats(out)


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
    return {f"p{p}": ordered[min(len(ordered) - 1, len(ordered) * p // 100)] for p in (5, 25, 50, 75, 95)} | {
        "max": ordered[-1]
    }

"""First stage: jobs to pictures and walker records, in chunks of one zip file each.

Chunks are written beside and renamed, so a build can be stopped at any moment and goes on where it was.
"""

import io
import json
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from watersmeet.pipelines.data.plan import Job, page_file

CHUNK = 48
SHEET = 16
PATIENCE_S = 150.0  # a sheet of pages on a busy machine


@dataclass(frozen=True, kw_only=True)
class Record:
    """One rendered view: its job, the picture [height, width] RGB, and what the walker saw."""

    job: dict[str, Any]
    picture: Image.Image
    raw: dict[str, Any]


def collect_chunk(jobs: list[Job], root: Path, path: Path, browser_factory: Callable[[], Any]) -> dict[str, int]:
    """Render `jobs` and write them to `path`. A page that cannot be rendered is counted, never fatal."""
    counts = {"rendered": 0, "failed": 0}
    index: list[dict[str, Any]] = []
    part = path.with_name(path.name + f".{os.getpid()}.part")
    files: list[tuple[Job, Path]] = []
    for job in jobs:
        try:
            files.append((job, page_file(job, root)))
        except Exception as error:  # whatever is wrong with one page of strangers, the build goes on
            counts["failed"] += 1
            index.append(job.to_json() | {"error": f"{type(error).__name__}: {error}"[:200]})
    path.parent.mkdir(parents=True, exist_ok=True)
    with browser_factory() as browser, zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as archive:
        for at in range(0, len(files), SHEET * 2):
            some = files[at : at + SHEET * 2]
            try:
                pages = browser.open_many(
                    [(file, job.width, job.height, job.scroll) for job, file in some],
                    per_sheet=SHEET,
                    timeout_s=PATIENCE_S,
                )
            except Exception as error:  # a browser fails in many ways; the pages are counted as failed
                pages = [None] * len(some)
                index.append({"error": f"{type(error).__name__}: {error}"[:200]})
            for (job, _), page in zip(some, pages, strict=True):
                if page is None:
                    counts["failed"] += 1
                    index.append(job.to_json() | {"error": "not rendered"})
                    continue
                counts["rendered"] += 1
                index.append(job.to_json())
                picture = io.BytesIO()
                page.screenshot.save(picture, "PNG", compress_level=1)
                archive.writestr(f"{job.id}.png", picture.getvalue())
                archive.writestr(f"{job.id}.json.z", zlib.compress(json.dumps(page.raw).encode(), 3))
        archive.writestr("index.json", json.dumps({"jobs": index, "counts": counts}))
    os.replace(part, path)
    return counts


def read_chunk(path: Path) -> Iterator[Record]:
    """The rendered views of one chunk."""
    with zipfile.ZipFile(path) as archive:
        for job in json.loads(archive.read("index.json"))["jobs"]:
            if "error" in job:
                continue
            picture = Image.open(io.BytesIO(archive.read(f"{job['id']}.png"))).convert("RGB")
            raw = json.loads(zlib.decompress(archive.read(f"{job['id']}.json.z")))
            yield Record(job=job, picture=picture, raw=raw)

"""Which views of which pages become samples: a fixed list of jobs, shuffled so that any beginning of it is a fair mix."""

import os
import random
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from watersmeet.pipelines.data.generator.pages import generate
from watersmeet.pipelines.data.packages import PACKAGES, Package, package, pages_of
from watersmeet.pipelines.data.remix import remix

DESKTOP = (1280, 757)
PHONE = (390, 844)
REMIXED = (
    "startbootstrap-sb-admin",
    "startbootstrap-simple-sidebar",
    "milligram",
    "html5-boilerplate",
    "libjs-spectre-docs",
    "mkdocs-doc",
)
"""Small packages of themes and components: their pages also occur in variants."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One view: `page` (below the data folder, or the number of a generated page) at a size and a scroll position."""

    id: str
    package: str  # name of the package, or "generated"
    page: str
    width: int
    height: int
    scroll: int
    variant: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def visible_height(html: str, width: int) -> int:
    """A rough guess of how tall a page will be in px, from the amount of text in it."""
    text = re.sub(r"<(script|style)\b.*?</\1>|<[^>]+>|\s+", " ", html, flags=re.S | re.I)
    return int(len(text) * (0.22 if width > 800 else 0.62)) + 500


def _views(item: Package, page: Path, root: Path, rng: random.Random, variants: int) -> Iterable[tuple[float, Job]]:
    """(priority, job) of all views of one page; lower goes first."""
    html = page.read_text("utf-8", "replace")
    name = str(page.relative_to(root))
    for variant in range(variants):
        for (width, height), share in ((DESKTOP, 1.0), (PHONE, 0.3)):
            tall = visible_height(html, width)
            stops = [0] + [rng.randrange(0, max(1, tall - height)) // 8 * 8 for _ in range(5)]
            for k, scroll in enumerate(stops):
                if k and tall < height * 1.2 * k:
                    continue
                poor = 1.2 if tall < height * 0.55 + 500 else 0.0  # little to see: only when nothing better is left
                late = (0.55 * k + rng.random() + poor) / (share * item.weight) + variant * 0.04
                key = f"{item.folder}-{page.stem}-{len(name)}-{variant}-{width}-{scroll}"
                yield (
                    late,
                    Job(
                        id=re.sub(r"[^\w.-]", "_", key)[:110],
                        package=item.name,
                        page=name,
                        width=width,
                        height=height,
                        scroll=scroll,
                        variant=variant,
                    ),
                )


def real_jobs(root: Path, split: str) -> list[Job]:
    """Views of all package pages of `split`, the most wanted first."""
    rng = random.Random(f"views {split}")
    ranked: list[tuple[float, Job]] = []
    for item in PACKAGES:
        if item.split == split and item.pages:
            variants = 1
            pages = pages_of(item, root / "packages")
            if item.name in REMIXED and split == "train":
                variants = max(2, min(30, 320 // max(1, len(pages))))
            for page in pages:
                ranked += _views(item, page, root, rng, variants)
    ranked.sort(key=lambda pair: (pair[0], pair[1].id))
    seen: set[str] = set()
    return [job for _, job in ranked if not (job.id in seen or seen.add(job.id))]  # type: ignore[func-returns-value]


def generated_jobs(count: int, first: int = 0) -> list[Job]:
    """Views of generated pages, one or two of each page; one in five is a phone page."""
    out: list[Job] = []
    number = first
    while len(out) < count:
        rng = random.Random(f"view {number}")
        phone = rng.random() < 0.2
        width, height = PHONE if phone else DESKTOP
        for k in range(1 if rng.random() < 0.5 else 2):
            scroll = 0 if k == 0 else rng.randrange(200, 1200) // 8 * 8
            out.append(
                Job(
                    id=f"generated-{number}-{width}-{scroll}",
                    package="generated",
                    page=str(number),
                    width=width,
                    height=height,
                    scroll=scroll,
                )
            )
        number += 1
    return out[:count]


def plan(root: Path, split: str, *, real: int, generated: int, first: int = 0) -> list[Job]:
    """At most `real` package views and `generated` generated ones, in a fixed shuffled order."""
    jobs = real_jobs(root, split)[:real] + (generated_jobs(generated, first) if split == "train" else [])
    random.Random(f"plan {split}").shuffle(jobs)
    for job in jobs:
        if job.package != "generated" and package(job.package).split != split:
            raise AssertionError(f"{job.id} of package {job.package} is in the plan for {split}")
    return jobs


def page_file(job: Job, root: Path) -> Path:
    """The HTML file of a job; generated and remixed pages are written when they are first asked for."""
    if job.package == "generated":
        path = root / "pages" / f"{int(job.page):06d}-{job.width}.html"
        if not path.exists():
            _, html = generate(int(job.page), root / "packages", "../packages", narrow=job.width < 800)
            _write(path, html)
        return path
    page = root / job.page
    html = page.read_text("utf-8", "replace") if job.package in REMIXED or _holes(job.package) else ""
    if not html:
        return page
    path = page.with_name(f".view{job.variant}-{page.name}")
    if not path.exists():
        _write(path, remix(html, page, root / "packages", job.variant))
    return path


def _holes(name: str) -> bool:
    """Whether pages of this package load icons or charts from other hosts."""
    return name in ("startbootstrap-sb-admin", "startbootstrap-sb-admin-2", "material-dashboard")


def _write(path: Path, html: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text(html, "utf-8")
    os.replace(part, path)

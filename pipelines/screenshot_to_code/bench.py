"""`watersmeet bench screenshot-to-code`: pages nobody here wrote, a model and four baselines, one table.

Each view of a validation page is rendered, its screenshot alone is given to every method, and what comes back is
rendered and scored against the page itself. A method that fails on a view scores 0 there and stays in the mean.
"""

import hashlib
import json
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from watersmeet.core.errors import UsageError, WatersmeetError
from watersmeet.pipelines.browser.render import Browser
from watersmeet.pipelines.data.packages import PACKAGES, pages_of
from watersmeet.pipelines.layout.propose import propose
from watersmeet.pipelines.layout.regions import Regions
from watersmeet.pipelines.models.local import LocalModel, load_local
from watersmeet.pipelines.score import PageFacts, facts_from_page, facts_from_picture, failed_scores
from watersmeet.pipelines.screenshot_to_code import baselines
from watersmeet.pipelines.screenshot_to_code.candidates import alternatives, judge_all, write_page
from watersmeet.pipelines.screenshot_to_code.judge import PHONE_HEIGHT, PHONE_WIDTH, Judge, write_files
from watersmeet.pipelines.screenshot_to_code.read import Screenshot
from watersmeet.pipelines.task.kept import Kept, evenly, model_state

VIEWS = ((1280, 757), (390, 844))


@dataclass(frozen=True, kw_only=True)
class View:
    """One page at one size."""

    package: str
    page: Path
    width: int
    height: int

    @property
    def name(self) -> str:
        return f"{self.package}/{self.page.stem} {self.width}"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One method on one view: its scores, how long it took in seconds, and why it failed if it did."""

    view: str
    method: str
    scores: Mapping[str, float | None]
    seconds: float
    failure: str = ""


Method = Callable[[Image.Image, Regions, Path], None]
"""Writes a page into a folder, given a picture and its regions; `index.html` is its entry."""


def plain(make: Callable[[Regions], Mapping[str, str]]) -> Method:
    """A method that needs the regions only."""

    def write(picture: Image.Image, regions: Regions, folder: Path) -> None:
        write_files(folder, make(regions))

    return write


def by_model(model: LocalModel, browser: Browser, **options: Any) -> Method:
    """The pipeline's own way: the model's tree and its alternatives, the closest render kept."""

    def write(picture: Image.Image, regions: Regions, folder: Path) -> None:
        shown = None if options.get("blank") else picture
        proposal = propose(model, shown, regions, show_regions=not options.get("no_regions", False))
        judge = Judge(browser, facts_from_picture(picture, regions.texts, regions.shapes))
        shot = Screenshot(picture=picture, regions=regions, warnings=())
        with tempfile.TemporaryDirectory() as name:
            best = judge_all(alternatives(proposal.tree, shot, Path(name)), judge, Path(name))[0]
            write_page(best, "html", folder)

    return write


def by_neighbour(neighbours: Sequence[baselines.Neighbour]) -> Method:
    def write(picture: Image.Image, regions: Regions, folder: Path) -> None:
        write_files(folder, baselines.nearest_page(picture, neighbours))

    return write


class Bench:
    """Runs methods over views. `cache` is a folder where read regions are kept between runs, since reading is slow."""

    def __init__(
        self, browser: Browser, read: Callable[[Image.Image], dict[str, Any]], cache: Path | None = None
    ) -> None:
        self.browser = browser
        self.read = read
        self.cache = cache

    def run(
        self,
        views: Iterable[View],
        methods: Mapping[str, Method],
        *,
        keep: Path | None = None,
        say: Callable[[str], None] = print,
    ) -> list[Row]:
        """Rows of every method on every view. `keep`: a folder for the pages and pictures that were made."""
        rows: list[Row] = []
        for view in views:
            reference, narrow, picture = self._reference(view)
            started = time.monotonic()
            regions = self._regions(picture)
            reading = time.monotonic() - started
            judge = Judge(self.browser, reference, narrow)
            for name, method in methods.items():
                rows.append(self._one(view, name, method, picture, regions, judge, reading, keep))
            mine = [r for r in rows if r.view == view.name]
            say(f"{view.name}: " + ", ".join(f"{r.method} {_short(r.scores)}" for r in mine))
        return rows

    def _reference(self, view: View) -> tuple[PageFacts, PageFacts, Image.Image]:
        page = self.browser.open(view.page, width=view.width, height=view.height)
        narrow = self.browser.open(view.page, width=PHONE_WIDTH, height=PHONE_HEIGHT)
        return facts_from_page(page), facts_from_page(narrow), page.screenshot

    def _regions(self, picture: Image.Image) -> Regions:
        if self.cache is None:
            return Regions.from_json(self.read(picture))
        path = self.cache / f"{hashlib.sha256(picture.tobytes()).hexdigest()[:32]}.json"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(".part")
            part.write_text(json.dumps(self.read(picture)), encoding="utf-8")
            part.replace(path)
        return Regions.from_json(json.loads(path.read_text(encoding="utf-8")))

    def _one(
        self,
        view: View,
        name: str,
        method: Method,
        picture: Image.Image,
        regions: Regions,
        judge: Judge,
        reading: float,
        keep: Path | None,
    ) -> Row:
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            try:
                method(picture, regions, Path(folder))
                seconds = time.monotonic() - started + reading
                judged = judge(Path(folder) / "index.html")
                scores, failure = judged.scores.to_json(), ""
                if keep is not None:
                    _keep(keep, view, name, Path(folder), picture, judged.page.screenshot)
            except WatersmeetError as error:
                seconds, scores, failure = time.monotonic() - started + reading, failed_scores().to_json(), str(error)
        return Row(view=view.name, method=name, scores=scores, seconds=seconds, failure=failure)


def _keep(keep: Path, view: View, method: str, folder: Path, picture: Image.Image, render: Image.Image) -> None:
    # a method may be the path of a model; as it stands it would lead out of `keep`, to the model itself
    place, name = (re.sub(r"[^\w.-]+", "-", text).strip("-.") or "-" for text in (view.name, method))
    target = keep / place / name
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(folder, target)
    picture.save(target.parent / "input.png")
    render.save(target / "render.png")


def _short(scores: Mapping[str, float | None]) -> str:
    return f"LOOK {scores['LOOK'] or 0:.2f} CODE {scores['CODE'] or 0:.2f}"


def validation_views(data: Path, limit: int | None = None) -> list[View]:
    """All pages of the validation packages below `data`/packages at both sizes; `limit` takes a fair part of them.

    Raises UsageError, with the command to run, when they have not been fetched.
    """
    packages = [p for p in PACKAGES if p.split == "val"]
    views = [
        View(package=package.name, page=page, width=width, height=height)
        for package in packages
        for page in sorted(pages_of(package, data / "packages"))
        for width, height in VIEWS
    ]
    if not views:
        raise UsageError(
            f"no validation pages below {data / 'packages'}; run `watersmeet data fetch --split val` first"
        )
    return evenly(views, limit)


def own_views(pages: Sequence[Path], limit: int | None = None) -> list[View]:
    """Pages of one's own at both sizes; a page is named by its folder and file."""
    views = [
        View(package=page.resolve().parent.name, page=page, width=width, height=height)
        for page in pages
        for width, height in VIEWS
    ]
    return evenly(views, limit)


def run(
    *,
    models: Sequence[str],
    out_dir: Path,
    limit: int | None = None,
    progress: Callable[[str, float], None] = lambda what, share: None,
    data: Path = Path("data"),
    ablations: bool = False,
    pages: Sequence[Path] = (),
    with_baselines: bool = True,
    regions: Path | None = None,
) -> str:
    """Run models and baselines on the validation pages, or on `pages`; returns the tables and writes them to `out_dir`.

    Every picture is read once for all, and what was read is kept in `regions` (`out_dir`/regions). `out_dir` also gets every page that was made (`pages/`) and all rows (`rows.jsonl`, as
    they come: a run that was stopped goes on behind them when what it measures is the same). The nearest training page is a
    baseline only where the training pages are at hand (`data`/raw/train).
    """
    views = own_views(pages, limit) if pages else validation_views(data, limit)
    loaded = {"model" if len(models) == 1 else name: load_local(name) for name in models}
    with Browser() as browser:
        methods: dict[str, Method] = {name: by_model(local, browser) for name, local in loaded.items()}
        first = next(iter(loaded.values()))
        if ablations:
            methods["picture blanked"] = by_model(first, browser, blank=True)
            methods["regions removed"] = by_model(first, browser, no_regions=True)
        if with_baselines:
            methods |= {
                "blank page": plain(baselines.blank_page),
                "OCR, absolute": plain(baselines.absolute_page),
                "OCR, XY-cut": plain(baselines.cut_page),
            }
            neighbours = baselines.load_neighbours(data / "raw" / "train")
            if neighbours:
                methods["nearest training page"] = by_neighbour(neighbours)
        bench = Bench(browser, first.encoders["regions"].read, regions or out_dir / "regions")
        what = [*map(model_state, models), *methods, *(view.name for view in views)]
        kept = _kept(out_dir / "rows.jsonl", what)
        done = {row.view for row in kept.rows}
        for number, view in enumerate(views, 1):
            if view.name not in done:
                lines: list[str] = []
                kept.add(bench.run([view], methods, keep=out_dir / "pages", say=lines.append))
                progress("; ".join(lines), number / len(views))
    text = markdown(kept.rows)
    write_files(out_dir, {"table.md": text})
    return text


def _kept(path: Path, what: Sequence[str]) -> Kept[Row]:
    """The rows of earlier runs, one line a view."""
    return Kept(path, what, read=lambda row: Row(**row), write=lambda row: {**vars(row), "scores": dict(row.scores)})


def means(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Mean of every score by method; a number that is unknown on a view is left out of that number's mean."""
    out: dict[str, dict[str, float]] = {}
    for method in dict.fromkeys(row.method for row in rows):
        mine = [row for row in rows if row.method == method]
        names = dict.fromkeys(name for row in mine for name in row.scores)
        values = {name: [v for row in mine if (v := row.scores.get(name)) is not None] for name in names}
        out[method] = {name: sum(v) / len(v) for name, v in values.items() if v}
        out[method]["rendered"] = sum(not row.failure for row in mine) / len(mine)
        out[method]["seconds"] = sum(row.seconds for row in mine) / len(mine)
    return out


def markdown(rows: Sequence[Row]) -> str:
    """The means as one table and every view of the first method as another."""
    table = means(rows)
    names = list(next(iter(table.values())))
    lines = ["| method | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]
    for method, values in table.items():
        lines.append(f"| {method} | " + " | ".join(f"{values[n]:.3f}" if n in values else "–" for n in names) + " |")
    first = rows[0].method
    single = [n for n in names if n not in ("rendered", "seconds")]
    lines += ["", f"Every view, {first}:", "", "| view | " + " | ".join(single) + " |", "|---|" + "---:|" * len(single)]
    for row in rows:
        if row.method == first:
            cells = [f"{v:.2f}" if (v := row.scores.get(n)) is not None else "–" for n in single]
            lines.append(f"| {row.view} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"

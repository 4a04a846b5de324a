"""Pages of one's own as rows to fine-tune a layout model on: HTML in, screenshots and conversations out.

A row asks what `watersmeet run screenshot-to-code` asks of such a model (picture, regions, the symbol that opens the answer)
and answers with the layout of the page that the browser showed. The screenshot is made here: boxes of another render would
not lie where its pixels are.

    rows.jsonl         one conversation a line, in the form of `watersmeet finetune`
    rows.held.jsonl    the same of pages that were held out; no page has views in both
    rows.media/        the screenshots
"""

import hashlib
import io
import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from watersmeet.core.errors import RenderError, UsageError
from watersmeet.pipelines.data.collect import Record
from watersmeet.pipelines.data.reading import worn
from watersmeet.pipelines.data.samples import DataError, Rejected, Seen, check, encoders, fits, look_at
from watersmeet.pipelines.data.workers import run_chunks
from watersmeet.pipelines.finetune.media import keep_file
from watersmeet.pipelines.layout import markup
from watersmeet.pipelines.layout.propose import HEIGHT, NARROW, NARROW_HEIGHT, WIDTH
from watersmeet.pipelines.layout.regions import Regions

SIZES = ((1280, 757), (390, 844))
READERS = ("picture", "page")
_CHUNK = 6
_LEAST_SIDE = 200  # px


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How pages become rows.

    sizes      width and height of the views, px; each has to fit into one window of a layout model
    reader     where texts come from: "picture" reads the screenshot as use does (seconds a view), "page" asks the browser
    worn       further rows of each view as worse readers would have it
    hold_out   share of the pages whose views go to the second file; seed decides which
    """

    sizes: tuple[tuple[int, int], ...] = SIZES
    reader: str = "picture"
    worn: int = 0
    hold_out: float = 0.0
    seed: int = 1

    def __post_init__(self) -> None:
        if self.reader not in READERS:
            raise UsageError(f"--reader is {self.reader!r}, expected {' or '.join(READERS)}")
        if not 0 <= self.hold_out < 1:
            raise UsageError(f"--hold-out is {self.hold_out}, expected a share of at least 0 and below 1")
        if self.worn < 0:
            raise UsageError(f"--worn is {self.worn}, expected a number of at least 0")
        for width, height in self.sizes:
            most = int(1.4 * (NARROW_HEIGHT if width <= NARROW else HEIGHT))
            if not _LEAST_SIDE <= width <= WIDTH or not _LEAST_SIDE <= height <= most:
                raise UsageError(
                    f"--size is {width}x{height}, expected a width from {_LEAST_SIDE} to {WIDTH} and, at that width, a height "
                    f"from {_LEAST_SIDE} to {most} px"
                )


@dataclass(frozen=True, kw_only=True)
class Made:
    """What became of the pages: rows written to each file, and views left out by reason."""

    rows: int
    held: int
    left_out: dict[str, int]


def held_out(pages: Sequence[Path], recipe: Recipe) -> set[Path]:
    """The pages of the second file: a share of at least one page where a share was asked for."""
    if not recipe.hold_out:
        return set()
    shuffled = sorted(pages)
    random.Random(f"hold out {recipe.seed}").shuffle(shuffled)
    count = max(1, round(recipe.hold_out * len(shuffled)))
    if count >= len(shuffled):
        raise UsageError(f"--hold-out {recipe.hold_out} of {len(shuffled)} page(s) leaves none to learn from")
    return set(shuffled[:count])


def write_rows(
    pages: Sequence[Path],
    out: Path,
    recipe: Recipe,
    *,
    processes: int = 2,
    say: Callable[[str], None] = print,
) -> Made:
    """Render `pages` and write their rows to `out` (a name in .jsonl), complete or not at all.

    Stopped and called again it goes on with the pages that are left, as long as pages and recipe are the same. Views without
    enough text, with too much for a layout model, or that show what an earlier view shows are left out and counted.
    Raises DataError when nothing is left.
    """
    if out.suffix != ".jsonl":
        raise UsageError(f"{out}: expected a name that ends in .jsonl")
    held = held_out(pages, recipe)
    media, second = out.with_suffix(".media"), out.with_suffix(".held.jsonl")
    work = out.with_name(f".{out.stem}.{_digest(pages, recipe)}.partial")
    groups = [list(pages[at : at + _CHUNK]) for at in range(0, len(pages), _CHUNK)]
    tasks = [(work / f"pages-{i:05d}.jsonl", (group, recipe, media)) for i, group in enumerate(groups)]
    work.mkdir(parents=True, exist_ok=True)
    lost = run_chunks(_write_group, tasks, processes=processes, say=say)
    left_out: Counter[str] = Counter(
        {"the browser failed": sum(_CHUNK * len(recipe.sizes) for _ in lost)} if lost else {}
    )
    parts = [path for path, _ in tasks if path not in lost]
    # views of pages to learn from come first, so that of equal views the held-out one is left out
    both = [_fresh(parts, lambda page: page not in held), _fresh(parts, lambda page: page in held)]
    seen: set[str] = set()
    counts = []
    for path, lines in zip((out, second), both, strict=True):
        if path == second and not held:
            second.unlink(missing_ok=True)
            counts.append(0)
            continue
        counts.append(_write(path, lines, seen, left_out))
    shutil.rmtree(work)
    if not counts[0]:
        out.unlink()
        reasons = ", ".join(f"{reason} ({count})" for reason, count in left_out.most_common())
        raise DataError(f"none of {len(pages)} page(s) gave a row: {reasons or 'all were held out'}")
    return Made(rows=counts[0], held=counts[1], left_out=dict(left_out))


def _digest(pages: Sequence[Path], recipe: Recipe) -> str:
    """A name for the work on these pages as they are now."""
    found = hashlib.sha256(json.dumps(asdict(recipe)).encode())
    for page in pages:
        found.update(f"{page}\0".encode() + hashlib.sha256(page.read_bytes()).digest())
    return found.hexdigest()[:16]


def _fresh(parts: Sequence[Path], wanted: Callable[[Path], bool]) -> Iterator[dict[str, Any]]:
    for path in parts:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                view = json.loads(line)
                if wanted(Path(view["page"])):
                    yield view


def _write(path: Path, views: Iterator[dict[str, Any]], seen: set[str], left_out: Counter[str]) -> int:
    beside = path.with_name(f".{path.name}.{os.getpid()}.partial")
    count = 0
    try:
        with beside.open("w", encoding="utf-8") as file:
            for view in views:
                if "left out" in view:
                    left_out[view["left out"]] += 1
                elif view["digest"] in seen:
                    left_out["shows what another view shows"] += 1
                else:
                    seen.add(view["digest"])
                    for row in view["rows"]:
                        file.write(json.dumps(row, ensure_ascii=False) + "\n")
                        count += 1
            file.flush()
            os.fsync(file.fileno())
        beside.rename(path)
    finally:
        beside.unlink(missing_ok=True)
    return count


def _write_group(pages: list[Path], recipe: Recipe, media: Path, path: Path) -> None:
    """Views of a few pages as lines of a file; runs in a process of its own."""
    from watersmeet.pipelines.browser.render import Browser

    enc = encoders()
    beside = path.with_name(f"{path.name}.{os.getpid()}.part")
    with Browser() as browser, beside.open("w", encoding="utf-8") as file:
        for page in pages:
            for width, height in recipe.sizes:
                line: dict[str, Any] = {"page": str(page)}
                try:
                    shown = browser.open(page, width=width, height=height)
                    job = {
                        "id": f"{page} {width}",
                        "package": "own",
                        "page": str(page),
                        "width": width,
                        "height": height,
                    }
                    record = Record(job=job, picture=shown.screenshot, raw=shown.raw)
                    line |= view_rows(record, enc, recipe, partial(keep_file, store=media, root=media.parent))
                except Rejected as reason:
                    line["left out"] = str(reason)
                except RenderError:
                    line["left out"] = "the browser failed"
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
    os.replace(beside, path)


def view_rows(record: Record, enc: dict[str, Any], recipe: Recipe, keep: Callable[..., str]) -> dict[str, Any]:
    """{"digest", "rows"} of one rendered view; `keep` writes bytes of a picture and gives its path below the rows' folder.

    Raises Rejected with the reason when the view is of no use.
    """
    seen = look_at(record)
    rng = random.Random(f"worn {recipe.seed} {seen.digest}")
    clean = enc["regions"].describe(record.picture, seen.lines)
    first = enc["regions"].read(record.picture) if recipe.reader == "picture" else clean
    answers = [
        (regions, _answer(seen, regions)) for regions in (first, *(worn(clean, rng) for _ in range(recipe.worn)))
    ]
    check(answers[0][1], len(first["texts"]))
    if not fits(answers[0][1], first):
        raise Rejected("too many texts or shapes")
    content = io.BytesIO()
    record.picture.save(content, "PNG", optimize=True)
    picture = keep(content.getvalue(), ending=".png")
    rows = [_row(picture, regions, answer) for regions, answer in answers if fits(answer, regions)]
    return {"digest": seen.digest, "rows": rows}


def _answer(seen: Seen, regions: dict[str, Any]) -> list[str]:
    return markup.encode(seen.tree, Regions.from_json(regions))


def _row(picture: str, regions: dict[str, Any], answer: list[str]) -> dict[str, Any]:
    question = [
        {"type": "image", "image": picture},
        {"type": "regions", "regions": regions},
        {"type": "symbols", "symbols": [markup.OPEN]},
    ]
    written = [{"type": "symbols", "symbols": answer}]
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": written}]}

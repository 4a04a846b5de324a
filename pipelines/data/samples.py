"""Second stage: pictures and walker records to samples: regions as a reader would give them, and the markup to learn.

A chunk of samples is a folder:

    index.json    settings of the encoders, counts, and one entry a sample: id, package, sizes, where its rows lie
    detail.jsonl  one line a sample: job, tree, regions and markup of its clean variant; for people, see `show`
    patches.npy   uint8 [P, p * p * 3], picture patches of all samples one after the other
    regions.npy   int16 [R, F + 4], region tokens: features, then the box
    symbols.npy   int16 [M], markup as indices into `markup.symbols()`

Every sample has several variants of its regions: the first as read without a fault, the others as worse readers would
have it. Each has its own markup, since what was not read cannot be referred to.
"""

import hashlib
import json
import os
import random
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from watersmeet.core.errors import WatersmeetError
from watersmeet.core.geometry import Box
from watersmeet.pipelines.data.collect import Record, read_chunk
from watersmeet.pipelines.data.reading import Bounds, seen_lines, worn
from watersmeet.pipelines.layout import markup
from watersmeet.pipelines.layout.regions import Regions
from watersmeet.pipelines.layout.tree import Node

VARIANTS = 3
# a quarter of the size: regions carry the details, and patches are most of a sample's tokens
PICTURE = {"scale": 0.25}
MAX_TEXTS = 230
MAX_SHAPES = 150
MIN_TEXTS = 3
MAX_SYMBOLS = 1400
MIN_COVER = 0.8  # share of the clean texts that the markup must refer to
READ_PICTURES = 0.3  # share of the views whose pictures are searched for texts


class Rejected(Exception):
    """A view that makes no good sample; the argument is the reason that is counted."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One view ready to be stored: patches [n, p * p * 3], and for each variant region rows and markup symbols."""

    detail: dict[str, Any]
    digest: str
    patches: np.ndarray
    grid: tuple[int, int]
    variants: list[tuple[np.ndarray, list[str]]]


def encoders(vocabulary: bytes | None = None) -> dict[str, Any]:
    """Encoders of the modalities that go into a sample, by name, from the plugin registry. vocabulary: instead of that of layout models."""
    from watersmeet.pipelines.layout.vocabulary import FILE, tokenizer_model
    from watersmeet.plugins import get_registry
    from watersmeet.plugins.specs import resolve

    registry = get_registry()
    make = {name: resolve(registry.modality(name).encoder) for name in ("image", "regions", "text")}
    return {
        "image": make["image"](PICTURE),
        "regions": make["regions"]({}),
        "text": make["text"]({"model": FILE, "files": {FILE: vocabulary or tokenizer_model()}}),
    }


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a rendered view shows: the tree to write, its lines as a reader would have them, and a name for equal views."""

    tree: Node
    lines: list[tuple[Bounds, str]]
    digest: str


def look_at(record: Record) -> Seen:
    """Tree and lines of one rendered view. Raises Rejected for too few lines or too many."""
    from watersmeet.pipelines.layout.simplify import to_tree
    from watersmeet.pipelines.layout.walker import dom_boxes, dom_lines

    lines = dom_lines(record.raw, record.picture)
    if len(lines) < MIN_TEXTS:
        raise Rejected("fewer than three lines")
    tree = to_tree(record.raw, record.picture)
    frames = [(b.x0, b.y0, b.x1, b.y1) for kind, b in dom_boxes(record.raw) if kind != "image"]
    seen = seen_lines([((line.box.x0, line.box.y0, line.box.x1, line.box.y1), line.text) for line in lines], frames)
    if not MIN_TEXTS <= len(seen) <= MAX_TEXTS:
        raise Rejected("too many texts" if len(seen) > MAX_TEXTS else "fewer than three lines")
    words = "\n".join(sorted(text for _, text in seen))
    digest = hashlib.sha256(f"{record.job['width']}\n{words}".encode()).hexdigest()[:24]
    return Seen(tree=tree, lines=seen, digest=digest)


def fits(written: list[str], regions: dict[str, Any]) -> bool:
    """Whether markup and what it may refer to stay within what a layout model is made for."""
    return (
        len(written) <= MAX_SYMBOLS
        and len(regions["texts"]) <= markup.MAX_TEXTS
        and len(regions["shapes"]) <= markup.MAX_SHAPES
    )


def make_sample(record: Record, enc: dict[str, Any], variants: int = VARIANTS) -> Sample:
    """The sample of one rendered view. Raises Rejected with the reason when the view is of no use."""
    seen = look_at(record)
    rng = random.Random(f"worn {record.job['id']}")
    inside = _read_pictures(record, seen.lines, enc) if rng.random() < READ_PICTURES else []
    clean = enc["regions"].describe(record.picture, [*seen.lines, *inside])
    if len(clean["shapes"]) > MAX_SHAPES:
        raise Rejected("too many shapes")
    made: list[tuple[np.ndarray, list[str]]] = []
    for k in range(variants):
        regions = clean if k == 0 else worn(clean, rng)
        written = markup.encode(seen.tree, Regions.from_json(regions))
        if k == 0:
            check(written, len(seen.lines))
        if not fits(written, regions):
            continue
        span = enc["regions"].encode(regions)[0]
        rows = np.concatenate([span.data.numpy(), span.coords.numpy()], axis=1).astype(np.int16)
        made.append((rows, written))
    if not made:
        raise Rejected("markup is too long")
    picture = enc["image"].encode(record.picture)[0]
    detail = record.job | {"tree": seen.tree.to_json(), "regions": clean, "markup": " ".join(made[0][1])}
    return Sample(
        detail=detail,
        digest=seen.digest,
        patches=picture.data.numpy(),
        grid=tuple(int(v) for v in picture.coords.max(dim=0).values + 1),  # type: ignore[arg-type]
        variants=made,
    )


def _read_pictures(record: Record, seen: list[Any], enc: dict[str, Any]) -> list[tuple[Bounds, str, float]]:
    """Texts inside charts and photos, really read: no line of the page, but any reader returns them."""
    found: list[tuple[Bounds, str, float]] = []
    drawn = ("svg", "canvas") if record.job["package"] == "generated" else ("svg", "canvas", "img")  # else: photos
    elements = [el["vis"] for el in record.raw["elements"] if el.get("pic") in drawn and el["vis"] is not None]
    pictures = [Box(x0=v[0], y0=v[1], x1=v[2], y1=v[3]) for v in elements]
    pictures = [b for b in pictures if b.width >= 110 and b.height >= 70 and b.area < 200_000]
    free = [
        b
        for b in pictures
        if not any(b.x0 <= (t[0] + t[2]) / 2 <= b.x1 and b.y0 <= (t[1] + t[3]) / 2 <= b.y1 for t, _ in seen)
    ]
    for box in sorted(free, key=lambda b: -b.area)[:2]:
        x, y = max(0, int(box.x0)), max(0, int(box.y0))
        crop = record.picture.crop(
            (x, y, min(record.picture.width, int(box.x1)), min(record.picture.height, int(box.y1)))
        )
        for text in enc["regions"].read(crop)["texts"]:
            b = text["box"]
            found.append(((b["x0"] + x, b["y0"] + y, b["x1"] + x, b["y1"] + y), text["text"], text["confidence"]))
    return found


def check(written: list[str], lines: int) -> None:
    """Raises Rejected when markup of a view with so many `lines` leaves too many out, or is too long."""
    used = {s for s in written if s.startswith("<t") and s[2:-1].isdigit()}
    if len(used) < MIN_COVER * lines:
        raise Rejected("markup leaves texts out")
    if len(written) > MAX_SYMBOLS:
        raise Rejected("markup is too long")


def measure_chunk(source: Path, variants: int, path: Path) -> None:
    """Samples of one collected chunk, written to the folder `path` (beside it first, then renamed)."""
    enc = encoders()
    table = {symbol: i for i, symbol in enumerate(markup.symbols())}
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    counts: Counter[str] = Counter()
    entries: list[dict[str, Any]] = []
    patches: list[np.ndarray] = []
    rows: list[np.ndarray] = []
    symbols: list[int] = []
    n_patches = n_rows = 0
    with (part / "detail.jsonl").open("w", encoding="utf-8") as detail:
        for record in read_chunk(source):
            try:
                sample = make_sample(record, enc, variants)
            except Rejected as reason:
                counts[str(reason)] += 1
                continue
            except Exception as error:  # one odd page must not end the build; it is counted by its fault
                counts[f"fault: {type(error).__name__}: {str(error)[:80]}"] += 1
                continue
            counts["kept"] += 1
            detail.write(json.dumps(sample.detail, ensure_ascii=False) + "\n")
            places = []
            for region_rows, written in sample.variants:
                places.append([n_rows, len(region_rows), len(symbols), len(written)])
                rows.append(region_rows)
                n_rows += len(region_rows)
                symbols += [table[s] for s in written]
            keys = ("id", "package", "page", "width", "height", "scroll", "variant")
            entries.append(
                {k: record.job[k] for k in keys}
                | {
                    "digest": sample.digest,
                    "grid": sample.grid,
                    "patches": [n_patches, len(sample.patches)],
                    "variants": places,
                    "texts": len(sample.detail["regions"]["texts"]),
                    "shapes": len(sample.detail["regions"]["shapes"]),
                }
            )
            patches.append(sample.patches)
            n_patches += len(sample.patches)
    if patches:
        np.save(part / "patches.npy", np.concatenate(patches))
        np.save(part / "regions.npy", np.concatenate(rows))
        np.save(part / "symbols.npy", np.array(symbols, dtype=np.int16))
    settings = {name: enc[name].settings for name in ("image", "regions")}
    index = {"settings": settings, "counts": dict(counts), "samples": entries}
    (part / "index.json").write_text(json.dumps(index), "utf-8")
    if path.exists():  # another build was quicker
        shutil.rmtree(part)
    else:
        os.replace(part, path)


class DataError(WatersmeetError):
    """Training data on disk is missing, or does not fit the encoders."""

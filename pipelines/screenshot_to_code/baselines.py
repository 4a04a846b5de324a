"""What a model has to beat: pages made from a picture without any model."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image

from watersmeet.pipelines.data.collect import read_chunk
from watersmeet.pipelines.emit import emit
from watersmeet.pipelines.layout.regions import Regions
from watersmeet.pipelines.layout.repair import from_regions
from watersmeet.pipelines.layout.simplify import to_tree
from watersmeet.pipelines.layout.tree import RGB, Node


def blank_page(regions: Regions) -> dict[str, str]:
    """An empty page in the picture's main colour."""
    return {"index.html": _document("", regions.background)}


def absolute_page(regions: Regions) -> dict[str, str]:
    """Every read line at its measured place, absolutely positioned: what OCR alone can do."""
    lines = [
        f'<div style="position:absolute;left:{t.box.x0:.1f}px;top:{t.box.y0:.1f}px;width:{t.box.width:.1f}px;'
        f"height:{t.box.height:.1f}px;line-height:{t.box.height:.1f}px;font-size:{t.font_size:.1f}px;"
        f'font-weight:{t.weight};color:{_css(t.color)};background:{_css(t.background)};white-space:nowrap">'
        f"{html.escape(t.text)}</div>"
        for t in regions.texts
    ]
    return {"index.html": _document("\n".join(lines), regions.background)}


def cut_page(regions: Regions) -> dict[str, str]:
    """Read lines cut into rows and columns by recursive XY-cut and written in normal flow."""
    return emit(from_regions(regions), "html")


@dataclass(frozen=True, kw_only=True)
class Neighbour:
    """One training page: how it looks from afar, and its tree."""

    look: np.ndarray
    tree: Node


def thumbnail(picture: Image.Image) -> np.ndarray:
    """Mean colours on a 32 x 20 grid as float32 `[20, 32, 3]`, 0 to 255."""
    return np.asarray(picture.convert("RGB").resize((32, 20), Image.Resampling.BOX), dtype=np.float32)


def nearest_page(picture: Image.Image, neighbours: Sequence[Neighbour]) -> dict[str, str]:
    """The training page that looks most alike from afar, as it is: what memorising would earn."""
    look = thumbnail(picture)
    distances = [float(np.abs(look - n.look).mean()) for n in neighbours]
    return emit(neighbours[int(np.argmin(distances))].tree, "html")


def load_neighbours(folder: Path, most: int = 400) -> list[Neighbour]:
    """The first `most` rendered training pages below `folder` (written by `watersmeet data build`); none if it is missing."""
    records = (record for path in sorted(folder.glob("chunk-*.zip")) for record in read_chunk(path))
    return [Neighbour(look=thumbnail(r.picture), tree=to_tree(r.raw, r.picture)) for r in islice(records, most)]


def _document(body: str, background: RGB) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Page</title>\n'
        "<style>body{margin:0;font-family:Arial,sans-serif;background:"
        f"{_css(background)}}}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _css(color: RGB) -> str:
    return f"rgb({color[0]},{color[1]},{color[2]})"

"""Tall pictures cut into windows of the height that a layout model knows, at rows where nothing stands.

A window is a horizontal band over the full width. Regions keep their index in the whole picture, so what is written
about a window can be read back against it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from watersmeet.core.geometry import Box
from watersmeet.pipelines.layout.markup import MAX_SHAPES, MAX_TEXTS
from watersmeet.pipelines.layout.regions import Regions, ShapeRegion


@dataclass(frozen=True, kw_only=True)
class Window:
    """Rows `top` to `bottom` of a picture, with the regions of that band in its own coordinates."""

    top: int
    bottom: int
    regions: Regions


def cut_windows(regions: Regions, *, height: int) -> list[Window]:
    """Bands of about `height` px and at most 1.4 times that; a picture that is not much taller stays whole."""
    edges = [0]
    while regions.height - edges[-1] > 1.4 * height:
        edges.append(_quiet_row(regions, edges[-1] + height // 2, edges[-1] + round(1.3 * height), edges[-1] + height))
    edges.append(regions.height)
    out: list[Window] = []
    for top, bottom in pairwise(edges):
        out += _within_limits(regions, top, bottom)
    return out


def _within_limits(regions: Regions, top: int, bottom: int) -> list[Window]:
    """The band, halved as long as it holds more regions than the markup can refer to."""
    window = _window(regions, top, bottom)
    crowded = len(window.regions.texts) > MAX_TEXTS or len(window.regions.shapes) > MAX_SHAPES
    if not crowded or bottom - top < 64:
        return [window]
    middle = _quiet_row(regions, top + (bottom - top) // 4, bottom - (bottom - top) // 4, (top + bottom) // 2)
    return _within_limits(regions, top, middle) + _within_limits(regions, middle, bottom)


def _quiet_row(regions: Regions, low: int, high: int, wanted: int) -> int:
    """The row between `low` and `high` that cuts the fewest regions, nearest to `wanted` among equals."""
    high = max(low, min(high, regions.height))
    cuts = [0.0] * (high - low + 1)

    def add(boxes: Sequence[Box], cost: float) -> None:
        for box in boxes:
            for row in range(max(low, int(box.y0) + 1), min(high, int(box.y1)) + 1):
                cuts[row - low] += cost

    add([t.box for t in regions.texts], 10.0)
    # a panel that is taller than the whole search range is cut whatever row is taken
    add([s.box for s in regions.shapes if s.box.height < high - low], 1.0)
    return low + min(range(len(cuts)), key=lambda i: (cuts[i], abs(low + i - wanted)))


def _window(regions: Regions, top: int, bottom: int) -> Window:
    texts = tuple(replace(t, box=t.box.shifted(0, -top)) for t in regions.texts if top <= t.box.center[1] < bottom)
    shapes = tuple(s for shape in regions.shapes if (s := _clipped(shape, top, bottom)) is not None)
    inside = replace(regions, height=bottom - top, texts=texts, shapes=shapes)
    return Window(top=top, bottom=bottom, regions=inside)


def _clipped(shape: ShapeRegion, top: int, bottom: int) -> ShapeRegion | None:
    """The part of a shape inside the band, or None if that is a sliver or most of it lies elsewhere and it is small."""
    y0, y1 = max(shape.box.y0, top), min(shape.box.y1, bottom)
    if y1 - y0 < min(8.0, shape.box.height):
        return None
    return replace(shape, box=replace(shape.box, y0=y0 - top, y1=y1 - top))


def scaled(regions: Regions, factor: float) -> Regions:
    """The same regions measured on a picture resized by `factor`; rule and border widths keep at least one pixel."""
    if factor == 1.0:
        return regions

    def box(b: Box) -> Box:
        return Box(x0=b.x0 * factor, y0=b.y0 * factor, x1=b.x1 * factor, y1=b.y1 * factor)

    return replace(
        regions,
        width=max(1, round(regions.width * factor)),
        height=max(1, round(regions.height * factor)),
        texts=tuple(replace(t, box=box(t.box), font_size=t.font_size * factor) for t in regions.texts),
        shapes=tuple(
            replace(
                s,
                box=box(s.box),
                radius=s.radius * factor,
                border_width=max(1.0, s.border_width * factor) if s.border_width else 0.0,
            )
            for s in regions.shapes
        ),
    )

"""Panels painted with a gradient: found in pieces, since each piece looks flat, and joined here into one."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from watersmeet.tokenizers.regions.shapes import Shape

_EDGE = 4  # px: how far the sides of two pieces may lie apart
_STEP = 3.0  # of 255: how much a gradient may change from one row to the next
_LEAST = 2  # pieces that make a gradient


def join_bands(shapes: "list[Shape]", image_HW3: NDArray[np.uint8]) -> "list[Shape]":
    """`shapes` with pieces of one gradient replaced by a single fill.

    Pieces have the same left and right side (or top and bottom). They are one panel if the colour along both of those
    sides changes slowly and without a break from the first piece to the last.
    """
    for axis in (0, 1):
        shapes = _join(shapes, image_HW3 if axis == 0 else image_HW3.transpose(1, 0, 2), axis)
    return shapes


def _join(shapes: "list[Shape]", image_HW3: NDArray[np.uint8], axis: int) -> "list[Shape]":
    """Join along the rows of `image_HW3`; `axis` 1 means that picture and boxes are seen with x and y exchanged."""

    def sides(shape: "Shape") -> tuple[int, int, int, int]:
        x0, y0, x1, y1 = shape.bounds
        return (x0, y0, x1, y1) if axis == 0 else (y0, x0, y1, x1)

    pieces = sorted((s for s in shapes if s.kind in ("fill", "picture")), key=lambda s: sides(s)[1])
    used: set[int] = set()
    joined: list[Shape] = []
    for first in pieces:
        if id(first) in used:
            continue
        x0, y0, x1, _ = sides(first)
        same = [
            s
            for s in pieces
            if id(s) not in used
            and abs(sides(s)[0] - x0) <= _EDGE
            and abs(sides(s)[2] - x1) <= _EDGE
            and sides(s)[1] >= y0
        ]
        if x1 - x0 < 40 or sum(s.kind == "fill" for s in same) < _LEAST:
            continue
        bottom = _end_of_gradient(image_HW3, x0, x1, y0, max(sides(s)[3] for s in same))
        parts = [s for s in same if sides(s)[3] <= bottom + _EDGE]
        if sum(s.kind == "fill" for s in parts) < _LEAST:
            continue
        y1 = max(sides(s)[3] for s in parts)
        strip = image_HW3[y0:y1, min(x0 + 2, x1 - 1)].reshape(-1, 3)
        color = tuple(round(float(v)) for v in strip.mean(axis=0))
        bounds = (x0, y0, x1, y1) if axis == 0 else (y0, x0, y1, x1)
        fill = next(s for s in parts if s.kind == "fill")
        joined.append(replace(fill, bounds=bounds, color=color, radius=0.0))  # type: ignore[arg-type]
        used.update(id(s) for s in parts)
    return [s for s in shapes if id(s) not in used] + joined


def _end_of_gradient(image_HW3: NDArray[np.uint8], x0: int, x1: int, y0: int, y1: int) -> int:
    """The row before which the colour along both sides changes slowly, and is not constant all the way."""
    sides = np.concatenate([image_HW3[y0:y1, x0 + 1 : x0 + 5], image_HW3[y0:y1, x1 - 5 : x1 - 1]], axis=1).astype(
        np.int16
    )
    if len(sides) < 2:
        return y1
    # the median of each side's few pixels, so that a hairline or a glyph that touches the edge is no break
    rows = np.stack([np.median(sides[:, :4], axis=1), np.median(sides[:, 4:], axis=1)], axis=1)
    breaks = np.flatnonzero((np.abs(np.diff(rows, axis=0)) > _STEP).any(axis=(1, 2)))
    return y0 + int(breaks[0]) + 1 if len(breaks) else y1

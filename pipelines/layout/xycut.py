"""Recursive XY-cut: boxes into rows and columns by plain geometry, the widest empty band first.

Used for the reading order of regions, to place what a model left out, and as a baseline that knows no semantics.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from watersmeet.core.geometry import Box


@dataclass(frozen=True, kw_only=True)
class Cut:
    """A part of the page: either one item (`index`) or parts side by side (`row`) or below each other."""

    index: int | None = None
    row: bool = False
    parts: tuple["Cut", ...] = ()

    def order(self) -> list[int]:
        """The items in reading order."""
        return [self.index] if self.index is not None else [i for part in self.parts for i in part.order()]


def xy_cut(boxes: Sequence[Box], *, min_gap: float = 1.0) -> Cut:
    """Cut `boxes` recursively along empty bands of at least `min_gap` px; boxes that no band parts are stacked by y, x."""
    return _cut(list(range(len(boxes))), boxes, min_gap)


def _cut(items: list[int], boxes: Sequence[Box], min_gap: float) -> Cut:
    if len(items) == 1:
        return Cut(index=items[0])
    if not items:
        return Cut()
    columns, gap_x = _bands([(boxes[i].x0, boxes[i].x1, i) for i in items], min_gap)
    rows, gap_y = _bands([(boxes[i].y0, boxes[i].y1, i) for i in items], min_gap)
    if len(rows) > 1 and (len(columns) == 1 or gap_y >= gap_x or _is_grid(rows, boxes)):
        return Cut(parts=tuple(_cut(group, boxes, min_gap) for group in rows))
    if len(columns) > 1:
        return Cut(row=True, parts=tuple(_cut(group, boxes, min_gap) for group in columns))
    ordered = sorted(items, key=lambda i: (boxes[i].y0, boxes[i].x0))
    return Cut(parts=tuple(Cut(index=i) for i in ordered))


def _is_grid(rows: list[list[int]], boxes: Sequence[Box]) -> bool:
    """Rows of one item each are a column whatever the gaps beside them say."""
    return all(len(row) == 1 for row in rows)


def _bands(intervals: list[tuple[float, float, int]], min_gap: float) -> tuple[list[list[int]], float]:
    """Groups of items parted by the widest empty bands along one axis, and the width of the widest.

    Only bands of nearly the widest width part: a header's band is wider than the line gaps of the columns below it,
    and those columns must not be read across.
    """
    intervals.sort()
    gaps, end = [], float("-inf")
    for low, high, _ in intervals:
        gaps.append(low - end)
        end = max(end, high)
    widest = max(gaps[1:], default=0.0)
    threshold = max(min_gap, 0.7 * widest)
    groups: list[list[int]] = []
    for (_, _, item), gap in zip(intervals, gaps, strict=True):
        if not groups or gap >= threshold:
            groups.append([])
        groups[-1].append(item)
    return groups, widest

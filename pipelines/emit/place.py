"""Margins, paddings, gaps and widths of a flow model, so that every box lands where it was measured."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from watersmeet.pipelines.emit.flow import Flow

_SAME = 0.6  # px: positions closer than this are one


def place(flow: Flow) -> None:
    """Fill in the placement fields of `flow` and of everything inside it. The flow's own margins are its parent's work."""
    top, right, bottom, left = flow.border
    x0, y0 = flow.box.x0 + left, flow.box.y0 + top
    x1, y1 = max(flow.box.x1 - right, x0), max(flow.box.y1 - bottom, y0)
    if flow.text is not None and not flow.items:
        _place_text(flow, x0, y0, x1, y1)
        return
    if not flow.items:
        return
    low = min(item.box.x0 for item in flow.items)
    high = max(item.box.x1 for item in flow.items)
    pad_left, pad_right = max(0.0, low - x0), max(0.0, x1 - high)
    if abs(pad_left - pad_right) <= 1.0 and flow.node is not None:
        pad_left = pad_right = min(pad_left, pad_right)  # even paddings; the odd half pixel goes to the margins
    x0, x1 = x0 + pad_left, x1 - pad_right
    arrange = {"column": _column, "row": _row, "grid": _grid, "stack": _stack}[flow.direction]
    pad_top, end = arrange(flow, x0, y0, x1, y1)
    flow.padding = (pad_top, pad_right, max(0.0, y1 - end), pad_left)
    flow.padding = tuple(round(v, 1) for v in flow.padding)  # type: ignore[assignment]
    for item in flow.items:
        place(item)


def _place_text(flow: Flow, x0: float, y0: float, x1: float, y1: float) -> None:
    """Paddings of a leaf that has a box of its own, around its text block."""
    block = flow.text
    assert block is not None
    box = block.box
    flow.text_align = block.align
    if flow.node is None or box == flow.box:
        return
    start, end = box.x0 - x0, x1 - box.x1
    one = len(block.rows) == 1 and len(block.rows[0].pieces) == 1
    if start >= 0 and end >= 0 and abs(start - end) <= 2.0 and (one or block.align == "center"):
        flow.text_align = "center"
        start = end = 0.0
    elif start >= 0 and end >= 0 and (block.align == "right" or (one and block.style.align == "right")):
        flow.text_align, start = "right", 0.0
    elif one or block.align == "left":
        flow.text_align, end = "left", 0.0
    flow.padding = (max(0.0, box.y0 - y0), max(0.0, end), max(0.0, y1 - box.y1), max(0.0, start))
    flow.inside = (min(0.0, box.y0 - y0), min(0.0, y1 - box.y1), min(0.0, start))


def _column(flow: Flow, x0: float, y0: float, x1: float, y1: float) -> tuple[float, float]:
    items = flow.items
    pad_top = max(0.0, items[0].box.y0 - y0)
    flow.gap = _common([b.box.y0 - a.box.y1 for a, b in pairwise(items)])
    cursor = y0 + pad_top
    for index, item in enumerate(items):
        cursor += flow.gap if index else 0.0
        item.top = _margin(item.box.y0 - cursor)
        cursor += item.top + item.box.height
        _place_across(item, x0, x1)
    if cursor > y1:
        items[-1].bottom = y1 - cursor
        cursor = y1
    return pad_top, cursor


def _place_across(item: Flow, x0: float, x1: float) -> None:
    """Left margin and width of an item that has the whole column to itself."""
    start, end = item.box.x0 - x0, x1 - item.box.x1
    plain = item.text is not None and not item.items and _is_bare(item)
    item.left = _margin(start)
    if plain:
        block = item.text
        assert block is not None
        middle = abs(start - end) <= 1.0 and (start > _SAME or block.align == "center" or block.style.align == "center")
        if block.align == "center" and not middle:
            item.width = round(item.box.width, 1)
        elif block.align in ("left", "center") and middle and (len(block.rows) == 1 or block.align == "center"):
            item.text_align, item.left = "center", 0.0
            block.align = "center"
        elif abs(end) <= _SAME and start > 8 and (block.align == "right" or len(block.rows) == 1):
            item.left, block.align = 0.0, "right"
        elif block.align == "right":
            item.width = round(item.box.width, 1)
        return
    if abs(start) <= _SAME and abs(end) <= _SAME:
        item.left = 0.0
        return
    if start > 4 and abs(start - end) <= 1.0 and item.text is None:
        item.centered, item.left = True, 0.0
    item.width = round(item.box.width, 1)


def _is_bare(item: Flow) -> bool:
    """Whether the item is text without a visible box."""
    return item.node is None or (item.text is not None and item.box == item.text.box)


def _row(flow: Flow, x0: float, y0: float, x1: float, y1: float) -> tuple[float, float]:
    items = flow.items
    pad_top, end = _place_down(flow, items, y0, y1)
    # free space belongs in the row only where the row reaches (nearly) to its parent's right edge
    fills = abs(items[-1].box.x1 - x1) <= _SAME and flow.box.x1 - x1 <= max(64.0, x0 - flow.box.x0 + 32.0)
    grower = max(items, key=lambda i: i.box.width)
    if fills and grower.items and grower.box.width > 0.4 * (x1 - x0) and grower.kind not in ("button", "link"):
        grower.grow = True
    gaps = [b.box.x0 - a.box.x1 for a, b in pairwise(items)]
    if fills and not grower.grow and len(items) > 1:
        widest = max(gaps)
        if widest >= 40 and sum(g > 0.5 * widest for g in gaps) == 1:
            items[gaps.index(widest) + 1].auto_left = True
    flow.gap = 0.0 if any(i.auto_left for i in items) else _common(gaps)
    cursor = x0
    for index, item in enumerate(items):
        item.width = round(item.box.width, 1)
        cursor += flow.gap if index else 0.0
        item.left = 0.0 if item.auto_left else _margin(item.box.x0 - cursor)
        cursor = item.box.x1 if item.auto_left else cursor + item.left + item.width
    return pad_top, end


def _place_down(flow: Flow, items: list[Flow], y0: float, y1: float) -> tuple[float, float]:
    """Top and bottom margins of items that stand side by side; returns the padding above and where the tallest ends."""
    top, bottom = min(i.box.y0 for i in items), max(i.box.y1 for i in items)
    pad_top = max(0.0, top - y0)
    start = y0 + pad_top
    tallest = max(items, key=lambda i: i.box.height)
    middle = tallest.box.center[1]
    centered = all(abs(i.box.center[1] - middle) <= _SAME for i in items)
    if flow.direction == "row" and centered and bottom <= y1 + 1e-6 and abs(tallest.box.y0 - start) <= _SAME:
        flow.center_items = True
        return pad_top, start + tallest.box.height
    end = start
    for item in items:
        item.top = _margin(item.box.y0 - start)
        item.bottom = min(0.0, y1 - item.box.y1)
        end = max(end, start + item.top + item.box.height + item.bottom)
    return pad_top, end


def _grid(flow: Flow, x0: float, y0: float, x1: float, y1: float) -> tuple[float, float]:
    count = _columns(flow)
    rows = [flow.items[i : i + count] for i in range(0, len(flow.items), count)]
    starts = [min(r[c].box.x0 for r in rows if c < len(r)) for c in range(count)]
    ends = [max(r[c].box.x1 for r in rows if c < len(r)) for c in range(count)]
    flow.gap = max(0.0, min(s - e for e, s in zip(ends, starts[1:], strict=False)))
    # a column reaches to where the next one's gap begins, so that one gap serves all
    reach = [*(s - flow.gap for s in starts[1:]), ends[-1]]
    flow.columns = [end - start for start, end in zip(starts, reach, strict=True)]
    shift = starts[0] - x0
    even = max(flow.columns) - min(flow.columns) <= 1.0
    flow.equal_columns = even and abs(shift) <= _SAME and abs(ends[-1] - x1) <= _SAME
    tops = [min(i.box.y0 for i in row) for row in rows]
    bottoms = [max(i.box.y1 for i in row) for row in rows]
    row_gaps = [t - b for b, t in zip(bottoms, tops[1:], strict=False)]
    flow.row_gap = _common(row_gaps) or max(0.0, min(row_gaps))
    pad_top = max(0.0, tops[0] - y0)
    cursor = y0 + pad_top
    for index, row in enumerate(rows):
        cursor += flow.row_gap if index else 0.0
        end = float("-inf")
        for c, item in enumerate(row):
            item.top = _margin(item.box.y0 - cursor)
            item.bottom = min(0.0, y1 - item.box.y1) if index == len(rows) - 1 else 0.0
            end = max(end, cursor + item.top + item.box.height + item.bottom)
            item.left = _margin(item.box.x0 - starts[c] + shift)
            fits = not item.left and abs(item.box.x1 - reach[c]) <= _SAME
            item.width = None if fits else round(item.box.width, 1)
        cursor = end
    return pad_top, cursor


def _columns(flow: Flow) -> int:
    """Cells in the first row of a grid: those that start right of the one before."""
    count = 1
    while count < len(flow.items) and flow.items[count].box.x0 > flow.items[count - 1].box.x0 + 2.0:
        count += 1
    return count


def _stack(flow: Flow, x0: float, y0: float, x1: float, y1: float) -> tuple[float, float]:
    pad_top, end = _place_down(flow, flow.items, y0, y1)
    for item in flow.items:
        item.left = _margin(item.box.x0 - x0)
        whole = not item.left and abs(x1 - item.box.x1) <= _SAME and item.text is None
        item.width = None if whole else round(item.box.width, 1)
    return pad_top, end


def _common(values: list[float]) -> float:
    """The one value all of `values` stand for (their sum may drift by half a pixel), or 0."""
    if not values:
        return 0.0
    mean = sum(values) / len(values)
    for digits in (0, 1, 2):
        nice = round(mean, digits)
        drift = worst = 0.0
        for value in values:
            drift += value - nice
            worst = max(worst, abs(drift))
        if worst <= 0.5:
            return nice if nice > 0 else 0.0
    return 0.0


def _margin(value: float) -> float:
    """A margin, where half a pixel is noise (the caller keeps account of what was dropped)."""
    return 0.0 if abs(value) <= 0.5 else round(value, 1)

"""From measured boxes to flow layout: which children run as a row, a column or a grid, and with which margins.

The rule is a recursive cut: a set of boxes that can be separated by horizontal lines is a column of bands, one that can be
separated by vertical lines is a row of bands, bands whose columns line up are a grid. What cannot be separated overlaps
and becomes a stack: all items in one grid cell, the largest at the back. Every margin is then the measured distance, of
either sign, so boxes that collide or poke out of their parent still land where they were measured.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from watersmeet.core.geometry import Box
from watersmeet.pipelines.emit.fonts import Font
from watersmeet.pipelines.emit.place import place
from watersmeet.pipelines.emit.text import TextBlock, set_text
from watersmeet.pipelines.layout.tree import PICTURES, Node, Style

_STRICT = ("list", "table", "tr")  # only items, rows or cells may stand directly inside
_FIELDS = ("input", "select", "textarea")


@dataclass(kw_only=True)
class Flow:
    """One box of the flow model. `node` is None for groups that the cut made and for the text inside a container.

    `box` is the border box in picture pixels that the element will fill. Margins, paddings and gaps are px and filled in by
    `place`: `top`, `left`, `bottom` are margins towards the neighbour before (or the parent's content edge).
    """

    node: Node | None
    box: Box
    direction: str = "leaf"  # leaf, column, row, grid or stack
    items: list["Flow"] = field(default_factory=list)
    text: TextBlock | None = None
    depth: int = 0
    # set by `place`
    padding: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)  # top, right, bottom, left
    gap: float = 0.0
    row_gap: float = 0.0
    columns: list[float] = field(default_factory=list)
    equal_columns: bool = False
    center_items: bool = False  # row: items share one centre line
    top: float = 0.0
    left: float = 0.0
    bottom: float = 0.0
    width: float | None = None  # None: as wide as the parent
    auto_left: bool = False  # the free space of a row goes in front of this item
    grow: bool = False  # takes the free space of a row
    centered: bool = False  # stands in the middle of its column
    text_align: str = "left"
    inside: tuple[float, float, float] = (
        0.0,
        0.0,
        0.0,
    )  # margins (top, bottom, left) of a text that outgrows its own box

    extent: Box = field(init=False)  # the box and everything of its content that pokes out of it

    def __post_init__(self) -> None:
        parts = [self.box, *(item.extent for item in self.items)]
        if self.text is not None:
            parts.append(self.text.box)
        self.extent = Box.around(parts)

    @property
    def kind(self) -> str:
        """The node's kind, `text` for loose text, or the direction of a made group."""
        if self.node is not None:
            return self.node.kind
        return "text" if self.text is not None else "group"

    @property
    def style(self) -> Style:
        return self.node.style if self.node is not None else Style()

    @property
    def border(self) -> tuple[float, float, float, float]:
        """Border widths in px: top, right, bottom, left."""
        return border_widths(self.style)


def border_widths(style: Style) -> tuple[float, float, float, float]:
    """Whole border widths in px (top, right, bottom, left), as a browser draws them."""
    if style.border_width <= 0:
        return (0.0, 0.0, 0.0, 0.0)
    width = float(max(1, int(style.border_width + 0.01)))
    top, right, bottom, left = (width if side in style.border_sides else 0.0 for side in "trbl")
    return (top, right, bottom, left)


def has_look(style: Style) -> bool:
    """Whether the box itself is visible."""
    return style.background is not None or style.border_width > 0 or style.shadow


def build(root: Node, families: dict[str, str], default: Font, width: float) -> Flow:
    """The flow model of a whole page; the root's box starts at (0, 0) and is `width` px wide."""
    builder = _Builder(families, default)
    flow = builder.node(root, strict=True) or Flow(node=root, box=root.box)
    flow.box = replace(flow.box, x0=0.0, y0=0.0, x1=width, y1=max(flow.box.y1, flow.extent.y1))
    place(flow)
    return flow


class _Builder:
    def __init__(self, families: dict[str, str], default: Font) -> None:
        self.families, self.default = families, default

    def node(self, node: Node, *, strict: bool = False) -> Flow | None:
        """The flow of `node`, or None when nothing of it can be seen."""
        if node.kind in PICTURES:
            return Flow(node=node, box=_at_least(node.box, 1.0))
        lines = [line for line in node.lines if line.text.strip()]
        children = [flow for child in node.children if (flow := self.node(child)) is not None]
        if node.kind in _FIELDS:
            return self._field(node, children)
        text = set_text(lines, self.families, self.default) if lines else None
        keeps_box = has_look(node.style) or node.kind in ("button", "page")
        if not children:
            if text is None:
                return Flow(node=node, box=_at_least(node.box, 1.0)) if keeps_box or strict else None
            return Flow(node=node, box=_at_least(node.box, 1.0) if keeps_box else text.box, text=text)
        items = children
        if text is not None:
            items = [*items, Flow(node=None, box=text.box, text=text)]
        direction, items = arrange(items, strict=node.kind in _STRICT)
        around = Box.around([item.box for item in items])
        box = node.box if keeps_box else _loose(node.box, around)
        return Flow(node=node, box=_at_least(box, 1.0), direction=direction, items=items)

    def _field(self, node: Node, pictures: list[Flow]) -> Flow:
        lines = [line for line in node.lines if line.text.strip()]
        text = set_text(lines, self.families, self.default) if lines else None
        control = Flow(node=node.replace(children=()), box=_at_least(node.box, 4.0), text=text)
        if not pictures:
            return control
        around = Box.around([control.box, *(p.box for p in pictures)])
        return Flow(node=None, box=around, direction="stack", items=[control, *pictures])


def _at_least(box: Box, size: float) -> Box:
    return replace(box, x1=max(box.x1, box.x0 + size), y1=max(box.y1, box.y0 + size))


def _loose(box: Box, around: Box) -> Box:
    """The box of a container that cannot be seen: as wide as measured where that holds the children, and no taller than they."""
    if box.x0 <= around.x0 and box.x1 >= around.x1:
        return replace(around, x0=box.x0, x1=box.x1)
    return around


def arrange(items: Sequence[Flow], *, strict: bool = False) -> tuple[str, list[Flow]]:
    """Direction and ordered items for boxes inside one parent; makes groups unless `strict`."""
    items = list(items)
    if len(items) <= 1:
        return "column", items
    bands = separate(items, "y")
    columns = separate(items, "x")
    if len(bands) == len(items):
        return "column", [band[0] for band in bands]
    if len(columns) == len(items):
        return "row", [column[0] for column in columns]
    if len(bands) > 1 and (cells := as_grid(bands)) is not None:
        return "grid", cells
    if strict:
        return "stack", _back_to_front(items)
    if len(bands) > 1 and len(columns) > 1:
        first = columns if _prefers_columns(bands, columns) else bands
        return ("row" if first is columns else "column"), [_group(part) for part in first]
    if len(bands) > 1:
        return "column", [_group(band) for band in bands]
    if len(columns) > 1:
        return "row", [_group(column) for column in columns]
    return "stack", _peel(items)


def _group(items: list[Flow]) -> Flow:
    if len(items) == 1:
        return items[0]
    direction, items = arrange(items)
    return Flow(node=None, box=Box.around([i.box for i in items]), direction=direction, items=items)


def _span(axis: str) -> Callable[[Box], tuple[float, float]]:
    return (lambda b: (b.x0, b.x1)) if axis == "x" else (lambda b: (b.y0, b.y1))


def separate(items: Sequence[Flow], axis: str) -> list[list[Flow]]:
    """Cut `items` into parts that do not share any stretch of `axis`, in order. Small collisions (3 px or 15 %) are forgiven."""
    span = _span(axis)
    spans = []
    for item in items:
        low, high = span(item.extent)
        give = min(3.0, 0.15 * (high - low))
        spans.append((low + give, high - give, item))
    spans.sort(key=lambda s: (s[0], s[1]))
    parts: list[list[Flow]] = []
    reach = float("-inf")
    for low, high, item in spans:
        if low >= reach - 1e-6 and (parts == [] or low >= reach):
            parts.append([])
        parts[-1].append(item)
        reach = max(reach, high)
    return parts


def _gaps(parts: list[list[Flow]], axis: str) -> list[float]:
    span = _span(axis)
    edges = [(min(span(i.box)[0] for i in part), max(span(i.box)[1] for i in part)) for part in parts]
    return [after[0] - before[1] for before, after in pairwise(edges)]


def _prefers_columns(bands: list[list[Flow]], columns: list[list[Flow]]) -> bool:
    """Whether the white space between columns says more than that between bands."""
    if sum(len(c) > 1 for c in columns) < 2:
        return False
    return min(_gaps(columns, "x")) > 2 * max(*_gaps(bands, "y"), 4.0)


def as_grid(bands: list[list[Flow]]) -> list[Flow] | None:
    """The cells in reading order when all bands are rows of the same columns (the last may be short), else None."""
    rows = []
    for band in bands:
        parts = separate(band, "x")
        if len(parts) != len(band):
            return None
        rows.append([part[0] for part in parts])
    count = len(rows[0])
    if len(rows) < 2 or count < 2 or any(len(r) != count for r in rows[:-1]) or len(rows[-1]) > count:
        return None
    for column in range(count):
        starts = [row[column].box.x0 for row in rows if column < len(row)]
        if max(starts) - min(starts) > 2.0:
            return None
    for column in range(1, count):
        reach = max(row[column - 1].box.x1 for row in rows if column - 1 < len(row))
        if reach > min(row[column].box.x0 for row in rows if column < len(row)) + 0.5:
            return None
    return [cell for row in rows for cell in row]


def _back_to_front(items: list[Flow]) -> list[Flow]:
    """Painting order inside a stack: every text was seen, so nothing solid may lie over it; then large before small."""
    rest = sorted(items, key=lambda i: (i.text is not None and not has_look(i.style), -i.box.area))
    seen = [(item, *_ink(item)) for item in rest]
    order: list[Flow] = []
    while seen:
        hidden = [
            sum(
                any(_inside(center, solid) for solid in solids)
                for center in lines
                for other, solids, _ in seen
                if other is not item
            )
            for item, _, lines in seen
        ]
        order.append(seen.pop(hidden.index(min(hidden)))[0])
    return order


def _ink(flow: Flow) -> tuple[list[Box], list[tuple[float, float]]]:
    """The solid boxes of `flow` and the centres of its lines, everything inside included."""
    solids: list[Box] = []
    lines: list[tuple[float, float]] = []
    if flow.kind in ("img", "icon") or flow.kind in _FIELDS or flow.style.background is not None:
        solids.append(flow.box)
    if flow.text is not None:
        lines.extend(piece.box.center for row in flow.text.rows for piece in row.pieces)
    for item in flow.items:
        more_solids, more_lines = _ink(item)
        solids.extend(more_solids)
        lines.extend(more_lines)
    return solids, lines


def _inside(point: tuple[float, float], box: Box) -> bool:
    return box.x0 <= point[0] <= box.x1 and box.y0 <= point[1] <= box.y1


def _peel(items: list[Flow]) -> list[Flow]:
    """Take the largest boxes off until the rest can be cut; the rest is laid out as one layer among them."""
    rest = sorted(items, key=lambda i: (i.text is not None and not has_look(i.style), -i.box.area))
    layers: list[Flow] = []
    while len(rest) > 1 and len(separate(rest, "x")) == 1 and len(separate(rest, "y")) == 1:
        layers.append(rest.pop(0))
    return _back_to_front([*layers, _group(rest)])

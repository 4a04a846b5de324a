"""Layout markup: the compact language in which a model writes a layout tree.

A pre-order list of symbols. Containers open with their kind, may name the shape they are painted on, and close;
text leaves name one or more text regions; controls name their box, then what stands in it, and close; pictures name
their box. Boxes are shape regions (`<s3>`) or, where no shape fits, four bins (`<x2><y5><x9><y7>`):

    <nav> <s0> <img><s1> <link><t0> <link><t1> <button> <s2> <t2> </> </>

The markup holds no text, no colour and no size: those were read or measured, and are only referred to.
"""

from dataclasses import dataclass

import numpy as np

from watersmeet.core.errors import DecodeError
from watersmeet.core.geometry import Box
from watersmeet.pipelines.layout.regions import Regions, TextRegion
from watersmeet.pipelines.layout.tree import CONTAINERS, CONTROLS, KINDS, PICTURES, TEXTS, Node, Style, TextLine

MAX_TEXTS = 256
MAX_SHAPES = 160
BINS = 64
OPEN = "<layout>"
CLOSE = "</>"

# how well a shape must fit a node's box to stand for it: containers are large, icons are small
_MIN_IOU = {kind: 0.75 for kind in CONTAINERS} | {kind: 0.6 for kind in CONTROLS} | {kind: 0.5 for kind in PICTURES}
_WORD_GAP = 1.6  # of a line's height: texts farther apart are not one line
_MIN_BINNED_SIDE = 24.0  # px; a smaller box would be mostly rounding error when written as bins


def symbols() -> list[str]:
    """Every symbol of the markup, in the order in which a tokenizer reserves them."""
    return (
        [OPEN, CLOSE]
        + [f"<{kind}>" for kind in KINDS if kind != "page"]
        + [f"<t{i}>" for i in range(MAX_TEXTS)]
        + [f"<s{i}>" for i in range(MAX_SHAPES)]
        + [f"<x{i}>" for i in range(BINS)]
        + [f"<y{i}>" for i in range(BINS)]
    )


def box_symbols(box: Box, width: int, height: int) -> list[str]:
    """`box` as four bins of a picture of `width` x `height` px."""

    def bin_of(value: float, size: int) -> int:
        return min(BINS - 1, max(0, round(value / size * (BINS - 1))))

    return [
        f"<x{bin_of(box.x0, width)}>",
        f"<y{bin_of(box.y0, height)}>",
        f"<x{bin_of(box.x1, width)}>",
        f"<y{bin_of(box.y1, height)}>",
    ]


def encode(tree: Node, regions: Regions) -> list[str]:
    """The markup of `tree`, written with references into `regions`; parts that no region supports are left out."""
    return _Writer(tree, regions).write()


class _Writer:
    def __init__(self, tree: Node, regions: Regions) -> None:
        self.tree = tree
        self.regions = regions
        self.nodes = list(tree.walk())
        self.texts = _assign_texts(self.nodes, regions)
        self.shapes = _assign_shapes(self.nodes, regions)

    def write(self) -> list[str]:
        return [symbol for child in self.tree.children for symbol in self._node(child)]

    def _node(self, node: Node) -> list[str]:
        if node.kind in TEXTS:
            refs = self._refs(node)
            return [f"<{node.kind}>", *refs] if refs else []
        box = self._box(node)
        if node.kind in PICTURES:
            return [f"<{node.kind}>", *box] if box else []
        inside = [symbol for child in node.children for symbol in self._node(child)]
        if node.kind in CONTROLS:
            refs = self._refs(node)
            return [f"<{node.kind}>", *box, *refs, *inside, CLOSE] if box or refs else []
        if not box and (not inside or (node.kind == "group" and _count_nodes(inside) == 1)):
            return inside
        return [f"<{node.kind}>", *box, *inside, CLOSE]

    def _refs(self, node: Node) -> list[str]:
        return [f"<t{i}>" for i in self.texts.get(id(node), ())]

    def _box(self, node: Node) -> list[str]:
        shape = self.shapes.get(id(node))
        if shape is not None:
            return [f"<s{shape}>"]
        wants_bins = node.kind in CONTROLS or node.kind == "img"
        if wants_bins and min(node.box.width, node.box.height) >= _MIN_BINNED_SIDE:
            return box_symbols(node.box, self.regions.width, self.regions.height)
        return []


def _count_nodes(markup: list[str]) -> int:
    """How many nodes stand at the top level of `markup`."""
    count = depth = 0
    for symbol in markup:
        kind = symbol[1:-1]
        if symbol == CLOSE:
            depth -= 1
        elif kind in KINDS:
            count += depth == 0
            depth += kind in CONTAINERS or kind in CONTROLS
    return count


def _as_array(boxes: list[Box]) -> np.ndarray:
    return np.array([(b.x0, b.y0, b.x1, b.y1) for b in boxes], dtype=np.float64).reshape(-1, 4)


def _intersections(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Shared areas of all pairs: `[len(a), len(b)]`, square pixels."""
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, 2:], b[None, :, 2:])
    return np.clip(high - low, 0, None).prod(axis=2)


def _areas(boxes: np.ndarray) -> np.ndarray:
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def _assign_texts(nodes: list[Node], regions: Regions) -> dict[int, list[int]]:
    """Which text regions belong to which node: each region goes to the line that covers most of it."""
    owners = [(node, line) for node in nodes for line in node.lines]
    if not owners or not regions.texts:
        return {}
    lines = _as_array([line.box for _, line in owners])
    texts = _as_array([t.box for t in regions.texts[:MAX_TEXTS]])
    # the thinner of the two counts as the whole, since a DOM line is taller than its glyphs
    share = _intersections(texts, lines) / np.maximum(np.minimum(_areas(texts)[:, None], _areas(lines)[None]), 1.0)
    best = share.argmax(axis=1)
    out: dict[int, list[int]] = {}
    placed = [(int(best[i]), texts[i, 0], i) for i in range(len(texts)) if share[i, best[i]] >= 0.4]
    for line, _, i in sorted(placed):
        out.setdefault(id(owners[line][0]), []).append(i)
    return out


def _assign_shapes(nodes: list[Node], regions: Regions) -> dict[int, int]:
    """Which shape stands for which node: best fits first, each shape once."""
    wanting = [n for n in nodes if n.kind not in TEXTS and n.kind != "page"]
    if not wanting or not regions.shapes:
        return {}
    boxes = _as_array([n.box for n in wanting])
    shapes = _as_array([s.box for s in regions.shapes[:MAX_SHAPES]])
    shared = _intersections(boxes, shapes)
    iou = shared / np.maximum(_areas(boxes)[:, None] + _areas(shapes)[None] - shared, 1.0)
    out: dict[int, int] = {}
    taken: set[int] = set()
    # a page's nested wrappers often share one box; the outermost of equal fits comes first in pre-order and keeps it,
    # except that a control or picture, which must have a box, goes before any container
    rank = [0 if n.kind in CONTROLS or n.kind in PICTURES else 1 for n in wanting]
    pairs = np.argwhere(iou >= 0.5)
    for i, j in sorted(pairs.tolist(), key=lambda p: (rank[p[0]], -round(iou[p[0], p[1]], 2), p[0])):
        node = wanting[i]
        if id(node) not in out and j not in taken and iou[i, j] >= _MIN_IOU[node.kind] and _paints(node):
            out[id(node)] = j
            taken.add(j)
    return out


def _paints(node: Node) -> bool:
    """Whether a node can be seen as a box of its own."""
    style = node.style
    if node.kind in CONTROLS or node.kind in PICTURES or node.kind == "card":
        return True
    return style.background is not None or style.border_width > 0 or style.shadow


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """A tree read from markup, with what did not fit."""

    tree: Node
    unused_texts: tuple[int, ...]
    warnings: tuple[str, ...]


def decode(markup: list[str], regions: Regions) -> Decoded:
    """Read markup back into a tree whose boxes and lines come from `regions`.

    References outside of `regions` and repeated text references are dropped with a warning; an unclosed container is
    closed at the end. Raises DecodeError for a symbol that is not part of the markup.
    """
    return _Reader(markup, regions).read()


class _Reader:
    def __init__(self, markup: list[str], regions: Regions) -> None:
        self.markup = markup
        self.regions = regions
        self.at = 0
        self.used: set[int] = set()
        self.warnings: list[str] = []

    def read(self) -> Decoded:
        children: list[Node] = []
        while self.at < len(self.markup):
            if self.markup[self.at] == CLOSE:
                self.at += 1
                self.warnings.append("a closing symbol without an opening one was dropped")
                continue
            children += self._node()
        box = Box(x0=0, y0=0, x1=self.regions.width, y1=self.regions.height)
        tree = Node(kind="page", box=box, children=tuple(children), style=Style(background=self.regions.background))
        unused = tuple(i for i in range(len(self.regions.texts)) if i not in self.used)
        return Decoded(tree=tree, unused_texts=unused, warnings=tuple(self.warnings))

    def _node(self) -> list[Node]:
        symbol = self.markup[self.at]
        kind = symbol[1:-1]
        if kind not in KINDS or kind == "page":
            if self._kind_of(symbol) == "":
                raise DecodeError(f"position {self.at} of the markup holds {symbol!r}; expected a kind such as <group>")
            self.warnings.append(f"{symbol} outside of a node was dropped")
            self.at += 1
            return []
        self.at += 1
        box = self._anchor()
        lines = self._lines()
        if kind in TEXTS:
            return [Node(kind=kind, box=Box.around([line.box for line in lines]), lines=lines)] if lines else []
        if kind in PICTURES:
            return [Node(kind=kind, box=box)] if box else []
        children = self._until_close()
        if kind in CONTROLS:
            if box is None and not lines:
                return children
            own = box or Box.around([line.box for line in lines])
            return [Node(kind=kind, box=own, lines=lines, children=tuple(children))]
        parts = [child.box for child in children] + [line.box for line in lines]
        if lines:  # the grammar does not allow it, a remote model may still write it
            children = [Node(kind="text", box=Box.around([line.box for line in lines]), lines=lines), *children]
        if box is None and not parts:
            return []
        return [Node(kind=kind, box=box or Box.around(parts), children=tuple(children))]

    def _until_close(self) -> list[Node]:
        children: list[Node] = []
        while self.at < len(self.markup):
            if self.markup[self.at] == CLOSE:
                self.at += 1
                return children
            children += self._node()
        return children

    @staticmethod
    def _kind_of(symbol: str) -> str:
        """'t', 's', 'x' or 'y' for a reference or bin, '' for anything else."""
        return symbol[1] if len(symbol) > 3 and symbol[1] in "tsxy" and symbol[2:-1].isdigit() else ""

    def _take(self, kind: str) -> int | None:
        if self.at < len(self.markup) and self._kind_of(self.markup[self.at]) == kind:
            self.at += 1
            return int(self.markup[self.at - 1][2:-1])
        return None

    def _anchor(self) -> Box | None:
        shape = self._take("s")
        if shape is not None:
            if shape < len(self.regions.shapes):
                return self.regions.shapes[shape].box
            self.warnings.append(f"shape {shape} does not exist; the picture has {len(self.regions.shapes)}")
            return None
        bins = [self._take("x"), self._take("y"), self._take("x"), self._take("y")]
        if None in bins:
            return None
        x0, y0, x1, y1 = (b / (BINS - 1) for b in bins if b is not None)
        w, h = self.regions.width, self.regions.height
        box = Box(x0=min(x0, x1) * w, y0=min(y0, y1) * h, x1=max(x0, x1) * w, y1=max(y0, y1) * h)
        return box if box.area > 0 else None

    def _lines(self) -> tuple[TextLine, ...]:
        found: list[TextRegion] = []
        while (i := self._take("t")) is not None:
            if i >= len(self.regions.texts):
                self.warnings.append(f"text {i} does not exist; the picture has {len(self.regions.texts)}")
            elif i in self.used:
                self.warnings.append(f"text {i} was referred to twice")
            else:
                self.used.add(i)
                found.append(self.regions.texts[i])
        return join_lines(found)


def text_line(region: TextRegion) -> TextLine:
    """The visual line of one text region, with its measured style."""
    style = Style(color=region.color, font_size=region.font_size, font_weight=region.weight)
    return TextLine(text=region.text, box=region.box, style=style)


def join_lines(regions: list[TextRegion]) -> tuple[TextLine, ...]:
    """Text regions of one leaf as visual lines: regions that stand side by side on one height become one line."""
    lines: list[TextLine] = []
    for region in regions:
        line = text_line(region)
        last = lines[-1] if lines else None
        near = last is not None and -4 <= line.box.x0 - last.box.x1 < _WORD_GAP * line.box.height
        if last is not None and near and _same_height(last.box, line.box):
            lines[-1] = TextLine(text=f"{last.text} {line.text}", box=last.box.union(line.box), style=last.style)
        else:
            lines.append(line)
    return tuple(lines)


def _same_height(a: Box, b: Box) -> bool:
    shared = min(a.y1, b.y1) - max(a.y0, b.y0)
    return shared > 0.6 * min(a.height, b.height)

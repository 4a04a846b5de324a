"""What no page has: a text field as large as a panel, a caption outside of its button, a sentence across two columns.

A small model writes such things now and then. Sizes and places are measured, so they can be told and mended here.
"""

from dataclasses import replace

from watersmeet.core.geometry import Box
from watersmeet.pipelines.layout.regions import Regions
from watersmeet.pipelines.layout.tree import CONTAINERS, CONTROLS, PICTURES, TEXTS, Node, TextLine

_HEIGHTS = {"button": (12.0, 110.0), "input": (16.0, 84.0), "select": (16.0, 84.0), "textarea": (28.0, 600.0)}
_CHECK = (8.0, 64.0)  # px: a checkbox, radio button or switch
_ICON = 48.0
_FLAT = 64.0  # px: a larger box of one colour is a panel, not a picture
_RULE = 6.0  # px: thinner boxes are dividing lines
_LINE_GAP = 1.1  # of the line height: more space than that between two lines ends a paragraph
_WORD_GAP = 1.6  # of the line height: more space than that between two texts of one height parts them
_SIZES = 1.35  # how far the font sizes of one paragraph may lie apart


def plausible(tree: Node, regions: Regions) -> Node:
    """The same boxes and lines under kinds that they can be; no line is lost and none moves."""
    kinds = {_key(shape.box): shape.kind for shape in regions.shapes}
    pages = {_key(shape.box) for shape in regions.shapes if regions.is_page(shape.box)}
    return _without_page_pictures(tree.replace(children=_all(tree.children, kinds)), pages)


def _without_page_pictures(node: Node, pages: set[tuple[float, float, float, float]]) -> Node:
    """The tree without pictures of whole pages: their text would be seen twice and read by nobody."""
    kept = (c for c in node.children if c.kind not in ("img", "icon") or _key(c.box) not in pages)
    return node.replace(children=tuple(_without_page_pictures(c, pages) for c in kept))


def _key(box: Box) -> tuple[float, float, float, float]:
    return round(box.x0, 1), round(box.y0, 1), round(box.x1, 1), round(box.y1, 1)


def _all(nodes: tuple[Node, ...], kinds: dict[tuple[float, float, float, float], str]) -> tuple[Node, ...]:
    return tuple(made for node in nodes for made in _one(node, kinds))


def _one(node: Node, kinds: dict[tuple[float, float, float, float], str]) -> list[Node]:
    if node.kind in TEXTS:
        return split_leaf(node)
    node = node.replace(children=_all(node.children, kinds))
    if node.kind in CONTROLS:
        return _control(node, kinds.get(_key(node.box), ""))
    shape = kinds.get(_key(node.box), "")
    if not shape and node.kind in PICTURES:
        return []  # given in bins where no box was found: there is nothing to be seen
    if node.kind in CONTAINERS and shape:
        return _painted(node, shape)
    if node.kind in ("img", "icon") and shape:
        large = max(node.box.width, node.box.height) > _FLAT
        kind = "card" if large and shape in ("fill", "outline") else _kind_by_shape(node.box, "picture")
        return [node.replace(kind=kind)]
    if node.kind == "check" and not _can_be_checked(node.box):
        return [node.replace(kind=_kind_by_shape(node.box, kinds.get(_key(node.box), "picture")))]
    if node.kind == "rule" and min(node.box.width, node.box.height) > 4 * _RULE:
        return [node.replace(kind=_kind_by_shape(node.box, kinds.get(_key(node.box), "picture")))]
    return [node]


def _painted(node: Node, shape: str) -> list[Node]:
    """A container that stands on a found box: a line holds nothing, and a lone picture needs no frame of its own size."""
    if shape == "rule" or min(node.box.width, node.box.height) <= _RULE:
        return [Node(kind="rule", box=node.box), *node.children]
    if shape == "picture" and not node.children:
        return [node.replace(kind=_kind_by_shape(node.box, shape))]
    if len(node.children) == 1 and node.children[0].kind in PICTURES and node.children[0].box.iou(node.box) > 0.9:
        return list(node.children)
    return [node]


def _can_be_checked(box: Box) -> bool:
    """The size of a checkbox, radio button or switch."""
    low, high = _CHECK
    return low <= box.height <= high and low <= box.width <= high and box.width <= 2.6 * box.height


def _control(node: Node, shape: str) -> list[Node]:
    own = tuple(line for line in node.lines if _holds(node.box, line.box))
    if not shape and not own:  # neither a box was found there nor does it hold anything
        return [*(Node(kind="text", box=line.box, lines=(line,)) for line in node.lines), *node.children]
    stray = [Node(kind="text", box=line.box, lines=(line,)) for line in node.lines if line not in own]
    low, high = _HEIGHTS[node.kind]
    too_wide = node.kind == "button" and node.box.width > 640
    if low <= node.box.height <= high and node.box.width >= 12 and not too_wide:
        if node.kind == "button" and shape == "picture" and not own and not node.children:
            node = node.replace(children=(Node(kind="icon", box=_inset(node.box)),))
        return [node.replace(lines=own), *stray]
    kind = _kind_by_shape(node.box, shape or "fill")
    if kind != "card":
        alone = [Node(kind="text", box=line.box, lines=(line,)) for line in own]
        return [Node(kind=kind, box=node.box), *alone, *stray, *node.children]
    inside = tuple(Node(kind="text", box=line.box, lines=(line,)) for line in own)
    return [Node(kind="card", box=node.box, children=(*inside, *node.children)), *stray]


def _holds(box: Box, line: Box) -> bool:
    x, y = line.center
    return box.x0 - 2 <= x <= box.x1 + 2 and box.y0 - 2 <= y <= box.y1 + 2


def _inset(box: Box) -> Box:
    """Where the picture of a button without a caption stands."""
    x, y = box.width * 0.22, box.height * 0.22
    return Box(x0=box.x0 + x, y0=box.y0 + y, x1=box.x1 - x, y1=box.y1 - y)


def _kind_by_shape(box: Box, shape: str) -> str:
    """What a found box can be when it is no control."""
    if shape == "rule" or min(box.width, box.height) <= _RULE:
        return "rule"
    if shape == "picture":
        return "icon" if max(box.width, box.height) <= _ICON else "img"
    return "card"


def split_leaf(node: Node) -> list[Node]:
    """The leaf parted where its lines do not follow each other as lines of one text do."""
    parts: list[list[TextLine]] = []
    for line in node.lines:
        if parts and _follows(parts[-1][-1], line):
            parts[-1].append(line)
        else:
            parts.append([line])
    return [replace(node, box=Box.around([line.box for line in part]), lines=tuple(part)) for part in parts]


def _follows(above: TextLine, line: TextLine) -> bool:
    a, b = above.box, line.box
    height = max(min(a.height, b.height), 1.0)
    sizes = (above.style.font_size or a.height, line.style.font_size or b.height)
    if max(sizes) > _SIZES * min(sizes):
        return False
    beside = min(a.y1, b.y1) - max(a.y0, b.y0) > 0.6 * height
    if beside:
        return -height < b.x0 - a.x1 < _WORD_GAP * height
    gap = b.y0 - a.y1
    shared = min(a.x1, b.x1) - max(a.x0, b.x0)
    return -0.5 * height < gap < _LINE_GAP * max(a.height, b.height) and shared > 0

"""Shapes that a small model left out of its tree, put back by geometry: panels around what they hold, lone pictures."""

from watersmeet.pipelines.layout.regions import Regions, ShapeRegion
from watersmeet.pipelines.layout.repair import reads_before
from watersmeet.pipelines.layout.tree import CONTAINERS, CONTROLS, PICTURES, Node

_SAME = 0.85  # overlap from which a node already stands for a shape
_INSIDE = 0.9  # share of a node that must lie in a panel to be taken into it
_TEXT_SHARE = 0.12  # of a picture's area: more read text than that is no chart or photo
_ICON = 48.0  # px; smaller pictures are icons
_LEAST_PANEL = 12.0  # px a side


def attach_shapes(tree: Node, regions: Regions) -> Node:
    """Add each found shape that no node stands for: fills and outlines as `card`, pictures as `img` or `icon`, rules.

    Large shapes first, so that panels nest. The page's own background and shapes inside of a picture or control are not
    added.
    """
    for shape in sorted(regions.shapes, key=lambda s: -s.box.area):
        if shape.box.area > 0.95 * tree.box.area:
            continue
        if shape.kind == "picture" and (_mostly_text(shape, regions) or regions.is_page(shape.box)):
            continue
        if not any(_stands_for(node, shape) for node in tree.walk()):
            tree = _add(tree, shape)
    return tree


def _mostly_text(shape: ShapeRegion, regions: Regions) -> bool:
    """Whether what looks like a picture is really a panel of text, which must stay text."""
    covered = sum(t.box.intersection(shape.box) for t in regions.texts)
    return covered > _TEXT_SHARE * shape.box.area


def _stands_for(node: Node, shape: ShapeRegion) -> bool:
    container = node.kind in CONTAINERS
    if node.box.iou(shape.box) >= _SAME and node.kind != "group" and not (container and shape.kind == "picture"):
        return True
    opaque = node.kind in PICTURES or node.kind in CONTROLS
    return opaque and node.box.intersection(shape.box) > 0.7 * shape.box.area


def _add(node: Node, shape: ShapeRegion) -> Node:
    for at, child in enumerate(node.children):
        # rows keep their cells: a panel inside of a table row goes into the cell's own group or not at all
        if child.kind in CONTAINERS and child.box.contains(shape.box, slack=1.5):
            children = list(node.children)
            children[at] = _add(child, shape)
            return node.replace(children=tuple(children))
    if node.kind in ("table", "tr"):
        return node
    if shape.kind in ("picture", "rule"):
        return _insert(node, _leaf(shape))
    if min(shape.box.width, shape.box.height) < _LEAST_PANEL:
        return node
    inside = tuple(c for c in node.children if c.box.intersection(shape.box) >= _INSIDE * max(c.box.area, 1.0))
    cut = [c for c in node.children if c not in inside and c.box.intersection(shape.box) > 0.1 * c.box.area]
    if any(c.kind not in CONTAINERS for c in cut):  # a panel that tears a line or picture apart is likely wrong
        return node
    if cut:  # containers that reach beyond the panel: what of them belongs onto it is for `nest` to say
        return _insert(node, Node(kind="card", box=shape.box))
    card = Node(kind="card", box=shape.box, children=inside)
    if not inside:
        return _insert(node, card)
    first = next(i for i, c in enumerate(node.children) if c in inside)
    rest = [c for c in node.children if c not in inside]
    before = sum(1 for c in node.children[:first] if c not in inside)
    return node.replace(children=(*rest[:before], card, *rest[before:]))


def _leaf(shape: ShapeRegion) -> Node:
    if shape.kind == "rule":
        return Node(kind="rule", box=shape.box)
    small = max(shape.box.width, shape.box.height) <= _ICON
    return Node(kind="icon" if small else "img", box=shape.box)


def _insert(node: Node, leaf: Node) -> Node:
    """`leaf` among the children of `node`, before the first that reads after it."""
    for at, child in enumerate(node.children):
        if reads_before(leaf.box, child.box):
            return node.replace(children=(*node.children[:at], leaf, *node.children[at:]))
    return node.replace(children=(*node.children, leaf))

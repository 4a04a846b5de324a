"""Thin lines of the picture that a tree does not mention: borders of rows and entries, or rules of their own."""

from dataclasses import replace

from watersmeet.core.geometry import Box
from watersmeet.pipelines.layout.regions import Regions, ShapeRegion
from watersmeet.pipelines.layout.tree import CONTAINERS, Node, Style

_STACKS = ("list", "table")  # their children are items and rows; a rule among them would be one more item
_NEAR = 3.0  # px


def add_dividers(tree: Node, regions: Regions) -> Node:
    """Put every thin line that is not yet in the tree where it belongs."""
    for shape in regions.shapes:
        if shape.kind == "rule" and not _known(tree, shape.box):
            tree = _insert(tree, shape)
    return tree


def _known(tree: Node, line: Box) -> bool:
    """True when a rule, a picture or a border already stands for the line."""
    across = line.width >= line.height
    for node in tree.walk():
        box = node.box
        if node.kind in ("rule", "img", "icon") and box.intersection(line) >= 0.5 * line.area:
            return True
        if (
            node.kind == "rule"
            and across
            and abs(box.center[1] - line.center[1]) <= 3
            and _shared_x(box, line) >= 0.5 * line.width
        ):
            return True
        if node.style.border_width:
            sides = node.style.border_sides
            if across and _shared_x(box, line) >= 0.9 * line.width:
                if ("t" in sides and abs(box.y0 - line.y0) <= _NEAR) or (
                    "b" in sides and abs(box.y1 - line.y1) <= _NEAR
                ):
                    return True
            elif not across and _shared_y(box, line) >= 0.9 * line.height:
                if ("l" in sides and abs(box.x0 - line.x0) <= _NEAR) or (
                    "r" in sides and abs(box.x1 - line.x1) <= _NEAR
                ):
                    return True
    return False


def _shared_x(a: Box, b: Box) -> float:
    return max(0.0, min(a.x1, b.x1) - max(a.x0, b.x0))


def _shared_y(a: Box, b: Box) -> float:
    return max(0.0, min(a.y1, b.y1) - max(a.y0, b.y0))


def _insert(node: Node, shape: ShapeRegion) -> Node:
    """`node` with the line in it, or in the deepest container around the line."""
    line = shape.box
    for at, child in enumerate(node.children):
        if child.kind in CONTAINERS and child.box.contains(line, _NEAR):
            children = list(node.children)
            children[at] = _insert(child, shape)
            return node.replace(children=tuple(children))
    across = line.width >= line.height
    if not across:
        return _border(node, shape, "l" if line.center[0] < node.box.center[0] else "r", must=False)
    if line.width >= 0.8 * node.box.width and node.kind != "page":
        for side, edge in (("b", node.box.y1), ("t", node.box.y0)):
            if abs(edge - (line.y1 if side == "b" else line.y0)) <= _NEAR:
                return _border(node, shape, side, must=False)
    above = [
        at
        for at, child in enumerate(node.children)
        if child.box.y1 <= line.y0 + _NEAR and _shared_x(child.box, line) >= 0.5 * min(child.box.width, line.width)
    ]
    below = [
        at
        for at, child in enumerate(node.children)
        if child.box.y0 >= line.y1 - _NEAR and _shared_x(child.box, line) >= 0.5 * min(child.box.width, line.width)
    ]
    crossed = [c for c in node.children if c.box.y0 < line.y0 - _NEAR and c.box.y1 > line.y1 + _NEAR]
    if any(_shared_x(c.box, line) > 0 for c in crossed) or not (above or below):
        return node
    if node.kind in _STACKS:
        if above:
            return _on_child(node, max(above, key=lambda at: node.children[at].box.y1), shape, "b")
        return _on_child(node, min(below, key=lambda at: node.children[at].box.y0), shape, "t")
    if not crossed and node.kind != "tr":
        at = (max(above) + 1) if above else 0
        children = list(node.children)
        children.insert(at, Node(kind="rule", box=line, style=Style(background=shape.color)))
        return node.replace(children=tuple(children))
    return node


def _on_child(node: Node, at: int, shape: ShapeRegion, side: str) -> Node:
    """The line as the lower (or upper) border of one child, which is stretched to reach it."""
    child, line = node.children[at], shape.box
    if child.kind not in CONTAINERS:
        return node
    box = (
        replace(child.box, y1=max(child.box.y1, line.y1))
        if side == "b"
        else replace(child.box, y0=min(child.box.y0, line.y0))
    )
    others = [c.box for i, c in enumerate(node.children) if i != at]
    if any(_shared_y(box, o) > _NEAR and _shared_x(box, o) > 0 for o in others):
        return node
    children = list(node.children)
    children[at] = _border(child.replace(box=box), shape, side, must=True)
    return node.replace(children=tuple(children))


def _border(node: Node, shape: ShapeRegion, side: str, must: bool) -> Node:
    """The node with one side drawn in the line's colour; left alone when it has another border already."""
    line, style = shape.box, node.style
    thickness = min(line.width, line.height)
    if not must:
        near = {
            "l": abs(node.box.x0 - line.x0),
            "r": abs(node.box.x1 - line.x1),
            "t": abs(node.box.y0 - line.y0),
            "b": abs(node.box.y1 - line.y1),
        }[side]
        along = _shared_y(node.box, line) / max(1.0, node.box.height) if side in "lr" else 1.0
        if near > _NEAR or along < 0.6 or node.kind == "page":
            return node
    if style.border_width:
        same = style.border_color is not None and max(
            abs(a - b) for a, b in zip(style.border_color, shape.color, strict=True)
        )
        if same is False or same > 24:
            return node
        sides = "".join(s for s in "trbl" if s in style.border_sides or s == side)
        return node.replace(style=replace(style, border_sides=sides))
    return node.replace(
        style=replace(style, border_color=shape.color, border_width=float(thickness), border_sides=side)
    )

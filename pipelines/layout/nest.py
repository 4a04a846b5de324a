"""Whatever lies on a panel belongs into it: otherwise the panel, painted later, would hide it."""

from dataclasses import dataclass, field

from watersmeet.core.geometry import Box
from watersmeet.pipelines.layout.regions import Regions
from watersmeet.pipelines.layout.repair import reads_before
from watersmeet.pipelines.layout.tree import CONTAINERS, Node

_INSIDE = 0.9  # share of a node that must lie on a panel to belong to it
_SLACK = 6.0  # px: how far a read line may stick out of the panel that it is on
_OUTSIDE = 0.5  # share below which a node does not belong to its panel


@dataclass(kw_only=True, eq=False)
class _Item:
    """A node that can be moved. `panel` is set for containers that are painted as a found box."""

    node: Node
    panel: bool
    children: list["_Item"] = field(default_factory=list)
    parent: "_Item | None" = None

    def ancestors(self) -> list["_Item"]:
        out, item = [], self.parent
        while item is not None:
            out.append(item)
            item = item.parent
        return out

    def frozen(self) -> Node:
        return self.node.replace(children=tuple(child.frozen() for child in self.children))


def nest(tree: Node, regions: Regions) -> Node:
    """The same nodes, each below the smallest painted container that it lies on, and none below one that it lies beside.

    A container counts as painted if its box is one of the found shapes; one that would cut through a text line was
    found wrongly, and what it holds takes its place. Containers move as a whole
    where they fit, and those that reach beyond the panel they are on are dissolved.
    """
    boxes = {_key(shape.box) for shape in regions.shapes if not _tears(shape.box, regions)}
    torn = {_key(shape.box) for shape in regions.shapes} - boxes
    panels: list[_Item] = []
    root = _thaw(_without(tree, torn), boxes, panels)
    panels = sorted((p for p in panels if p is not root), key=lambda p: p.node.box.area)
    _settle(root, panels, root)
    return root.frozen()


def _tears(box: Box, regions: Regions) -> bool:
    """Whether a side of the box runs through a text line: no panel ends in the middle of a word."""
    return any(_cuts(box, text.box) for text in regions.texts)


def _cuts(box: Box, line: Box) -> bool:
    wide = min(box.x1, line.x1) - max(box.x0, line.x0)
    high = min(box.y1, line.y1) - max(box.y0, line.y0)
    side = min(_SLACK, line.width / 4)
    through_x = high > 0.6 * line.height and any(line.x0 + side < x < line.x1 - side for x in (box.x0, box.x1))
    through_y = wide > 0.6 * line.width and any(
        line.y0 + 0.3 * line.height < y < line.y1 - 0.3 * line.height for y in (box.y0, box.y1)
    )
    return through_x or through_y


def _without(node: Node, torn: set[tuple[float, float, float, float]]) -> Node:
    """The tree with containers on torn boxes replaced by what they hold."""
    children: list[Node] = []
    for child in node.children:
        child = _without(child, torn)
        if child.kind in CONTAINERS and _key(child.box) in torn:
            children += child.children
        else:
            children.append(child)
    return node.replace(children=tuple(children))


def _key(box: Box) -> tuple[float, float, float, float]:
    return round(box.x0, 1), round(box.y0, 1), round(box.x1, 1), round(box.y1, 1)


def _thaw(node: Node, boxes: set[tuple[float, float, float, float]], panels: list[_Item]) -> _Item:
    painted = node.kind in CONTAINERS and node.kind not in ("page", "table", "tr") and _key(node.box) in boxes
    item = _Item(node=node, panel=painted)
    if painted:
        panels.append(item)
    for child in node.children:
        below = _thaw(child, boxes, panels)
        below.parent = item
        item.children.append(below)
    return item


def _settle(item: _Item, panels: list[_Item], root: _Item) -> None:
    for child in list(item.children):
        if child.parent is item:
            _settle_one(child, panels, root)


def _settle_one(child: _Item, panels: list[_Item], root: _Item) -> None:
    around = next((a for a in child.ancestors() if a.panel), None)
    share = 1.0 if around is None else _share(child.node.box, around.node.box)
    if share < _INSIDE and child.children and not child.panel:
        # a group that reaches beyond its panel: its members are looked at one by one
        for member in _dissolve(child):
            _settle_one(member, panels, root)
        return
    home = _home(child, panels)
    if home is None and share < _OUTSIDE:
        home = root
    if home is not None and home is not child.parent and (home is root or home not in child.ancestors()):
        assert child.parent is not None
        child.parent.children.remove(child)
        _place(child, home)
    _settle(child, panels, root)


def _share(box: Box, panel: Box) -> float:
    return box.intersection(panel) / max(box.area, 1e-6)


def _dissolve(item: _Item) -> list[_Item]:
    """Put the children of `item` in its place."""
    parent = item.parent
    assert parent is not None
    at = parent.children.index(item)
    parent.children[at : at + 1] = item.children
    for child in item.children:
        child.parent = parent
    return list(item.children)


def _home(item: _Item, panels: list[_Item]) -> _Item | None:
    """The smallest panel that `item` lies on and that is not part of it."""
    box = item.node.box
    for panel in panels:
        larger = panel.node.box.area > box.area * 1.001
        if larger and panel is not item and box.intersection(panel.node.box) >= _INSIDE * max(box.area, 1e-6):
            return None if item in panel.ancestors() else panel
    return None


def _place(item: _Item, home: _Item) -> None:
    item.parent = home
    for at, other in enumerate(home.children):
        if reads_before(item.node.box, other.node.box):
            home.children.insert(at, item)
            return
    home.children.append(item)

"""What a small model gets wrong in a tree and plain geometry can mend: lines left out, groups cut across."""

from watersmeet.core.geometry import Box
from watersmeet.pipelines.layout.markup import text_line
from watersmeet.pipelines.layout.regions import Regions
from watersmeet.pipelines.layout.tree import CONTAINERS, Node
from watersmeet.pipelines.layout.xycut import Cut, xy_cut

_UNCUT = ("list", "table", "tr")  # their children are items, rows and cells: grouping them would change what they are


def attach_missing(tree: Node, regions: Regions, unused: tuple[int, ...]) -> Node:
    """Put every unused text region into the smallest container around it, in reading order.

    No text is lost, except what lies in a picture and was left to it: the labels of a chart, the words on a photo.
    """
    pictures = [node.box for node in tree.walk() if node.kind == "img"]
    for i in unused:
        region = regions.texts[i]
        if any(box.intersection(region.box) > 0.9 * region.box.area for box in pictures):
            continue
        tree = _insert(tree, Node(kind="text", box=region.box, lines=(text_line(region),)))
    return tree


def _insert(node: Node, leaf: Node) -> Node:
    x, y = leaf.box.center
    inner = [
        (child.box.area, at)
        for at, child in enumerate(node.children)
        if child.kind in CONTAINERS and child.box.x0 <= x <= child.box.x1 and child.box.y0 <= y <= child.box.y1
    ]
    children = list(node.children)
    if inner:
        at = min(inner)[1]
        children[at] = _insert(children[at], leaf)
    else:
        after = [at for at, child in enumerate(children) if reads_before(leaf.box, child.box)]
        children.insert(after[0] if after else len(children), leaf)
    return node.replace(children=tuple(children))


def reads_before(a: Box, b: Box) -> bool:
    """Whether a stands before b in reading order: above it, or beside it to the left."""
    shared = min(a.y1, b.y1) - max(a.y0, b.y0)
    if shared > 0.5 * min(a.height, b.height):
        return a.x0 < b.x0
    return a.center[1] < b.center[1]


def regroup(tree: Node) -> Node:
    """The same leaves and semantic containers, with the anonymous groups between them cut anew by geometry."""
    children = tuple(regroup(child) for child in _without_groups(tree))
    if tree.kind in _UNCUT or len(children) < 2:
        return tree.replace(children=children)
    cut = xy_cut([child.box for child in children])
    return tree.replace(children=_grouped(cut, children))


def _without_groups(node: Node) -> list[Node]:
    out: list[Node] = []
    for child in node.children:
        if child.kind == "group":
            out += _without_groups(child)
        else:
            out.append(child)
    return out


def _grouped(cut: Cut, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    if cut.index is not None:
        return (nodes[cut.index],)
    parts: list[Node] = []
    for part in cut.parts:
        inside = _grouped(part, nodes)
        if len(inside) == 1:
            parts += inside
        else:
            parts.append(Node(kind="group", box=Box.around([n.box for n in inside]), children=inside))
    return tuple(parts)


def from_regions(regions: Regions) -> Node:
    """A tree by plain code alone: every text region a line of running text, grouped by XY-cut."""
    leaves = tuple(Node(kind="text", box=r.box, lines=(text_line(r),)) for r in regions.texts)
    page = Node(kind="page", box=Box(x0=0, y0=0, x1=regions.width, y1=regions.height), children=leaves)
    return regroup(page)

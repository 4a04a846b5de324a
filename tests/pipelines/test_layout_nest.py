"""Nodes go onto the panels they lie on."""

import numpy as np

from watersmeet.core.geometry import Box
from watersmeet.pipelines.layout.nest import nest
from watersmeet.pipelines.layout.regions import Regions, ShapeRegion, TextRegion
from watersmeet.pipelines.layout.tree import Node, TextLine


def box(x0, y0, x1, y1):
    return Box(x0=x0, y0=y0, x1=x1, y1=y1)


def line(b, text="x"):
    return Node(kind="text", box=b, lines=(TextLine(text=text, box=b),))


def regions(*shapes):
    return Regions(width=800, height=600, shapes=tuple(ShapeRegion(kind="fill", box=b) for b in shapes))


def page(*children):
    return Node(kind="page", box=box(0, 0, 800, 600), children=children)


def test_lines_and_whole_lists_move_onto_their_panel_in_reading_order():
    bar = box(0, 0, 200, 600)
    first, last = line(box(20, 20, 90, 40), "a"), line(box(20, 500, 90, 520), "z")
    items = Node(kind="list", box=box(20, 100, 90, 200), children=(line(box(20, 100, 90, 120), "b"),))
    outside = line(box(300, 20, 400, 40), "o")
    tree = nest(page(first, items, Node(kind="aside", box=bar, children=(last,)), outside), regions(bar))
    assert [n.kind for n in tree.children] == ["aside", "text"]
    assert [n.kind for n in tree.children[0].children] == ["text", "list", "text"]


def test_panels_nest_in_larger_panels():
    large, small = box(0, 0, 400, 400), box(50, 50, 150, 150)
    tree = nest(page(Node(kind="card", box=small), Node(kind="card", box=large)), regions(large, small))
    assert [n.box for n in tree.children] == [large] and tree.children[0].children[0].box == small


def test_a_group_around_its_panel_stays_where_it_is():
    frame = box(10, 10, 210, 110)
    inner = Node(kind="card", box=frame, children=(line(box(20, 20, 90, 40)),))
    tree = page(Node(kind="group", box=box(10, 10, 210, 109), children=(inner,)))
    assert nest(tree, regions(frame)) == tree


def test_nothing_is_lost_whatever_the_tree():
    rng = np.random.default_rng(0)
    for _ in range(40):
        boxes = []
        for _ in range(12):
            x, y = rng.uniform(0, 600), rng.uniform(0, 400)
            boxes.append(box(x, y, x + rng.uniform(20, 200), y + rng.uniform(20, 200)))
        nodes = [Node(kind="card", box=b) for b in boxes[:6]]
        leaves = [line(b, str(i)) for i, b in enumerate(boxes[6:])]
        nested = nodes[0].replace(children=(nodes[1].replace(children=tuple(leaves[:3])), nodes[2]))
        tree = nest(page(nested, *nodes[3:], *leaves[3:]), regions(*boxes[:6]))
        found = list(tree.walk())
        assert sorted(n.lines[0].text for n in found if n.lines) == [str(i) for i in range(6)]
        assert sum(n.kind == "card" for n in found) == 6


def test_what_lies_beside_its_panel_leaves_it_and_groups_across_it_dissolve():
    frame = box(10, 10, 200, 100)
    inner, outer = line(box(20, 20, 90, 40), "in"), line(box(400, 20, 500, 40), "out")
    across = Node(kind="group", box=box(20, 20, 500, 40), children=(inner, outer))
    tree = nest(page(Node(kind="card", box=frame, children=(across,))), regions(frame))
    assert [n.kind for n in tree.children] == ["card", "text"]
    assert tree.children[0].children == (inner,) and tree.children[1] == outer


def test_a_panel_that_cuts_through_a_line_gives_way_to_what_it_holds():
    frame = box(100, 10, 300, 200)
    word, inside = line(box(50, 20, 150, 40), "cut"), line(box(120, 100, 200, 120), "in")
    found = Regions(
        width=800,
        height=600,
        shapes=(ShapeRegion(kind="fill", box=frame),),
        texts=(TextRegion(box=word.box, text="cut"), TextRegion(box=inside.box, text="in")),
    )
    tree = nest(page(word, Node(kind="card", box=frame, children=(inside,))), found)
    assert tree.children == (word, inside)

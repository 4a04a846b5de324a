"""Trees mended by geometry: nothing is lost, order is reading order."""

import numpy as np

from watersmeet.core.geometry import Box
from watersmeet.pipelines.layout.regions import Regions, TextRegion
from watersmeet.pipelines.layout.repair import attach_missing, from_regions, regroup
from watersmeet.pipelines.layout.tree import Node


def box(x0, y0, x1, y1):
    return Box(x0=x0, y0=y0, x1=x1, y1=y1)


def texts(*boxes):
    return Regions(width=1280, height=757, texts=tuple(TextRegion(box=b, text=f"t{i}") for i, b in enumerate(boxes)))


def written(tree):
    return [line.text for node in tree.walk() for line in node.lines]


def test_a_missing_line_joins_the_smallest_container_at_its_place():
    found = texts(box(20, 60, 90, 80), box(20, 90, 90, 110), box(20, 120, 90, 140))
    whole = from_regions(found)
    card = Node(kind="card", box=box(10, 50, 200, 150), children=(whole.children[0], whole.children[2]))
    page = Node(kind="page", box=box(0, 0, 1280, 757), children=(card,))
    mended = attach_missing(page, found, (1,))
    assert [n.kind for n in mended.children] == ["card"]
    assert written(mended.children[0]) == ["t0", "t1", "t2"]


def test_a_line_outside_of_everything_joins_the_page():
    found = texts(box(20, 300, 90, 320))
    card = Node(kind="card", box=box(10, 50, 200, 150))
    mended = attach_missing(Node(kind="page", box=box(0, 0, 1280, 757), children=(card,)), found, (0,))
    assert [n.kind for n in mended.children] == ["card", "text"]


def test_regroup_dissolves_wrong_groups_and_keeps_semantic_ones():
    columns = [box(x, y, x + 100, y + 20) for x in (0, 400) for y in (100, 130)]
    leaves = from_regions(texts(*columns))
    a, b, c, d = [n for n in leaves.walk() if n.lines]
    crossed = Node(kind="group", box=box(0, 100, 500, 120), children=(a, c))
    listed = Node(kind="list", box=columns[1], children=(b,))
    tree = Node(kind="page", box=box(0, 0, 1280, 757), children=(crossed, listed, d))
    kinds = [n.kind for n in regroup(tree).walk()]
    assert kinds.count("list") == 1 and kinds.count("text") == 4
    left = next(n for n in regroup(tree).children if n.box.x1 <= 200)
    assert written(left) == ["t0", "t1"]


def test_random_regions_are_all_kept_once():
    rng = np.random.default_rng(1)
    for _ in range(30):
        boxes = []
        for _ in range(int(rng.integers(1, 40))):
            x, y = rng.uniform(0, 1100), rng.uniform(0, 700)
            boxes.append(box(x, y, x + rng.uniform(5, 300), y + rng.uniform(8, 40)))
        assert sorted(written(from_regions(texts(*boxes)))) == sorted(f"t{i}" for i in range(len(boxes)))


def test_texts_inside_of_a_picture_are_left_to_it():
    found = texts(box(110, 110, 150, 120), box(20, 300, 90, 320))
    chart = Node(kind="img", box=box(100, 100, 400, 280))
    tree = attach_missing(Node(kind="page", box=box(0, 0, 1280, 757), children=(chart,)), found, (0, 1))
    assert written(tree) == ["t1"]

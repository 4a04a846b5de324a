"""Shapes put back into a tree."""

from watersmeet.core.geometry import Box
from watersmeet.pipelines.layout.complete import attach_shapes
from watersmeet.pipelines.layout.nest import nest
from watersmeet.pipelines.layout.regions import Regions, ShapeRegion, TextRegion
from watersmeet.pipelines.layout.tree import Node, TextLine


def box(x0, y0, x1, y1):
    return Box(x0=x0, y0=y0, x1=x1, y1=y1)


def line(b, text="x"):
    return Node(kind="text", box=b, lines=(TextLine(text=text, box=b),))


def regions(*shapes):
    return Regions(width=800, height=600, shapes=tuple(ShapeRegion(kind=k, box=b) for k, b in shapes))


def page(*children):
    return Node(kind="page", box=box(0, 0, 800, 600), children=children)


def test_a_panel_takes_what_lies_in_it_and_nests():
    a, b, c = line(box(20, 20, 90, 40)), line(box(20, 60, 90, 80)), line(box(500, 20, 600, 40))
    outer, inner = box(10, 10, 200, 200), box(15, 50, 190, 100)
    tree = attach_shapes(page(a, b, c), regions(("outline", inner), ("fill", outer)))
    assert [n.kind for n in tree.children] == ["card", "text"]
    card = tree.children[0]
    assert card.box == outer and [n.kind for n in card.children] == ["text", "card"]
    assert card.children[1].box == inner and card.children[1].children == (b,)


def test_a_panel_that_would_tear_a_line_is_left_out():
    wide = line(box(20, 20, 400, 40))
    assert attach_shapes(page(wide), regions(("fill", box(10, 10, 200, 200)))) == page(wide)


def test_pictures_and_rules_come_at_their_place_in_reading_order():
    a, b = line(box(20, 20, 90, 40)), line(box(20, 300, 90, 320))
    found = regions(
        ("picture", box(20, 60, 220, 260)), ("rule", box(0, 50, 800, 51)), ("picture", box(100, 300, 116, 316))
    )
    tree = attach_shapes(page(a, b), found)
    assert [n.kind for n in tree.children] == ["text", "rule", "img", "text", "icon"]


def test_what_a_node_already_stands_for_is_not_added_again():
    field = Node(kind="input", box=box(20, 20, 220, 60))
    card = Node(kind="card", box=box(10, 10, 300, 100), children=(field,))
    inside_of_field = box(180, 30, 200, 50)
    found = regions(("fill", box(10, 10, 300, 101)), ("outline", field.box), ("picture", inside_of_field))
    assert attach_shapes(page(card), found) == page(card)


def test_the_page_itself_is_no_panel():
    assert attach_shapes(page(), regions(("fill", box(0, 0, 800, 600)))) == page()


def test_a_chart_goes_onto_its_card_and_a_panel_of_text_does_not_become_a_picture():
    frame = box(10, 10, 400, 300)
    label = line(box(20, 20, 80, 34))
    card = Node(kind="card", box=frame, children=(label,))
    found = regions(("picture", frame))
    tree = attach_shapes(page(card), found)
    assert sorted(n.kind for n in tree.children[0].children) == ["img", "text"]
    crowded = Regions(
        width=800,
        height=600,
        shapes=found.shapes,
        texts=tuple(TextRegion(box=box(20, y, 380, y + 16), text="word") for y in range(20, 280, 24)),
    )
    assert attach_shapes(page(card), crowded) == page(card)


def test_a_panel_below_a_long_list_is_added_for_its_items_to_move_onto():
    items = tuple(line(box(20, y, 90, y + 20)) for y in (20, 60, 100, 140))
    listed = Node(kind="list", box=box(20, 20, 90, 160), children=items)
    found = regions(("fill", box(10, 50, 100, 130)))
    tree = nest(attach_shapes(page(listed), found), found)
    card = next(n for n in tree.walk() if n.kind == "card")
    assert card.children == items[1:3]

"""Kinds that a box or line cannot be are mended; nothing is lost."""

import pytest

from watersmeet.core.geometry import Box
from watersmeet.pipelines.layout.complete import attach_shapes
from watersmeet.pipelines.layout.plausible import plausible, split_leaf
from watersmeet.pipelines.layout.regions import Regions, ShapeRegion, TextRegion
from watersmeet.pipelines.layout.tree import Node, Style, TextLine


def box(x0, y0, x1, y1):
    return Box(x0=x0, y0=y0, x1=x1, y1=y1)


def line(b, text="x", size=16.0):
    return TextLine(text=text, box=b, style=Style(font_size=size))


def page(*children):
    return Node(kind="page", box=box(0, 0, 1280, 757), children=children)


def regions(kind, b):
    return Regions(width=1280, height=757, shapes=(ShapeRegion(kind=kind, box=b),))


@pytest.mark.parametrize(
    ("kind", "shape", "b", "want"),
    [
        ("input", "fill", box(100, 100, 500, 140), "input"),
        ("input", "outline", box(100, 100, 700, 500), "card"),
        ("input", "picture", box(100, 100, 120, 112), "icon"),
        ("select", "picture", box(100, 100, 700, 500), "img"),
        ("button", "rule", box(100, 100, 700, 102), "rule"),
        ("textarea", "outline", box(100, 100, 500, 300), "textarea"),
        ("check", "fill", box(100, 100, 116, 116), "check"),
        ("check", "outline", box(100, 100, 400, 300), "card"),
        ("check", "fill", box(100, 100, 150, 108), "card"),
        ("card", "picture", box(100, 100, 130, 130), "icon"),
        ("card", "rule", box(100, 100, 400, 102), "rule"),
        ("icon", "fill", box(100, 100, 700, 150), "card"),
        ("icon", "picture", box(100, 100, 700, 150), "img"),
        ("icon", "fill", box(100, 100, 130, 130), "icon"),
        ("rule", "picture", box(100, 100, 400, 300), "img"),
    ],
)
def test_a_box_is_what_its_size_allows(kind, shape, b, want):
    assert plausible(page(Node(kind=kind, box=b)), regions(shape, b)).children[0].kind == want


def test_a_caption_outside_of_its_button_stands_beside_it():
    b = box(100, 100, 200, 140)
    own, stray = line(box(120, 110, 180, 130), "own"), line(box(500, 500, 560, 520), "stray")
    button, text = plausible(page(Node(kind="button", box=b, lines=(own, stray))), regions("fill", b)).children
    assert button.lines == (own,) and (text.kind, text.lines) == ("text", (stray,))


def test_a_panel_taken_for_a_field_keeps_its_lines():
    b = box(100, 100, 700, 500)
    inner = line(box(120, 110, 180, 130))
    card = plausible(page(Node(kind="input", box=b, lines=(inner,))), regions("fill", b)).children[0]
    assert card.kind == "card" and card.children[0].lines == (inner,)


def test_a_paragraph_stays_and_strangers_part():
    lines = (line(box(20, 20, 300, 40)), line(box(20, 46, 280, 66)), line(box(20, 72, 100, 92)))
    paragraph = Node(kind="text", box=box(20, 20, 300, 92), lines=lines)
    assert split_leaf(paragraph) == [paragraph]
    far = line(box(20, 200, 100, 220))
    other_size = line(box(20, 98, 300, 138), size=32.0)
    other_column = line(box(700, 98, 800, 118))
    for stranger in (far, other_size, other_column):
        parts = split_leaf(paragraph.replace(lines=(*lines, stranger)))
        assert [p.lines for p in parts] == [lines, (stranger,)] and {p.kind for p in parts} == {"text"}


def test_pictures_and_controls_that_nobody_saw_are_left_out():
    seen = line(box(120, 110, 180, 130))
    field = Node(kind="input", box=box(100, 100, 300, 140), lines=(seen,))
    ghosts = (Node(kind="img", box=box(400, 100, 800, 600)), Node(kind="button", box=box(500, 100, 600, 140)))
    assert plausible(page(field, *ghosts), regions("fill", box(0, 0, 9, 9))).children == (field,)


def test_a_picture_of_the_page_is_no_picture():
    whole = box(0, 0, 1200, 700)
    found = Regions(
        width=1280,
        height=757,
        shapes=(ShapeRegion(kind="picture", box=whole),),
        texts=tuple(TextRegion(box=box(20, y, 90, y + 16), text="word") for y in range(20, 220, 40)),
    )
    copied = page(Node(kind="img", box=whole))
    assert plausible(copied, found).children == ()
    assert attach_shapes(page(), found) == page()
    photo = Regions(width=1280, height=757, shapes=found.shapes, texts=found.texts[:2])
    assert plausible(copied, photo) == copied

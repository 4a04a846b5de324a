"""Styles measured from a drawn page must be those it was drawn with, and crops must show what was there."""

import numpy as np
import pytest
from PIL import Image, ImageDraw

from watersmeet.core.geometry import Box
from watersmeet.pipelines.layout.regions import Regions
from watersmeet.pipelines.layout.tree import Node, TextLine
from watersmeet.pipelines.measure import crop_pictures, measure_tree
from watersmeet.plugins import get_registry


def box(x0, y0, x1, y1):
    return Box(x0=x0, y0=y0, x1=x1, y1=y1)


def line(text, x0, y0, x1, y1):
    return TextLine(text=text, box=box(x0, y0, x1, y1))


@pytest.fixture(scope="module")
def page():
    image = Image.new("RGB", (480, 360), (248, 249, 250))
    draw = ImageDraw.Draw(image)
    draw.rectangle((20, 20, 299, 219), fill="white", outline=(222, 226, 230))
    draw.rectangle((40, 160, 159, 199), fill=(13, 110, 253))
    draw.rectangle((0, 240, 479, 240), fill=(200, 200, 200))
    draw.text((40, 60), "Welcome back", fill=(33, 37, 41), font_size=24, anchor="ls")
    draw.text((72, 185), "Sign in", fill="white", font_size=16, anchor="ls")
    draw.polygon([(330, 50), (350, 50), (340, 70)], fill=(200, 0, 0))
    noise = np.random.default_rng(0).integers(60, 120, (90, 130, 3), np.uint8)
    image.paste(Image.fromarray(noise), (320, 100))
    draw.text((340, 150), "Over it", fill="white", font_size=24, anchor="ls")
    draw.text((20, 290), "Below the line", fill=(33, 37, 41), font_size=16, anchor="ls")
    lines = {
        "title": line("Welcome back", 40, 38, 195, 66),
        "button": line("Sign in", 72, 171, 122, 189),
        "over": line("Over it", 340, 128, 420, 156),
        "below": line("Below the line", 20, 275, 122, 294),
    }
    tree = Node(
        kind="page",
        box=box(0, 0, 480, 360),
        children=(
            Node(
                kind="card",
                box=box(20, 20, 300, 220),
                children=(
                    Node(kind="h1", box=lines["title"].box, lines=(lines["title"],)),
                    Node(kind="button", box=box(40, 160, 160, 200), lines=(lines["button"],)),
                ),
            ),
            Node(kind="icon", box=box(330, 50, 351, 71)),
            Node(kind="img", box=box(320, 100, 450, 190)),
            Node(kind="text", box=lines["over"].box, lines=(lines["over"],)),
            Node(kind="text", box=lines["below"].box, lines=(lines["below"],)),
        ),
    )
    encoder = get_registry().encoder("regions", {})
    texts = [((v.box.x0, v.box.y0, v.box.x1, v.box.y1), v.text) for v in lines.values()]
    return image, tree, Regions.from_json(encoder.describe(image, texts))


@pytest.fixture(scope="module")
def measured(page):
    image, tree, regions = page
    return measure_tree(tree, image, regions)


def node(tree, kind):
    return next(n for n in tree.walk() if n.kind == kind)


def test_boxes(measured):
    assert measured.style.background == (248, 249, 250)
    card, button = node(measured, "card"), node(measured, "button")
    assert (card.style.background, card.style.border_color, card.style.border_width) == (
        (255, 255, 255),
        (222, 226, 230),
        1,
    )
    assert (button.style.background, button.style.border_width, button.style.align) == ((13, 110, 253), 0, "center")
    assert button.style.color == (255, 255, 255)


def test_text(measured):
    title = node(measured, "h1")
    assert title.style.color == title.lines[0].style.color == (33, 37, 41)
    assert title.style.background is None
    assert title.style.font_size == pytest.approx(24, rel=0.12)  # Pillow's own face is none of ours
    over = next(n for n in measured.walk() if n.lines and n.lines[0].text == "Over it")
    assert over.style.background is None
    assert min(over.style.color) > 230


def test_line_becomes_a_rule_in_its_place(measured):
    rule = node(measured, "rule")
    assert rule.box == box(0, 240, 480, 241)
    assert rule.style.background == (200, 200, 200)
    kinds = [child.kind for child in measured.children]
    assert kinds.index("rule") == len(kinds) - 2  # before the text below it
    assert sum(n.kind == "rule" for n in measured.walk()) == 1


def test_structure_stays(page, measured):
    def skeleton(n):
        return n.kind, tuple(skeleton(c) for c in n.children if c.kind != "rule"), tuple(v.text for v in n.lines)

    assert skeleton(measured) == skeleton(page[1])


def test_crops(page, measured, tmp_path):
    image = page[0]
    tree = crop_pictures(measured, image, tmp_path)
    icon = Image.open(tmp_path / node(tree, "icon").src)
    assert icon.mode == "RGBA" and icon.size == (21, 21)
    back = Image.new("RGBA", icon.size, (248, 249, 250, 255))
    shown = np.asarray(Image.alpha_composite(back, icon).convert("RGB")).astype(int)
    assert np.abs(shown - np.asarray(image.crop((330, 50, 351, 71))).astype(int)).max() <= 3
    assert icon.getpixel((0, 20))[3] == 0
    photo = Image.open(tmp_path / node(tree, "img").src).convert("RGB")
    assert photo.size == (130, 90)
    array = np.asarray(photo)
    assert array.max() < 200  # the white text over it is gone
    assert (array[:20] == np.asarray(image)[100:120, 320:450]).all()  # the rest is as it was


def test_odd_trees_and_pictures(tmp_path):
    encoder = get_registry().encoder("regions", {})
    image = Image.new("RGB", (1, 1), "white")
    regions = Regions.from_json(encoder.describe(image, []))
    far = Node(kind="img", box=box(50, 50, 60, 60))
    empty = Node(kind="card", box=box(0, 0, 0, 0), children=(Node(kind="text", box=box(0, 0, 0, 0)), far))
    tree = measure_tree(Node(kind="page", box=box(0, 0, 1, 1), children=(empty,)), image, regions)
    assert node(crop_pictures(tree, image, tmp_path), "img").src is None

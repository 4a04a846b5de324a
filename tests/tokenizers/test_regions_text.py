"""Lines drawn in known faces must measure as what they are."""

import numpy as np
import pytest
from PIL import Image, ImageDraw

from watersmeet.tokenizers.regions.boxes import measure_box
from watersmeet.tokenizers.regions.fonts import extent, load_font
from watersmeet.tokenizers.regions.glyphs import measure_text, measure_texts


def drawn(text, family="sans", weight=400, size=16, color=(33, 37, 41), paper=(255, 255, 255)):
    """A picture of the line and the box a browser would give it."""
    # drawn large and made small: smooth, unhinted glyphs as a browser paints them
    font = load_font(family, weight, 8 * size)
    length = font.getlength(text) / 8
    width, height = int(length) + 60, 2 * size + 20
    image = Image.new("RGB", (8 * width, 8 * height), paper)
    baseline = 10 + round(1.2 * size)
    ImageDraw.Draw(image).text((8 * 30, 8 * baseline), text, fill=color, font=font, anchor="ls")
    image = image.resize((width, height), Image.Resampling.BOX)
    box = (30, baseline - 0.905 * size, 30 + length, baseline + 0.212 * size)
    return np.asarray(image), box


def test_extent_agrees_with_a_drawing():
    text = "Quick jump, 42 %"
    image, _ = drawn(text, size=100, color=(0, 0, 0))
    rows, columns = np.flatnonzero((image[..., 0] < 128).any(1)), np.flatnonzero((image[..., 0] < 128).any(0))
    line = extent(text, "sans", 400)
    assert abs(line.width * 100 - (columns[-1] - columns[0] + 1)) <= 2
    assert abs(line.height * 100 - (rows[-1] - rows[0] + 1)) <= 2
    assert line.area * 100**2 == pytest.approx((255 - image[..., 0].astype(float)).sum() / 255, rel=0.03)


@pytest.mark.parametrize("size", [11, 14, 16, 21, 32, 63, 96])
@pytest.mark.parametrize("text", ["Pricing plans", "Continue to checkout", "1,284.50"])
@pytest.mark.parametrize("weight", [400, 700])
def test_size_weight_and_colour(size, text, weight):
    image, box = drawn(text, weight=weight, size=size)
    look = measure_text(image, box, text)
    assert look.font_size == pytest.approx(size, rel=0.06)
    assert look.weight == weight
    assert look.background == (255, 255, 255)
    # strokes thinner than a pixel are nowhere fully inked
    slack = 0 if size >= 14 or weight == 700 else 32
    assert max(abs(a - b) for a, b in zip(look.color, (33, 37, 41), strict=True)) <= slack


@pytest.mark.parametrize("family", ["sans", "serif", "mono"])
def test_family_of_a_page(family):
    lines = [drawn(t, family=family) for t in ("A long enough line of running text", "Another one", "Ok")]
    height = sum(image.shape[0] for image, _ in lines)
    sheet = np.full((height, max(image.shape[1] for image, _ in lines), 3), 255, np.uint8)
    texts, top = [], 0
    for (image, box), text in zip(lines, ("A long enough line of running text", "Another one", "Ok"), strict=True):
        sheet[top : top + image.shape[0], : image.shape[1]] = image
        texts.append(((box[0], box[1] + top, box[2], box[3] + top), text))
        top += image.shape[0]
    looks = measure_texts(sheet, texts)
    assert looks[0].family == family
    if family != "mono":  # the page decides for lines too short to tell
        assert [look.family for look in looks] == [family] * 3
    assert all(look.font_size == pytest.approx(16, rel=0.06) for look in looks[:2])


def test_light_ink_on_a_photo():
    ramp = np.linspace(20, 110, 120)[:, None] + np.random.default_rng(0).normal(0, 12, (120, 400))
    image = Image.fromarray(np.clip(ramp, 0, 255).astype(np.uint8)).convert("RGB")
    font = load_font("sans", 700, 40)
    ImageDraw.Draw(image).text((30, 75), "Over a photo", fill=(255, 255, 255), font=font, anchor="ls")
    look = measure_text(np.asarray(image), (30, 39, 30 + font.getlength("Over a photo"), 84), "Over a photo")
    assert not look.flat
    assert min(look.color) >= 240
    assert look.font_size == pytest.approx(40, rel=0.1)


def test_underline_is_seen_and_does_not_change_the_size():
    image, box = drawn("Read the manual", size=18)
    plain = measure_text(image, box, "Read the manual")
    lined = image.copy()
    y = round(box[3] - 0.1 * 18)
    lined[y : y + 1, 30 : round(box[2])] = (33, 37, 41)
    look = measure_text(lined, box, "Read the manual")
    assert look.underline and not plain.underline
    assert look.font_size == pytest.approx(plain.font_size, rel=0.05)


@pytest.mark.parametrize("box", [(0, 0, 0, 0), (5, 5, 6, 6), (-10, -10, 500, 500)])
def test_any_box_can_be_measured(box):
    look = measure_text(np.full((20, 30, 3), 9, np.uint8), box, "x")
    assert look.font_size >= 4


def test_box_look():
    image = Image.new("RGB", (300, 200), (248, 249, 250))
    draw = ImageDraw.Draw(image)
    draw.rectangle((50, 40, 249, 139), fill=(255, 255, 255), outline=(222, 226, 230), width=2)
    draw.rectangle((70, 60, 229, 119), fill=(200, 30, 30))
    look = measure_box(np.asarray(image), (50, 40, 250, 140), [(70, 60, 230, 120)])
    assert look.color == (255, 255, 255)
    assert look.share > 0.8
    assert (look.border_color, look.border_width, look.border_sides) == ((222, 226, 230), 2, "trbl")
    assert not look.shadow
    draw.rectangle((0, 160, 299, 160), fill=(10, 10, 10))
    below = measure_box(np.asarray(image), (0, 145, 300, 161))
    assert (below.border_sides, below.border_width) == ("b", 1)

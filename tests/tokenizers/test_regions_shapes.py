"""Boxes, pictures and rules that were drawn with known places and colours must be found there."""

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFilter

from watersmeet.tokenizers.regions.flat import find_areas
from watersmeet.tokenizers.regions.order import reading_order
from watersmeet.tokenizers.regions.shapes import find_shapes, overlap

PAGE = (255, 255, 255)


def page(width: int = 480, height: int = 320, color=PAGE):
    image = Image.new("RGB", (width, height), color)
    return image, ImageDraw.Draw(image)


def nearest(shapes, bounds):
    return max(shapes, key=lambda s: overlap(s.bounds, bounds))


def assert_near(found, expected, slack):
    assert max(abs(a - b) for a, b in zip(found, expected, strict=True)) <= slack, (found, expected)


def test_areas_agree_with_flood_fill():
    rng = np.random.default_rng(3)
    picture = rng.integers(0, 2, (24, 31, 1), np.uint8).repeat(3, axis=2) * 200
    areas = find_areas(picture)
    mask = np.zeros((26, 33), np.uint8)
    seen = np.zeros((24, 31), bool)
    count = 0
    import cv2

    for y in range(24):
        for x in range(31):
            if seen[y, x]:
                continue
            mask[...] = 0
            cv2.floodFill(picture.copy(), mask, (x, y), (9, 9, 9), flags=4 | cv2.FLOODFILL_MASK_ONLY | (1 << 8))
            own = mask[1:-1, 1:-1].astype(bool)
            label = areas.labels_HW[y, x]
            assert (own == (areas.labels_HW == label)).all()
            assert areas.size_C[label] == own.sum()
            seen |= own
            count += 1
    assert len(areas.size_C) == count


@pytest.mark.parametrize("color", [(240, 240, 240), (252, 253, 254), (30, 60, 200)])
def test_filled_panel_is_exact(color):
    image, draw = page()
    draw.rectangle((40, 30, 239, 189), fill=color)
    shapes, background = find_shapes(image)
    assert background == PAGE
    assert [(s.bounds, s.kind, s.color) for s in shapes] == [((40, 30, 240, 190), "fill", color)]


def test_pale_field_border_and_radius():
    image, draw = page()
    draw.rounded_rectangle((50, 60, 349, 97), radius=6, fill=PAGE, outline=(222, 226, 230), width=1)
    shapes, _ = find_shapes(image)
    field = nearest(shapes, (50, 60, 350, 98))
    assert_near(field.bounds, (50, 60, 350, 98), 1)
    assert field.kind == "outline"
    assert field.color == PAGE
    assert field.border_color == (222, 226, 230)
    assert field.border_width == 1
    assert 3 <= field.radius <= 9
    assert len(shapes) == 1


@pytest.mark.parametrize("radius", [0, 4, 8, 16, 30])
def test_radius_of_buttons(radius):
    big = Image.new("RGB", (4 * 300, 4 * 120), PAGE)
    ImageDraw.Draw(big).rounded_rectangle(
        (4 * 40, 4 * 30, 4 * 240 - 1, 4 * 90 - 1), radius=4 * radius, fill=(13, 110, 253)
    )
    shapes, _ = find_shapes(big.resize((300, 120), Image.Resampling.BOX))  # smooth corners, as a browser paints them
    button = nearest(shapes, (40, 30, 240, 90))
    assert_near(button.bounds, (40, 30, 240, 90), 1)
    assert button.color == (13, 110, 253)
    assert abs(button.radius - radius) <= 1 + 0.1 * radius
    assert len(shapes) == 1


def test_sidebar_cut_by_its_active_entry_is_one_box():
    image, draw = page()
    draw.rectangle((0, 0, 119, 319), fill=(40, 44, 52))
    draw.rectangle((0, 100, 119, 139), fill=(13, 110, 253))
    shapes, _ = find_shapes(image)
    boxes = {(s.bounds, s.color) for s in shapes}
    assert ((0, 0, 120, 320), (40, 44, 52)) in boxes
    assert ((0, 100, 120, 140), (13, 110, 253)) in boxes
    assert len(boxes) == 2


def test_shadowed_card_gives_one_box_and_no_picture():
    image, _ = page()
    shade = Image.new("L", image.size, 0)
    ImageDraw.Draw(shade).rectangle((100, 64, 379, 244), fill=70)
    shade = shade.filter(ImageFilter.GaussianBlur(8))
    image.paste((0, 0, 0), mask=shade)
    ImageDraw.Draw(image).rectangle((100, 60, 379, 239), fill=PAGE)
    shapes, _ = find_shapes(image)
    assert_near(nearest(shapes, (100, 60, 380, 240)).bounds, (100, 60, 380, 240), 2)
    assert len(shapes) == 1


def test_photo_icon_and_rule():
    image, draw = page()
    noise = np.random.default_rng(0).integers(0, 255, (120, 160, 3), np.uint8)
    image.paste(Image.fromarray(noise), (40, 40))
    draw.polygon([(300, 83), (311, 60), (323, 83), (311, 76)], fill=(200, 0, 0))
    draw.rectangle((40, 250, 439, 250), fill=(220, 220, 220))
    shapes, _ = find_shapes(image)
    assert_near(nearest(shapes, (40, 40, 200, 160)).bounds, (40, 40, 200, 160), 1)
    assert_near(nearest(shapes, (300, 60, 324, 84)).bounds, (300, 60, 324, 84), 1)
    rule = nearest(shapes, (40, 250, 440, 251))
    assert (rule.kind, rule.bounds, rule.color) == ("rule", (40, 250, 440, 251), (220, 220, 220))
    assert sorted(s.kind for s in shapes) == ["picture", "picture", "rule"]


def test_text_is_no_shape():
    image, draw = page()
    box = draw.textbbox((60, 40), "HELLO III", font_size=60)
    draw.text((60, 40), "HELLO III", fill=(0, 0, 0), font_size=60)
    assert find_shapes(image)[0]  # without being told, letters are ink
    assert find_shapes(image, [box])[0] == []


def test_line_chart_is_one_picture():
    image, draw = page(640, 400)
    for y in range(80, 281, 40):
        draw.line((60, y, 580, y), fill=(225, 225, 225))
    draw.line((60, 60, 60, 300), fill=(120, 120, 120))
    draw.line([(60 + 40 * i, 200 + (-1) ** i * 9 * i) for i in range(13)], fill=(0, 120, 255), width=3)
    shapes, _ = find_shapes(image)
    chart = nearest(shapes, (60, 60, 581, 301))
    assert chart.kind == "picture"
    assert overlap(chart.bounds, (60, 60, 581, 301)) > 0.8
    assert len(shapes) <= 4


@pytest.mark.parametrize("size", [(1, 1), (2, 9), (300, 5), (64, 64)])
@pytest.mark.parametrize("kind", ["blank", "noise", "stripes"])
def test_odd_pictures_do_not_fail(size, kind):
    array = np.zeros((size[1], size[0], 3), np.uint8)
    if kind == "noise":
        array = np.random.default_rng(1).integers(0, 255, array.shape, np.uint8)
    elif kind == "stripes":
        array[::2] = 255
    shapes, background = find_shapes(array)
    assert len(background) == 3
    assert all(0 <= s.bounds[0] < s.bounds[2] <= size[0] and 0 <= s.bounds[1] < s.bounds[3] <= size[1] for s in shapes)


def test_number_of_shapes_is_limited():
    image, draw = page(500, 320)
    for x in range(0, 500, 16):
        for y in range(0, 320, 16):
            draw.rectangle((x, y, x + 9, y + 9), fill=(x % 200, y % 200, 90))
    assert len(find_shapes(image)[0]) == 120


def test_reading_order_is_frames_first_then_rows_or_columns():
    boxes = [(0, 0, 100, 100), (10, 60, 90, 70), (10, 10, 90, 20), (120, 0, 180, 20), (120, 30, 180, 50)]
    order = reading_order(boxes, [True, False, False, False, False])
    assert order == [(0, 0, -1), (2, 1, 0), (1, 1, 0), (3, 0, -1), (4, 0, -1)]
    table = [(0, 0, 10, 10), (50, 0, 60, 10), (0, 20, 10, 30), (50, 20, 60, 30)]
    assert [i for i, _, _ in reading_order(table, [False] * 4)] == [0, 1, 2, 3]

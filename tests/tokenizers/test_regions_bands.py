"""Gradients found in pieces become one panel."""

import numpy as np
from PIL import Image

from watersmeet.tokenizers.regions.bands import join_bands
from watersmeet.tokenizers.regions.shapes import Shape, find_shapes


def gradient(width=800, height=600, panel=(0, 0, 200, 600), top=(78, 115, 223), bottom=(34, 74, 190)):
    pixels = np.full((height, width, 3), 255, dtype=np.uint8)
    x0, y0, x1, y1 = panel
    ramp = np.linspace(0, 1, y1 - y0)[:, None]
    pixels[y0:y1, x0:x1] = (np.array(top) * (1 - ramp) + np.array(bottom) * ramp).round().astype(np.uint8)[:, None]
    return pixels


def piece(*bounds, kind="fill"):
    return Shape(bounds=bounds, kind=kind, color=(70, 100, 210))


def test_pieces_of_a_sidebar_become_one_fill():
    pixels = gradient()
    pieces = [piece(0, 0, 200, 180), piece(0, 170, 201, 300, kind="picture"), piece(0, 320, 200, 600)]
    other = piece(300, 50, 500, 200)
    for image, shapes, want in (
        (pixels, pieces, (0, 0, 200, 600)),
        (
            pixels.transpose(1, 0, 2),
            [Shape(bounds=(b[1], b[0], b[3], b[2]), kind=s.kind, color=s.color) for s in pieces for b in [s.bounds]],
            (0, 0, 600, 200),
        ),
    ):
        joined = join_bands([*shapes, other], np.ascontiguousarray(image))
        assert len(joined) == 2
        assert next(s for s in joined if s is not other).bounds == want
        assert other in joined


def test_cards_below_each_other_stay_apart():
    pixels = np.full((600, 800, 3), 255, dtype=np.uint8)
    cards = [piece(50, y, 250, y + 100) for y in (20, 150, 280)]
    for card in cards:
        x0, y0, x1, y1 = card.bounds
        pixels[y0:y1, x0:x1] = (230, 240, 250)
    assert join_bands(cards, pixels) == cards


def test_a_drawn_gradient_is_found_as_one_panel():
    shapes, _ = find_shapes(Image.fromarray(gradient()))
    wide = [s for s in shapes if s.bounds[2] - s.bounds[0] > 150 and s.bounds[3] - s.bounds[1] > 300]
    assert len(wide) == 1 and abs(wide[0].bounds[3] - 600) <= 3

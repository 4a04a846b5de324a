"""The pointers that recordings show, and what an eye sees of a change."""

import random

import numpy as np
import pytest
from PIL import Image

from watersmeet.pipelines.data import pointer as module
from watersmeet.pipelines.data.pointer import KINDS, Style, draw_pointer, draw_ripple, drawn_style, sprite
from watersmeet.pipelines.video_to_spec.recordings.film import visible

STYLES = [Style(size=size, halo=halo, fill=fill, edge=edge)
          for size in (1.0, 1.25, 1.6, 2.0) for halo in (False, True)
          for fill, edge in (("black", "white"), ("white", "black"))]  # fmt: skip


def solid(kind, style):
    """Where the pointer itself is, bool [h, w], and the point that points, (x, y)."""
    picture, tip = sprite(kind, Style(**{**vars(style), "halo": False}) if style.halo else style)
    return np.asarray(picture)[..., 3] > 128, tip


@pytest.mark.parametrize("kind", KINDS)
def test_every_form_lies_within_its_picture(kind):
    for style in STYLES:
        alpha = np.asarray(sprite(kind, style)[0])[..., 3]
        edges = np.concatenate([alpha[0], alpha[-1], alpha[:, 0], alpha[:, -1]])
        assert alpha.max() > 200 and edges.max() == 0, (kind, style)


def test_the_tip_is_where_it_is_said_to_be():
    """Of an arrow the upper left end, of a hand the uppermost, of a beam the middle; within the edge's width."""
    for style in STYLES:
        slack = 1 + style.size
        for kind in KINDS:
            marks, (x, y) = solid(kind, style)
            ys, xs = np.nonzero(marks)
            left, right, top, bottom = xs.min(), xs.max(), ys.min(), ys.max()
            if kind == "arrow":
                assert abs(left - x) <= slack and abs(top - y) <= slack
            elif kind == "hand":
                finger = xs[ys <= top + style.size]
                assert abs(top - y) <= slack and finger.min() - slack <= x <= finger.max() + slack
            else:
                assert abs((left + right) / 2 - x) <= slack and abs((top + bottom) / 2 - y) <= slack


def test_it_is_drawn_so_that_it_points_there_also_at_the_edges():
    for kind in KINDS:
        for style in (STYLES[0], Style(size=1.6)):
            marks, point = solid(kind, style)
            for tip in ((60, 50), (0, 0), (119, 99)):
                frame = Image.new("RGB", (120, 100), (255, 0, 255))
                draw_pointer(frame, tip, kind, style)
                changed = (np.asarray(frame) != (255, 0, 255)).any(2)
                ys, xs = np.nonzero(marks)
                ys, xs = ys + tip[1] - point[1], xs + tip[0] - point[0]
                inside = (ys >= 0) & (ys < 100) & (xs >= 0) & (xs < 120)
                assert inside.any() and changed[ys[inside], xs[inside]].all()


def test_one_seed_gives_one_style_and_one_style_one_picture():
    assert [drawn_style(random.Random(7)) for _ in range(2)] == [drawn_style(random.Random(7))] * 2
    styles = {drawn_style(random.Random(seed)) for seed in range(300)}
    for name, values in (
        ("size", {1.0, 1.25, 1.6, 2.0}),
        ("changes", {True, False}),
        ("halo", {True, False}),
        ("ripple", {True, False}),
    ):
        assert {getattr(style, name) for style in styles} == values
    first = sprite("hand", Style(size=1.6))[0].tobytes()
    module.sprite.cache_clear()
    assert sprite("hand", Style(size=1.6))[0].tobytes() == first


def test_a_ripple_grows_around_the_press():
    widths = []
    for age in (0.0, 0.1, 0.29):
        frame = Image.new("RGB", (100, 100), "white")
        draw_ripple(frame, (50, 40), age, 0.3)
        ys, xs = np.nonzero((np.asarray(frame) != 255).any(2))
        assert abs((xs.min() + xs.max()) / 2 - 50) <= 1 and abs((ys.min() + ys.max()) / 2 - 40) <= 1
        widths.append(int(np.ptp(xs)))
    assert widths == sorted(widths) and widths[0] < widths[1] < widths[2]


@pytest.mark.parametrize(
    ("step", "pixels", "seen"), [(36, 1000, False), (37, 1000, True), (255, 23, False), (37, 24, True), (0, 0, False)]
)
def test_a_change_is_seen_from_24_pixels_that_differ_by_more_than_36(step, pixels, seen):
    before = np.zeros((40, 50, 3), np.uint8)
    after = before.copy()
    after.reshape(-1, 3)[:pixels, 1] = step  # in one colour
    pictures = Image.fromarray(before), Image.fromarray(after)
    assert visible(*pictures) is seen and visible(*pictures[::-1]) is seen

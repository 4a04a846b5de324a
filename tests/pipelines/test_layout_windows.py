"""Tall pictures: windows cover everything once and cut between lines."""

from itertools import pairwise

import numpy as np

from watersmeet.core.geometry import Box
from watersmeet.pipelines.layout.regions import Regions, ShapeRegion, TextRegion
from watersmeet.pipelines.layout.windows import cut_windows, scaled


def tall(height, rows, shapes=()):
    return Regions(
        width=1280,
        height=height,
        texts=tuple(TextRegion(box=Box(x0=10, y0=y, x1=200, y1=y + 14), text=str(y)) for y in rows),
        shapes=tuple(ShapeRegion(box=b, kind="fill") for b in shapes),
    )


def test_a_viewport_stays_whole():
    assert len(cut_windows(tall(1000, range(0, 980, 20)), height=757)) == 1


def test_windows_share_the_picture_and_never_cut_a_line():
    rows = [y for y in range(5, 4980, 21)]
    windows = cut_windows(tall(5000, rows), height=757)
    assert windows[0].top == 0 and windows[-1].bottom == 5000
    assert all(a.bottom == b.top for a, b in pairwise(windows))
    assert all(w.bottom - w.top <= 1.4 * 757 for w in windows)
    found = [t for w in windows for t in w.regions.texts]
    assert [t.text for t in found] == [str(y) for y in rows]
    assert all(t.box.y0 >= 0 and t.box.y1 <= w.bottom - w.top for w in windows for t in w.regions.texts)


def test_a_sidebar_is_in_every_window():
    sidebar = Box(x0=0, y0=0, x1=200, y1=3000)
    windows = cut_windows(tall(3000, [100], [sidebar]), height=757)
    assert len(windows) > 2
    assert all(w.regions.shapes[0].box == Box(x0=0, y0=0, x1=200, y1=w.bottom - w.top) for w in windows)


def test_crowded_bands_are_halved():
    rows = np.linspace(0, 730, 600)
    windows = cut_windows(tall(757, rows), height=757)
    assert len(windows) >= 3
    assert sum(len(w.regions.texts) for w in windows) == 600
    assert max(len(w.regions.texts) for w in windows) <= 256


def test_scaling_there_and_back():
    found = tall(800, [10, 40], [Box(x0=3, y0=3, x1=99, y1=77)])
    there = scaled(found, 0.5)
    assert (there.width, there.height) == (640, 400)
    back = scaled(there, 2.0)
    assert back.texts == found.texts and back.shapes == found.shapes

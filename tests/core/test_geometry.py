"""Boxes: what two have in common is what a grid of points says."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from watersmeet.core.geometry import Box


@st.composite
def boxes(draw):
    x0, y0 = draw(st.integers(0, 12)), draw(st.integers(0, 12))
    return Box(x0=x0, y0=y0, x1=x0 + draw(st.integers(0, 8)), y1=y0 + draw(st.integers(0, 8)))


def cells(box):
    """Which unit cells of a 24 x 24 grid lie in a box with whole corners."""
    x, y = np.meshgrid(np.arange(24) + 0.5, np.arange(24) + 0.5)
    return (x > box.x0) & (x < box.x1) & (y > box.y0) & (y < box.y1)


@given(boxes(), boxes())
def test_common_is_the_cells_of_both(a, b):
    shared = cells(a) & cells(b)
    found = a.common(b)
    assert a.intersection(b) == shared.sum()
    assert (found is None) == (not shared.any())
    if found is not None:
        assert np.array_equal(cells(found), shared) and found == b.common(a)
    union = (cells(a) | cells(b)).sum()
    assert a.iou(b) == (shared.sum() / union if union else 0.0)

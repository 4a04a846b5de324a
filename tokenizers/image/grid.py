"""Patches on a picture: how many, which pixels, and where they lie. Shapes: W x H pixels of the picture, w x h scaled,
p pixels on a side of a patch."""

from __future__ import annotations

import math

import numpy as np

Box = tuple[int, int, int, int]


def scaled_size(width: int, height: int, *, scale: float, patch: int, most: int) -> tuple[int, int]:
    """Size (w, h) at which a picture is read: scaled, and smaller where that would give more than `most` patches."""
    while True:
        w, h = max(1, round(width * scale)), max(1, round(height * scale))
        count = math.ceil(w / patch) * math.ceil(h / patch)
        if count <= most:
            return w, h
        # the square root gets near, the factor makes sure that rounding up cannot keep it going
        scale *= min(0.995, math.sqrt(most / count))


def cut_patches(pixels_hwc: np.ndarray, patch: int) -> np.ndarray:
    """View [rows, columns, p, p, 3] of an array [rows * p, columns * p, 3]."""
    rows, columns = pixels_hwc.shape[0] // patch, pixels_hwc.shape[1] // patch
    return pixels_hwc.reshape(rows, patch, columns, patch, 3).transpose(0, 2, 1, 3, 4)


def patch_boxes(width: int, height: int, w: int, h: int, patch: int) -> tuple[Box, ...]:
    """Box (left, top, right, bottom) of each patch in pixels of the picture, row by row."""
    rows, columns = math.ceil(h / patch), math.ceil(w / patch)
    x_edges = [min(width, round(column * patch * width / w)) for column in range(columns + 1)]
    y_edges = [min(height, round(row * patch * height / h)) for row in range(rows + 1)]
    return tuple(
        (x_edges[column], y_edges[row], x_edges[column + 1], y_edges[row + 1])
        for row in range(rows)
        for column in range(columns)
    )

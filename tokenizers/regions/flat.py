"""Areas of one colour in a picture: connected components of equal neighbouring pixels.

Screens are mostly flat, so every row is cut into runs of equal pixels and only the runs are connected. That costs
about 30 ms for a 1280x757 page and finds all colours at once.

Legend: H, W picture height and width; R number of runs; C number of areas.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components


@dataclass(frozen=True, kw_only=True)
class Areas:
    """Flat areas; box columns are in pixels, x1 and y1 exclusive."""

    labels_HW: NDArray[np.int32]
    size_C: NDArray[np.int64]
    x0_C: NDArray[np.int64]
    y0_C: NDArray[np.int64]
    x1_C: NDArray[np.int64]
    y1_C: NDArray[np.int64]
    first_C: NDArray[np.int64]  # flat index of one pixel of the area

    def mask(self, index: int) -> NDArray[np.bool_]:
        """Pixels of one area inside its own box."""
        crop = self.labels_HW[self.y0_C[index] : self.y1_C[index], self.x0_C[index] : self.x1_C[index]]
        return crop == index


def pack_colors(image_HW3: NDArray[np.uint8]) -> NDArray[np.int32]:
    """One int32 a pixel, 0xRRGGBB."""
    wide = image_HW3.astype(np.int32)
    return (wide[..., 0] << 16) | (wide[..., 1] << 8) | wide[..., 2]


def unpack_color(value: int) -> tuple[int, int, int]:
    return int(value) >> 16 & 255, int(value) >> 8 & 255, int(value) & 255


def _same(a: NDArray[Any], b: NDArray[Any], tolerance: int) -> NDArray[np.bool_]:
    if tolerance == 0:
        return a == b
    return np.abs(a.astype(np.int16) - b.astype(np.int16)).max(-1) <= tolerance


def find_areas(
    image_HW3: NDArray[np.uint8],
    tolerance: int = 0,
    mask: NDArray[np.bool_] | None = None,
) -> Areas:
    """Connected areas (4 neighbours) whose neighbouring pixels differ by at most `tolerance` in every channel.

    With `mask`, pixels outside it never join pixels inside it. uint8 [H, W, 3] with H, W >= 1.
    """
    height, width = image_HW3.shape[:2]
    values = pack_colors(image_HW3) if tolerance == 0 else image_HW3
    same_left = np.zeros((height, width), bool)
    same_left[:, 1:] = _same(values[:, 1:], values[:, :-1], tolerance)
    same_up = _same(values[1:], values[:-1], tolerance)
    if mask is not None:
        both = mask[:, 1:] & mask[:, :-1]
        same_left[:, 1:] = (same_left[:, 1:] & both) | ~(mask[:, 1:] | mask[:, :-1])
        same_up = (same_up & mask[1:] & mask[:-1]) | ~(mask[1:] | mask[:-1])
    starts = np.flatnonzero(~same_left)
    run_HW = (np.cumsum(~same_left.ravel(), dtype=np.int32) - 1).reshape(height, width)
    # one edge per contact of two runs: its first column
    contact = same_up
    contact[:, 1:] = same_up[:, 1:] & ~(same_up[:, :-1] & same_left[1:, 1:] & same_left[:-1, 1:])
    upper, lower = run_HW[:-1][contact], run_HW[1:][contact]
    runs = len(starts)
    graph = coo_matrix((np.ones(len(upper), np.int8), (upper, lower)), shape=(runs, runs))
    count, label_R = connected_components(graph, directed=False)
    length_R = np.diff(starts, append=height * width)
    y_R, x_R = np.divmod(starts, width)
    size = np.bincount(label_R, length_R, minlength=count).astype(np.int64)
    x0, y0 = np.full(count, width), np.full(count, height)
    x1, y1 = np.zeros(count, np.int64), np.zeros(count, np.int64)
    first = np.full(count, height * width)
    np.minimum.at(x0, label_R, x_R)
    np.minimum.at(y0, label_R, y_R)
    np.maximum.at(x1, label_R, x_R + length_R)
    np.maximum.at(y1, label_R, y_R + 1)
    np.minimum.at(first, label_R, starts)
    labels = label_R.astype(np.int32)[run_HW]
    return Areas(labels_HW=labels, size_C=size, x0_C=x0, y0_C=y0, x1_C=x1, y1_C=y1, first_C=first)

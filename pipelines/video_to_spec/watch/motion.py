"""What differs from one frame to the next: connected areas, in px of the upright frame.

Legend of shapes: H x W pixels of a frame, h x w of half its size.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from watersmeet.core.geometry import Box

STEP = 24  # of 255, in any colour at half size: codecs move single pixels by less
KEY_STEP = 48  # key frames are coded anew, and everything moves a little
_CELL = 4  # half-size px a side of the cells that are joined to areas
_FEW = 2  # pixels of a cell
MOST = 96  # areas; what has more is one area


@dataclass(frozen=True, kw_only=True, slots=True)
class Area:
    """A connected part that changed; `pixels` of the full size that did."""

    box: Box
    pixels: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """Frame number `frame`, shown from `time_us` on, differs from the one before it in `areas`."""

    frame: int
    time_us: int
    areas: tuple[Area, ...]


class Motion:
    """Frames in, differences out. halved: frames come at half the size, means of the pixels."""

    def __init__(self, *, halved: bool = False) -> None:
        self._halved = halved
        self._before: np.ndarray | None = None
        self._was_key = True

    def push(self, pixels_HW3: np.ndarray, time_us: int, frame: int, key: bool = False) -> Difference | None:
        """The next frame, uint8, which may be overwritten afterwards; None if it shows nothing new."""
        before, was_key = self._before, self._was_key
        self._was_key = key
        if self._halved:
            half = pixels_HW3
        else:
            height, width = pixels_HW3.shape[:2]
            size = (max(1, width // 2), max(1, height // 2))
            half = cv2.resize(pixels_HW3, size, interpolation=cv2.INTER_AREA)
        if before is None:
            self._before = half.copy()
            return None
        areas = _areas(before, half, KEY_STEP if key and not was_key else STEP)
        np.copyto(before, half)
        return Difference(frame=frame, time_us=time_us, areas=areas) if areas else None


def _areas(before_hw3: np.ndarray, after_hw3: np.ndarray, step: int) -> tuple[Area, ...]:
    over = cv2.threshold(cv2.absdiff(before_hw3, after_hw3), step, 1, cv2.THRESH_BINARY)[1]
    h, w = over.shape[:2]
    # of most frames only the codec's noise differs, and of the rest a small part; colours as further columns are one plane
    x, y, wide, high = cv2.boundingRect(over.reshape(h, w * 3))
    if not wide:
        return ()
    left, top = x // 3 // _CELL * _CELL, y // _CELL * _CELL
    red, green, blue = cv2.split(over[top : y + high, left : (x + wide + 2) // 3])
    mask = cv2.max(cv2.max(red, green), blue)
    h, w = mask.shape
    padded = cv2.copyMakeBorder(mask, 0, -h % _CELL, 0, -w % _CELL, cv2.BORDER_CONSTANT, value=0)
    rows, columns = padded.shape[0] // _CELL, padded.shape[1] // _CELL
    counts = padded.reshape(rows, _CELL, columns, _CELL).sum((1, 3), dtype=np.uint8)
    cells = (counts >= _FEW).astype(np.uint8)
    number, _, stats, _ = cv2.connectedComponentsWithStats(cells, connectivity=8)
    if number > MOST + 1:
        ys, xs = np.nonzero(cells)
        stats = np.array([[0, 0, 0, 0, 0], [xs.min(), ys.min(), np.ptp(xs) + 1, np.ptp(ys) + 1, 0]])
    return tuple(_area(padded, stat, left, top) for stat in stats[1:])


def _area(mask: np.ndarray, stat: np.ndarray, x0: int, y0: int) -> Area:
    """The area of some cells; the mask begins at column `x0` and row `y0` of the picture."""
    left, top, width, height = (int(v) * _CELL for v in stat[:4])
    part = mask[top : top + height, left : left + width]
    x, y, w, h = cv2.boundingRect(part)
    x, y = x0 + left + x, y0 + top + y
    box = Box(x0=2.0 * x, y0=2.0 * y, x1=2.0 * (x + w), y1=2.0 * (y + h))
    return Area(box=box, pixels=4 * int(cv2.countNonZero(part)))

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
    """Frames in, differences out."""

    def __init__(self) -> None:
        self._before: np.ndarray | None = None
        self._half: np.ndarray | None = None
        self._was_key = True

    def push(self, pixels_HW3: np.ndarray, time_us: int, frame: int, key: bool = False) -> Difference | None:
        """The next frame, uint8, which may be overwritten afterwards; None if it shows nothing new."""
        before, half_before, was_key = self._before, self._half, self._was_key
        self._was_key = key
        if before is not None and np.array_equal(before, pixels_HW3):
            return None
        height, width = pixels_HW3.shape[:2]
        half = cv2.resize(pixels_HW3, (max(1, width // 2), max(1, height // 2)), interpolation=cv2.INTER_AREA)
        if before is None:
            self._before = pixels_HW3.copy()
        else:
            np.copyto(before, pixels_HW3)
        self._half = half
        if half_before is None:
            return None
        step = KEY_STEP if key and not was_key else STEP
        areas = _areas(half_before, half, step)
        return Difference(frame=frame, time_us=time_us, areas=areas) if areas else None


def _areas(before_hw3: np.ndarray, after_hw3: np.ndarray, step: int) -> tuple[Area, ...]:
    red, green, blue = cv2.split(cv2.absdiff(before_hw3, after_hw3))
    mask = cv2.threshold(cv2.max(cv2.max(red, green), blue), step, 1, cv2.THRESH_BINARY)[1]
    if not cv2.countNonZero(mask):
        return ()
    h, w = mask.shape
    padded = cv2.copyMakeBorder(mask, 0, -h % _CELL, 0, -w % _CELL, cv2.BORDER_CONSTANT, value=0)
    rows, columns = padded.shape[0] // _CELL, padded.shape[1] // _CELL
    counts = padded.reshape(rows, _CELL, columns, _CELL).sum((1, 3), dtype=np.uint8)
    cells = (counts >= _FEW).astype(np.uint8)
    number, _, stats, _ = cv2.connectedComponentsWithStats(cells, connectivity=8)
    if number > MOST + 1:
        ys, xs = np.nonzero(cells)
        stats = np.array([[0, 0, 0, 0, 0], [xs.min(), ys.min(), np.ptp(xs) + 1, np.ptp(ys) + 1, 0]])
    return tuple(_area(padded, stat) for stat in stats[1:])


def _area(mask: np.ndarray, stat: np.ndarray) -> Area:
    left, top, width, height = (int(v) * _CELL for v in stat[:4])
    part = mask[top : top + height, left : left + width]
    x, y, w, h = cv2.boundingRect(part)
    box = Box(x0=2.0 * (left + x), y0=2.0 * (top + y), x1=2.0 * (left + x + w), y1=2.0 * (top + y + h))
    return Area(box=box, pixels=4 * int(cv2.countNonZero(part)))

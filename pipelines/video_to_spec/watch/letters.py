"""What letters leave that a reader of text does not see or takes for something else: dots of a password, and a caret."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import cv2
import numpy as np

from watersmeet.core.geometry import Box
from watersmeet.pipelines.video_to_spec.watch.page import Line, line_of

_LOW = 7  # px, the most that a row of dots is high which may touch
BULLET = "\N{BULLET}"


def bullets(picture_HW3: np.ndarray, box: Box, read: Sequence[Box] = ()) -> Line | None:
    """The row of equal dots in `box` that a hidden password is, if there is one. read: where text could be read; elsewhere a row
    which is nearly even may be dots too."""
    height, width = picture_HW3.shape[:2]
    x0, y0 = max(0, int(box.x0) - 24), max(0, int(box.y0) - 4)
    x1, y1 = min(width, int(box.x1) + 24), min(height, int(box.y1) + 4)
    if x1 - x0 < 12 or y1 - y0 < 8:
        return None
    gray = cv2.cvtColor(picture_HW3[y0:y1, x0:x1], cv2.COLOR_RGB2GRAY).astype(np.int16)
    found = _bullets(gray, x0, y0)
    if found is None:
        chains = [chain for chain in _chains(gray, x0, y0) if all(chain.box.intersection(one) == 0 for one in read)]
        found = max(chains, key=lambda chain: len(chain.text), default=None)
    return found


def _bullets(gray_hw: np.ndarray, x0: int, y0: int) -> Line | None:
    ink = (np.abs(gray_hw - int(np.median(gray_hw))) > 70).astype(np.uint8)
    _, _, stats, centres = cv2.connectedComponentsWithStats(ink, connectivity=8)
    dots = [
        (float(c[0]), float(c[1]), int(s[2]), int(s[3]))
        for s, c in zip(stats[1:], centres[1:], strict=True)
        if 3 <= s[2] <= 14 and 3 <= s[3] <= 14 and abs(int(s[2]) - int(s[3])) <= 2 and s[4] >= 0.6 * s[2] * s[3]
    ]
    if len(dots) < 4:
        return None
    middle = float(np.median([dot[1] for dot in dots]))
    size = float(np.median([dot[2] for dot in dots]))
    row = sorted(dot for dot in dots if abs(dot[1] - middle) <= 1.5 and abs(dot[2] - size) <= 1.5)
    if len(row) < 4:
        return None
    steps = np.diff([dot[0] for dot in row])
    if steps.max() - steps.min() > 2.5 or steps.mean() > 2.6 * size + 3:
        return None
    at = Box(x0=x0 + row[0][0] - size, y0=y0 + middle - size, x1=x0 + row[-1][0] + size, y1=y0 + middle + size)
    return line_of(BULLET * len(row), at)


def _chains(gray_hw: np.ndarray, x0: int, y0: int) -> Iterator[Line]:
    """Dots so small that a codec has made them a chain: low bands of ink whose darkness swells at equal distances."""
    ink = np.abs(gray_hw - int(np.median(gray_hw))).astype(np.float32)
    rows = np.flatnonzero((ink > 70).sum(1) >= 4)
    for band in np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1):
        if 3 <= len(band) <= _LOW:
            chain = _chain(ink, int(band[0]), int(band[-1]) + 1, x0, y0)
            if chain is not None:
                yield chain


def _chain(ink_hw: np.ndarray, top: int, bottom: int, x0: int, y0: int) -> Line | None:
    dark = ink_hw[top:bottom].sum(0)
    from scipy.signal import find_peaks  # a second of every start otherwise, for what few recordings need

    peaks, _ = find_peaks(dark, prominence=60, height=120)
    if len(peaks) < 4:
        return None
    # the frame of a field may be in the band too, further away
    steps = np.diff(peaks)
    runs = np.split(peaks, np.flatnonzero(np.abs(steps - np.median(steps)) > 1.5) + 1)
    row = max(runs, key=len)
    steps = np.diff(row)
    # letters are not as dark as each other, and stand closer or further apart
    alike = len(row) >= max(4, len(peaks) - 2) and dark[row].min() >= 0.6 * dark[row].max() and np.ptp(steps) <= 1
    if not alike or steps.mean() > 2 * (bottom - top):
        return None
    size, first, last = float(steps.mean()), float(row[0]), float(row[-1])
    at = Box(x0=x0 + first - size, y0=y0 + top - 1.0, x1=x0 + last + size, y1=y0 + bottom + 1.0)
    return line_of(BULLET * len(row), at)


def without_caret(picture_HW3: np.ndarray, place: Box) -> np.ndarray:
    """The picture without a caret in or just behind `place`, where letters were typed; a reader takes it for a letter.

    A caret is a line of one or two px that is taller than every letter.
    """
    height, width = picture_HW3.shape[:2]
    x0, y0 = max(1, int(place.x0) - 4), max(0, int(place.y0) - 8)
    x1, y1 = min(width - 1, int(place.x1) + 14), min(height, int(place.y1) + 8)
    if x1 - x0 < 6 or y1 - y0 < 8:
        return picture_HW3
    gray = cv2.cvtColor(picture_HW3[y0:y1, x0:x1], cv2.COLOR_RGB2GRAY).astype(np.int16)
    ink = np.abs(gray - int(np.median(gray))) > 40
    run, longest, end = (np.zeros(ink.shape[1], dtype=np.int64) for _ in range(3))
    for row, marks in enumerate(ink):
        run = np.where(marks, run + 1, 0)
        end = np.where(run > longest, row, end)
        longest = np.maximum(longest, run)
    at = int(longest.argmax())
    near = np.abs(np.arange(len(longest)) - at) <= 2
    others = int(longest[~near].max(initial=0))
    if (
        longest[at] < 10
        or longest[at] >= y1 - y0
        or longest[at] < 1.15 * others
        or (longest[near] == longest[at]).sum() > 3
    ):
        return picture_HW3
    out = picture_HW3.copy()
    top, low = y0 + int(end[at] - longest[at]), y0 + int(end[at]) + 2
    columns = [x0 + int(c) for c in np.flatnonzero(near & (longest >= 0.8 * longest[at]))]
    left, right = columns[0] - 1, columns[-1] + 2
    out[max(0, top) : low, left:right] = out[max(0, top) : low, left - 1 : left]
    return out

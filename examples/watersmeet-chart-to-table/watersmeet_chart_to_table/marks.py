"""What is seen in a chart: texts that were read, and boxes of one colour. Shapes: H x W pixels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np

LEAST_SIDE = 2  # px; a bar may be that flat
LEAST_FILL = 0.8  # of its box that a bar's colour covers
NEAR = 14  # steps of 256 within which a colour is the same; JPEG moves them
MOST_COLOURS = 24

_NUMBER = re.compile(r"[-+]?(\d{1,3}(,\d{3})+|\d+)(\.\d+)?([kKmMbB%])?")
_FACTORS = {"k": 1e3, "m": 1e6, "b": 1e9, "%": 1.0, "": 1.0}


@dataclass(frozen=True, kw_only=True)
class Mark:
    """One thing in a chart. box: (left, top, right, bottom) in px. text: "" for boxes. colour: of boxes, 0..255."""

    box: tuple[float, float, float, float]
    text: str = ""
    colour: tuple[int, int, int] = (0, 0, 0)

    @property
    def centre(self) -> tuple[float, float]:
        """(x, y) in px."""
        return (self.box[0] + self.box[2]) / 2, (self.box[1] + self.box[3]) / 2

    @property
    def number(self) -> float | None:
        """The number that a text is, or None; marks of the axis beside it are not part of it."""
        return read_number(self.text)


def read_number(text: str) -> float | None:
    """ "1,200", "3.5k", "-4", "20%" as a number. Tick marks that were read as dashes at either end are left out."""
    plain = text.replace("\N{MINUS SIGN}", "-").strip()
    plain = re.sub(r"(\s+[-_|.,1]|[-_|]+)$", "", plain)
    plain = re.sub(r"^[,.)|_\s]+", "", plain).replace(" ", "")
    match = _NUMBER.fullmatch(plain)
    if match is None:
        return None
    factor = _FACTORS[(match[4] or "").lower()]
    return float(re.sub(r"[,%kKmMbB]", "", match[0])) * factor


def find_boxes(pixels_HW3: np.ndarray, texts: Sequence[Mark]) -> list[Mark]:
    """Boxes of one colour in uint8 pixels, the background and what lies within a text left out."""
    height, width = pixels_HW3.shape[:2]
    found: list[Mark] = []
    for colour in _colours(pixels_HW3):
        near = cv2.inRange(pixels_HW3, (colour - NEAR).clip(0), (colour + NEAR).clip(max=255))
        # a grid line across a bar must not cut it in two
        closed = cv2.morphologyEx(near, cv2.MORPH_CLOSE, np.ones((5, 5), np.uint8))
        _, _, stats, _ = cv2.connectedComponentsWithStats(closed, connectivity=4)
        for left, top, w, h, area in stats[1:].tolist():
            whole = w >= 0.98 * width and h >= 0.98 * height
            if min(w, h) < LEAST_SIDE or w * h < 24 or area < LEAST_FILL * w * h or whole:
                continue
            box = (float(left), float(top), float(left + w), float(top + h))
            if not any(_inside(box, text.box) for text in texts):
                found.append(Mark(box=box, colour=tuple(int(c) for c in colour)))
    return found


def _colours(pixels_HW3: np.ndarray) -> list[np.ndarray]:
    """The colours that cover most, the background (the one that covers more than any other) left out."""
    coarse = (pixels_HW3 >> 3).astype(np.int32)
    code = ((coarse[..., 0] << 10) | (coarse[..., 1] << 5) | coarse[..., 2]).ravel()
    counts = np.bincount(code, minlength=1 << 15)
    kept: list[np.ndarray] = []
    for value in np.argsort(-counts, kind="stable")[: 2 * MOST_COLOURS]:
        if counts[value] < 30:
            break
        colour = np.median(pixels_HW3.reshape(-1, 3)[code == value][:1000], axis=0)
        if all(np.abs(colour - other).max() > NEAR for other in kept):
            kept.append(colour)
        if len(kept) > MOST_COLOURS:
            break
    return kept[1:]


def _inside(box: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return box[0] >= other[0] - 2 and box[1] >= other[1] - 2 and box[2] <= other[2] + 2 and box[3] <= other[3] + 2

"""Links inside running text: the part of a line that has a colour of its own.

Legend: H x W px of a picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from watersmeet.core.geometry import Box
from watersmeet.pipelines.video_to_spec.watch.page import Line, line_of

_INK = 60  # of 255, from the paper on
_GAP = 0.16  # of the line's height: less does not part words
_OTHER = 0.985  # cosine between the colours of two words, seen from the paper, below which they are two
_REACH = 6.0  # px beside a part that still point at it


def link_at(picture_HW3: np.ndarray, line: Line, point: tuple[float, float], hidden: Box | None = None) -> Line | None:
    """The part of `line` at `point` whose colour is another than that of the words beside it; None if the whole line has one.

    hidden: what the pointer covers; a word that cannot be seen is taken for one of those before it.
    """
    height, width = picture_HW3.shape[:2]
    box = line.box.clipped(width, height)
    x0, y0, x1, y1 = int(box.x0), int(box.y0), int(np.ceil(box.x1)), int(np.ceil(box.y1))
    names = line.text.split()
    if len(names) < 2 or x1 - x0 < 8 or y1 - y0 < 5:
        return None
    crop = picture_HW3[y0:y1, x0:x1].astype(np.float32)
    apart = crop - np.median(crop.reshape(-1, 3), axis=0)
    ink = np.abs(apart).max(axis=2)
    words = _words(ink > _INK, _GAP * (y1 - y0))
    if len(words) < 2:
        return None
    if hidden is not None and hidden.intersection(box) > 0:
        ink[:, max(0, int(hidden.x0) - x0) : max(0, int(np.ceil(hidden.x1)) - x0)] = 0
    runs = _runs([_colour(apart[:, a:b], ink[:, a:b]) for a, b in words])
    at = next(
        (run for run in runs if words[run[0]][0] - _REACH <= point[0] - x0 <= words[run[-1]][1] + _REACH),
        None,
    )
    if at is None or len(runs) == 1:
        return None
    left, right = words[at[0]][0], words[at[-1]][1]
    if len(names) == len(words):
        text = " ".join(names[at[0] : at[-1] + 1])
    else:  # the reader saw other gaps
        text = _between(line.text, left / (x1 - x0), right / (x1 - x0))
    return line_of(text, Box(x0=x0 + left, y0=box.y0, x1=x0 + right, y1=box.y1), line.record) if text else None


def _words(ink_HW: np.ndarray, gap: float) -> list[tuple[int, int]]:
    """(first column, column after the last) of each run of columns with ink."""
    columns = np.flatnonzero(ink_HW.any(axis=0))
    if len(columns) == 0:
        return []
    ends = [i + 1 for i, (a, b) in enumerate(pairwise(columns.tolist())) if b - a - 1 > max(2.0, gap)]
    return [(int(part[0]), int(part[-1]) + 1) for part in np.split(columns, ends)]


def _runs(colours: Sequence[np.ndarray | None]) -> list[list[int]]:
    """Numbers of the words that stand in a row and have one colour."""
    runs: list[list[int]] = [[]]
    mean: np.ndarray | None = None
    for number, colour in enumerate(colours):
        if colour is not None and mean is not None and float(colour @ _unit(mean)) < _OTHER:
            runs.append([])
            mean = None
        runs[-1].append(number)
        if colour is not None:
            mean = colour if mean is None else mean + colour
    return runs


def _colour(apart_HW3: np.ndarray, ink_HW: np.ndarray) -> np.ndarray | None:
    """Direction from the paper to the ink, of length 1; None if there is none."""
    if not (ink_HW > _INK).any():
        return None
    # the edges of letters are mixed with the paper, and a codec mixes colours of neighbours
    seen = ink_HW >= max(_INK, float(np.quantile(ink_HW, 0.85)))
    return _unit(apart_HW3[seen].sum(axis=0))


def _unit(vector: np.ndarray) -> np.ndarray:
    return vector / max(1e-6, float(np.linalg.norm(vector)))


def _between(text: str, first: float, last: float) -> str:
    """The whole words of `text` from one share of its length to another."""
    spaces = [-1, *(i for i, char in enumerate(text) if char == " "), len(text)]
    start = min(spaces[:-1], key=lambda i: abs(i + 1 - first * len(text)))
    end = min((i for i in spaces if i > start), key=lambda i: abs(i - last * len(text)))
    return text[start + 1 : end]

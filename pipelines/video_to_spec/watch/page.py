"""What a screen says, kept up to date while it changes: only what changed is read again.

Legend: H x W px of a picture.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from itertools import pairwise
from typing import Any

import cv2
import numpy as np

from watersmeet.core.geometry import Box
from watersmeet.pipelines.video_to_spec.watch.pointer import joined

_ALIKE = 0.9  # correlation of a line with itself, whatever colours the page has now
_COLUMNS, _BAND, _LEAST_VOTES = 4, 40, 4  # of the search for scrolls: columns, px of a band, bands that agree
_PART = 48  # px of a line that are compared at once
_PAD = 18.0  # px around what is read, which a detector of lines needs
_JOIN = 28.0  # px between areas that are read together
_LIKE = 0.6  # of its letters, for a line to be one of before that was read otherwise
_LEAST = (6.0, 6.0)  # px, of an area in which a letter can be
# arrows, shapes, dingbats, emoji, icon fonts: icons that a reader took for letters
_SIGNS = re.compile(
    "[\u2190-\u21ff\u2295-\u22a1\u2300-\u23ff\u2500-\u27bf\u2b00-\u2bff\ue000-\uf8ff\U0001f000-\U0001faff\ufe0f]"
)
# a label that stands in the frame of its field has a piece of it on either side
_FRAME = re.compile(r"^[-‐-―_]+ | [-‐-―_]+$")

Read = Callable[[np.ndarray], Sequence[Mapping[str, Any]]]
"""Reads a crop uint8 [h, w, 3]: plain text records of the modality `regions`, boxes in px of the crop."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A line of text: `record` is its plain form as the modality `regions` has it."""

    box: Box
    text: str
    record: Mapping[str, Any] = field(repr=False)

    def moved(self, dx: float, dy: float) -> Line:
        """The same elsewhere."""
        box = self.box.shifted(dx, dy)
        return replace(self, box=box, record=dict(self.record) | {"box": _plain(box)})


def words_of(text: str) -> str:
    """A text without signs that are icons, "" if nothing of it is a letter or a digit."""
    words = " ".join(_SIGNS.sub(" ", text).split()).strip("•·◦ ")
    words = _FRAME.sub("", words)
    return words if any(char.isalnum() for char in words) else ""


def line_of(text: str, box: Box, like: Mapping[str, Any] | None = None) -> Line:
    """A line that no reader read."""
    look = {"color": [0, 0, 0], "background": [255, 255, 255], "font_size": box.height / 1.2, "weight": 400}
    record = look | dict(like or {}) | {"text": text, "box": _plain(box), "confidence": 1.0}
    return Line(box=box, text=text, record=record)


def _plain(box: Box) -> dict[str, float]:
    return {"x0": box.x0, "y0": box.y0, "x1": box.x1, "y1": box.y1}


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What an update found: `kept` lines of before (moved by a scroll or not), `gone` ones, `come` ones, and by how many px
    the page moved (down if positive is what the user scrolled)."""

    kept: tuple[Line, ...]
    gone: tuple[Line, ...]
    come: tuple[Line, ...]
    scrolled: int


class Page:
    """The lines of the screen as they are now."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self.lines: list[Line] = []
        self._picture: np.ndarray | None = None
        self._pointer: Box | None = None
        self._unread: list[Box] = []  # where the pointer was when it was read
        self._doubtful: list[Line] = []  # what was read although the pointer was on it
        self._mended: list[tuple[Line, Line]] = []

    def update(self, picture_HW3: np.ndarray, areas: Sequence[Box], pointer: Box | None) -> Reading:
        """Look at a picture, which is kept, in which `areas` changed since the last one; the first is read as a whole."""
        height, width = picture_HW3.shape[:2]
        whole = Box(x0=0, y0=0, x1=width, y1=height)
        before, hidden = self._picture, [box for box in (self._pointer, pointer) if box is not None]
        self._picture, self._pointer = picture_HW3, pointer
        if before is None:
            areas = [whole]
        again = [box for box in self._unread if pointer is None or box.intersection(pointer) == 0]
        self._unread = [box for box in self._unread if box not in again]
        clear = [line for line in self.lines if line in self._doubtful and not _on(pointer, line)]
        # what a line begins with stays as it was when it goes on; read as two it would be neither
        grown = [] if before is None else [line for line in self.lines if _goes_on(line.box, areas) or line in clear]
        wanted = joined(
            [
                box.clipped(width, height)
                for box in (*areas, *again, *(line.box for line in grown))
                if box.width >= _LEAST[0] and box.height >= _LEAST[1]
            ],
            _JOIN,
        )
        if not wanted:
            return Reading(kept=tuple(self.lines), gone=(), come=(), scrolled=0)
        scrolled = 0 if before is None else _scroll(before, picture_HW3, Box.around(wanted))
        kept, gone = self._sort(before, picture_HW3, wanted, scrolled, hidden, grown)
        come: list[Line] = []
        for area in _apart(wanted, kept, scrolled):
            come += self._read_area(picture_HW3, area, [*kept, *come])
        mended = _mended(clear, gone, come)
        kept += [new for _, new in mended]
        self._mended += mended
        if pointer is not None:
            self._unread.append(pointer.clipped(width, height))
            kept, gone, come = _behind(pointer, kept, gone, come)
        self.lines = [*kept, *come]
        was = [line for line in self._doubtful if line not in clear]
        self._doubtful = [line for line in self.lines if line in was or (line in come and _on(pointer, line))]
        return Reading(kept=tuple(kept), gone=tuple(gone), come=tuple(come), scrolled=scrolled)

    def take_mended(self) -> list[tuple[Line, Line]]:
        """Lines on which the pointer had been when they were read, as they were and as they read without it; each once."""
        out, self._mended = self._mended, []
        return out

    def _sort(
        self,
        before: np.ndarray | None,
        now: np.ndarray,
        wanted: Sequence[Box],
        scrolled: int,
        hidden: Sequence[Box],
        grown: Sequence[Line],
    ) -> tuple[list[Line], list[Line]]:
        """(lines that are still there, lines that are not)."""
        kept: list[Line] = []
        gone: list[Line] = []
        for line in self.lines:
            if line in grown:
                gone.append(line)
            elif (
                before is None
                or not any(line.box.intersection(area) > 0 for area in wanted)
                or _same(before, now, line.box, 0, hidden)
            ):
                kept.append(line)
            elif scrolled and _same(before, now, line.box, -scrolled, hidden):
                kept.append(line.moved(0, -scrolled))
            else:
                gone.append(line)
        return kept, gone

    def _read_area(self, picture: np.ndarray, area: Box, known: Sequence[Line]) -> list[Line]:
        height, width = picture.shape[:2]
        x0, y0 = max(0, int(area.x0 - _PAD)), max(0, int(area.y0 - _PAD))
        x1, y1 = min(width, int(area.x1 + _PAD)), min(height, int(area.y1 + _PAD))
        if x1 - x0 < 8 or y1 - y0 < 8:
            return []
        crop = picture[y0:y1, x0:x1].copy()
        for line in known:
            _blank(crop, line.box.shifted(-x0, -y0))
        found = []
        for record in self._read(crop):
            box = record["box"]
            at = Box(x0=box["x0"], y0=box["y0"], x1=box["x1"], y1=box["y1"]).shifted(x0, y0)
            text = words_of(str(record["text"]))
            if text and all(at.intersection(line.box) < 0.5 * min(at.area, line.box.area) for line in known):
                found.append(Line(box=at, text=text, record=dict(record) | {"text": text, "box": _plain(at)}))
        return found


def _on(pointer: Box | None, line: Line) -> bool:
    return pointer is not None and line.box.intersection(pointer) > 0


def _mended(clear: Sequence[Line], gone: list[Line], come: list[Line]) -> list[tuple[Line, Line]]:
    """Of lines that can be read without the pointer now, as they were and as they are; these are neither gone nor come."""
    out = []
    for old in clear:
        new = next((line for line in come if _reads_like(line, old)), None)
        if new is not None:
            out.append((old, new))
            gone.remove(old)
            come.remove(new)
    return out


def _reads_like(new: Line, old: Line) -> bool:
    over = new.box.intersection(old.box) > 0.5 * min(new.box.area, old.box.area)
    return over and SequenceMatcher(None, new.text, old.text, autojunk=False).ratio() >= _LIKE


def _behind(
    pointer: Box, kept: list[Line], gone: list[Line], come: list[Line]
) -> tuple[list[Line], list[Line], list[Line]]:
    """A line behind the pointer that reads nearly as before is the line of before."""
    kept, gone, come = list(kept), list(gone), list(come)
    for new in list(come):
        if new.box.intersection(pointer) == 0:
            continue
        for old in gone:
            if abs(len(new.text) - len(old.text)) <= 1 and _reads_like(new, old):
                kept.append(old)
                gone.remove(old)
                come.remove(new)
                break
    return kept, gone, come


def _blank(crop: np.ndarray, box: Box) -> None:
    """Paint over what is known already with the colour around it, so that it is not read again."""
    h, w = crop.shape[:2]
    x0, y0, x1, y1 = max(0, int(box.x0)), max(0, int(box.y0)), min(w, int(box.x1) + 1), min(h, int(box.y1) + 1)
    if x1 > x0 and y1 > y0:
        edge = np.concatenate([crop[y0, x0:x1], crop[y1 - 1, x0:x1]])
        crop[y0:y1, x0:x1] = np.median(edge, axis=0).astype(np.uint8)


def _crop(picture: np.ndarray, box: Box, dy: int = 0) -> np.ndarray | None:
    h, w = picture.shape[:2]
    x0, y0, x1, y1 = int(box.x0), int(box.y0) + dy, int(np.ceil(box.x1)), int(np.ceil(box.y1)) + dy
    return picture[y0:y1, x0:x1] if 0 <= x0 < x1 <= w and 0 <= y0 < y1 <= h else None


def _same(before: np.ndarray, now: np.ndarray, box: Box, dy: int, hidden: Sequence[Box]) -> bool:
    """Whether what stood in `box` now stands `dy` px lower, in the same colours or in others; `hidden` boxes do not count."""
    height, width = before.shape[:2]
    box = box.clipped(width, height)
    a, b = _crop(before, box), _crop(now, box, dy)
    if a is None or b is None or a.shape != b.shape or a.size == 0:
        return False
    x, y = (cv2.cvtColor(v, cv2.COLOR_RGB2GRAY).astype(np.float32) for v in (a, b))
    seen = np.ones(x.shape, dtype=bool)
    for cover in hidden:
        for shift in {0, dy}:
            part = cover.shifted(-int(box.x0), -int(box.y0) - shift)
            seen[
                max(0, int(part.y0) - 3) : max(0, int(part.y1) + 4), max(0, int(part.x0) - 3) : max(0, int(part.x1) + 4)
            ] = False
    if seen.mean() < 0.25:
        return dy == 0  # nothing speaks against it
    # part by part, since something may have come to lie over an end of a line
    parts = max(1, x.shape[1] // _PART)
    edges = [x.shape[1] * k // parts for k in range(parts + 1)]
    return all(_alike(*(v[:, a:b][seen[:, a:b]] for v in (x, y))) for a, b in pairwise(edges))


def _alike(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether grey values are the same but for noise, or but for other colours."""
    if x.size < 16 or float((np.abs(x - y) <= 24).mean()) >= 0.985:
        return True
    x, y = x - x.mean(), y - y.mean()
    power = float(np.sqrt((x * x).sum() * (y * y).sum()))
    return power > 0 and abs(float((x * y).sum())) / power >= _ALIKE


def _goes_on(box: Box, areas: Sequence[Box]) -> bool:
    """Whether something changed right behind the end of a line, no further than the next word would be."""
    return any(
        -2 <= area.x0 - box.x1 <= 0.45 * box.height
        and area.height <= 2.5 * box.height
        and min(area.y1, box.y1) - max(area.y0, box.y0) >= 0.5 * min(area.height, box.height)
        for area in areas
    )


def _scroll(before: np.ndarray, now: np.ndarray, area: Box) -> int:
    """By how many px what is in `area` moved up as one; 0 if it did not.

    Bands of the picture before are looked for in the one now, in columns by themselves, since what stands beside the
    part that moves stays. Bands that are found elsewhere must agree on how far that is.
    """
    height, width = before.shape[:2]
    if area.width < 0.3 * width or area.height < 0.3 * height:
        return 0
    x0, y0, x1, y1 = int(area.x0), int(area.y0), int(area.x1), int(area.y1)
    small = (max(_COLUMNS * 8, (x1 - x0) // 4), y1 - y0)
    a, b = (
        cv2.resize(cv2.cvtColor(picture[y0:y1, x0:x1], cv2.COLOR_RGB2GRAY), small, interpolation=cv2.INTER_AREA)
        for picture in (before, now)
    )
    votes = [
        vote for column in range(_COLUMNS) for vote in _votes(*(np.array_split(v, _COLUMNS, 1)[column] for v in (a, b)))
    ]
    moved = [dy for dy in votes if dy]
    if len(moved) < _LEAST_VOTES:
        return 0
    best = max(moved, key=lambda dy: (sum(abs(dy - other) <= 1 for other in moved), moved.count(dy)))
    return best if sum(abs(best - other) <= 1 for other in moved) >= max(_LEAST_VOTES, 0.6 * len(moved)) else 0


def _votes(before_hw: np.ndarray, now_hw: np.ndarray) -> Iterator[int]:
    """How far up each band of a column went that is found for certain."""
    height = len(before_hw)
    for top in range(0, height - _BAND + 1, max(_BAND // 2, height // 16)):
        band = before_hw[top : top + _BAND]
        if float(band.std()) < 6:
            continue
        found = cv2.matchTemplate(now_hw, band, cv2.TM_CCOEFF_NORMED)[:, 0]
        at = int(found.argmax())
        beside = np.abs(np.arange(len(found)) - at) > 6
        # rows of a table are like each other
        if found[at] >= 0.93 and found[beside].max(initial=-1.0) < found[at] - 0.05:
            yield top - at


def _apart(wanted: Sequence[Box], kept: Sequence[Line], scrolled: int) -> list[Box]:
    """Areas to read: after a scroll only the strip that came into view and a little more."""
    if not scrolled:
        return list(wanted)
    out = []
    for area in wanted:
        inside = [line for line in kept if line.box.intersection(area) > 0]
        if len(inside) < 3:
            out.append(area)
        elif scrolled > 0:
            out.append(replace(area, y0=max(area.y0, area.y1 - scrolled - 40)))
        else:
            out.append(replace(area, y1=min(area.y1, area.y0 - scrolled + 40)))
    return out

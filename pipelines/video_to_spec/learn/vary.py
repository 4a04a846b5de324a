"""Variations of a lesson: other words, mirrored and moved, slower or faster, with lines and patches that were missed.

A small model learns recordings by heart, and of these the words first; what is to be written does not depend on them. All of
it is drawn once a recording, so that a turn still fits the turns before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from watersmeet.core.geometry import Box
from watersmeet.pipelines.data.dataset import recolour
from watersmeet.pipelines.video_to_spec import markup
from watersmeet.pipelines.video_to_spec.watch.page import Line
from watersmeet.pipelines.video_to_spec.watch.sight import Patches, Turn

_WORD = re.compile(r"[^\W\d_]{2,}")
_LONGEST = 12  # letters: longer words are taken for one another
_MIRRORED = {"Left": "Right", "Right": "Left", "left": "right", "right": "left"}


@dataclass(frozen=True, kw_only=True)
class Vary:
    """How a training sample is varied: probabilities, and how far at most."""

    blank: float = 0.04  # no patches
    unmeasured: float = 0.12  # no measures and no hints: patches are looked at when nothing else says what happened
    colour: float = 0.5  # another brightness, contrast and tint
    late: float = 0.7  # the recording began some time ago
    inside: float = 0.5  # the part begins a few turns later
    words: float = 0.7  # words of the lines stand for others
    mirror: float = 0.4  # right is left
    moved: float = 0.5  # everything is further right or down
    tempo: float = 0.6  # slower or faster
    missed: float = 0.5  # some lines were not read, some patches not seen
    max_colour: float = 0.15
    max_cells: tuple[int, int] = (2, 3)  # rows, columns
    max_tempo: float = 1.35
    max_missed: float = 0.3


class Words:
    """Words to put in place of others, by length."""

    def __init__(self, texts: Iterable[str]) -> None:
        found = sorted({word.lower() for text in texts for word in _WORD.findall(text)})
        self.by_length: dict[int, list[str]] = {}
        for word in found:
            self.by_length.setdefault(min(len(word), _LONGEST), []).append(word)

    def other(self, word: str, number: int) -> str:
        """Another word of about this length, written in the same way; `number` chooses it."""
        pool = self.by_length.get(min(len(word), _LONGEST)) or [word.lower()]
        chosen = pool[number % len(pool)]
        return chosen.upper() if word.isupper() else chosen.capitalize() if word[0].isupper() else chosen


class Variation:
    """What becomes of the turns of one recording. `cell` is the side of a patch in px of the recording."""

    def __init__(self, how: Vary, words: Words, rng: np.random.Generator, *, cell: float) -> None:
        self.how, self.words, self.cell = how, words, cell
        self.tint = int(rng.integers(2**31)) if rng.random() < how.colour else None
        self.share = rng.choice([0.4, 0.9]) if rng.random() < how.words else 0.0
        self.mirror = rng.random() < how.mirror
        rows, columns = how.max_cells
        moved = rng.random() < how.moved
        self.down, self.right = (int(rng.integers(rows + 1)), int(rng.integers(columns + 1))) if moved else (0, 0)
        self.tempo = float(how.max_tempo ** rng.uniform(-1, 1)) if rng.random() < how.tempo else 1.0
        self.missed = float(rng.uniform(0, how.max_missed)) if rng.random() < how.missed else 0.0
        self.rng = np.random.default_rng(int(rng.integers(2**31)))
        self._others: dict[str, str] = {}

    def apply(self, turn: Turn, written: Sequence[str]) -> tuple[Turn, list[str]]:
        """(the turn as it is seen, what is to be written about it)."""
        columns = -(-turn.observed.width // self.cell)
        said = {int(symbol[2:-1]) for symbol in written if symbol[1] == "t" and symbol[2:-1].isdecimal()}
        lines = [*turn.under, *turn.before, *turn.after]
        kept = [i for i in range(len(lines)) if i in said or self.rng.random() >= self.missed]
        ends = np.cumsum([0, len(turn.under), len(turn.before), len(turn.after)]).tolist()
        parts = [
            tuple(self._line(lines[i], columns) for i in kept if first <= i < last)
            for first, last in zip(ends, ends[1:], strict=False)
        ]
        numbers = {i: k for k, i in enumerate(kept)}
        observed = replace(turn.observed, texts=(), boxes=tuple(self._box(box, columns) for box in turn.observed.boxes))
        seen = replace(
            turn,
            observed=observed,
            patches=self._patches(turn.patches, int(columns)),
            under=parts[0],
            before=parts[1],
            after=parts[2],
            pause_s=turn.pause_s * self.tempo,
            lasting_s=turn.lasting_s * self.tempo,
            point=self._point(turn.point, columns),
            still_s=None if turn.still_s is None else turn.still_s * self.tempo,
        )
        return seen, [self._symbol(symbol, numbers) for symbol in written]

    def _symbol(self, symbol: str, numbers: Mapping[int, int]) -> str:
        if symbol[1] == "t" and symbol[2:-1].isdecimal():
            return f"<t{numbers[int(symbol[2:-1])]}>"
        if self.mirror and symbol.startswith(("<key-Arrow", "<way-")):
            turned = re.sub("Left|Right|left|right", lambda found: _MIRRORED[found.group()], symbol)
            return turned if turned in _SYMBOLS else symbol
        return symbol

    def _line(self, line: Line, columns: float) -> Line:
        text = _WORD.sub(lambda found: self._word(found.group()), line.text) if self.share else line.text
        box = self._box(line.box, columns)
        corners: dict[str, Any] = {"x0": box.x0, "y0": box.y0, "x1": box.x1, "y1": box.y1}
        return Line(box=box, text=text, record=dict(line.record) | {"text": text, "box": corners})

    def _word(self, word: str) -> str:
        key = word.lower()
        if key not in self._others:
            number = int(self.rng.integers(2**31))
            self._others[key] = self.words.other(key, number) if self.rng.random() < self.share else key
        other = self._others[key]
        return other.upper() if word.isupper() else other.capitalize() if word[0].isupper() else other

    def _box(self, box: Box, columns: float) -> Box:
        if self.mirror:
            width = columns * self.cell
            box = Box(x0=width - box.x1, y0=box.y0, x1=width - box.x0, y1=box.y1)
        return box.shifted(self.right * self.cell, self.down * self.cell)

    def _point(self, point: tuple[float, float] | None, columns: float) -> tuple[float, float] | None:
        if point is None:
            return None
        x = columns * self.cell - point[0] if self.mirror else point[0]
        return x + self.right * self.cell, point[1] + self.down * self.cell

    def _patches(self, patches: Patches, columns: int) -> Patches:
        seen = self.rng.random(len(patches.time_us)) >= self.missed
        data, coords = patches.data[seen], patches.coords[seen].copy()
        if self.mirror and len(data):
            side = round((data.shape[1] / 3) ** 0.5)
            data = np.ascontiguousarray(data.reshape(-1, side, side, 3)[:, :, ::-1]).reshape(len(data), -1)
            coords[:, 1] = columns - 1 - coords[:, 1]
        coords += np.array([self.down, self.right])
        if self.tint is not None and len(data):
            # one seed gives all patches of a recording the same colours
            data = recolour(data.copy(), np.random.default_rng(self.tint), self.how.max_colour)
        time_us = (patches.time_us[seen] * self.tempo).astype(np.int64)
        return Patches(data=data, coords=coords, time_us=time_us)


_SYMBOLS = frozenset(markup.symbols())

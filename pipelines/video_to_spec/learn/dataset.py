"""Lessons as streams to train on: one recording, or as much of it as fits, is one stream of prompts and answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from watersmeet.core.stream import Span, Stream, supervise
from watersmeet.pipelines.data.samples import DataError
from watersmeet.pipelines.video_to_spec.learn.store import Lesson, read_lesson
from watersmeet.pipelines.video_to_spec.learn.vary import Variation, Vary, Words
from watersmeet.pipelines.video_to_spec.prompt import VIDEO, Memory, follow, prompt_of

_HOUR_US = 3_600_000_000


def steps_encoders(text: Any) -> dict[str, Any]:
    """Encoders of what a turn holds, by name; `text` is the one of the vocabulary."""
    from watersmeet.plugins.registry import get_registry

    registry = get_registry()
    return {"video": registry.encoder("video", VIDEO), "regions": registry.encoder("regions", {}), "text": text}


class StepDataset:
    """Lessons below `path`. `split` "train" varies samples; any other gives each as it is. Recordings that need more than
    `max_tokens` are cut between turns. Raises DataError when there is nothing below `path`, or when the lessons were made
    with other settings.
    """

    def __init__(
        self, path: str | Path, encoders: Mapping[str, Any], split: str = "train", *, max_tokens: int = 2048
    ) -> None:
        self.path, self.encoders = Path(path), encoders
        self.vary = Vary() if split == "train" else None
        self.cell = encoders["video"].settings["patch"] / encoders["video"].settings["scale"]
        self.max_tokens = max_tokens
        self.files = sorted(self.path.glob("*.json"))
        if not self.files:
            raise DataError(f"{self.path} holds no lessons; make some with `watersmeet data lessons`")
        settings = json.loads(json.dumps(encoders["video"].settings))
        for file in self.files[:1]:
            if dict(read_lesson(file).settings) != settings:
                raise DataError(f"{file} was made with other settings of the video encoder; make the lessons again")
        self._lesson = lru_cache(maxsize=64)(read_lesson)
        self._sizes: dict[Path, list[int]] = {}
        texts: set[str] = set()
        self.pieces = [piece for file in self.files for piece in self._cut(file, texts)]
        self.words = Words(texts)

    def _cut(self, file: Path, texts: set[str]) -> list[tuple[Path, int, int]]:
        """(file, first turn, turn after the last) of each part that fits; what is to be read in it goes to `texts`."""
        lesson = read_lesson(file)
        memory, sizes = Memory(), []
        for turn, written in zip(lesson.turns, lesson.written, strict=True):
            sizes.append(sum(s.n for s in prompt_of(turn, memory, self.encoders)) + len(written) + 1)
            follow(memory, turn, written)
            texts.update(line.text for line in (*turn.under, *turn.before, *turn.after))
        self._sizes[file] = sizes
        out, first, total = [], 0, 0
        for number, size in enumerate(sizes):
            if total + size > self.max_tokens and number > first:
                out.append((file, first, number))
                first, total = number, 0
            total += size
        return [*out, (file, first, len(sizes))]

    def __len__(self) -> int:
        return len(self.pieces)

    def sample(self, index: int, rng: np.random.Generator) -> Stream:
        """Stream of piece `index`: for each turn its prompt, and its markup and the end symbol as targets.

        Pure: the same index and state of `rng` give the same stream.
        """
        file, first, last = self.pieces[index]
        lesson: Lesson = self._lesson(file)
        how, varied = self.vary, None
        blank, unmeasured, shift_us = False, False, 0
        if how is not None:
            if rng.random() < how.inside:
                first, last = self._elsewhere(file, first, last, rng)
            blank = rng.random() < how.blank
            unmeasured = not blank and rng.random() < how.unmeasured
            shift_us = int(rng.integers(_HOUR_US)) if rng.random() < how.late else 0
            varied = Variation(how, self.words, rng, cell=self.cell)
        memory = Memory()
        spans: list[Span] = []
        learn: list[bool] = []
        text = self.encoders["text"]
        for number in range(last):
            turn, written = lesson.turns[number], lesson.written[number]
            if number >= first:
                seen, said = (turn, list(written)) if varied is None else varied.apply(turn, written)
                prompt = prompt_of(seen, memory, self.encoders, shift_us=shift_us, blank=blank, unmeasured=unmeasured)
                spans += [*prompt, text.encode_markup([*said, "</s>"])]
                learn += [False] * len(prompt) + [True]
            follow(memory, turn, written)
        return supervise(spans, learn)

    def _elsewhere(self, file: Path, first: int, last: int, rng: np.random.Generator) -> tuple[int, int]:
        """A part that begins at any turn of this one."""
        sizes = self._sizes[file]
        first = end = int(rng.integers(first, last))
        total = 0
        while end < len(sizes) and (end == first or total + sizes[end] <= self.max_tokens):
            total += sizes[end]
            end += 1
        return first, end

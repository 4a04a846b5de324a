"""The prompt of one turn: the patches that changed, what was measured, the lines and the places that can be referred to.

Training and use build their streams here, so that they cannot differ. A recording is one stream: prompt, answer, prompt,
answer, and so on, so that a turn is read with all turns before it in sight.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from watersmeet.core.geometry import Box
from watersmeet.core.stream import Span, content_key
from watersmeet.pipelines.video_to_spec import markup
from watersmeet.pipelines.video_to_spec.hints import NOTHING, near_lines
from watersmeet.pipelines.video_to_spec.watch.page import Line
from watersmeet.pipelines.video_to_spec.watch.sight import Patches, Turn

VIDEO = {"scale": 0.25, "max_rows": 64, "max_columns": 64}
"""Settings of the modality `video`: a quarter of the size, as for screenshots; texts carry the details."""
_MOST_KEPT = 4  # appearances of a screen that are remembered


@dataclass(kw_only=True)
class Memory:
    """What the screens that were said so far showed, as sets of lines; `here` is the number of the one that is shown."""

    shown: list[list[frozenset[str]]] = field(default_factory=list)
    here: int = -1

    def alike(self, lines: frozenset[str]) -> tuple[int, float]:
        """(number, share of lines in common) of the screen most like `lines`; (-1, 0) if there is none."""
        best = (-1, 0.0)
        for number, looks in enumerate(self.shown):
            share = max((_share(look, lines) for look in looks), default=0.0)
            if share > best[1]:
                best = (number, share)
        return best

    def resembles_here(self, lines: frozenset[str]) -> float:
        """Share of lines in common with the screen that is shown."""
        return max((_share(look, lines) for look in self.shown[self.here]), default=0.0) if self.here >= 0 else 0.0

    def arrive(self, number: int, lines: frozenset[str]) -> None:
        """Screen `number` is shown and says `lines`; a number one beyond the last is a new one."""
        if number == len(self.shown):
            self.shown.append([])
        self.here = number
        looks = self.shown[number]
        if lines and lines not in looks:
            looks.append(lines)
            # the first look and the last ones
            del looks[1 : 1 + max(0, len(looks) - _MOST_KEPT)]


def _share(a: frozenset[str], b: frozenset[str]) -> float:
    weights = [sum(len(text) + 2 for text in part) for part in (a & b, a | b)]
    return weights[0] / weights[1] if weights[1] else 0.0


def follow(memory: Memory, turn: Turn, written: Sequence[str]) -> None:
    """Keep `memory` up to date with what was written about a turn."""
    here = memory.here
    declared = len(memory.shown)
    for before, symbol in zip(["", *written], written, strict=False):
        if symbol == markup.NEW:
            here, declared = declared, declared + 1
            memory.shown.append([])
        elif before == markup.GO and symbol[1] == "v":
            here = int(symbol[2:-1])
    if 0 <= here < len(memory.shown):
        memory.arrive(here, turn.on_screen)


def prompt_of(
    turn: Turn,
    memory: Memory,
    encoders: Mapping[str, Any],
    *,
    shift_us: int = 0,
    blank: bool = False,
    unmeasured: bool = False,
) -> list[Span]:
    """Spans of one turn; `encoders` has "video", "regions" and "text".

    shift_us: added to all times (training). blank: without the patches. unmeasured: with nothing in the place of the
    measures, so that patches, texts and places alone say what happened (training).
    """
    text = encoders["text"]
    spans: list[Span] = []
    if not blank and len(turn.patches.time_us):
        spans.append(patch_span(turn.patches, shift_us))
    measures = _measures(turn, memory)
    spans.append(text.encode_markup([markup.OPEN, *([NOTHING] * len(measures) if unmeasured else measures)]))
    first = 0
    for name, lines in ((markup.AT_POINTER, turn.under), (markup.WAS, turn.before), (markup.CAME, turn.after)):
        if lines:
            spans.append(text.encode_markup([name]))
            spans += encoders["regions"].encode(_lines(turn, lines, first))
            first += len(lines)
    spans.append(text.encode_markup([markup.PLACES]))
    spans += encoders["regions"].encode(_places(turn))
    return spans


def patch_span(patches: Patches, shift_us: int = 0) -> Span:
    """Patches as a span of the modality `video`."""
    data, coords = torch.from_numpy(patches.data), torch.from_numpy(patches.coords)
    time_us = torch.from_numpy(patches.time_us) + shift_us
    return Span(
        modality="video", data=data, coords=coords, time_us=time_us, key=content_key("turn", data, coords, time_us)
    )


def _measures(turn: Turn, memory: Memory) -> list[str]:
    """Sixteen symbols, always in this order: ten of what changed, two of how the pointer came, four of lines near it."""
    number, alike = memory.alike(turn.on_screen)
    reach = 0 if turn.reach is None else 1 + (0 if turn.reach == 0 else _log(turn.reach / 8, 9))
    # what all but says what happened is said with the symbol that is to be written
    scrolled = NOTHING if turn.scrolled == 0 else markup.WAY["down" if turn.scrolled > 0 else "up"]
    letters = markup.DO["type"] if turn.letters else NOTHING
    times = [_log(turn.pause_s / 0.1, 10), _log(turn.lasting_s / 0.05, 10), reach]
    rest = [min(15, len(turn.observed.moments)), round(10 * memory.resembles_here(turn.on_screen)), round(10 * alike)]
    return [
        *_levels(times),
        scrolled,
        *_levels([round(10 * turn.kept)]),
        letters,
        *_levels(rest),
        f"<v{max(0, number)}>",
        *_levels(_came(turn)),
        *near_lines(turn),
    ]


def _came(turn: Turn) -> list[int]:
    """For how long the pointer has stood still, the highest if it is seen to press, and how far it came before; 0 without a
    pointer."""
    if turn.still_s is None:
        return [0, 0]
    still = 15 if turn.pressed else 1 + _log(turn.still_s / 0.03, 13)
    return [still, 1 + _log(turn.way / 8, 14)]


def _levels(values: Sequence[int]) -> list[str]:
    return [f"<level{value}>" for value in values]


def _log(value: float, most: int) -> int:
    return min(most, max(0, round(1.5 * math.log2(max(1.0, value)))))


def _record(turn: Turn) -> dict[str, Any]:
    return {"width": turn.observed.width, "height": turn.observed.height, "texts": [], "shapes": []}


def _lines(turn: Turn, lines: Sequence[Line], first: int) -> dict[str, Any]:
    return _record(turn) | {"texts": [dict(line.record) for line in lines], "offset_t": first}


def _places(turn: Turn) -> dict[str, Any]:
    return _record(turn) | {"shapes": [_shape(box) for box in turn.observed.boxes]}


def _shape(box: Box) -> dict[str, Any]:
    return {
        "box": {"x0": box.x0, "y0": box.y0, "x1": box.x1, "y1": box.y1},
        "kind": "outline",
        "color": [0, 0, 0],
        "border_color": None,
        "border_width": 0.0,
        "radius": 0.0,
    }

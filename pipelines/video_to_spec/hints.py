"""Which lines are near what: measured, and said in the prompt with the symbols of these lines, for a model to decide on."""

from __future__ import annotations

from collections.abc import Sequence

from watersmeet.core.geometry import Box
from watersmeet.pipelines.video_to_spec.watch.page import Line
from watersmeet.pipelines.video_to_spec.watch.sight import Turn
from watersmeet.pipelines.video_to_spec.watch.turns import SMALL

NOTHING = "<level0>"
_TOUCH = 12.0  # px between the pointer and a line that it may mean
_BESIDE = 44.0  # px between a field and its label


def near_lines(turn: Turn) -> list[str]:
    """Four symbols, each of a line or `NOTHING`: the line at which the pointer points, the first in the place that is acted on,
    the nearest one above it or before it or, where that is empty, behind it, and of what was typed the line that came.

    The place is the control below the pointer, without a pointer what changed, and for typing where letters came.
    """
    at, inside, label = places_of(turn)
    typed = len(turn.under) + len(turn.before) if turn.letters and turn.after else None
    return [symbol_of(at), symbol_of(inside), symbol_of(label), symbol_of(typed)]


def places_of(turn: Turn) -> tuple[int | None, int | None, int | None]:
    """(line at which the pointer points, the first in the place that is acted on, the label of that place)."""
    boxes = turn.observed.boxes
    place = boxes[-1] if turn.letters else boxes[0]
    old = [*turn.under, *turn.before]
    if place.area >= SMALL * turn.observed.width * turn.observed.height:
        return _at(turn, old), None, None
    inside = next((i for i, line in enumerate(old) if holds(place, line.box)), None)
    return _at(turn, old), inside, _label(old, place)


def symbol_of(number: int | None) -> str:
    return NOTHING if number is None else f"<t{number}>"


def _at(turn: Turn, lines: Sequence[Line]) -> int | None:
    if turn.point is None or not lines:
        return None
    x, y = turn.point
    far = [max(0.0, b.x0 - x, x - b.x1, b.y0 - y, y - b.y1) for b in (line.box for line in lines)]
    best = min(range(len(lines)), key=lambda number: far[number])
    return best if far[best] <= _TOUCH else None


def holds(place: Box, box: Box) -> bool:
    x, y = box.center
    return place.x0 <= x <= place.x1 and place.y0 <= y <= place.y1


def _label(lines: Sequence[Line], place: Box) -> int | None:
    best: tuple[bool, float, int] | None = None
    for number, line in enumerate(lines):
        box = line.box
        above, left, right = place.y0 - box.y1, place.x0 - box.x1, box.x0 - place.x1
        beside = min(place.y1, box.y1) > max(place.y0, box.y0)
        over = min(place.x1, box.x1) > max(place.x0, box.x0)
        # a label may touch the frame of its field
        gap = max(left, right) if beside and not over else above if over and not holds(place, box) else None
        if gap is not None and -box.height <= gap <= _BESIDE:
            # behind a field stand units and buttons, behind a box to tick what it means
            found = (beside and right > left, gap, number)
            best = found if best is None else min(best, found)
    # what stands behind a button is another one
    if best is None or (best[0] and any(holds(place, line.box) for line in lines)):
        return None
    return best[2]

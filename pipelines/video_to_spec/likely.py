"""What plain code would say of a turn: what weighs on the choices of a model, and decides nothing.

Each rule and number was found on recordings that are made for training, never on those for validation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from watersmeet.pipelines.video_to_spec import markup
from watersmeet.pipelines.video_to_spec.hints import holds, places_of, symbol_of
from watersmeet.pipelines.video_to_spec.prompt import Memory
from watersmeet.pipelines.video_to_spec.watch.page import Line
from watersmeet.pipelines.video_to_spec.watch.sight import Turn
from watersmeet.pipelines.video_to_spec.watch.turns import SMALL

_TOUCH = 12.0  # px between the pointer and a line that it certainly means
_REACH = 30.0  # px between the pointer and a line that it may mean; beyond is a picture
_ALONG = 0.5  # a px beside a line counts as that much: rows are pressed far behind their text
_LARGER = 1.25  # by how much a title is larger than the link to its page
_BELOW = 60.0  # px from what opens a menu down to the menu
_LEFT, _STAYED = (
    0.15,
    0.7,
)  # share of the lines that are kept: up to the first it is another page, beyond the second the same
_SAME = 0.65  # share of lines in common with a page that was seen before, beyond which it is that page
_ARRIVES_S, _SOON_S, _LONG_S = 0.1, 1.0, 1.5  # for how long the pointer stood when something changed
_BY, _LITTLE = 60.0, 0.03  # px from the pointer, and share of the screen, that changed
_UPPER, _EQUAL, _LETTERS = 0.6, 0.9, 4  # of the height; of the largest size; of a word


@dataclass(frozen=True, kw_only=True)
class Likely:
    """targets: see `likely_targets`. leads: whether another screen is shown at the end, None if that is open. screen: the symbol
    of the one that it would be, None where that is the one that is shown already. acts: whether somebody did something, None if
    that is open. action: what a first step would be, None if it may be any. title: the symbol of the line that a new screen would
    be called, None if there is none."""

    targets: Mapping[str, str]
    leads: bool | None = None
    screen: str | None = None
    acts: bool | None = None
    action: str | None = None
    title: str | None = None


def likely(turn: Turn, memory: Memory, *, blind: bool = False) -> Likely:
    """What is likely said of `turn`, when the screens of `memory` were said before. blind: the recording shows no pointer."""
    number, alike = memory.alike(turn.on_screen)
    screen: str | None = markup.NEW
    if alike > _SAME:
        screen = None if number == memory.here else f"<v{number}>"
    leads = _leads(turn)
    return Likely(
        targets=likely_targets(turn),
        leads=leads,
        screen=screen,
        acts=_acts(turn),
        action=_left_by(turn, blind) if leads else None,
        title=_title(turn),
    )


def _left_by(turn: Turn, blind: bool) -> str | None:
    """A page that is left while the pointer rests is left by other means; where none is shown, most are left by a press."""
    if turn.still_s is None:
        return "click" if blind else None
    return "navigate" if turn.still_s > _LONG_S else None


def _title(turn: Turn) -> str | None:
    """The upper one of the largest lines that came and are words: numbers stand larger on many pages."""
    first = len(turn.under) + len(turn.before)
    words = [
        (float(line.record["font_size"]), line.box.y0, first + number)
        for number, line in enumerate(turn.after)
        if line.box.y0 <= _UPPER * turn.observed.height and _wordy(line.text)
    ]
    if not words:
        return None
    least = _EQUAL * max(size for size, _, _ in words)
    return symbol_of(min((y0, number) for size, y0, number in words if size >= least)[1])


def _wordy(text: str) -> bool:
    letters = sum(char.isalpha() for char in text)
    return letters >= _LETTERS and letters >= 0.6 * sum(not char.isspace() for char in text)


def _share(turn: Turn) -> float:
    return sum(area.area for area in turn.areas) / (turn.observed.width * turn.observed.height)


def _acts(turn: Turn) -> bool | None:
    """Nobody presses at once where the pointer arrives, what changes then is lit up; they do a moment later."""
    if turn.still_s is None or turn.reach is None or turn.letters:
        return None
    if turn.still_s <= _ARRIVES_S:
        return False if _share(turn) < _LITTLE else None
    if turn.still_s <= _SOON_S and (turn.reach <= _BY or _share(turn) >= _LITTLE):
        return True
    return None


def _leads(turn: Turn) -> bool | None:
    if turn.kept > _STAYED:
        return False
    return True if turn.kept <= _LEFT and _share(turn) >= SMALL else None


def likely_targets(turn: Turn) -> dict[str, str]:
    """By action the symbol of the line that it would most likely mean, or `NOTHING` where that is a picture without a text;
    actions of which nothing is known are left out.

    A press means the line at the pointer, else the one in the place. Without a pointer it means the line that is called like
    a title that came, else the one above a menu that opened, else the one in the place or its label. Typing means what stands
    in the place (a placeholder), else its label; where the pointer is on a text and there is a label too, that text is what
    the field held.
    """
    at, inside, label = places_of(turn)
    held = at is not None and label is not None
    found = {"type": _first(label, at) if held else _first(inside, label, at)}
    known = {action: symbol_of(number) for action, number in found.items() if number is not None}
    old = [*turn.under, *turn.before]
    if turn.point is not None:
        return known | ({"click": symbol_of(_at(old, turn.point, inside))} if old else {})
    press = _first(_named(turn, old), _opener(turn, old), inside, label)
    return known | ({} if press is None else {"click": symbol_of(press)})


def _first(*numbers: int | None) -> int | None:
    return next((number for number in numbers if number is not None), None)


def _at(lines: Sequence[Line], point: tuple[float, float], inside: int | None) -> int | None:
    x, y = point
    far = [max(_ALONG * max(b.x0 - x, x - b.x1), b.y0 - y, y - b.y1) for b in (line.box for line in lines)]
    best = min(range(len(lines)), key=lambda number: max(0.0, far[number]))
    if far[best] > _REACH:
        return None
    return best if inside is None or far[best] <= _TOUCH else inside


def _named(turn: Turn, lines: Sequence[Line]) -> int | None:
    """The line that is called like something larger that came."""
    best: tuple[float, int] | None = None
    for number, line in enumerate(lines):
        sizes = [c.box.height / line.box.height for c in turn.after if c.text.casefold() == line.text.casefold()]
        size = max(sizes, default=0.0)
        if size >= _LARGER and (best is None or size > best[0]):
            best = (size, number)
    return None if best is None else best[1]


def _opener(turn: Turn, lines: Sequence[Line]) -> int | None:
    """The line right above what came, if that holds several lines: a menu covers others, which are no targets."""
    place = turn.observed.boxes[0]
    if place.area >= SMALL * turn.observed.width * turn.observed.height:
        return None
    if sum(holds(place, line.box) for line in turn.after) < 2:
        return None
    over = [
        (place.y0 - line.box.y1, number)
        for number, line in enumerate(lines)
        if min(place.x1, line.box.x1) > max(place.x0, line.box.x0)
    ]
    return min(((gap, number) for gap, number in over if -8 <= gap <= _BELOW), default=(0.0, None))[1]

"""Presses that a recorder draws: rings that grow around the point of the pointer.

They say when a press was, and are neither the page's nor the pointer's: without them a change begins when the page answers, and
the pointer is where it was. What grows elsewhere is the page's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

from watersmeet.core.geometry import Box
from watersmeet.pipelines.video_to_spec.watch.motion import Difference
from watersmeet.pipelines.video_to_spec.watch.pointer import Track, joined, point_of, track

_SIDE = (8.0, 96.0)  # px, least and most of a ring
_FIRST = 48.0  # px, the most of one that begins
_SQUARE = 0.7  # least of its shorter side by the longer
_OFF = 5.0  # px between the middles of one ring
_GROWS = 8.0  # px, at least, of its side over all
_LOOKS = 3
_NEXT_US = 220_000  # between two looks at one ring
_LONGEST_US = 900_000
_ANSWER_US = 600_000  # between a press and what answers it
_SAME_US = 40_000  # a ring may come with the frame that shows the answer
_JOIN = 16.0  # px between parts of one ring
_AT = 14.0  # px between the middle of a ring and the pointer's point
_MOST = 40  # small areas of a difference; of more each would have to be joined with each


@dataclass(frozen=True, kw_only=True, slots=True)
class Presses:
    """`times_us` of presses in order."""

    times_us: tuple[int, ...] = ()

    def answered(self, time_us: int) -> int | None:
        """The press that a change at a time answers, None if none is seen shortly before it."""
        i = bisect_right(self.times_us, time_us + _SAME_US) - 1
        return self.times_us[i] if i >= 0 and time_us - self.times_us[i] <= _ANSWER_US else None


@dataclass(frozen=True, slots=True)
class _Look:
    number: int  # of the difference
    time_us: int
    box: Box


def presses(differences: Sequence[Difference]) -> tuple[Presses, Track, list[Difference]]:
    """All presses that rings show, the pointer as it is followed without these rings, and the differences without them."""
    rings = _rings(differences)
    rest = _without(differences, rings)
    pointer = track(rest)
    own = [run for run in rings if _at_pointer(run, pointer)]
    if len(own) < len(rings):
        rest = _without(differences, own)
        pointer = track(rest)
    return Presses(times_us=tuple(sorted(run[0].time_us for run in own))), pointer, rest


def _rings(differences: Sequence[Difference]) -> list[list[_Look]]:
    """Whatever grows around a point."""
    growing: list[list[_Look]] = []
    rings: list[list[_Look]] = []
    for number, one in enumerate(differences):
        growing, ended = _parted(growing, one.time_us)
        rings += ended
        small = [area.box for area in one.areas if _side(area.box) <= _SIDE[1]]
        for box in joined(small, _JOIN) if len(small) <= _MOST else ():
            if _SIDE[0] <= _side(box) <= _SIDE[1] and min(box.width, box.height) >= _SQUARE * _side(box):
                _take(growing, _Look(number, one.time_us, box))
    return [run for run in rings + growing if _is_ring(run)]


def _at_pointer(run: Sequence[_Look], pointer: Track) -> bool:
    """Whether a ring is around the point of the pointer, where that was seen."""
    box = pointer.at(run[0].time_us)
    if box is None:
        return False
    (x, y), (middle_x, middle_y) = point_of(box), run[-1].box.center
    return abs(x - middle_x) <= _AT and abs(y - middle_y) <= _AT


def _parted(runs: list[list[_Look]], time_us: int) -> tuple[list[list[_Look]], list[list[_Look]]]:
    """(those that may go on at a time, those that cannot)."""
    on = [r for r in runs if time_us - r[-1].time_us <= _NEXT_US and time_us - r[0].time_us <= _LONGEST_US]
    return on, [run for run in runs if run not in on]


def _take(runs: list[list[_Look]], look: _Look) -> None:
    """Add a look to the run that it continues, or let it begin one."""
    for run in runs:
        before = run[-1]
        (x, y), (other_x, other_y) = look.box.center, before.box.center
        # when it is gone, all of it differs once more
        larger = _side(look.box) >= _side(before.box) - 2
        if before.number != look.number and larger and abs(x - other_x) <= _OFF and abs(y - other_y) <= _OFF:
            run.append(look)
            return
    if _side(look.box) <= _FIRST:
        runs.append([look])


def _is_ring(run: Sequence[_Look]) -> bool:
    return len(run) >= _LOOKS and _side(run[-1].box) - _side(run[0].box) >= _GROWS


def _side(box: Box) -> float:
    return max(box.width, box.height)


def _without(differences: Sequence[Difference], rings: Sequence[Sequence[_Look]]) -> list[Difference]:
    """The differences without what rings explain of them."""
    places: dict[int, list[Box]] = {}
    for look in (look for run in rings for look in run):
        places.setdefault(look.number, []).append(look.box)
    rest = list(differences)
    for number, boxes in places.items():
        kept = [area for area in rest[number].areas if not any(box.contains(area.box) for box in boxes)]
        rest[number] = replace(rest[number], areas=tuple(kept))
    return [one for one in rest if one.areas]

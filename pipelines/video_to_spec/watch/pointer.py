"""Where the pointer is, from how it moves: small areas that change in a chain, each where the one before has been.

Between two frames of a moving pointer the place that it left and the place that it came to differ. So what two
differences in a row have in common is where it stood between them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from watersmeet.core.geometry import Box
from watersmeet.pipelines.video_to_spec.watch.motion import Difference

_LARGEST = 110.0  # px on a side; larger areas are the page's
_NEAR_US = 140_000  # two differences further apart are not one movement
_LEAST = 34.0  # px between the ends of a movement; what turns in place goes less far
_SMALLEST = (5.0, 8.0)  # px, width and height
_JOIN = 6.0  # px between parts of one pointer
_CLEAR = 10.0  # px between a pointer and what it does not hide
_FASTER, _JUMP = 4.0, 60.0  # how many times as far a movement may go from one frame to the next, and px beyond that


@dataclass(frozen=True, kw_only=True, slots=True)
class Track:
    """Places of the pointer in order of time: from `times_us[i]` on it is in `boxes[i]`. `parts` are, per number of a frame,
    the areas that its movement explains."""

    times_us: tuple[int, ...]
    boxes: tuple[Box, ...]
    parts: dict[int, tuple[Box, ...]]

    def at(self, time_us: int) -> Box | None:
        """The pointer's box at a time, None as long as it was not seen to move."""
        i = bisect_right(self.times_us, time_us) - 1
        return self.boxes[i] if i >= 0 else None

    def still_us(self, time_us: int) -> int | None:
        """For how long it has stood where it is at a time, None as long as it was not seen to move."""
        i = bisect_right(self.times_us, time_us) - 1
        return time_us - self.times_us[i] if i >= 0 else None

    def away(self, box: Box, start_us: int, end_us: int) -> int | None:
        """The last time between two at which it stood clear of `box`, None if there is none."""
        for i in range(bisect_right(self.times_us, end_us) - 1, -1, -1):
            until = end_us if i + 1 == len(self.times_us) else min(end_us, self.times_us[i + 1] - 1)
            if until < start_us:
                break
            if not _touch(self.boxes[i], box, _CLEAR):
                return until
        return None

    def way(self, start_us: int, end_us: int) -> float:
        """How far away it was, in px and at most, between two times, from where it is at the later one; 0 if it was not seen."""
        here = self.at(end_us)
        first, last = max(0, bisect_right(self.times_us, start_us) - 1), bisect_right(self.times_us, end_us)
        return 0.0 if here is None else max(_apart(box, here) for box in self.boxes[first:last])


def point_of(box: Box) -> tuple[float, float]:
    """Where a pointer in this box points: an arrow to its upper left, a hand near its top, a disc to its middle."""
    share = 0.5 if box.width > 44 and 0.8 < box.width / max(1.0, box.height) < 1.25 else 0.2
    return box.x0 + share * box.width, box.y0 + share * box.height


def track(differences: Sequence[Difference]) -> Track:
    """Follow the pointer through all differences of a recording."""
    follower = _Follower()
    for run in _runs(differences):
        follower.follow(run)
    return Track(times_us=tuple(follower.times), boxes=tuple(follower.boxes), parts=follower.parts)


def joined(boxes: Sequence[Box], gap: float = _JOIN) -> list[Box]:
    """Boxes that lie within `gap` px of each other as one, until none do."""
    out = list(boxes)
    merged = True
    while merged:
        merged = False
        for i in range(len(out)):
            for k in range(i + 1, len(out)):
                if _touch(out[i], out[k], gap):
                    out[i] = out[i].union(out.pop(k))
                    merged = True
                    break
            if merged:
                break
    return out


def _touch(a: Box, b: Box, gap: float) -> bool:
    return a.x0 - gap <= b.x1 and b.x0 - gap <= a.x1 and a.y0 - gap <= b.y1 and b.y0 - gap <= a.y1


def _common(a: Box, b: Box) -> Box | None:
    box = a.common(b)
    return box if box is not None and box.width >= 4 and box.height >= 4 else None


def _apart(a: Box, b: Box) -> float:
    (ax, ay), (bx, by) = a.center, b.center
    return float(((ax - bx) ** 2 + (ay - by) ** 2) ** 0.5)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Look:
    """One difference with its small clusters."""

    frame: int
    time_us: int
    small: tuple[Box, ...]


def _runs(differences: Sequence[Difference]) -> list[list[_Look]]:
    """Differences that follow each other closely, those of them that have small clusters and not many."""
    runs: list[list[_Look]] = [[]]
    for one in differences:
        boxes = [area.box for area in one.areas]
        small = [b for b in joined(boxes) if b.width <= _LARGEST and b.height <= _LARGEST] if len(boxes) <= 40 else []
        look = _Look(frame=one.frame, time_us=one.time_us, small=tuple(small) if len(small) <= 8 else ())
        if runs[-1] and look.time_us - runs[-1][-1].time_us > _NEAR_US:
            runs.append([])
        runs[-1].append(look)
    return [run for run in runs if run]


class _Follower:
    def __init__(self) -> None:
        self.times: list[int] = []
        self.boxes: list[Box] = []
        self.parts: dict[int, tuple[Box, ...]] = {}
        self.size: tuple[float, float] | None = None
        self._sizes: list[tuple[float, float]] = []

    @property
    def known(self) -> Box | None:
        return self.boxes[-1] if self.boxes else None

    def follow(self, run: list[_Look]) -> None:
        """Take one run: chains that move first, single steps from where the pointer is known to be otherwise."""
        i = 0
        while i < len(run):
            chain = self._chain(run, i)
            if chain:
                self._take(run, i, chain)
                i += len(chain) + 1
            else:
                self._step(run[i])
                i += 1

    def _chain(self, run: list[_Look], start: int) -> list[Box]:
        """Places between differences `start` and `start + 1`, the next two, and so on, as long as something moves on; []
        unless that covers some way."""
        best: list[Box] = []
        for a in run[start].small:
            chain = self._grow(run, start, a)
            if _way(chain) > max(_LEAST, _way(best)) and self._like_pointer(chain):
                best = chain
        return best

    def _like_pointer(self, chain: list[Box]) -> bool:
        w, h = median(box.width for box in chain), median(box.height for box in chain)
        if w < _SMALLEST[0] or h < _SMALLEST[1]:
            return False
        # one movement may be seen badly, but a pointer that was followed for long does not shrink
        return self.size is None or len(self._sizes) < 20 or (w > 0.4 * self.size[0] and h > 0.4 * self.size[1])

    def _grow(self, run: list[_Look], start: int, first: Box) -> list[Box]:
        places: list[Box] = []
        at = first
        for a, b in pairwise(run[start:]):
            options = [c for old in (a.small if places else (at,)) for new in b.small if (c := _common(old, new))]
            if places:
                usual = median(place.area for place in places)
                options = [
                    c
                    for c in options
                    if 0.25 * usual <= c.area <= 4 * usual and _apart(c, places[-1]) > 1.5 and self._steady(places, c)
                ]
            if not options:
                break
            # the place that is most like the one before in size; for the first the largest
            if places:
                w, h = places[-1].width, places[-1].height
                at = min(options, key=lambda c: abs(c.width - w) + abs(c.height - h) + 0.05 * _apart(c, places[-1]))
            else:
                at = max(options, key=lambda c: c.area)
            places.append(at)
        return places

    def _steady(self, places: list[Box], new: Box) -> bool:
        """Whether a movement goes on: not a jump back to where it was before, nor one to what changes elsewhere."""
        if len(places) < 2:
            return True
        before = _apart(places[-1], places[-2])
        return _apart(new, places[-2]) > 0.5 * before and _apart(new, places[-1]) <= _FASTER * before + _JUMP

    def _take(self, run: list[_Look], start: int, chain: list[Box]) -> None:
        self._sizes += [(box.width, box.height) for box in chain]
        self._sizes = self._sizes[-60:]
        self.size = (median(w for w, _ in self._sizes), median(h for _, h in self._sizes))
        for k, box in enumerate(chain):
            self._explain(run[start + k], box, chain[k - 1] if k else self.known)
            self._put(run[start + k].time_us, box)
        last = run[start + len(chain)]
        end = self._end(last, chain)
        self._explain(last, end, chain[-1])
        self._put(last.time_us, end)

    def _end(self, look: _Look, chain: list[Box]) -> Box:
        """Where the movement ends: the part of the last difference that is not where the pointer was before."""
        came = chain[-1]
        if not any(_touch(box, came, 0) for box in look.small):
            return came
        others = [box for box in look.small if not _touch(box, came, 0) and self._sized(box)]
        if len(chain) > 1:
            others = [box for box in others if _apart(box, came) <= _FASTER * _apart(came, chain[-2]) + _JUMP]
        if others:
            if len(chain) > 1:
                dx, dy = (came.center[k] - chain[-2].center[k] for k in (0, 1))
                guess = came.shifted(dx, dy)
                return min(others, key=lambda box: _apart(box, guess))
            return min(others, key=lambda box: _apart(box, came))
        over = [box for box in look.small if _touch(box, came, 0)]
        return self._far_end(max(over, key=lambda box: box.intersection(came)), came) if over else came

    def _far_end(self, both: Box, came: Box) -> Box:
        """Of the area around two places of the pointer the one that it did not come from."""
        w, h = self.size or (came.width, came.height)
        w, h = min(w, both.width), min(h, both.height)
        x0 = both.x1 - w if both.x1 - came.x1 > came.x0 - both.x0 else both.x0
        y0 = both.y1 - h if both.y1 - came.y1 > came.y0 - both.y0 else both.y0
        return Box(x0=x0, y0=y0, x1=x0 + w, y1=y0 + h)

    def _sized(self, box: Box) -> bool:
        if self.size is None:
            return box.width <= 64 and box.height <= 64
        w, h = self.size
        return 0.6 * w <= box.width <= 1.9 * w + 4 and 0.6 * h <= box.height <= 1.9 * h + 4

    def _step(self, look: _Look) -> None:
        """A single difference: the pointer moved if something left its place and something like it is elsewhere."""
        known = self.known
        if known is None or self.size is None or not look.small:
            return
        left = [box for box in look.small if box.intersection(known) > 0.3 * known.area]
        if not left:
            return
        there = [box for box in look.small if not _touch(box, known, 0) and self._sized(box)]
        own = max(left, key=lambda box: box.intersection(known))
        if len(there) == 1 and self._sized(own):
            self._explain(look, there[0], known)
            self._put(look.time_us, there[0])
        elif not there and self._sized(own) and _apart(own, known) > 3:
            end = self._far_end(own, known)
            self._explain(look, end, known)
            self._put(look.time_us, end)
        elif self._sized(own) and not there:
            self._explain(look, known, None)  # an arrow that becomes a hand

    def _explain(self, look: _Look, new: Box, old: Box | None) -> None:
        """Write down which areas of a difference are the pointer's."""
        places = [new] if old is None else [new, old]
        way = Box.around(places)  # two places aslant of each other are one area much larger than both
        mine = [
            box
            for box in look.small
            if any(_touch(box, place, 3) for place in places)
            and (way.contains(box, _JOIN) or any(box.area <= 3.2 * max(place.area, 150) for place in places))
        ]
        self.parts[look.frame] = tuple(mine)

    def _put(self, time_us: int, box: Box) -> None:
        self.times.append(time_us)
        self.boxes.append(box)


def _way(places: Sequence[Box]) -> float:
    """How far a movement leads from where it began."""
    return max((_apart(places[0], b) for b in places[1:]), default=0.0)

"""When something happened: differences that the page made, without what never rests, joined to episodes.

An episode is a time in which the page changes and after which it stands. Most steps are one episode each; many episodes
(a toast that leaves, a chart that draws itself, a button below a passing pointer) are no step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from watersmeet.core.geometry import Box
from watersmeet.pipelines.video_to_spec.watch.motion import Difference
from watersmeet.pipelines.video_to_spec.watch.pointer import Track, joined
from watersmeet.pipelines.video_to_spec.watch.presses import Presses

_TILE = 16  # px
_REST_US = 1_300_000  # a place that changes again within this has not rested
_RESTLESS_US = 2_600_000  # and is called restless when that goes on for so long
_RESTLESS_COUNT = 4
_TICK_US, _UNEVEN_US = 800_000, 70_000  # least distance of the ticks of a clock, and how much distances may differ
_SURE = 4  # equal distances that nothing but a clock keeps
_AROUND = (4.0, 8.0)  # px beside and above what changed that do not rest either
_GAP_US = 135_000  # between changes of one episode
_INSIDE_US = 450_000  # the same, of what stays within the place that changed before
_LETTER_US = 1_300_000  # between letters that are typed
_FOCUS_US = 1_000_000  # between the press that makes room for letters and the first of them
_LETTER = (260.0, 64.0)  # px, the most that one letter changes
_DIGITS = (90.0, 40.0)  # px, the most that digits of a clock change
_CARET = (5.0, 44.0)  # px, the most that a caret is wide and tall
_BEAT_US = 100_000  # quiet between two beats of an episode
MOST_BEATS = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Beat:
    """A change without a pause in it: first and last frame with their times, and what changed. press_us: of the press that it
    answers, where the recording shows that one."""

    frame: int
    time_us: int
    last_frame: int
    last_us: int
    box: Box
    press_us: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Episode:
    """Beats in order, at most `MOST_BEATS` (the first and the last ones of many), and all areas that changed.

    letters: whether it looks like typing.
    """

    beats: tuple[Beat, ...]
    areas: tuple[Box, ...]
    letters: bool

    @property
    def start_us(self) -> int:
        return self.beats[0].time_us

    @property
    def end_us(self) -> int:
        return self.beats[-1].last_us

    @property
    def box(self) -> Box:
        return Box.around(list(self.areas))


@dataclass(frozen=True, slots=True)
class _Change:
    frame: int
    time_us: int
    boxes: list[Box]


def episodes(differences: Sequence[Difference], track: Track, size: tuple[int, int], seen: Presses) -> list[Episode]:
    """All episodes of a recording whose frames are `size` = (width, height) px. seen: presses that it shows."""
    restless = _restless(differences, size)
    grower: _Grower | None = None
    out: list[Episode] = []
    caret: _Change | None = None
    for change in _page_changes(differences, track):
        thin = [box for box in change.boxes if _thin(box)]
        boxes = [box for box in change.boxes if box not in thin and not restless.covers(box, change.time_us)]
        if not boxes:
            if thin and (caret is None or change.time_us - caret.time_us > _REST_US or not _near(caret.boxes, thin)):
                caret = _Change(change.frame, change.time_us, thin)
            continue
        change = _Change(change.frame, change.time_us, boxes)
        still = grower is not None and track.at(grower.last.time_us) == track.at(change.time_us)
        if grower is None or not grower.takes(change, still):
            if grower is not None:
                out.append(grower.done())
            grower = _Grower(change)
            # a caret that came shortly before the first letter is where it began
            if grower.small and caret and change.time_us - caret.time_us < _LETTER_US and _near(caret.boxes, boxes):
                if not out or out[-1].end_us < caret.time_us:
                    grower = _Grower(caret)
                    grower.add(change)
            caret = None
        else:
            grower.add(change)
    if grower is not None:
        out.append(grower.done())
    return [_pressed(episode, seen) for episode in out]


def _pressed(episode: Episode, seen: Presses) -> Episode:
    """An episode with the presses that are seen; each is answered once."""
    beats: list[Beat] = []
    for beat in episode.beats:
        press_us = seen.answered(beat.time_us)
        taken = beats and press_us is not None and press_us <= beats[-1].time_us
        beats.append(beat if press_us is None or taken else replace(beat, press_us=press_us))
    return replace(episode, beats=tuple(beats))


def _thin(box: Box) -> bool:
    return box.width <= _CARET[0] and box.height <= _CARET[1]


def _padded(box: Box) -> Box:
    x, y = _AROUND
    return Box(x0=max(0.0, box.x0 - x), y0=max(0.0, box.y0 - y), x1=box.x1 + x, y1=box.y1 + y)


def _near(a: Sequence[Box], b: Sequence[Box]) -> bool:
    return any(_one_line(x, y, 30.0) for x in a for y in b)


def _one_line(a: Box, b: Box, gap: float) -> bool:
    high = min(a.y1, b.y1) - max(a.y0, b.y0)
    wide = max(a.x0, b.x0) - min(a.x1, b.x1)
    return high >= 0.5 * min(a.height, b.height) and wide <= gap


def _page_changes(differences: Sequence[Difference], track: Track) -> Iterator[_Change]:
    """Differences without what the pointer explains."""
    for one in differences:
        own = track.parts.get(one.frame, ())
        boxes = [area.box for area in one.areas if not any(box.contains(area.box, 4) for box in own)]
        if boxes:
            yield _Change(one.frame, one.time_us, boxes)


class _Restless:
    """Tiles that change without rest, each with the times between which it does; those in which a clock surely ticks once more."""

    def __init__(self) -> None:
        self.spans: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        self.clocks: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)

    def covers(self, box: Box, time_us: int) -> bool:
        """Whether most of a box is restless at that time."""
        tiles = list(_tiles(box))

        def hits(spans: dict[tuple[int, int], list[tuple[int, int]]]) -> int:
            return sum(any(a <= time_us <= b for a, b in spans.get(tile, ())) for tile in tiles)

        # with the minute more digits of a clock change than with a second
        digits = box.width <= _DIGITS[0] and box.height <= _DIGITS[1]
        return hits(self.spans) >= 0.7 * len(tiles) or (digits and hits(self.clocks) > 0)


def _tiles(box: Box) -> Iterator[tuple[int, int]]:
    for row in range(int(box.y0) // _TILE, int(np.ceil(box.y1 / _TILE))):
        for column in range(int(box.x0) // _TILE, int(np.ceil(box.x1 / _TILE))):
            yield row, column


def _restless(differences: Sequence[Difference], size: tuple[int, int]) -> _Restless:
    times: dict[tuple[int, int], list[int]] = defaultdict(list)
    large = 0.2 * size[0] * size[1]
    for one in differences:
        for area in one.areas:
            # a caret is known by its form; a digit that changes touches more than what differs of it
            if area.box.area < large and not _thin(area.box):
                for tile in _tiles(_padded(area.box)):
                    if not times[tile] or times[tile][-1] != one.time_us:
                        times[tile].append(one.time_us)
    out = _Restless()
    for tile, listed in times.items():
        at = np.array(listed)
        for part in np.split(at, np.flatnonzero(np.diff(at) > _REST_US) + 1):
            ticks = _ticks(part)
            out.clocks[tile] += _ticks(part, _SURE)
            if len(part) >= _RESTLESS_COUNT and part[-1] - part[0] >= _RESTLESS_US:
                out.spans[tile].append((int(part[0]), int(part[-1])))
            else:
                out.spans[tile] += ticks
    return out


def _ticks(times_us: np.ndarray, steps: int = 2) -> list[tuple[int, int]]:
    """Times of ticks of a clock, which come at that many equal distances; nobody's fingers keep these."""
    apart = np.diff(times_us)
    if len(apart) < steps:
        return []
    rows = np.lib.stride_tricks.sliding_window_view(apart, steps)
    even = (rows.min(axis=1) >= _TICK_US) & (np.abs(np.diff(rows, axis=1)).max(axis=1) <= _UNEVEN_US)
    return [(int(times_us[i]), int(times_us[i + steps])) for i in np.flatnonzero(even)]


class _Grower:
    """An episode that goes on."""

    def __init__(self, first: _Change) -> None:
        self.beats = [self._beat(first)]
        self.boxes = list(first.boxes)
        self.last = first
        self.small = self._letter(first)
        self.letters = 0
        self.line: Box | None = Box.around(first.boxes) if self.small else None

    @staticmethod
    def _beat(change: _Change) -> Beat:
        return Beat(
            frame=change.frame,
            time_us=change.time_us,
            last_frame=change.frame,
            last_us=change.time_us,
            box=Box.around(change.boxes),
        )

    @staticmethod
    def _letter(change: _Change) -> bool:
        box = Box.around(change.boxes)
        return box.width <= _LETTER[0] and box.height <= _LETTER[1]

    def takes(self, change: _Change, still: bool) -> bool:
        """Whether a change belongs to this episode. still: the pointer did not move since the last one."""
        gap = change.time_us - self.last.time_us
        if gap <= _GAP_US:
            return True
        box = Box.around(change.boxes)
        if gap <= _LETTER_US and self._letter(change) and self._types(box):
            return True
        if gap <= _FOCUS_US and self._letter(change) and still and Box.around(self.boxes).contains(box, 6):
            return True
        return gap <= _INSIDE_US and not self._letter(change) and Box.around(self.boxes).contains(box, 8)

    def _types(self, box: Box) -> bool:
        return self._letter(self.last) and _one_line(Box.around(self.last.boxes), box, 60.0)

    def add(self, change: _Change) -> None:
        """Take a change in."""
        gap = change.time_us - self.last.time_us
        self.letters += self._letter(change) and gap > _GAP_US
        box = Box.around(change.boxes)
        before = self.beats[-1]
        if gap > _BEAT_US:
            self.beats.append(self._beat(change))
        else:
            self.beats[-1] = Beat(
                frame=before.frame,
                time_us=before.time_us,
                last_frame=change.frame,
                last_us=change.time_us,
                box=before.box.union(box),
            )
        self.boxes = joined([*self.boxes, *change.boxes])
        self.last = change

    def done(self) -> Episode:
        """The episode as it is now."""
        beats = self.beats
        if len(beats) > MOST_BEATS:
            beats = beats[:3] + beats[-(MOST_BEATS - 3) :]
        return Episode(beats=tuple(beats), areas=tuple(joined(self.boxes)), letters=self.letters >= 2)

"""What could be read only during an episode: the entries of a menu that is open for a moment, until one of them is pressed."""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from watersmeet.core.geometry import Box
from watersmeet.pipelines.video_to_spec.watch.episodes import Episode
from watersmeet.pipelines.video_to_spec.watch.page import Line, Page
from watersmeet.pipelines.video_to_spec.watch.pointer import Track, point_of

_MOST = 3  # lines
_STANDS_US = 100_000  # what came stands for at least so long before it is pressed
_EDGE = 30.0  # px
_MOVED = 12.0  # px that the pointer went in between


def moment_of(episode: Episode, pointer: Track, times_us: Sequence[int]) -> int | None:
    """The time of the last frame before the last change of an episode, if something else may have been pressed then."""
    first, last = episode.beats[0], episode.beats[-1]
    if episode.letters or last.time_us - first.last_us < _STANDS_US:
        return None
    here, there = pointer.at(first.time_us - 1), pointer.at(last.time_us - 1)
    if here is not None and there is not None:
        (x0, y0), (x1, y1) = point_of(here), point_of(there)
        if ((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5 < _MOVED:
            return None
    number = bisect_left(times_us, last.time_us) - 1
    return times_us[number] if number >= 0 and times_us[number] >= first.time_us else None


def lines_at(
    page: Page, picture_HW3: np.ndarray, episode: Episode, time_us: int, pointer: Track, hidden: Box | None
) -> list[Line]:
    """Lines that are there at that time and were not before, the nearest to the pointer first; `page` stays as it is."""
    box = episode.box
    # a pale entry at the edge of a menu is too little of a change to be in an area
    whole = Box(x0=box.x0 - _EDGE, y0=box.y0 - _EDGE, x1=box.x1 + _EDGE, y1=box.y1 + _EDGE)
    come = copy.copy(page).update(picture_HW3, [whole], hidden).come
    at = pointer.at(time_us)
    x, y = episode.beats[-1].box.center if at is None else point_of(at)

    def far(line: Line) -> float:
        box = line.box
        return max(box.x0 - x, x - box.x1, 0.0) + max(box.y0 - y, y - box.y1, 0.0)

    return sorted(come, key=far)[:_MOST]

"""What could be read only during an episode: the entries of a menu that is open for a moment, until one of them is pressed."""

from __future__ import annotations

import copy
import math
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from watersmeet.core.geometry import Box
from watersmeet.pipelines.video_to_spec.watch.episodes import Episode
from watersmeet.pipelines.video_to_spec.watch.page import Line, Page
from watersmeet.pipelines.video_to_spec.watch.pointer import Track, point_of
from watersmeet.pipelines.video_to_spec.watch.turns import distance

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
        if math.dist(point_of(here), point_of(there)) < _MOVED:
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
    point = episode.beats[-1].box.center if at is None else point_of(at)
    return sorted(come, key=lambda line: distance(line.box, point))[:_MOST]

"""Look at a recording: once for what changed, and once more for the pictures before and after each change."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from watersmeet.core.errors import DecodeError
from watersmeet.core.geometry import Box
from watersmeet.pipelines.video_to_spec.spec import Source
from watersmeet.pipelines.video_to_spec.watch.brief import lines_at, moment_of
from watersmeet.pipelines.video_to_spec.watch.episodes import Episode, episodes
from watersmeet.pipelines.video_to_spec.watch.motion import Difference, Motion
from watersmeet.pipelines.video_to_spec.watch.page import Line, Page
from watersmeet.pipelines.video_to_spec.watch.pointer import Track
from watersmeet.pipelines.video_to_spec.watch.presses import presses
from watersmeet.pipelines.video_to_spec.watch.sight import Patches, Sight, Turn
from watersmeet.pipelines.video_to_spec.watch.turns import Before, make_turn, mended, opening

MOST_PATCHES = 192  # of a turn; of more the last
_LATE = 8  # turns, in which what the pointer hid may be read later
_MARGIN = 6  # px around a pointer: its shadow, and what a codec made of its edge


@dataclass(kw_only=True)
class _Pass:
    """What one pass over all frames leaves behind."""

    size: tuple[int, int] = (0, 0)
    times_us: list[int] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    patches: list[Any] = field(default_factory=list)
    end_us: int = 0
    notes: tuple[str, ...] = ()


def look(path: Path, *, encoders: Mapping[str, Any], progress: Callable[[float], None] = lambda share: None) -> Sight:
    """What is to be seen in the recording at `path`.

    encoders: "video", whose session gives the patches, and "regions", which reads. progress: called with a share from 0
    to 1. Raises DecodeError for what is no video. Memory does not grow with the pictures, only with what changed.
    """
    first = _watch(path, encoders["video"], lambda share: progress(0.5 * share))
    seen, pointer, differences = presses(first.differences)
    found = episodes(differences, pointer, first.size, seen)
    turns = _turns(path, first, found, pointer, encoders, lambda share: progress(0.5 + 0.5 * share))
    width, height = first.size
    duration = max(first.end_us, first.times_us[-1] + 1) / 1e6
    return Sight(
        source=Source(path=path.name, duration_s=duration, frames=len(first.times_us), width=width, height=height),
        times_us=tuple(first.times_us),
        turns=tuple(turns),
        notes=first.notes,
        pointer=bool(pointer.boxes),
    )


def _watch(path: Path, encoder: Any, progress: Callable[[float], None]) -> _Pass:
    out = _Pass()
    # differences are looked for at half the size, and the modality scales to less than that unless it was told otherwise
    halved = float(encoder.settings["scale"]) <= 0.5
    with encoder.video(path) as video:
        out.size = (video.head.width, video.head.height)
        length = video.head.duration_us or 0
        session, motion = encoder.open(out.size), Motion(halved=halved)
        for frame in video.frames(halved=halved):
            if out.times_us and frame.time_us <= out.times_us[-1]:
                continue
            out.times_us.append(frame.time_us)
            out.patches += session.push(frame)
            changed = motion.push(frame.pixels, frame.time_us, frame.index, frame.key)
            if changed is not None:
                out.differences.append(changed)
            if length and frame.index % 64 == 0:
                progress(min(1.0, frame.time_us / length))
        out.patches += session.close(video.end_us)
        out.end_us = video.end_us
        out.notes = (*(str(gap) for gap in video.gaps), *video.notes)
    if not out.times_us:
        raise DecodeError(f"{path}: holds no frame that can be decoded")
    return out


def _turns(
    path: Path,
    first: _Pass,
    found: Sequence[Episode],
    pointer: Track,
    encoders: Mapping[str, Any],
    progress: Callable[[float], None],
) -> list[Turn]:
    """One turn for the first frame and one for each episode, with pictures from a second pass."""
    regions = encoders["regions"]
    page = Page(regions.text_reader())
    patches = _Patches(first.patches)
    stops = _stops(first.times_us, found, pointer)
    brief = _brief(first.times_us, found, pointer)
    # of two stops at one time the later one says from when on the page stood
    wanted = {stop.time_us: stop for stop in [*stops, *brief.values()]}
    pictures = _pictures(encoders["video"], path, [wanted[time] for time in sorted(wanted)])
    stop, picture = next(pictures)
    turns = [opening(page, picture, stop.time_us, stop.hidden, patches.until(0))]
    last: Episode | None = None
    for number, (episode, start, end) in enumerate(zip(found, stops[1:-1], stops[2:], strict=True)):
        if stop.time_us < start.time_us:
            stop, picture = next(pictures)
        before = Before(page, picture, episode, last, pointer, hidden=stop.hidden)
        passing: list[Line] = []
        if number in brief:
            stop, picture = next(pictures)
            passing = lines_at(page, picture, episode, stop.time_us, pointer, stop.hidden)
        if stop.time_us < end.time_us:
            stop, picture = next(pictures)
        turn = make_turn(
            page,
            before,
            picture,
            hidden=stop.hidden,
            times_us=first.times_us,
            patches=patches.until(episode.end_us),
            shapes=regions.find_shapes,
            brief=passing,
        )
        turns.append(turn)
        for old, new in page.take_mended():
            turns[-_LATE:] = [mended(one, old, new) for one in turns[-_LATE:]]
        last = episode
        progress((number + 1) / len(found))
    return turns


@dataclass(frozen=True, kw_only=True, slots=True)
class _Stop:
    """A time at which the picture is looked at. clear: another time since the episode before, and what the pointer, which is
    there now, did not hide then; hidden: what it hides, if there is no such time."""

    time_us: int
    clear: tuple[int, Box] | None = None
    hidden: Box | None = None


def _stop(time_us: int, since_us: int, pointer: Track) -> _Stop:
    box = pointer.at(time_us)
    clear_us = None if box is None else pointer.away(box, since_us, time_us)
    if box is None or clear_us is None:
        return _Stop(time_us=time_us, hidden=box)
    return _Stop(time_us=time_us, clear=(clear_us, box))


def _stops(times_us: Sequence[int], found: Sequence[Episode], pointer: Track) -> list[_Stop]:
    """The first frame, the last one before each episode, and the last of all.

    What an episode left is looked at just before the next one, when the pointer has most likely left it too; what the
    pointer is on then, most likely the target of the next step, is taken from a picture of before it came.
    """
    out = [_Stop(time_us=times_us[0], hidden=pointer.at(times_us[0]))]
    since_us = times_us[0]
    for episode in found:
        out.append(_stop(times_us[max(0, bisect_right(times_us, episode.start_us) - 2)], since_us, pointer))
        since_us = episode.end_us
    return [*out, _stop(times_us[-1], since_us, pointer)]


def _brief(times_us: Sequence[int], found: Sequence[Episode], pointer: Track) -> dict[int, _Stop]:
    """By number of an episode the time in it at which something else may have been pressed."""
    out: dict[int, _Stop] = {}
    for number, episode in enumerate(found):
        time_us = moment_of(episode, pointer, times_us)
        if time_us is not None:
            out[number] = _stop(time_us, episode.beats[0].last_us, pointer)
    return out


def _pictures(encoder: Any, path: Path, wanted: Sequence[_Stop]) -> Iterator[tuple[_Stop, np.ndarray]]:
    """(what was asked for, picture of its own memory) for stops in order of time."""
    times = [time for stop in wanted for time in ([stop.clear[0]] if stop.clear else []) + [stop.time_us]]
    with encoder.video(path) as video:
        frames = video.frames(times)
        for stop in wanted:
            part = _around(next(frames).pixels, stop.clear[1]).copy() if stop.clear else None
            picture = next(frames).pixels.copy()
            if stop.clear:
                _around(picture, stop.clear[1])[:] = part
            yield stop, picture


def _around(pixels_HW3: np.ndarray, box: Box) -> np.ndarray:
    """The part of a picture in and around a box."""
    return pixels_HW3[
        max(0, int(box.y0) - _MARGIN) : max(0, int(box.y1) + _MARGIN),
        max(0, int(box.x0) - _MARGIN) : max(0, int(box.x1) + _MARGIN),
    ]


class _Patches:
    """Spans of the modality in order of time, handed out turn by turn."""

    def __init__(self, spans: Sequence[Any]) -> None:
        self._spans = list(spans)
        self._next = 0

    def until(self, time_us: int) -> Patches:
        """All that began by a time and was not handed out before; of many the last."""
        taken = []
        while self._next < len(self._spans) and int(self._spans[self._next].time_us[0]) <= time_us:
            taken.append(self._spans[self._next])
            self._next += 1
        if not taken:
            return Patches(
                data=np.zeros((0, 0), np.uint8), coords=np.zeros((0, 2), np.int64), time_us=np.zeros(0, np.int64)
            )
        data, coords, times = (
            np.concatenate([getattr(span, name).numpy() for span in taken])[-MOST_PATCHES:]
            for name in ("data", "coords", "time_us")
        )
        return Patches(data=data, coords=coords, time_us=times)

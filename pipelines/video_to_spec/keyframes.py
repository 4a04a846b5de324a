"""The few frames of a recording that a large model is shown: what was there before each change, and after it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from PIL import Image

from watersmeet.core.geometry import Box
from watersmeet.pipelines.video_to_spec.observed import END, PRESS
from watersmeet.pipelines.video_to_spec.outputs import FrameAt

if TYPE_CHECKING:
    from watersmeet.pipelines.video_to_spec.watch.page import Line
    from watersmeet.pipelines.video_to_spec.watch.sight import Sight, Turn

ItemT = TypeVar("ItemT")

LONGEST_SIDE = 1024  # px of what is shown
_MOST_BOXES, _MOST_TEXTS = 6, 60  # of one frame


@dataclass(frozen=True, kw_only=True)
class KeyFrame:
    """Frame number `frame`, shown from `time_us` on. changed: boxes that changed by then, in px of the picture. read: texts that
    were read there, where a change was or came, and their boxes."""

    frame: int
    time_us: int
    changed: tuple[Box, ...] = ()
    read: tuple[tuple[str, Box], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """Frames in order of time. left_out: how many changes, of all, are not among them."""

    frames: tuple[KeyFrame, ...]
    left_out: int
    changes: int


def choose(sight: Sight, most: int) -> Chosen:
    """The first frame, the frame at the end of each change and, as far as there is room, the one before it; at most `most`.

    Where even the ends are too many, changes are left out evenly.
    """
    turns, times_us = sight.turns, sight.times_us
    chosen = list(turns)
    while len({0, *map(_after, chosen)}) > most:
        chosen = _part(turns, min(len(chosen) - 1, most))
    found = {0: KeyFrame(frame=0, time_us=times_us[0])}
    for turn in chosen:
        number = _after(turn)
        # the first frame differs from none
        changed = turn.areas[:_MOST_BOXES] if number else ()
        _add(found, KeyFrame(frame=number, time_us=times_us[number], changed=tuple(changed), read=_read(turn.after)))
    before = {_before(turn): turn for turn in chosen}
    missing = sorted(set(before) - set(found))
    shown = {*found, *_part(missing, min(len(missing), most - len(found)))}
    for number in sorted(shown & set(before)):
        read = _read((*before[number].under, *before[number].before))
        _add(found, KeyFrame(frame=number, time_us=times_us[number], read=read))
    frames = tuple(found[number] for number in sorted(found))
    return Chosen(frames=frames, left_out=len(turns) - len(chosen), changes=len(turns))


def _part(items: Sequence[ItemT], count: int) -> list[ItemT]:
    return [items[i * len(items) // count] for i in range(count)]


def _before(turn: Turn) -> int:
    return turn.observed.moments[PRESS].frame


def _after(turn: Turn) -> int:
    moments = turn.observed.moments
    return moments[min(END, len(moments) - 1)].frame  # the turn of the first frame has one moment


def _add(found: dict[int, KeyFrame], one: KeyFrame) -> None:
    """A frame may be the end of one change and the one before another."""
    known = found.get(one.frame, one)
    read = tuple(dict.fromkeys((*known.read, *one.read)))[:_MOST_TEXTS]
    found[one.frame] = replace(known, changed=known.changed or one.changed, read=read)


def _read(lines: Sequence[Line]) -> tuple[tuple[str, Box], ...]:
    return tuple(dict.fromkeys((line.text, line.box) for line in lines))[:_MOST_TEXTS]


@contextmanager
def frames_of(encoder: Any, path: Path, times_s: Sequence[float]) -> Iterator[FrameAt]:
    """A function that gives the frames shown at `times_s` (rising), to be asked for each of them once and in this order.

    encoder: of the modality `video`. One pass over the file; no more than one frame is held. Raises DecodeError.
    """
    with encoder.video(path) as video:
        found = video.frames([round(t_s * 1e6) for t_s in times_s])

        def frame_at(t_s: float) -> Image.Image:
            return Image.fromarray(next(found).pixels.copy())

        yield frame_at


def shown_scale(width: int, height: int) -> float:
    """px of what is shown for each px of the picture; no picture grows."""
    return min(1.0, LONGEST_SIDE / max(width, height))


def pictures(encoder: Any, path: Path, frames: Sequence[KeyFrame], scale: float) -> list[Image.Image]:
    """The pictures of key frames, scaled. Raises DecodeError."""
    times = [one.time_us / 1e6 for one in frames]
    made: list[Image.Image] = []
    with frames_of(encoder, path, times) as frame_at:
        for t_s in times:
            picture = frame_at(t_s)
            size = max(1, round(picture.width * scale)), max(1, round(picture.height * scale))
            made.append(picture if scale == 1.0 else picture.resize(size, Image.Resampling.LANCZOS))
    return made

"""What is known of a video and of its frames, and what is accepted of a file. Imports no decoder.

Legend of shapes: H x W pixels of an upright frame.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from watersmeet.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one file may cost; every value above 0.

    max_pixels     of one frame, checked before a frame is decoded and again after rotation and pixel aspect
    max_seconds    length
    max_frames     decoded frames
    max_memory     address space of the decoding process in bytes
    cpu_seconds    of the decoding process
    stall_seconds  longest wait for the next frame
    """

    max_pixels: int = 33_200_000
    max_seconds: float = 4 * 3600.0
    max_frames: int = 2_000_000
    max_memory: int = 3 * 2**30
    cpu_seconds: int = 4 * 3600
    stall_seconds: float = 300.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
                raise ConfigError(f"video limit {name} is {value!r}, expected a number above 0")


@dataclass(frozen=True, kw_only=True)
class Head:
    """width, height: of upright frames with square pixels. duration_us: None where the file does not say it and was not
    read to its end to find out. container, codec: names of FFmpeg."""

    width: int
    height: int
    duration_us: int | None
    container: str
    codec: str


@dataclass(frozen=True, kw_only=True)
class Frame:
    """pixels [H, W, 3] uint8 RGB, upright; a view that is good until the next frame is asked for, so copy what you keep. Where
    frames were asked for at half the size, [H // 2, W // 2, 3], at least one pixel each way.

    index    of the decoded frame, from 0
    time_us  (pts - start) in microseconds, rising
    key      decoded without another frame
    guessed  the file gave no usable time; it was made up from its neighbours
    unsure   follows a damaged part and precedes the next key frame: pixels may be smeared
    """

    pixels: np.ndarray
    index: int
    time_us: int
    key: bool = False
    guessed: bool = False
    unsure: bool = False


@dataclass(frozen=True, kw_only=True)
class Gap:
    """A damaged part: from the last good frame to the next key frame. packets: how many could not be decoded. frames: how
    many in it were decoded nevertheless, and are marked `unsure`."""

    start_us: int
    end_us: int
    packets: int
    frames: int

    def __str__(self) -> str:
        start, end = self.start_us / 1e6, self.end_us / 1e6
        return f"{self.packets} damaged packets between {start:.3f} s and {end:.3f} s ({self.frames} frames are unsure)"

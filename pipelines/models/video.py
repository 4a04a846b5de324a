"""Frames of a video by their times. One sampler for training and use, so that both see the same frames.

Times come from the stream's own time stamps. Where a file does not say when its frames are shown, nothing is guessed.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from watersmeet.core.errors import ConfigError, DecodeError


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """frames_per_second: of the frames that are kept. max_frames: above that they are spread over the whole length.
    max_seconds, max_pixels (of one frame): longer or larger videos are refused before they are decoded."""

    frames_per_second: float = 1.0
    max_frames: int = 64
    max_seconds: float = 3600.0
    max_pixels: int = 33_200_000

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
                raise ConfigError(f"video setting {name} is {value!r}, expected a number above 0")

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Sampling:
        """From plain values. Raises ConfigError for an unknown name."""
        if unknown := sorted(set(values) - set(cls.__dataclass_fields__)):
            raise ConfigError(f"video settings have unknown name {unknown[0]!r}; names are {', '.join(asdict(cls()))}")
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class Clip:
    """Pictures, and for each the time at which it is shown, in microseconds from the start."""

    frames: list[Image.Image]
    time_us: list[int]


def reads_clips(modality: str, settings: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether a modality that reads pictures reads several of them as one item, which its setting `frames` says."""
    return int(settings.get(modality, {}).get("frames", 1)) > 1


def wanted_times(length_s: float, sampling: Sampling) -> list[float]:
    """Times in seconds of the frames to keep: the middle of equal parts of the length, so at least one."""
    count = max(1, min(sampling.max_frames, round(length_s * sampling.frames_per_second)))
    return [(i + 0.5) * length_s / count for i in range(count)]


def read_clip(source: Path | bytes, sampling: Sampling) -> Clip:
    """The frames that are shown at `wanted_times`.

    Raises DecodeError: not a video, damaged, without a duration or time stamps, longer or larger than allowed.
    """
    import av

    name = str(source) if isinstance(source, Path) else f"video of {len(source)} bytes"
    try:
        with av.open(str(source) if isinstance(source, Path) else io.BytesIO(source)) as container:
            if not container.streams.video:
                raise DecodeError(f"{name}: holds no video stream")
            stream = container.streams.video[0]
            length = _length(container, stream)
            if length is None:
                raise DecodeError(f"{name}: does not say how long it is; write it anew with a duration (e.g. as MP4)")
            if length > sampling.max_seconds:
                raise DecodeError(
                    f"{name}: is {length:,.0f} s long, more than the limit of {sampling.max_seconds:,.0f} s"
                )
            if stream.width * stream.height > sampling.max_pixels:
                raise DecodeError(
                    f"{name}: frames of {stream.width} x {stream.height} are larger than the limit allows"
                )
            return _sample(container, stream, length, sampling, name)
    except av.error.FFmpegError as error:
        raise DecodeError(f"{name}: is not a video that can be read ({error.strerror or error})") from error


def _length(container: Any, stream: Any) -> float | None:
    if stream.duration is not None and stream.time_base is not None:
        return float(stream.duration * stream.time_base)
    return None if container.duration is None else container.duration / 1_000_000


def _sample(container: Any, stream: Any, length: float, sampling: Sampling, name: str) -> Clip:
    times = wanted_times(length, sampling)
    frames: list[Image.Image] = []
    stamps: list[int] = []
    shown: Any = None
    start: float | None = None
    for frame in container.decode(stream):
        if frame.time is None:
            raise DecodeError(f"{name}: has a frame without a time; write it anew with time stamps")
        start = frame.time if start is None else start
        while len(frames) < len(times) and shown is not None and frame.time - start > times[len(frames)]:
            frames.append(shown.to_image())
            stamps.append(round((shown.time - start) * 1_000_000))
        shown = frame
        if len(frames) == len(times):
            break
    while shown is not None and len(frames) < len(times):
        frames.append(shown.to_image())
        stamps.append(round((shown.time - (start or 0.0)) * 1_000_000))
    if not frames:
        raise DecodeError(f"{name}: holds no frame")
    return Clip(frames=frames, time_us=stamps)

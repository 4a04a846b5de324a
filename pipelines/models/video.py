"""Frames of a video by their times. One sampler for training and use, so that both see the same frames.

What reads files is the modality `video`; this says which frames a modality for pictures gets of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from watersmeet.core.errors import ConfigError
from watersmeet.plugins.registry import get_registry


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
    """The frames that are shown at `wanted_times`, upright, with square pixels.

    Raises DecodeError: not a video, damaged from the start, without time stamps, longer or larger than allowed.
    """
    reader = get_registry().resolve_modality("video", "encoder")

    def times(length_us: int) -> list[int]:
        return [round(time * 1_000_000) for time in wanted_times(length_us / 1_000_000, sampling)]

    limits = {"max_pixels": sampling.max_pixels, "max_seconds": sampling.max_seconds}
    pixels, stamps = reader.frames_at(source, times, limits)
    return Clip(frames=[Image.fromarray(frame) for frame in pixels], time_us=stamps)

"""Every choice of the video modality."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from watersmeet.core.errors import ConfigError
from watersmeet.tokenizers.video.frames import Limits

PATCHES: dict[str, Any] = {
    "scale": 0.5,
    "patch": 32,
    "max_patches": 1024,
    "max_rows": 512,
    "max_columns": 128,
    "channels": 32,
}
"""As in the image modality: scaled pixels per pixel (lowered where a frame would have too many patches), pixels on a side of
a patch (a multiple of 8), most patches of a frame, sizes of the position tables, width of the first convolution."""

CHANGES: dict[str, Any] = {
    "pixel_step": 32,
    "few_pixels": 2,
    "mean_step": 5,
    "settle_ms": 100,
    "show_ms": 150,
    "motion_ms": 1000,
    "slowest_ms": 16000,
    "repeat_ms": 1000,
    "burst": 32,
    "refill_ms": 2000,
}
"""What counts as a change (see `compare` and `changes`).

pixel_step, few_pixels  a tile of 8 x 8 scaled pixels differs where so many of them move by more than so much (of 255)
mean_step    or where its mean moves by more
settle_ms    how long a patch has to stand still to be given out
show_ms      how long one that comes back must have been away to be given out
motion_ms    how long one may move before it is given out all the same; the next waits are twice as long each
slowest_ms   up to this
repeat_ms    first wait of one that shows the same things again and again, doubled each time
burst, refill_ms  allowance of a patch: so many at once, one more after so long
"""

FILES: dict[str, Any] = {
    "max_tokens": 262_144,
    "max_pixels": Limits.max_pixels,
    "max_seconds": Limits.max_seconds,
    "max_memory": Limits.max_memory,
    "stall_seconds": Limits.stall_seconds,
}
"""max_tokens of one video; the others see `frames.Limits`."""

TIME: dict[str, Any] = {"waves": 24}
"""waves: sines and cosines of the time, with periods from 0.1 s to a day."""

DEFAULTS = PATCHES | CHANGES | FILES | TIME

_REAL = ("scale", "max_seconds", "stall_seconds")


def complete(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with defaults filled in. Raises ConfigError for an unknown name or a value out of range."""
    given = {name: value for name, value in settings.items() if name != "files"}
    if unknown := sorted(set(given) - set(DEFAULTS)):
        raise ConfigError(f"video settings have unknown name {unknown[0]!r}; names are {', '.join(DEFAULTS)}")
    full = DEFAULTS | given
    for name, value in full.items():
        if name in _REAL:
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
                raise ConfigError(f"video setting {name} is {value!r}, expected a number above 0")
        elif type(value) is not int or value < 1:
            raise ConfigError(f"video setting {name} is {value!r}, expected an integer of at least 1")
    if full["scale"] > 4:
        raise ConfigError(f"video setting scale is {full['scale']!r}, expected at most 4")
    if full["patch"] % 8:
        raise ConfigError(f"video setting patch is {full['patch']}, expected a multiple of 8 (the embedder's stride)")
    if full["burst"] < 2:
        raise ConfigError("video setting burst is 1, expected at least 2 (what comes back is given out twice)")
    return full


def most_tokens(settings: Mapping[str, Any], patches: int, seconds: float) -> int:
    """The most that any video of so many patches a frame can give: patches * (burst + 1 + seconds / refill)."""
    refilled = int(seconds * 1000 / settings["refill_ms"])
    return min(int(settings["max_tokens"]), patches * (int(settings["burst"]) + 1 + refilled))

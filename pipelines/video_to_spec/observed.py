"""What pixels alone say about a recording: moments at which something changed, texts that were read, boxes that changed.

The step markup refers to these and to nothing else, so no time, no text and no place in it can be made up.
"""

from bisect import bisect_left
from dataclasses import dataclass

from watersmeet.core.errors import ConfigError
from watersmeet.core.geometry import Box
from watersmeet.pipelines.video_to_spec.spec import Evidence


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """A frame of the recording that is worth referring to: its time in microseconds and its number."""

    time_us: int
    frame: int

    @property
    def evidence(self) -> Evidence:
        return Evidence(t_s=self.time_us / 1e6, frame=self.frame)


@dataclass(frozen=True, kw_only=True, slots=True)
class SeenText:
    """A line of text as it was read first at the moment with this index; boxes in px of the upright picture."""

    text: str
    box: Box
    moment: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SeenBox:
    """A box that changed, or was found, at the moment with this index."""

    box: Box
    moment: int


@dataclass(frozen=True, kw_only=True)
class Observed:
    """All of it for one recording or a part of one, each list in order of time; `width` x `height` px."""

    width: int
    height: int
    moments: tuple[Moment, ...]
    texts: tuple[SeenText, ...] = ()
    boxes: tuple[SeenBox, ...] = ()

    def __post_init__(self) -> None:
        if not self.moments:
            raise ConfigError("what was observed has no moment; at least the first frame is one")
        for a, b in zip(self.moments, self.moments[1:], strict=False):
            if b.time_us <= a.time_us or b.frame <= a.frame:
                raise ConfigError(
                    f"moments are not in order: frame {b.frame} at {b.time_us} us follows frame {a.frame}"
                )
        for number in [one.moment for one in self.texts] + [one.moment for one in self.boxes]:
            if not 0 <= number < len(self.moments):
                raise ConfigError(f"something is seen at moment {number}, but there are {len(self.moments)}")

    def nearest(self, t_s: float) -> int:
        """Index of the moment nearest to a time in seconds, the earlier one of two that are."""
        times = [moment.time_us for moment in self.moments]
        at = bisect_left(times, t_s * 1e6)
        if at == 0:
            return 0
        if at == len(times) or t_s * 1e6 - times[at - 1] <= times[at] - t_s * 1e6:
            return at - 1
        return at

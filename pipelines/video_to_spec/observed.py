"""What pixels alone say about one turn of a recording: moments, texts that were read, boxes that could be meant.

The step markup refers to these and to nothing else, so no time, no text and no place in it can be made up.
"""

from dataclasses import dataclass

from watersmeet.core.errors import ConfigError
from watersmeet.core.geometry import Box
from watersmeet.pipelines.video_to_spec.spec import Evidence

MAX_MOMENTS = 16
MAX_TEXTS = 40
MAX_BOXES = 6
PRESS, CHANGE, END, LAST_PRESS, LAST_END = range(5)
"""What the first five moments of a turn are; then follow press and change of each further beat."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """A time in microseconds, and the frame that is shown then: its number and the time from which it is shown."""

    time_us: int
    frame: int
    shown_us: int

    @property
    def t_s(self) -> float:
        return self.time_us / 1e6

    @property
    def evidence(self) -> Evidence:
        return Evidence(t_s=self.shown_us / 1e6, frame=self.frame)


@dataclass(frozen=True, kw_only=True, slots=True)
class SeenText:
    """A line of text; boxes in px of the upright picture. came: it was not there before the change."""

    text: str
    box: Box
    came: bool = False


@dataclass(frozen=True, kw_only=True)
class Observed:
    """All of it for one turn, `width` x `height` px; at least one moment."""

    width: int
    height: int
    moments: tuple[Moment, ...]
    texts: tuple[SeenText, ...] = ()
    boxes: tuple[Box, ...] = ()

    def __post_init__(self) -> None:
        if not self.moments:
            raise ConfigError("what was observed has no moment; at least the first frame is one")
        for name, limit in (("moments", MAX_MOMENTS), ("texts", MAX_TEXTS), ("boxes", MAX_BOXES)):
            if len(getattr(self, name)) > limit:
                raise ConfigError(f"a turn has {len(getattr(self, name))} {name}, at most {limit} can be referred to")
        for moment in self.moments:
            if moment.shown_us > moment.time_us or moment.frame < 0:
                raise ConfigError(
                    f"frame {moment.frame} is shown from {moment.shown_us} us on, after the moment at {moment.time_us} us"
                )

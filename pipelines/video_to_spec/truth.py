"""What is known of a recording that was made: its specification, when its frames are shown, and everything else that happened."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from watersmeet.core.errors import DecodeError
from watersmeet.pipelines.video_to_spec.spec import Corners, Seconds, Spec, Words, first_fault, read_limited

_STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Shown:
    """Something that was to be seen from `start_s` to `end_s` (exclusive): a dropdown, a toast, a spinner, a press."""

    kind: Words
    start_s: Seconds
    end_s: Seconds
    box: Corners | None = None
    text: str | None = None


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Truth:
    """One made recording. `times_us`: when each frame is shown, in microseconds. `variations`: what makes it difficult.

    `pages` are the packages' pages that it shows, or `generated`; `cursor` says whether the pointer is drawn.
    """

    spec: Spec
    times_us: Annotated[tuple[int, ...], Field(min_length=1)]
    shown: tuple[Shown, ...]
    cursor: bool
    variations: tuple[str, ...]
    pages: tuple[Words, ...]
    split: Words
    seed: int

    def __post_init__(self) -> None:
        if len(self.times_us) != self.spec.source.frames:
            raise ValueError(f"times_us has {len(self.times_us)} times, but there are {self.spec.source.frames} frames")
        if any(b <= a for a, b in pairwise(self.times_us)):
            raise ValueError("times_us does not rise from frame to frame")

    def of_kind(self, kind: str) -> tuple[Shown, ...]:
        """What was shown of one kind, in order."""
        return tuple(one for one in self.shown if one.kind == kind)


_ADAPTER = TypeAdapter(Truth)


def write_truth(truth: Truth, path: Path) -> None:
    """Write `truth` as UTF-8 JSON."""
    path.write_text(json.dumps(_ADAPTER.dump_python(truth, mode="json"), ensure_ascii=False) + "\n", encoding="utf-8")


def read_truth(path: Path) -> Truth:
    """Read what `write_truth` wrote. Raises DecodeError naming the first field that is not as it should be."""
    try:
        return _ADAPTER.validate_json(read_limited(path))
    except ValidationError as error:
        raise DecodeError(f"{path}: {first_fault(error)}") from error

"""What plain code makes of a recording, for a model to decide on: turns, each with what changed and what could be meant."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from watersmeet.core.geometry import Box
from watersmeet.pipelines.video_to_spec.observed import Observed
from watersmeet.pipelines.video_to_spec.spec import Source
from watersmeet.pipelines.video_to_spec.watch.page import Line


@dataclass(frozen=True, kw_only=True, eq=False)
class Patches:
    """Tokens of the modality `video`: data uint8 [n, p * p * 3], coords int64 [n, 2], time_us int64 [n]."""

    data: np.ndarray
    coords: np.ndarray
    time_us: np.ndarray


@dataclass(frozen=True, kw_only=True, eq=False)
class Turn:
    """One episode of the recording; the first turn is its first frame.

    under, before, after: lines beside the pointer as it was before, in or beside what changed as it was before, and what
    came. `observed.texts` are these in this order, `observed.boxes` the places that could be meant.
    on_screen: everything to be read afterwards. pause_s: since the episode before. point: where the pointer points when it
    begins, px, None without a pointer; still_s: for how long it has stood there; way: how far it came since the episode
    before, px; pressed: whether a press is seen; reach: px from there to what changed. scrolled: px that the page moved up.
    kept: share of the lines that stayed. letters: whether it looks like typing.
    """

    observed: Observed
    patches: Patches
    under: tuple[Line, ...]
    before: tuple[Line, ...]
    after: tuple[Line, ...]
    on_screen: frozenset[str]
    areas: tuple[Box, ...]
    pause_s: float
    lasting_s: float
    point: tuple[float, float] | None
    still_s: float | None
    way: float
    pressed: bool
    reach: float | None
    scrolled: int
    kept: float
    letters: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Sight:
    """A whole recording. times_us: of every frame. notes: what the decoder reported."""

    source: Source
    times_us: tuple[int, ...]
    turns: tuple[Turn, ...]
    notes: tuple[str, ...]
    pointer: bool

"""From frames to the patches worth a token: what a patch shows, once it has settled.

Legend of shapes: R x C patches, p pixels on a side of one, n patches of one instant.

Every patch is followed by itself. It is *quiet* while it shows what was last given out for it. When it changes it is
*moving* until it has stood still for the settle time; then what it shows is given out with the time at which it began to
be shown. Between those:

returned  A patch that comes back to what it showed before, after having been away for long enough to be seen, is given
          out twice: as it was when it differed most, and as it is again. So a menu that fades in and out within 300 ms
          is there, and a cursor that passes by is not.
moving on A patch that never settles (a film, a spinner) is given out after a second, and then at distances that double.
repeats   A patch that comes back to something it showed lately (a blinking caret) is given out at distances that
          double, and at last as it stays.
rate      Every patch has an allowance that refills with time; what exceeds it waits, and is given out as it is then. So
          no video gives more than patches * (burst + 1 + seconds / refill) tokens.
noise     What moves at a key frame among others, by less than twice the thresholds, is the codec's and becomes the new
          ground for comparing, as long as it stays that near to what was given out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from watersmeet.tokenizers.video.compare import KEY_FACTOR, Comparison, Picture

_REMEMBERED = 4
_FREE_REPEATS = 3
_FORGET_US = 10_000_000
_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, kw_only=True)
class Change:
    """Patches that show something new from one instant on. where [n, 2] int64 (row, column), pixels [n, p, p, 3] uint8."""

    time_us: int
    frame: int
    where: np.ndarray
    pixels: np.ndarray


@dataclass(kw_only=True)
class Counts:
    """given: patches given out. repeats, rate: how often one had to wait for the one reason or the other, counted once per
    frame in which it did. noise: patches whose ground moved with a key frame."""

    given: int = 0
    repeats: int = 0
    rate: int = 0
    noise: int = 0


class Changes:
    """State over one video. Frames come in by `push`, changes out in order of time, a little later.

    settings: those of the modality (`settings.DEFAULTS`).
    """

    def __init__(self, settings: Mapping[str, Any], rows: int, columns: int) -> None:
        self.patch = int(settings["patch"])
        self._compare = Comparison(
            step=settings["pixel_step"], few=settings["few_pixels"], mean=settings["mean_step"], patch=self.patch
        )
        self._settle, self._show = settings["settle_ms"] * 1000, settings["show_ms"] * 1000
        self._motion, self._slowest = settings["motion_ms"] * 1000, settings["slowest_ms"] * 1000
        self._burst, self._refill = float(settings["burst"]), settings["refill_ms"] * 1000
        self._repeat = settings["repeat_ms"] * 1000
        self.counts = Counts()
        shape = (rows, columns)

        def times(value: int = 0) -> np.ndarray:
            return np.full(shape, value, dtype=np.int64)

        # everything below is [R, C]
        self._moving = np.ones(shape, dtype=bool)
        self._given_ever = np.zeros(shape, dtype=bool)  # before that a patch differs from nothing at all
        self._owed = np.zeros(shape, dtype=bool)  # settled on something new that has to wait
        self._differs = np.ones(shape, dtype=bool)
        self._moved_us, self._moved_frame = times(), times()
        self._away_us = times(_NEVER)
        self._peak, self._peak_us, self._peak_frame = times(-1), times(), times()
        self._next_us, self._wait = times(self._motion), times(self._motion)
        self._given_us = times()
        self._allowance = np.full(shape, self._burst)
        self._repeats = times()
        self._turn = times()  # which memory is the oldest
        self._ground: Picture
        self._shown: Picture
        self._best: Picture
        self._last_given: Picture
        self._was_key = True
        self._stale = False  # something was given out since frames were compared with it
        self._memories: list[Picture] = []
        self._filled = np.zeros((_REMEMBERED, *shape), dtype=bool)
        self._now: int | None = None
        self._frame = 0
        self._waiting: list[Change] = []

    @property
    def horizon_us(self) -> int:
        """How long a change may be held back before it comes out."""
        return int(self._motion + self._settle)

    def push(self, pixels: np.ndarray, time_us: int, frame: int, key: bool = False) -> list[Change]:
        """A scaled frame [R * p, C * p, 3] uint8, which may be overwritten afterwards; times must rise. Returns what is
        certain by now."""
        if self._now is None:
            self._shown = Picture.of(pixels.copy())
            self._begin(self._shown, time_us)
        else:
            self._advance(time_us, last=False)
            # most frames of a screen recording are the one before again, to the bit
            same = np.array_equal(pixels, self._shown.pixels)
            if not same or self._stale:
                picture = self._shown if same else Picture.of(pixels.copy())
                self._look(picture, time_us, frame, key)
                self._shown = picture
        self._now, self._frame, self._was_key = time_us, frame, key
        return self._released(time_us - self.horizon_us)

    def close(self, end_us: int) -> list[Change]:
        """The last frame was shown until `end_us`; the rest of the changes."""
        if self._now is None:
            return []
        self._advance(max(end_us, self._now), last=True)
        return self._released(_NEVER)

    # ---- a frame comes ------------------------------------------------------------------------------------------

    def _begin(self, picture: Picture, time_us: int) -> None:
        self._ground, self._best, self._last_given = picture.copy(), picture.copy(), picture.copy()
        self._memories = [picture.copy() for _ in range(_REMEMBERED)]
        for times in (self._moved_us, self._given_us, self._peak_us):
            times[:] = time_us
        self._next_us[:] = time_us + self._motion

    def _look(self, picture: Picture, time_us: int, frame: int, key: bool) -> None:
        """Compare a frame with the one before it and with what was given out."""
        moved = self._compare.differing(picture, self._shown)
        self._stale = False
        # where every frame is coded by itself, nothing moves but what was filmed
        if key and not self._was_key:
            clearly = self._compare.differing(picture, self._shown, KEY_FACTOR)
            # many small steps must not add up to something that was never given out
            clearly |= self._compare.differing(picture, self._last_given, KEY_FACTOR)
            still = ~self._moving & ~self._owed & ~clearly
            self.counts.noise += int((moved & still).sum())
            self._ground.take(picture, still, self.patch)
            moved &= ~still
        differs = self._compare.differing(picture, self._ground) | ~self._given_ever
        # what changes too slowly to be seen from frame to frame differs in the end all the same
        self._owed &= ~moved
        starts = (moved | (differs & ~self._owed)) & ~self._moving
        self._moving |= starts
        self._peak[starts] = -1
        self._away_us[starts] = _NEVER
        self._next_us[starts] = time_us + self._motion
        self._wait[starts] = self._motion
        touched = moved | starts
        self._moved_us[touched], self._moved_frame[touched] = time_us, frame
        self._away_us[self._moving & differs & (self._away_us == _NEVER)] = time_us
        self._differs = differs
        further = self._moving & differs
        if further.any():
            distance = self._compare.distance(picture, self._ground)
            further &= distance > self._peak
            self._best.take(picture, further, self.patch)
            self._peak[further] = distance[further]
            self._peak_us[further], self._peak_frame[further] = time_us, frame

    # ---- time passes --------------------------------------------------------------------------------------------

    def _advance(self, now: int, last: bool) -> None:
        """The frame that is shown stayed until `now`."""
        assert self._now is not None
        self._allowance = np.minimum(self._burst, self._allowance + (now - self._now) / self._refill)
        self._repeats[(~self._moving) & ~self._owed & (now - self._moved_us > _FORGET_US)] = 0
        rested = self._moving & (last | (now - self._moved_us >= self._settle))
        self._moving &= ~rested
        seen = self._moved_us - self._away_us >= self._show
        returned = rested & ~self._differs & seen & (self._peak >= 0)
        self._give_twice(returned, now)
        self._owed |= rested & self._differs
        self._owed &= self._differs
        self._give(self._owed, np.where(rested, self._moved_us, now - 1), now, last)
        self._sample(self._moving & self._differs & (now >= self._next_us), now)

    def _give_twice(self, wanted: np.ndarray, now: int) -> None:
        # an older one would come out of order
        able = wanted & (self._allowance >= 2) & (self._peak_us >= (self._now or 0) - self._motion)
        self.counts.rate += int((wanted & ~able).sum())
        self._emit(self._best, able, self._peak_us, self._peak_frame, now)
        self._emit(self._shown, able, self._moved_us, self._moved_frame, now)

    def _give(self, wanted: np.ndarray, times: np.ndarray, now: int, last: bool) -> None:
        """What settled, unless it has to wait; what waited is given with the time at which it may."""
        if not wanted.any():
            return
        again = wanted & self._known(wanted) & self._given_ever
        need = np.where(
            again & (self._repeats >= _FREE_REPEATS),
            self._repeat << np.clip(self._repeats - _FREE_REPEATS, 0, 20),
            0,
        )
        early = (now - self._given_us < np.minimum(need, self._slowest * 2)) & ~np.bool_(last)
        poor = (self._allowance < 1) & ~np.bool_(last)
        self.counts.repeats += int((wanted & early).sum())
        self.counts.rate += int((wanted & ~early & poor).sum())
        able = wanted & ~early & ~poor
        self._repeats[able & again] += 1
        self._repeats[able & ~again] //= 2
        fresh = able & (times == self._moved_us)
        self._emit(self._shown, fresh, times, self._moved_frame, now)
        late = able & ~fresh
        self._emit(self._shown, late, np.full_like(times, self._now), np.full_like(times, self._frame), now)
        self._owed &= ~able

    def _sample(self, wanted: np.ndarray, now: int) -> None:
        """What has been moving for too long to be waited for."""
        able = wanted & (self._allowance >= 1)
        self.counts.rate += int((wanted & ~able).sum())
        recent = able & (now - self._peak_us <= self._motion)
        current = able & ~recent
        self._emit(self._best, recent, self._peak_us, self._peak_frame, now)
        self._emit(
            self._shown,
            current,
            np.full_like(self._moved_us, self._now),
            np.full_like(self._moved_us, self._frame),
            now,
        )
        self._wait[able] = np.minimum(self._wait[able] * 2, self._slowest)
        self._next_us[able] = now + self._wait[able]
        self._peak[able] = -1
        self._away_us[able] = _NEVER

    def _known(self, wanted: np.ndarray) -> np.ndarray:
        """Which of the wanted patches show something that is remembered."""
        known = np.zeros_like(wanted)
        for filled, memory in zip(self._filled, self._memories, strict=True):
            if (wanted & filled).any():
                known |= filled & ~self._compare.differing(self._shown, memory)
        return known & wanted

    def _emit(self, source: Picture, mask: np.ndarray, times: np.ndarray, frames: np.ndarray, now: int) -> None:
        """Give out patches of `source`, one change for each time."""
        if not mask.any():
            return
        for time in np.unique(times[mask]).tolist():
            chosen = mask & (times == time)
            self._waiting.append(
                Change(
                    time_us=time,
                    frame=int(frames[chosen][0]),
                    where=np.argwhere(chosen),
                    pixels=source.patches(chosen, self.patch),
                )
            )
        self._stale = True
        self.counts.given += int(mask.sum())
        self._allowance[mask] -= 1
        self._given_us[mask] = now
        self._given_ever |= mask
        self._ground.take(source, mask, self.patch)
        self._last_given.take(source, mask, self.patch)
        self._differs &= ~(mask & (source is self._shown))
        for turn in range(_REMEMBERED):
            mine = mask & (self._turn == turn)
            if mine.any():
                self._memories[turn].take(source, mine, self.patch)
                self._filled[turn] |= mine
        self._turn[mask] = (self._turn[mask] + 1) % _REMEMBERED

    def _released(self, until_us: int) -> list[Change]:
        """What began at `until_us` or before, in order, the patches of one instant together and row by row."""
        ready: dict[int, list[Change]] = {}
        for change in self._waiting:
            if change.time_us <= until_us:
                ready.setdefault(change.time_us, []).append(change)
        self._waiting = [change for change in self._waiting if change.time_us > until_us]
        return [_joined(ready[time]) for time in sorted(ready)]


def _joined(changes: list[Change]) -> Change:
    if len(changes) == 1:
        return changes[0]
    where = np.concatenate([change.where for change in changes])
    order = np.lexsort((where[:, 1], where[:, 0]))
    pixels = np.concatenate([change.pixels for change in changes])
    return Change(time_us=changes[0].time_us, frame=changes[0].frame, where=where[order], pixels=pixels[order])

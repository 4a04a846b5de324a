"""Times of frames from time stamps, as integer microseconds from the start of the stream."""

from __future__ import annotations

from fractions import Fraction


class FrameClock:
    """time = (pts - start) * time_base, never an index divided by a rate. Times always rise.

    time_base: seconds per unit, of the *stream* (the codec's may differ). start: the stream's start time in units, or None:
    the first frame's.
    """

    def __init__(self, time_base: Fraction, start: int | None) -> None:
        self._scale = time_base * 1_000_000
        self._start = start
        self._last: int | None = None
        self._step = 1

    def micros(self, units: int) -> int:
        """A length in microseconds."""
        return round(units * self._scale)

    def stamp(self, pts: int | None, dts: int | None, duration: int | None = None) -> tuple[int, bool]:
        """Time of the next frame in presentation order, and whether it had to be made up.

        A frame without pts takes its dts, or else follows the one before it at the last known distance. One that does not
        come after the frame before it (repeated or falling pts) follows that by a microsecond, so that the order stays
        and no later frame is pushed away. Raises ValueError when the very first frame has no time at all.
        """
        found = next((value for value in (pts, dts) if value is not None), None)
        if self._last is None:
            if found is None:
                raise ValueError("no time stamps")
            if self._start is None or found < self._start:
                self._start = found
        time = None if found is None or self._start is None else self.micros(found - self._start)
        guessed = pts is None
        if time is None:
            time = (self._last or 0) + self._step
        elif self._last is not None and time <= self._last:
            time, guessed = self._last + 1, True
        elif self._last is not None and not guessed:
            self._step = time - self._last
        if self._last is None and duration:
            self._step = max(1, self.micros(duration))
        self._last = time
        return time, guessed

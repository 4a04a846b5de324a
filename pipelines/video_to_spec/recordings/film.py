"""The picture of a recording over time: paints on a canvas that stay, and a caret that blinks on top."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageChops, ImageColor, ImageDraw

Rect = tuple[int, int, int, int]
BLINK_S = 0.53  # the usual half period of a caret
_STEP, _FEW = 36, 24  # of 255, and px that change by more


@dataclass(frozen=True, kw_only=True)
class Paint:
    """From `time` (s) on, `picture` is at `place`, until another paint covers it."""

    time: float
    picture: Image.Image
    place: tuple[int, int]


def visible(before: Image.Image, after: Image.Image) -> bool:
    """Whether two pictures of one size differ so that a recording, which a codec has passed through, still shows it."""
    step = np.abs(np.asarray(before.convert("RGB"), dtype=np.int16) - np.asarray(after.convert("RGB"), dtype=np.int16))
    return int((step.max(axis=2) > _STEP).sum()) >= _FEW


class Film:
    """Paints in order of time, and the canvas as it is after the last of them."""

    def __init__(self, first: Image.Image) -> None:
        self.canvas = first.convert("RGB")
        self.paints = [Paint(time=0.0, picture=self.canvas.copy(), place=(0, 0))]
        self._shown = self.canvas.copy()
        self._next = 0
        self._last = -1.0

    def difference(self, picture: Image.Image, place: tuple[int, int] = (0, 0)) -> Rect | None:
        """What `picture` at `place` would change, in px of the canvas."""
        under = self.canvas.crop((*place, place[0] + picture.width, place[1] + picture.height))
        box = ImageChops.difference(under, picture).getbbox()
        return box and (box[0] + place[0], box[1] + place[1], box[2] + place[0], box[3] + place[1])

    def paint(self, time: float, picture: Image.Image, place: tuple[int, int] = (0, 0)) -> Rect | None:
        """Add a paint; returns the box that changes, None if nothing does that an eye would see."""
        box = self.difference(picture, place)
        if box is None:
            return None
        part = picture.crop((box[0] - place[0], box[1] - place[1], box[2] - place[0], box[3] - place[1]))
        seen = visible(self.canvas.crop(box), part)
        self.canvas.paste(part, box[:2])
        self.paints.append(Paint(time=max(time, self.paints[-1].time), picture=part, place=box[:2]))
        return box if seen else None

    def fade(self, time: float, picture: Image.Image, lasting: float, rate: int) -> Rect | None:
        """Change over `lasting` seconds, frame by frame, done at `time` + `lasting`."""
        box = self.difference(picture)
        count = round(lasting * rate)
        if box is None or count < 2:
            return self.paint(time, picture)
        before, after = self.canvas.crop(box), picture.crop(box)
        for k in range(1, count):
            self.paint(time + k / rate, Image.blend(before, after, k / count), box[:2])
        self.paint(time + lasting, after, box[:2])
        return box if visible(before, after) else None

    def draw(self, frame: Image.Image, time: float) -> None:
        """Draw the canvas as it is at `time`."""
        if time < self._last:
            self._next = 0
        self._last = time
        # a paint exactly at a frame's time is on that frame, whatever the last digit of the float says
        while self._next < len(self.paints) and self.paints[self._next].time <= time + 1e-9:
            one = self.paints[self._next]
            self._shown.paste(one.picture, one.place)
            self._next += 1
        frame.paste(self._shown, (0, 0))


class Caret:
    """The caret of one stay in a field: `moves` are (time, x, top, bottom); it is on for a while after each of them."""

    def __init__(self, start: float, colour: str) -> None:
        self.start = start
        self.moves: list[tuple[float, float, float, float]] = []
        try:
            self.colour = ImageColor.getrgb(colour)[:3]
        except ValueError:  # a colour space that Pillow does not read
            self.colour = (0, 0, 0)

    def move(self, time: float, place: Sequence[float]) -> None:
        self.moves.append((time, place[0], place[1], place[2]))

    def draw(self, frame: Image.Image, age: float) -> None:
        """Draw it, `age` seconds after `start`."""
        now = self.start + age
        past = [move for move in self.moves if move[0] <= now + 1e-9]
        if past and (now - past[-1][0]) % (2 * BLINK_S) < BLINK_S:
            _, x, top, bottom = past[-1]
            ImageDraw.Draw(frame).line((round(x), round(top), round(x), round(bottom)), fill=self.colour, width=1)

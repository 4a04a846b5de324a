"""Screen recordings that are composed instead of captured: pages, a cursor and what happens, drawn frame by frame.

A recording is a list of layers with times. Nothing waits for a clock, so two minutes cost seconds, and what happened
when is known exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from watersmeet.core.errors import ConfigError
from watersmeet.pipelines.data.pointer import Style, draw_pointer, draw_ripple

Place = tuple[int, int]
Draw = Callable[[Image.Image, float], None]
"""Draws onto the frame, given the seconds since its layer appeared."""

RIPPLE_S = 0.3


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Something that is shown from `start` (inclusive) to `end` (exclusive), in seconds; later layers lie on top."""

    start: float
    end: float
    draw: Draw


@dataclass(frozen=True, kw_only=True)
class Event:
    """Ground truth: what happened when, and where (left, top, right, bottom)."""

    kind: str
    start: float
    end: float
    box: tuple[int, int, int, int] | None = None
    text: str | None = None


@dataclass(kw_only=True)
class Recording:
    """A recording in the making. size: (width, height). rate: frames a second.

    The cursor moves along `path`, whose points are (time, x, y), with ease, and is hidden while that is empty. From each
    time in `forms` on it has that form of `pointer.KINDS`; `presses` are when it presses.
    """

    size: tuple[int, int] = (1280, 720)
    rate: int = 30
    layers: list[Layer] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    path: list[tuple[float, int, int]] = field(default_factory=list)
    pointer: Style = field(default_factory=Style)
    forms: list[tuple[float, str]] = field(default_factory=list)
    presses: list[float] = field(default_factory=list)

    def show(self, start: float, end: float, draw: Draw | Image.Image, place: Place = (0, 0)) -> None:
        """Add a layer: a picture at `place`, or a function that draws."""
        if end <= start:
            raise ConfigError(f"a layer ends at {end} s but starts at {start} s")
        if isinstance(draw, Image.Image):
            picture = draw

            def draw(frame: Image.Image, _: float) -> None:
                frame.paste(picture, place)

        self.layers.append(Layer(start=start, end=end, draw=draw))

    def move(self, time: float, x: int, y: int, lasting: float = 0.5) -> None:
        """The cursor arrives at (x, y) at `time`, having left its last place `lasting` seconds before."""
        if self.path:
            last_time, last_x, last_y = self.path[-1]
            if time < last_time:
                raise ConfigError(f"the cursor is to be elsewhere at {time} s, before it arrived at {last_time} s")
            self.path.append((max(last_time, time - lasting), last_x, last_y))
        self.path.append((time, x, y))

    def type_text(
        self,
        start: float,
        text: str,
        place: Place,
        *,
        a_second: float = 6.0,
        until: float,
        seed: int = 0,
        size: int = 16,
    ) -> float:
        """Letters that appear one by one at human speed, with a blinking caret behind them; returns when the last is there."""
        rng = np.random.default_rng(seed)
        steps = rng.gamma(6.0, 1 / (6.0 * a_second), len(text))
        times = start + np.cumsum(steps)

        def draw(frame: Image.Image, age: float) -> None:
            shown = text[: int(np.searchsorted(times - start, age, side="right"))]
            pen = ImageDraw.Draw(frame)
            pen.text(place, shown, fill=(30, 30, 30), font=font(size))
            if age % 1.06 < 0.53:
                x = place[0] + pen.textlength(shown, font=font(size)) + 1
                pen.line((x, place[1], x, place[1] + size + 2), fill=(0, 0, 0), width=1)

        self.show(start, until, draw)
        done = float(times[-1]) if len(text) else start
        self.events.append(Event(kind="type", start=start, end=done, text=text))
        return done

    def spin(self, start: float, end: float, center: Place, radius: int = 14) -> None:
        """A turning arc, one round in 0.8 s."""

        def draw(frame: Image.Image, age: float) -> None:
            box = [center[0] - radius, center[1] - radius, center[0] + radius, center[1] + radius]
            angle = age * 450 % 360
            ImageDraw.Draw(frame).arc(box, angle, angle + 270, fill=(60, 110, 220), width=3)

        self.show(start, end, draw)
        self.events.append(Event(kind="spinner", start=start, end=end))

    def clock(self, start: float, end: float, place: Place) -> None:
        """Digits that change every second."""

        def draw(frame: Image.Image, age: float) -> None:
            pen = ImageDraw.Draw(frame)
            pen.rectangle((*place, place[0] + 70, place[1] + 20), fill=(255, 255, 255))
            pen.text(place, f"{int(age) // 60:02}:{int(age) % 60:02}", fill=(40, 40, 40), font=font(16))

        self.show(start, end, draw)

    def drop_down(self, start: float, end: float, place: Place, items: Sequence[str], *, fade: float = 0.0) -> None:
        """A menu that is open from `start` to `end`, with `fade` seconds of both for coming and going."""
        box = (place[0], place[1], place[0] + 200, place[1] + 12 + 28 * len(items))
        menu = Image.new("RGB", (box[2] - box[0], box[3] - box[1]), "white")
        pen = ImageDraw.Draw(menu)
        pen.rectangle((0, 0, menu.width - 1, menu.height - 1), outline=(170, 170, 170))
        for i, item in enumerate(items):
            pen.text((12, 8 + 28 * i), item, fill=(30, 30, 30), font=font(16))

        def draw(frame: Image.Image, age: float) -> None:
            opacity = 1.0 if not fade else min(1.0, (age + 1 / self.rate) / fade, (end - start - age) / fade)
            below = frame.crop(box)
            frame.paste(Image.blend(below, menu, max(0.0, opacity)), place)

        self.show(start, end, draw)
        self.events.append(Event(kind="dropdown", start=start, end=end, box=box))

    def scroll(
        self, start: float, end: float, page: Image.Image, offsets: tuple[int, int], *, until: float, top: int = 0
    ) -> None:
        """A long page below `top` that moves from one offset to another between `start` and `end`, and stays so."""

        def draw(frame: Image.Image, age: float) -> None:
            share = min(1.0, age / (end - start))
            offset = round(offsets[0] + (offsets[1] - offsets[0]) * _ease(share))
            frame.paste(page.crop((0, offset, self.size[0], offset + self.size[1] - top)), (0, top))

        self.show(start, until, draw)
        self.events.append(Event(kind="scroll", start=start, end=end))

    @property
    def length(self) -> float:
        """Seconds, the end of the last layer."""
        return max((layer.end for layer in self.layers), default=0.0)

    def cursor_at(self, time: float) -> Place | None:
        """Where the tip of the cursor is."""
        if not self.path or time < self.path[0][0]:
            return None
        before = max((p for p in self.path if p[0] <= time), key=lambda p: p[0])
        after = next((p for p in self.path if p[0] > time), None)
        if after is None or after[1:] == before[1:]:
            last = [p for p in self.path if p[0] <= time][-1]
            return last[1], last[2]
        share = _ease((time - before[0]) / (after[0] - before[0]))
        return tuple(round(a + (b - a) * share) for a, b in zip(before[1:], after[1:], strict=True))  # type: ignore[return-value]

    def frame(self, time: float) -> Image.Image:
        """The picture at `time` in seconds."""
        picture = Image.new("RGB", self.size, "white")
        for layer in self.layers:
            if layer.start <= time < layer.end:
                layer.draw(picture, time - layer.start)
        tip = self.cursor_at(time)
        if tip is not None:
            self._draw_pointer(picture, tip, time)
        return picture

    def _draw_pointer(self, picture: Image.Image, tip: Place, time: float) -> None:
        kind = next((kind for start, kind in reversed(self.forms) if start <= time), "arrow")
        if self.pointer.ripple:
            pressed = next((start for start in reversed(self.presses) if start <= time), None)
            if pressed is not None and time - pressed < RIPPLE_S:
                draw_ripple(picture, tip, time - pressed, RIPPLE_S)
        draw_pointer(picture, tip, kind, self.pointer)

    def frames(self, seconds: float | None = None) -> Iterator[tuple[int, Image.Image]]:
        """(time in microseconds, picture) of all frames."""
        count = round((self.length if seconds is None else seconds) * self.rate)
        for i in range(count):
            yield round(i * 1_000_000 / self.rate), self.frame(i / self.rate)


def _ease(share: float) -> float:
    return 0.5 - 0.5 * math.cos(math.pi * min(1.0, max(0.0, share)))


_FONTS: dict[int, Any] = {}


def font(size: int) -> Any:
    """The font that comes with Pillow."""
    if size not in _FONTS:
        _FONTS[size] = ImageFont.load_default(size)
    return _FONTS[size]


def write_video(
    path: str | Path,
    frames: Iterator[tuple[int, Image.Image]] | Sequence[tuple[int, Image.Image]],
    *,
    codec: str = "libx264",
    crf: int = 23,
    preset: str = "veryfast",
    key_every: int = 250,
    rate: int = 30,
    pixel_format: str = "yuv420p",
    pixel_aspect: Fraction = Fraction(1),
    rotation: int = 0,
) -> int:
    """Encode (time in microseconds, picture) with these times as they are; returns how many frames were written.

    Colours are BT.709 of limited range, and marked so. The file says that its pixels are `pixel_aspect` times as wide as
    high, and that its pictures are upright once turned counter-clockwise by `rotation` degrees; nothing is turned here.
    """
    import av
    from av.video.reformatter import VideoReformatter

    base, count = Fraction(1, 90_000), 0
    with av.open(str(path), "w") as out:
        stream: Any = None  # what PyAV says of it depends on the codec's name
        frame: Any = None
        scaler, last = VideoReformatter(), None
        for time_us, picture in frames:
            if stream is None:
                options = {"crf": str(crf)} | ({"preset": preset} if codec.startswith("libx26") else {})
                stream = out.add_stream(codec, rate=rate, options=options)
                stream.width, stream.height, stream.pix_fmt = *picture.size, pixel_format
                context = stream.codec_context
                context.sample_aspect_ratio = pixel_aspect
                if rotation:
                    stream.set_display_rotation(rotation)
                context.gop_size, context.time_base, stream.time_base = key_every, base, base
                context.colorspace, context.color_range, context.color_primaries, context.color_trc = 1, 1, 1, 1
            if picture is not last:  # the same object again is the same picture, as in a pause
                last = picture
                frame = scaler.reformat(
                    av.VideoFrame.from_ndarray(np.asarray(picture), format="rgb24"),
                    format=pixel_format,
                    src_color_range=2,
                    dst_colorspace=1,
                    dst_color_range=1,
                )
            frame.pts, frame.time_base = round(time_us * Fraction(9, 100)), base
            out.mux(stream.encode(frame))
            count += 1
        if stream is not None:
            out.mux(stream.encode(None))
    return count

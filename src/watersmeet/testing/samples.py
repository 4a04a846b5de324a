"""Made-up media of the common types, for authors who give no examples of their own."""

from __future__ import annotations

import io
import struct
import wave
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Items of one media type.

    ordinary   at least two different ones
    extreme    small, empty of content, odd
    grow       makes an item of a size from `start` to `largest`: the larger, the more tokens
    strict     whether random bytes can be told from media of this type
    """

    ordinary: tuple[Any, ...]
    extreme: tuple[Any, ...] = ()
    grow: Callable[[int], Any] | None = None
    start: int = 64
    largest: int = 0
    strict: bool = False


def samples_of(media_types: Sequence[str]) -> list[Samples]:
    """Samples of every media type that is known here."""
    found = []
    for media in media_types:
        make = _MAKERS.get(media)
        if make is not None:
            found.append(make(media))
    return found


def known_types() -> list[str]:
    """Media types that samples can be made of."""
    return sorted(_MAKERS)


_FORMATS = {
    "image/png": "PNG",
    "image/jpeg": "JPEG",
    "image/webp": "WEBP",
    "image/gif": "GIF",
    "image/bmp": "BMP",
    "image/tiff": "TIFF",
}


def picture(width: int, height: int, seed: int = 0) -> Any:
    """A Pillow picture [height, width, RGB] of smooth colours with noise."""
    import numpy as np
    from PIL import Image

    noise = np.random.default_rng(seed).integers(0, 60, (height, width, 3))
    ramp = np.linspace(0, 195, width)[None, :, None] * np.ones((height, 1, 3))
    return Image.fromarray((ramp + noise).astype(np.uint8))


def image_bytes(image: Any, form: str = "PNG", **options: Any) -> bytes:
    """A picture as a file."""
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def _images(media: str) -> Samples:
    form = _FORMATS[media]
    sizes = [(64, 48), (33, 90), (150, 40)]
    return Samples(
        ordinary=tuple(image_bytes(picture(w, h, seed), form) for seed, (w, h) in enumerate(sizes)),
        extreme=tuple(image_bytes(picture(w, h), form) for w, h in [(1, 1), (1, 900), (900, 1), (700, 500)]),
        grow=lambda side: _flat(side, form),
        start=128,
        largest=8192,
        strict=True,
    )


def _flat(side: int, form: str) -> bytes:
    from PIL import Image

    return image_bytes(Image.new("RGB", (side, side), (120, 90, 60)), form)


def sound(seconds: float, rate: int = 16_000, channels: int = 1, *, hertz: float = 440.0, loud: float = 0.5) -> bytes:
    """A sine as a WAV file of 16-bit samples; all channels alike."""
    import numpy as np

    count = max(1, round(seconds * rate))
    mono = np.sin(2 * np.pi * hertz * np.arange(count) / rate) * loud
    frames = np.repeat((mono * 32767).astype("<i2")[:, None], channels, axis=1)
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(frames.tobytes())
    return buffer.getvalue()


def _sounds(media: str) -> Samples:
    return Samples(
        ordinary=(sound(0.5), sound(0.3, 8_000, hertz=700.0), sound(0.8, 22_050, hertz=200.0, loud=0.2)),
        extreme=(sound(0.0), sound(2.0, loud=0.0), sound(0.4, 48_000, 2), sound(0.01, 96_000)),
        grow=lambda samples: sound(samples / 16_000),
        start=16_000,
        largest=16_000_000,
        strict=True,
    )


def _texts(media: str) -> Samples:
    return Samples(
        ordinary=("plain words, twice: plain words", "Grüße an alle, мир и 世界 🙂", b"bytes of UTF-8"),
        extreme=("a", "\n\n\n", "x" * 20_000, "\u200d\ufeff\x00"),
        grow=lambda count: "word " * count,
        largest=1_000_000,
    )


def _tables(media: str) -> Samples:
    mark = "\t" if "tab" in media else ","

    def table(rows: int, step: float, columns: int = 2) -> bytes:
        head = mark.join(f"column {index}" for index in range(columns))
        lines = [mark.join(f"{(row * step + column) % 7:.3f}" for column in range(columns)) for row in range(rows)]
        return "\n".join([head, *lines, ""]).encode()

    return Samples(
        ordinary=(table(20, 0.3), table(37, 0.7), table(64, 1.1)),
        extreme=(table(1, 1.0), table(50, 0.0), table(3, 1e6), table(30, 0.5).replace(b"\n", b"\r\n")),
        grow=lambda rows: table(rows, 0.1),
        largest=1_000_000,
    )


def _arrays(media: str) -> Samples:
    import numpy as np

    def array(values: Any) -> bytes:
        buffer = io.BytesIO()
        np.save(buffer, values, allow_pickle=False)
        return buffer.getvalue()

    rng = np.random.default_rng(0)
    return Samples(
        ordinary=(array(rng.normal(size=40)), array(rng.normal(size=23).astype(np.float32)), array(np.arange(64))),
        extreme=(array(np.zeros(1)), array(np.zeros(100)), array(rng.normal(size=9) * 1e6)),
        grow=lambda count: array(np.arange(count) % 11),
        largest=10_000_000,
        strict=True,
    )


def clip(times_ms: Sequence[int], size: int = 64, draw: Callable[[int, int, int], Any] | None = None) -> bytes:
    """An MP4 clip with one frame at each time; draw(width, height, number) makes its picture."""
    import fractions

    import av

    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.width = stream.height = size
        stream.codec_context.time_base = fractions.Fraction(1, 1000)
        for index, time in enumerate(times_ms):
            frame = av.VideoFrame.from_image((draw or picture)(size, size, index))
            frame.pts, frame.time_base = time, fractions.Fraction(1, 1000)
            for packet in stream.encode(frame):
                container.mux(packet)
        for packet in stream.encode(None):
            container.mux(packet)
    return buffer.getvalue()


def _flash(width: int, height: int, number: int) -> Any:
    """One colour, unlike the one before it everywhere."""
    from PIL import Image

    return Image.new("RGB", (width, height), (97 * number % 256, 151 * number % 256, 59 * number % 256))


def _clips(media: str) -> Samples:
    return Samples(
        ordinary=(clip(range(0, 400, 40)), clip(range(0, 300, 50), 96)),
        extreme=(clip([0]), clip([0, 10, 500, 510])),
        # slow enough that nothing is taken for motion
        grow=lambda frames: clip(range(0, 2000 * frames, 2000), 2048, _flash),
        start=256,
        largest=4096,
        strict=True,
    )


def noise(count: int) -> bytes:
    """Random bytes, always the same."""
    value, out = 12345, bytearray()
    while len(out) < count:
        value = (value * 6364136223846793005 + 1442695040888963407) % 2**64
        out += struct.pack(">I", value >> 32)
    return bytes(out[:count])


_MAKERS: dict[str, Callable[[str], Samples]] = {
    **{media: _images for media in _FORMATS},
    "audio/wav": _sounds,
    "audio/x-wav": _sounds,
    "audio/vnd.wave": _sounds,
    "text/plain": _texts,
    "text/csv": _tables,
    "text/tab-separated-values": _tables,
    "application/x-npy": _arrays,
    "video/mp4": _clips,
}

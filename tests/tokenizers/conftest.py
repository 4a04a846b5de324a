"""A small vocabulary of the official layout, and the two generations over it; small videos."""

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from watersmeet.tokenizers.text.encoder import Encoder
from watersmeet.tokenizers.tiktoken.train import train_ranks

WORDS = (
    "the weather in Paris is what it's today message role user assistant system tool think response tools call "
    "argument key type string number index name functions get_weather city Hello HELLO world 你好世界 日本語 1234567 "
    'naïve café Привет мир =" " } { : , \n\n \t  '
)


@pytest.fixture(scope="session")
def ranks():
    """The bytes of a `tiktoken.model` with about 600 ranks."""
    return train_ranks([WORDS * 3, " ".join(f"{word} {word}s {word}ing" for word in WORDS.split())], 600)


@pytest.fixture(scope="session")
def official(ranks):
    """`official(generation, **files)`: a text encoder over those ranks."""

    def build(generation, **files):
        named = {
            name.replace("__", "."): json.dumps(v).encode() if isinstance(v, dict) else v for name, v in files.items()
        }
        return Encoder({"tokenizer": "tiktoken", "model": ranks, "generation": generation, "files": named})

    return build


def grey_frames(count, size=(64, 48)):
    """uint8 pictures; number i has grey 16 + 7 i, with a white corner at the top left."""
    for i in range(count):
        pixels = np.full((size[1], size[0], 3), 16 + 7 * i, np.uint8)
        pixels[: size[1] // 3, : size[0] // 3] = 250  # something that shows which way is up
        yield pixels


@pytest.fixture(scope="session")
def film():
    """`film(target, pixels, pts, ...)` encodes pictures with the given time stamps by PyAV itself; target: a path or a file.

    base: seconds a unit of pts. prepare: called with the stream before the first frame.
    """
    import av

    def write(target, pixels=None, pts=None, *, codec="libx264", base=Fraction(1, 90_000), form=None, options=None,
              pixel_format="yuv420p", prepare=None):  # fmt: skip
        pixels = list(grey_frames(30) if pixels is None else pixels)
        pts = [round(i / 30 / base) for i in range(len(pixels))] if pts is None else pts
        with av.open(str(target) if isinstance(target, Path) else target, "w", format=form) as out:
            # nearly without loss, or a codec leaves out what changes little
            fine = {"crf": "4"} | ({"b": "4000000"} if codec == "libvpx" else {})
            stream = out.add_stream(codec, rate=30, options=fine | (options or {}) if codec.startswith("lib") else {})
            stream.width, stream.height, stream.pix_fmt = pixels[0].shape[1], pixels[0].shape[0], pixel_format
            stream.codec_context.time_base = stream.time_base = base
            if prepare is not None:
                prepare(stream)
            for values, stamp in zip(pixels, pts, strict=True):
                frame = av.VideoFrame.from_ndarray(values, format="rgb24")
                frame.pts, frame.time_base = stamp, base
                out.mux(stream.encode(frame))
            out.mux(stream.encode(None))
        return target

    return write

"""What every test shares: small videos, and how hypothesis draws.

By default it draws the same examples on every machine and every day, so that a change is judged by itself and a red run
can be repeated. `HYPOTHESIS_PROFILE=search` draws new ones; what it finds becomes a case of its own.
"""

import os
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

settings.register_profile("same", derandomize=True, database=None, deadline=None)
settings.register_profile("search", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


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

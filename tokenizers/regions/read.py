"""Regions of a picture nobody has described: find boxes, read text, then measure both."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from watersmeet.tokenizers.regions.describe import describe, text_record
from watersmeet.tokenizers.regions.fonts import extent
from watersmeet.tokenizers.regions.glyphs import measure_text, measure_texts
from watersmeet.tokenizers.regions.ocr import Line, ReadLines, read_lines
from watersmeet.tokenizers.regions.shapes import as_array, find_shapes

SPACE, MONO_SPACE = 0.6, 1.2  # em, from ink to ink: wider gaps are none of one text
ASCENT, DESCENT = 0.905, 0.212  # em, of Liberation Sans: how far a line's own box reaches above and below the baseline


def line_box(image: NDArray[np.uint8], line: Line) -> tuple[float, float, float, float]:
    """Box of a line as a browser has it: from ascent to descent, not just around the ink.

    Texts from a rendered page carry such boxes, so a model that learnt from pages sees the same here.
    """
    look = measure_text(image, line.box, line.text)
    ink = extent(line.text, look.family, look.weight)
    if ink.height <= 0.2:
        middle, half = (line.box[1] + line.box[3]) / 2, 0.58 * look.font_size
        return line.box[0], middle - half, line.box[2], middle + half
    # the ink's top and bottom both say where the baseline is; take the middle of the two
    baseline = (look.ink[1] + ink.top * look.font_size + look.ink[3] + ink.bottom * look.font_size) / 2
    return line.box[0], baseline - ASCENT * look.font_size, line.box[2], baseline + DESCENT * look.font_size


def read(image: Image.Image | NDArray[np.uint8]) -> dict[str, Any]:
    """Plain form of a `Regions` record for any picture. Seconds: text recognition dominates."""
    array = as_array(image)
    shapes, _ = find_shapes(array)
    frames = [s.bounds for s in shapes if s.kind in ("fill", "outline")]
    texts = [(line_box(array, line), line.text, line.confidence) for line in read_lines(array, frames)]
    return describe(array, texts)


def read_texts(image: Image.Image | NDArray[np.uint8], memory: ReadLines | None = None) -> list[dict[str, Any]]:
    """Records of the texts of a picture, with boxes around their ink; quicker than `read`, which looks for shapes too. What
    stands on one line but apart, as the entries of a menu do, is several texts.

    memory: of lines that were read in earlier pictures, which are not read again.
    """
    array = as_array(image)
    lines = read_lines(array, [], memory)
    looks = measure_texts(array, [(line.box, line.text) for line in lines])
    return [
        text_record(part.box, part.text, part.confidence, look)
        for line, look in zip(lines, looks, strict=True)
        for part in parts_of(line, mono=look.family == "mono")
    ]


def parts_of(line: Line, *, mono: bool) -> list[Line]:
    """`line`, or its parts where gaps are wider than a space. mono: of a font whose letters are all of one width."""
    # capitals and digits fill 0.72 em; of a line of several fonts no size could be measured
    tall = sum(not char.islower() for char in line.text) >= 0.8 * len(line.text)
    high = 0.72 if tall else 0.93
    widest = (MONO_SPACE if mono else SPACE) * (line.box[3] - line.box[1]) / high
    ends = [i + 1 for i, ((a, _), (b, _)) in enumerate(pairwise(line.words)) if b[0] - a[2] > widest]
    parts = [line.words[a:b] for a, b in pairwise([0, *ends, len(line.words)])]
    return [_joined(line, part) for part in parts] if len(parts) > 1 else [line]


def _joined(line: Line, words: Sequence[tuple[tuple[float, float, float, float], str]]) -> Line:
    box = (words[0][0][0], line.box[1], words[-1][0][2], line.box[3])
    return replace(line, box=box, text=" ".join(word for _, word in words), words=tuple(words))

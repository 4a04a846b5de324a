"""Widths, heights and ink of glyphs in the families a page falls back to, per em.

Measured once a process through Pillow from the Liberation fonts (metric twins of Arial, Times New Roman and Courier
New) and from DejaVu Sans, which stands in for Verdana and for the system's own font. Where they are not installed Pillow's own font stands in for all of them, so sizes stay usable, families do not.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

FAMILIES = ("sans", "serif", "mono", "wide")
WEIGHTS = (400, 700)
_FILES = {
    ("sans", 400): "LiberationSans-Regular.ttf",
    ("sans", 700): "LiberationSans-Bold.ttf",
    ("serif", 400): "LiberationSerif-Regular.ttf",
    ("serif", 700): "LiberationSerif-Bold.ttf",
    ("mono", 400): "LiberationMono-Regular.ttf",
    ("mono", 700): "LiberationMono-Bold.ttf",
    ("wide", 400): "DejaVuSans.ttf",
    ("wide", 700): "DejaVuSans-Bold.ttf",
}
_EM = 128  # px at which glyphs are measured
ROWS = 26
ROW_EDGES = np.linspace(1.0, -0.3, ROWS + 1)  # em above the baseline, from top to bottom
_NO_ROWS = np.zeros(ROWS, np.float32)


@dataclass(frozen=True, kw_only=True, slots=True)
class Glyph:
    """All in em: advance, ink left and right of the origin, ink top and bottom above the baseline, ink area (em^2)."""

    advance: float
    left: float
    right: float
    top: float
    bottom: float
    area: float
    rows: NDArray[np.float32]  # share of `area` in each of the `ROWS` bands


@dataclass(frozen=True, kw_only=True, slots=True)
class TextExtent:
    """Ink of a whole line at 1 em."""

    advance: float
    width: float  # ink width
    top: float
    bottom: float
    area: float
    rows: NDArray[np.float32]  # ink (em^2) in each band between `ROW_EDGES`

    @property
    def height(self) -> float:
        return self.top - self.bottom


@lru_cache(maxsize=64)
def load_font(family: str, weight: int, size: int) -> ImageFont.FreeTypeFont:
    """The face of `family` (one of `FAMILIES`) and `weight` (400, 700) at `size` px."""
    try:
        return ImageFont.truetype(_FILES[family, weight], size)
    except OSError:
        return ImageFont.load_default(size)  # type: ignore[return-value]


@lru_cache(maxsize=8192)
def glyph(family: str, weight: int, char: str) -> Glyph:
    """Measurements of one character."""
    if ord(char) >= 0x2E80:  # ideographs, emoji: these fonts have none, a full square is near enough
        return Glyph(advance=1.0, left=0.05, right=0.95, top=0.82, bottom=-0.08, area=0.3, rows=_flat_rows())
    font = load_font(family, weight, _EM)
    advance = font.getlength(char) / _EM
    left, top, right, bottom = font.getbbox(char, anchor="ls")
    if right <= left or bottom <= top or char.isspace():
        return Glyph(advance=advance, left=0.0, right=0.0, top=0.0, bottom=0.0, area=0.0, rows=_NO_ROWS)
    # Pillow's own box reaches to the advance, so the ink's box is taken from a drawing
    margin = _EM // 2
    picture = Image.new("L", (int(right - left) + 2 * margin, int(bottom - top) + 2 * margin))
    origin = margin - left, margin - top
    ImageDraw.Draw(picture).text(origin, char, fill=255, font=font, anchor="ls")
    ink = picture.point(lambda value: 255 if value >= 96 else 0).getbbox()
    if ink is None:
        return Glyph(advance=advance, left=0.0, right=0.0, top=0.0, bottom=0.0, area=0.0, rows=_NO_ROWS)
    ink_y = np.asarray(picture, np.float32).sum(1) / 255
    total = np.concatenate([[0.0], np.cumsum(ink_y)])
    # rows above the baseline run upwards, pixels run downwards
    rows = np.diff(np.interp(origin[1] - ROW_EDGES * _EM, np.arange(len(total)), total)) / _EM**2
    area = float(total[-1]) / _EM**2
    return Glyph(
        advance=advance,
        left=(ink[0] - origin[0]) / _EM,
        right=(ink[2] - origin[0]) / _EM,
        top=(origin[1] - ink[1]) / _EM,
        bottom=(origin[1] - ink[3]) / _EM,
        area=area,
        rows=rows.astype(np.float32),
    )


def _flat_rows() -> NDArray[np.float32]:
    inside = (ROW_EDGES[:-1] <= 0.82) & (ROW_EDGES[1:] >= -0.08)
    return (inside * 0.3 / inside.sum()).astype(np.float32)


@lru_cache(maxsize=4096)
def extent(text: str, family: str, weight: int) -> TextExtent:
    """Ink of `text` on one line, without kerning. Empty or blank text gives zeros."""
    glyphs = [glyph(family, weight, char) for char in text]
    inked = [g for g in glyphs if g.area > 0]
    if not inked:
        return TextExtent(
            advance=sum(g.advance for g in glyphs),
            width=0.0,
            top=0.0,
            bottom=0.0,
            area=0.0,
            rows=np.zeros(len(ROW_EDGES) - 1, np.float32),
        )
    position, start, end = 0.0, None, 0.0
    for g in glyphs:
        if g.area > 0:
            start = position + g.left if start is None else start
            end = position + g.right
        position += g.advance
    return TextExtent(
        advance=position,
        width=end - (start or 0.0),
        top=max(g.top for g in inked),
        bottom=min(g.bottom for g in inked),
        area=sum(g.area for g in inked),
        rows=np.sum([g.rows for g in inked], axis=0),
    )

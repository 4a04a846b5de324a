"""Sets the lines of one text leaf: font, line height, letter-spacing and alignment so that they fall on their boxes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from watersmeet.core.geometry import Box
from watersmeet.pipelines.emit.fonts import FAMILIES, Font, clusters, installed, metrics, text_width
from watersmeet.pipelines.layout.tree import Style, TextLine

SPACING_LIMIT = 0.06  # letter-spacing stays within this share of the font size
_SAME = 0.75  # px: differences below this are measuring noise


@dataclass(kw_only=True)
class Piece:
    """Text that stands on one visual line; `left` and `top` are margins in px inside its row."""

    text: str
    box: Box
    font: Font
    style: Style
    spacing: float = 0.0
    left: float = 0.0
    top: float = 0.0


@dataclass(kw_only=True)
class Row:
    """One visual line; `top` is the margin above it and `height` its line height, in px."""

    pieces: list[Piece]
    top: float = 0.0
    left: float = 0.0
    height: float = 0.0


@dataclass(kw_only=True)
class TextBlock:
    """All lines of a leaf. `pitch` is the common line height, or None when every row brings its own.

    `box` is what the block fills when laid out: as wide as its lines, as tall as its line heights.
    """

    rows: list[Row]
    box: Box
    font: Font
    style: Style
    pitch: float | None
    align: str
    spacing: float = 0.0
    rtl: bool = False
    texts: list[str] = field(default_factory=list)


def resolve_font(text: str, box: Box, style: Style, families: dict[str, str], default: Font) -> Font:
    """The font of one line. The measured size is the truth; without one the line's width decides, within its height."""
    family = style.font_family or default.family
    family = families.get(family, family)
    family = family if family in FAMILIES else default.family
    weight = style.font_weight or 400
    size = style.font_size
    if size is None or size <= 0:
        natural = text_width(text, Font(family=family, size=100.0, weight=weight, italic=style.italic)) / 100.0
        size = box.width / natural if natural > 0 else box.height / 1.15
        size = min(max(size, 0.7 * box.height), 1.5 * box.height)
        size = min(max(size, 4.0), 400.0)
    return Font(family=family, size=round(size, 2), weight=weight, italic=style.italic)


def fit_spacing(text: str, font: Font, width: float) -> float:
    """Letter-spacing in px that brings `text` to `width`; 0 when it fits anyway or when the font is not known here."""
    count = clusters(text)
    if not count or not installed(font.family) or _joined_script(text):
        return 0.0
    if abs(text_width(text, font) - width) <= max(0.5, 0.004 * width):
        return 0.0
    spacing = (width - text_width(text, font, ligatures=False)) / count
    limit = SPACING_LIMIT * font.size
    return round(min(max(spacing, -limit), limit), 3)


def set_text(lines: Sequence[TextLine], families: dict[str, str], default: Font) -> TextBlock:
    """Lay `lines` (at least one) out in visual rows, top to bottom, left to right."""
    pieces = []
    for line in lines:
        font = resolve_font(line.text, line.box, line.style, families, default)
        spacing = fit_spacing(line.text, font, line.box.width)
        pieces.append(Piece(text=line.text, box=line.box, font=font, style=line.style, spacing=spacing))
    rows = _rows(pieces)
    lead = max(pieces, key=lambda p: len(p.text))
    boxes = [p.box for p in pieces]
    x0, x1 = min(b.x0 for b in boxes), max(b.x1 for b in boxes)
    pitch = _common_pitch(rows)
    align = _alignment(rows, x0, x1, lead.style.align)
    if pitch is not None:
        tall = sum(metrics(lead.font))
        for row in rows:
            row.height = pitch
        center = rows[0].pieces[0].box.center[1]
        y0 = center - tall / 2 - math.floor((pitch - tall) / 2)
        y1 = y0 + pitch * len(rows)
    else:
        y0, y1 = _stack_rows(rows)
    for row in rows:
        _spread_pieces(row)
        if align == "mixed":
            row.left = row.pieces[0].box.x0 - x0
    return TextBlock(
        rows=rows,
        box=Box(x0=x0, y0=y0, x1=x1, y1=y1),
        font=lead.font,
        style=lead.style,
        pitch=pitch,
        align="left" if align == "mixed" else align,
        spacing=_common_spacing(pieces),
        rtl=any(_is_rtl(p.text) for p in pieces),
        texts=[p.text for p in pieces],
    )


def _rows(pieces: list[Piece]) -> list[Row]:
    rows: list[list[Piece]] = []
    for piece in sorted(pieces, key=lambda p: (p.box.center[1], p.box.x0)):
        for row in reversed(rows[-3:]):
            if all(_beside(piece.box, other.box) for other in row):
                row.append(piece)
                break
        else:
            rows.append([piece])
    return [Row(pieces=sorted(row, key=lambda p: p.box.x0)) for row in rows]


def _beside(a: Box, b: Box) -> bool:
    shared_y = min(a.y1, b.y1) - max(a.y0, b.y0)
    shared_x = min(a.x1, b.x1) - max(a.x0, b.x0)
    return shared_y > 0.5 * min(a.height, b.height) and shared_x <= 2.0


def _common_pitch(rows: list[Row]) -> float | None:
    """The line height shared by all rows when they are evenly spaced and look alike, else None."""
    if any(len(row.pieces) > 1 for row in rows):
        return None
    first = rows[0].pieces[0]
    tall = sum(metrics(first.font))
    if len(rows) == 1:
        return float(tall)
    if any(row.pieces[0].font != first.font for row in rows):
        return None
    centers = [row.pieces[0].box.center[1] for row in rows]
    pitch = (centers[-1] - centers[0]) / (len(rows) - 1)
    if pitch < 0.5 * tall:
        return None
    for digits in (0, 1, 2):  # the roundest line height that still meets every line
        nice = round(pitch, digits)
        if all(abs(c - (centers[0] + i * nice)) <= _SAME for i, c in enumerate(centers)):
            return nice
    return None


def _stack_rows(rows: list[Row]) -> tuple[float, float]:
    """Give every row its own line height and the margin to the row above; returns top and bottom of the block."""
    top = cursor = 0.0
    for i, row in enumerate(rows):
        tops = [p.box.center[1] - sum(metrics(p.font)) / 2 for p in row.pieces]
        row_top = min(tops)
        row.height = max(t + sum(metrics(p.font)) for t, p in zip(tops, row.pieces, strict=True)) - row_top
        for piece, piece_top in zip(row.pieces, tops, strict=True):
            piece.top = piece_top - row_top
        if i == 0:
            top = cursor = row_top
        row.top = row_top - cursor
        cursor = row_top + row.height
    return top, cursor


def _spread_pieces(row: Row) -> None:
    for before, piece in pairwise(row.pieces):
        width = text_width(before.text, before.font) + before.spacing * clusters(before.text)
        piece.left = piece.box.x0 - (before.box.x0 + width)


def _alignment(rows: list[Row], x0: float, x1: float, hint: str | None) -> str:
    starts = [row.pieces[0].box.x0 for row in rows]
    ends = [row.pieces[-1].box.x1 for row in rows]
    if any(len(row.pieces) > 1 for row in rows):
        return "left" if max(starts) - x0 <= _SAME else "mixed"
    fits = []
    if max(starts) - x0 <= _SAME:
        fits.append("left")
    if all(abs((s + e) / 2 - (x0 + x1) / 2) <= _SAME for s, e in zip(starts, ends, strict=True)):
        fits.append("center")
    if x1 - min(ends) <= _SAME:
        fits.append("right")
    if hint in fits:
        return hint
    return fits[0] if fits else "mixed"


def _common_spacing(pieces: list[Piece]) -> float:
    """Move letter-spacing from the pieces to the block where one value meets every line within half a pixel."""
    shared = round(median(p.spacing for p in pieces), 3)
    if shared and all(abs(p.spacing - shared) * clusters(p.text) <= 0.5 for p in pieces):
        for piece in pieces:
            piece.spacing = shared
        return shared
    return 0.0


def _is_rtl(text: str) -> bool:
    for char in text:
        if "\u0590" <= char <= "\u08ff" or "\ufb1d" <= char <= "\ufdff" or "\ufe70" <= char <= "\ufeff":
            return True
        if char.isalpha():
            return False
    return False


def _joined_script(text: str) -> bool:
    """Scripts whose letters are connected must not be spaced apart."""
    return any("\u0600" <= c <= "\u08ff" or "\u0900" <= c <= "\u0dff" or "\ufb50" <= c <= "\ufeff" for c in text)

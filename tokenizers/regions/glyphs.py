"""Measure one line of text in the pixels: ink and paper colour, font size, weight, family, underline.

Legend: h, w rows and columns of the crop.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from watersmeet.tokenizers.regions.flat import pack_colors, unpack_color
from watersmeet.tokenizers.regions.fonts import FAMILIES, ROW_EDGES, WEIGHTS, extent

RGB = tuple[int, int, int]


PAGE_FAMILY = 5.0  # cost of a line in another family than most of its page


@dataclass(frozen=True, kw_only=True, slots=True)
class Face:
    """One way to set a line: the size at which this face has the line's ink, and how badly it fits (0 is perfect)."""

    family: str
    weight: int
    size: float
    cost: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TextLook:
    """What the pixels say about one line. `ink` is the box around the glyphs in picture pixels (edges are fractional)."""

    color: RGB
    background: RGB
    font_size: float
    weight: int
    family: str
    underline: bool
    flat: bool  # the paper has one colour; over photographs it has not
    ink: tuple[float, float, float, float]
    faces: "tuple[Face, ...]" = ()  # what else it could be, see `settle`


def _mode(packed: NDArray[np.int32]) -> tuple[RGB, float]:
    values, counts = np.unique(packed, return_counts=True)
    best = counts.argmax()
    return unpack_color(int(values[best])), float(counts[best] / packed.size)


def _median(pixels_N3: NDArray[Any]) -> RGB:
    r, g, b = (int(v) for v in np.median(pixels_N3, axis=0))
    return r, g, b


def ink_and_paper(crop_hw3: NDArray[np.uint8]) -> tuple[RGB, RGB, bool]:
    """(ink, paper, paper is flat) of a crop around one line of text."""
    packed = pack_colors(crop_hw3)
    paper, share = _mode(packed)
    if share >= 0.25:
        wide = crop_hw3.astype(np.int16)
        distance = np.abs(wide - np.array(paper, np.int16)).max(-1)
        peak = int(distance.max())
        if peak < 4:
            return paper, paper, True
        strong = packed[distance >= max(4, 0.86 * peak)]
        ink, ink_share = _mode(strong)
        if ink_share < 0.12:
            ink = _median(crop_hw3[distance >= 0.92 * peak])
        return ink, paper, True
    # over a photograph: two classes by brightness; the class along the crop's edge is the paper
    gray = cv2.cvtColor(np.ascontiguousarray(crop_hw3), cv2.COLOR_RGB2GRAY)
    threshold, _ = cv2.threshold(gray, 0, 255, cv2.THRESH_BINARY + cv2.THRESH_OTSU)
    bright = gray > threshold
    edge = np.concatenate([bright[0], bright[-1], bright[:, 0], bright[:, -1]])
    ink_mask = ~bright if edge.mean() > 0.5 else bright
    if not ink_mask.any() or ink_mask.all():
        middle = _median(crop_hw3.reshape(-1, 3))
        return middle, middle, False
    values = gray[ink_mask].astype(np.int16)
    extreme = np.percentile(values, 70 if edge.mean() <= 0.5 else 30)
    core = ink_mask & ((gray >= extreme) if edge.mean() <= 0.5 else (gray <= extreme))
    ink, ink_share = _mode(packed[core])
    if ink_share < 0.2:
        ink = _median(crop_hw3[core])
    return ink, _median(crop_hw3[~ink_mask]), False


def coverage(crop_hw3: NDArray[np.uint8], ink: RGB, paper: RGB) -> NDArray[np.float32]:
    """How much of each pixel is ink, 0 to 1: its place on the way from paper to ink colour."""
    way = np.array(ink, np.float32) - np.array(paper, np.float32)
    length = float((way * way).sum())
    if length < 16:
        return np.zeros(crop_hw3.shape[:2], np.float32)
    return np.clip((crop_hw3.astype(np.float32) - np.array(paper, np.float32)) @ way / length, 0, 1)


def _span(strength: NDArray[np.float32]) -> tuple[float, float]:
    """Fractional first and last position of a profile that rises from 0 to about 1."""
    strong = np.flatnonzero(strength >= 0.5)
    if not len(strong):
        strong = np.flatnonzero(strength >= 0.2)
        if not len(strong):
            return 0.0, 0.0
    first, last = int(strong[0]), int(strong[-1])
    start = first - (float(strength[first - 1]) if first > 0 else 0.0)
    end = last + 1 + (float(strength[last + 1]) if last + 1 < len(strength) else 0.0)
    return start, end


def _underline_rows(ink_hw: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Rows of an underline: below the middle, inked over most of the width, with nothing much under it."""
    height = ink_hw.shape[0]
    columns = np.flatnonzero(ink_hw.max(0) > 0.5)
    out = np.zeros(height, bool)
    if len(columns) < 8:
        return out
    inner = ink_hw[:, columns[0] : columns[-1] + 1]
    share = (inner > 0.4).mean(1)
    rows = np.flatnonzero(share >= 0.85)
    rows = rows[rows > 0.6 * height]
    if len(rows) and len(rows) <= max(2, height // 8):
        # a line has paper or little ink in the row above it; the foot of a row of block letters has not
        above = rows[0] - 1
        if above >= 0 and share[above] < 0.5 * share[rows[0]]:
            out[rows] = True
    return out


def measure_text(image_HW3: NDArray[np.uint8], box: tuple[float, float, float, float], text: str) -> TextLook:
    """Look of the line `text` that stands in `box` (x0, y0, x1, y1 px). About 0.3 ms.

    The font size is that of the Liberation face whose glyph heights, widths and ink agree best with the pixels.
    """
    height, width = image_HW3.shape[:2]
    x0, y0 = max(0, math.floor(box[0]) - 1), max(0, math.floor(box[1]) - 1)
    x1, y1 = (
        min(width, (math.ceil(box[2])) + 1),
        min(height, (math.ceil(box[3])) + 1),
    )
    guess = max(6.0, (box[3] - box[1]) * 0.84)
    if x1 - x0 < 2 or y1 - y0 < 2:
        return TextLook(
            color=(0, 0, 0), background=(255, 255, 255), font_size=round(guess, 1), weight=400, family="sans",
            underline=False, flat=True, ink=(box[0], box[1], box[2], box[3]),
        )  # fmt: skip
    crop = image_HW3[y0:y1, x0:x1]
    color, paper, flat = ink_and_paper(crop)
    ink = coverage(crop, color, paper)
    lines = _underline_rows(ink)
    underline = bool(lines.any())
    glyph_ink = np.where(lines[:, None], 0.0, ink) if underline else ink
    top, bottom = _span(glyph_ink.max(1))
    left, right = _span(glyph_ink.max(0))
    cut = box[1] <= 0.5 or box[3] >= height - 0.5  # the picture ends inside the line: its height says nothing
    faces = _faces(
        text.strip(), right - left, 0.0 if cut else bottom - top, glyph_ink.sum(1) if flat and not cut else None, top
    )
    best = min(faces, key=lambda f: f.cost) if faces else Face(family="sans", weight=400, size=guess, cost=0.0)
    if cut:  # of the width, too, only a part may show
        faces = [replace(f, size=max(f.size, 0.8 * (box[3] - box[1]))) for f in faces]
        best = replace(best, size=max(best.size, 0.8 * (box[3] - box[1])))
    return TextLook(
        color=color,
        background=paper,
        font_size=round(best.size, 1),
        weight=best.weight,
        family=best.family,
        faces=tuple(faces),
        underline=underline,
        flat=flat,
        ink=(x0 + left, y0 + top, x0 + right, y0 + bottom) if right > left and bottom > top else tuple(box),  # type: ignore[arg-type]
    )


def _faces(text: str, width: float, height: float, rows: NDArray[np.float32] | None, top: float) -> list[Face]:
    """Every face with the size at which `text` has about this ink.

    Known of the ink are its width and height (px; height 0: unknown), and, over even paper, how much of it lies in
    each row of pixels, and where its first row is.
    """
    if not text or width < 1:
        return []
    out = []
    total = None if rows is None else np.concatenate([[0.0], np.cumsum(rows)])
    many = min(1.0, len(text) / 6)  # a few letters do not tell faces apart
    for family in FAMILIES:
        for weight in WEIGHTS:
            line = extent(text, family, weight)
            if line.width <= 0:
                continue
            by_width = width / line.width
            by_height = height / line.height if line.height > 0.2 and height > 0 else by_width
            doubt = 0.035 + 0.6 / max(height, 4.0)  # half a pixel up or down
            cost = min(16.0, (math.log(by_width / by_height) / doubt) ** 2)
            if total is not None and line.area > 0 and total[-1] > 0:
                by_area = math.sqrt(float(total[-1]) / line.area)
                cost += min(6.0, (math.log(by_area / by_width) / 0.07) ** 2)
                # where letters carry their ink tells faces apart: x-height, serifs, descenders
                size = math.sqrt(by_width * by_height)
                seen = np.diff(np.interp(top + (line.top - ROW_EDGES) * size, np.arange(len(total)), total))
                wrong = 0.5 * float(np.abs(seen / total[-1] - line.rows / line.area).sum())
                cost += min(12.0, (wrong / 0.08) ** 2) * many
            cost += _RARE[family] * (2 - many) + (0.5 if weight == 700 else 0.0)
            # agreeing measures: the width is the more exact one; else the height is nearer the eye
            trust = math.exp(-((math.log(by_width / by_height) / (2 * doubt)) ** 2)) * min(1.0, len(text) / 3)
            size = math.exp(trust * math.log(by_width) + (1 - trust) * math.log(by_height))
            out.append(Face(family=family, weight=weight, size=min(max(size, 4.0), 400.0), cost=cost))
    return out


_RARE = {"sans": 0.0, "wide": 0.4, "serif": 0.8, "mono": 1.2}


def settle(looks: Sequence[TextLook], texts: Sequence[str]) -> list[TextLook]:
    """The looks of one page's lines, decided together: most lines of a page share a family, short ones cannot tell.

    Each line votes with its costs; leaving the winner's family then costs `PAGE_FAMILY`.
    """
    total = dict.fromkeys(FAMILIES, 0.0)
    for look, text in zip(looks, texts, strict=True):
        for family in FAMILIES:
            costs = [f.cost for f in look.faces if f.family == family]
            if costs:
                total[family] += min(25.0, min(costs)) * min(len(text), 30)
    # code stands in mono on pages that do not: it never is what the other lines should lean to
    usual = min((f for f in FAMILIES if f != "mono"), key=lambda family: total[family])
    out = []
    for look in looks:
        if look.faces:
            best = min(look.faces, key=lambda f: f.cost + (0.0 if f.family == usual else PAGE_FAMILY))
            look = replace(look, font_size=round(best.size, 1), weight=best.weight, family=best.family)
        out.append(look)
    return out


def measure_texts(
    image_HW3: NDArray[np.uint8], texts: Sequence[tuple[tuple[float, float, float, float], str]]
) -> list[TextLook]:
    """Looks of all lines of a page, (box, text) each; see `settle`."""
    return settle([measure_text(image_HW3, box, text) for box, text in texts], [text for _, text in texts])

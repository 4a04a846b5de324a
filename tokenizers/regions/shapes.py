"""Boxes, pictures, icons and rules of a screenshot, from its pixels alone.

Flat areas that fill a rounded rectangle are panels, buttons and fields; what is neither flat nor text is a picture or
an icon; long thin areas are rules. Nothing here is learnt and nothing depends on time or chance.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from watersmeet.tokenizers.regions.bands import join_bands
from watersmeet.tokenizers.regions.flat import (
    Areas,
    find_areas,
    pack_colors,
    unpack_color,
)
from watersmeet.tokenizers.regions.ink import blobs, merge_close
from watersmeet.tokenizers.regions.rects import (
    LINE,
    RGB,
    Bounds,
    Rect,
    add_border,
    boxes_from_lines,
    color_distance,
    fit_rect,
    is_soft_ring,
    main_color,
)

MAX_SHAPES = 120
MIN_FILL = 7  # px: smaller flat boxes are parts of icons
MIN_RULE = 20  # px
CONTRAST = 2  # levels a channel that a box must differ from what surrounds it


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One found box; the fields of a shape region. Colours are RGB, lengths are pixels."""

    bounds: Bounds
    kind: str  # fill, outline, picture, rule
    color: RGB
    border_color: RGB | None = None
    border_width: float = 0.0
    radius: float = 0.0


def _rgb(color_3: NDArray[Any]) -> RGB:
    r, g, b = (int(v) for v in color_3)
    return r, g, b


def area_of(bounds: Bounds) -> int:
    return max(0, bounds[2] - bounds[0]) * max(0, bounds[3] - bounds[1])


def shared(a: Bounds, b: Bounds) -> int:
    return max(0, min(a[2], b[2]) - max(a[0], b[0])) * max(0, min(a[3], b[3]) - max(a[1], b[1]))


def overlap(a: Bounds, b: Bounds) -> float:
    """Intersection over union."""
    both = shared(a, b)
    return both / (area_of(a) + area_of(b) - both) if both else 0.0


def inside(a: Bounds, b: Bounds, slack: int = 0) -> bool:
    return a[0] >= b[0] - slack and a[1] >= b[1] - slack and a[2] <= b[2] + slack and a[3] <= b[3] + slack


def page_background(areas: Areas, image: NDArray[np.uint8]) -> RGB:
    """The colour that covers most of the picture as flat areas."""
    big = np.flatnonzero(areas.size_C >= max(64, image.shape[0] * image.shape[1] // 2000))
    if not len(big):
        big = np.array([int(areas.size_C.argmax())])
    colors = pack_colors(image).reshape(-1)[areas.first_C[big]]
    values, where = np.unique(colors, return_inverse=True)
    return unpack_color(int(values[np.bincount(where, areas.size_C[big]).argmax()]))


def glyph_parts(boxes_N4: NDArray[np.int64], texts_M4: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which boxes are strokes or counters of glyphs: inside a text's box and clearly smaller than it."""
    if not len(boxes_N4) or not len(texts_M4):
        return np.zeros(len(boxes_N4), bool)
    x0, y0, x1, y1 = (boxes_N4[:, i, None] for i in range(4))
    tx0, ty0, tx1, ty1 = (texts_M4[None, :, i] for i in range(4))
    w = np.minimum(x1, tx1 + 2) - np.maximum(x0, tx0 - 2)
    h = np.minimum(y1, ty1 + 2) - np.maximum(y0, ty0 - 2)
    size = (x1 - x0) * (y1 - y0)
    within = (w > 0) & (h > 0) & (w * h >= 0.7 * size)
    return (within & (size < 0.8 * (tx1 - tx0) * (ty1 - ty0))).any(1)


def _edges_touched(bounds: Bounds, width: int, height: int) -> int:
    return (bounds[0] <= 0) + (bounds[1] <= 0) + (bounds[2] >= width) + (bounds[3] >= height)


class _Finder:
    def __init__(self, image: NDArray[np.uint8], texts: Sequence[Bounds]):
        self.image = image
        self.height, self.width = image.shape[:2]
        self.texts = list(texts)
        self.texts_M4 = np.array(self.texts, np.int64).reshape(-1, 4)
        self.areas = find_areas(image)
        if float(self.areas.size_C[self.areas.size_C >= 64].sum()) < 0.35 * self.height * self.width:
            # photographs, and screens that went through JPEG: flat means nearly equal
            self.areas = find_areas(image, tolerance=3)
        self.limit = round(MAX_SHAPES * max(1.0, self.height * self.width / (1280 * 757)))
        self.background = page_background(self.areas, image)
        self.base = np.zeros((self.height, self.width), bool)  # pixels explained by flat boxes

    def run(self) -> tuple[list[Shape], RGB]:
        rects = self._rects(self.areas, smallest=36)
        rects += self._gradients()
        rects += [rect for rect in self._framed() if not is_soft_ring(self.image, rect)]
        rects = self._dedupe(rects)
        pictures, rules = self._pictures(rects)
        rects, pictures = self._illustrations(rects, pictures)
        rects = self._drop_parts(rects, pictures)
        rects = self._stacked(rects, pictures)
        rects = self._drop_lattice(self._drop_remainders(rects))
        pictures, rules = self._small_rules(pictures, rules)
        shapes = [self._shape(rect) for rect in rects]
        shapes += [Shape(bounds=b, kind="rule", color=c) for b, c in rules]
        shapes += [Shape(bounds=b, kind="picture", color=self._mean(b)) for b in pictures]
        if len(shapes) > self.limit:
            shapes = sorted(shapes, key=lambda s: (-self._worth(s), s.bounds))[: self.limit]
        return shapes, self.background

    # flat boxes ---------------------------------------------------------------------------------------------------

    def _rects(self, areas: Areas, smallest: int, color_of: bool = True) -> list[Rect]:
        wide, high = areas.x1_C - areas.x0_C, areas.y1_C - areas.y0_C
        found: list[Rect] = []
        candidates = np.flatnonzero((areas.size_C >= smallest) & (wide >= MIN_FILL) & (high >= MIN_FILL))
        boxes = np.stack([areas.x0_C, areas.y0_C, areas.x1_C, areas.y1_C], axis=1)[candidates]
        large = wide[candidates] * high[candidates] >= 20000
        keep = large | ~glyph_parts(boxes, self.texts_M4)
        candidates, boxes = candidates[keep], boxes[keep]
        # a heat map has thousands of boxes; no page has
        largest = np.argsort(-areas.size_C[candidates], kind="stable")[: 3 * self.limit]
        candidates, boxes = candidates[np.sort(largest)], boxes[np.sort(largest)]
        flat = self.image.reshape(-1, 3)
        for index, box in zip(candidates.tolist(), boxes.tolist(), strict=True):
            bounds: Bounds = tuple(box)
            mask = areas.mask(index)
            fit = fit_rect(mask)
            if fit is None:
                if self._is_ground(bounds, mask, index, areas):
                    self._explain(bounds, mask)
                continue
            radius, thickness = fit
            color = _rgb(flat[areas.first_C[index]])
            if not color_of:
                pixels = self.image[bounds[1] : bounds[3], bounds[0] : bounds[2]][mask]
                color = _rgb(np.median(pixels[:: max(1, len(pixels) // 2000)], axis=0))
            if thickness:
                x0, y0, x1, y1 = bounds
                inner = self.image[y0 + thickness : y1 - thickness, x0 + thickness : x1 - thickness]
                fill, _ = main_color(inner)
                ring = Rect(
                    bounds=bounds,
                    color=fill,
                    border_color=color,
                    border_width=thickness,
                    radius=radius,
                    ring=True,
                    area=index,
                )
                self._explain(bounds, mask)
                if not is_soft_ring(self.image, ring):
                    found.append(ring)
                continue
            rect = Rect(bounds=bounds, color=color, radius=radius, area=index)
            self._explain(bounds, mask)
            grown, outside = add_border(self.image, rect)
            if self._stands_out(grown, outside):
                found.append(grown)
        return found

    def _explain(self, bounds: Bounds, mask: NDArray[np.bool_]) -> None:
        self.base[bounds[1] : bounds[3], bounds[0] : bounds[2]] |= mask

    def _is_ground(self, bounds: Bounds, mask: NDArray[np.bool_], index: int, areas: Areas) -> bool:
        """True for a large area that is no box but the ground other things stand on, not the ground of a drawing."""
        if areas.size_C[index] < 0.02 * self.height * self.width or not self._straight(mask):
            return False
        x, y = areas.first_C[index] % self.width, areas.first_C[index] // self.width
        color = _rgb(self.image[y, x])
        return color_distance(color, self.background) < 4 or self._has_text(bounds)

    @staticmethod
    def _straight(mask: NDArray[np.bool_]) -> bool:
        """True when the outline runs along rows and columns, as that of a page background does and a cloud's does not."""
        left, right = mask.argmax(1), mask[:, ::-1].argmax(1)
        top, bottom = mask.argmax(0), mask[::-1].argmax(0)
        return all(float((np.diff(edge) == 0).mean()) >= 0.85 for edge in (left, right, top, bottom) if len(edge) > 1)

    def _stands_out(self, rect: Rect, outside: list[RGB | None]) -> bool:
        touched = _edges_touched(rect.bounds, self.width, self.height)
        if (
            rect.bounds[0] <= 0
            and rect.bounds[2] >= self.width
            and rect.bounds[1] <= 0
            and rect.bounds[3] >= self.height
        ):
            return False
        same = color_distance(rect.color, self.background) < CONTRAST
        if same and touched >= 2:
            return False
        if rect.border_width or rect.shadow:
            return True
        sides = [color for color in outside if color is not None]
        differing = [color for color in sides if color_distance(color, rect.color) >= CONTRAST]
        if same:
            return len(differing) + touched >= 3 and len(differing) >= 2
        return len(differing) >= 1 or not sides

    def _gradients(self) -> list[Rect]:
        """Boxes filled by a smooth gradient: no flat area, but neighbours differ by a level or two only."""
        mask = ~self.base
        for x0, y0, x1, y1 in self.texts:
            mask[y0:y1, x0:x1] = False
        # gradients are wide: what an opening by a square of 9 px removes cannot hold one
        core = cv2.erode(mask.view(np.uint8), np.ones((9, 9), np.uint8))
        if int(core.sum()) < 200:
            return []
        mask &= (self.areas.size_C < 400)[self.areas.labels_HW]
        areas = find_areas(self.image, tolerance=2, mask=mask)
        outer = areas.labels_HW[~mask]
        areas.size_C[np.unique(outer)] = 0  # what lies outside the mask is not a candidate
        # a gradient fills its box; a soft shadow only goes around one
        whole = (areas.x1_C - areas.x0_C) * (areas.y1_C - areas.y0_C)
        areas.size_C[areas.size_C < 0.5 * whole] = 0
        return self._rects(areas, smallest=600, color_of=False)

    def _lines(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        areas = self.areas
        wide, high = areas.x1_C - areas.x0_C, areas.y1_C - areas.y0_C
        full = areas.size_C >= 0.85 * wide * high
        across = np.flatnonzero(full & (high <= LINE) & (wide >= 8) & (wide > 2 * high))
        down = np.flatnonzero(full & (wide <= LINE) & (high >= 4) & (high > 2 * wide))
        return across, down

    def _framed(self) -> list[Rect]:
        across, down = self._lines()
        areas = self.areas
        boxes = np.stack([areas.x0_C, areas.y0_C, areas.x1_C, areas.y1_C], axis=1)
        down = down[~glyph_parts(boxes[down], self.texts_M4)]
        return boxes_from_lines(areas, self.image, across, down)

    def _dedupe(self, rects: list[Rect]) -> list[Rect]:
        """One record a box: nearly equal boxes (a frame and its inside) become the one that knows its border."""
        ranked = sorted(
            rects,
            key=lambda r: (r.border_width == 0, r.ring, -area_of(r.bounds), r.bounds),
        )
        kept: list[Rect] = []
        for rect in ranked:
            for i, other in enumerate(kept):
                edge = max(abs(p - q) for p, q in zip(rect.bounds, other.bounds, strict=True))
                limit = max(2, other.border_width + 1)
                if edge <= limit:
                    if other.radius < 1 < rect.radius:
                        kept[i] = replace(other, radius=rect.radius)
                    break
            else:
                kept.append(rect)
        return kept

    def _stacked(self, rects: list[Rect], pictures: list[Bounds]) -> list[Rect]:
        """Join parts of one panel that a full-width child cut off or cut in two.

        The child is an active menu entry of a sidebar, a picture on top of a card, a line between head and body.
        """
        out = sorted(rects, key=lambda r: (r.bounds[1], r.bounds[0], -area_of(r.bounds)))
        changed = True
        while changed:
            changed = False
            twins: dict[tuple[RGB, int], list[Rect]] = {}
            for rect in out:
                if not rect.border_width:
                    twins.setdefault((rect.color, rect.bounds[0] // 4), []).append(rect)
            for i, upper in enumerate(out):
                cell = upper.bounds[0] // 4
                near = [r for c in (cell - 1, cell, cell + 1) for r in twins.get((upper.color, c), ())]
                lower = next((r for r in near if r is not upper and self._continues(upper, r, out, pictures)), None)
                if lower is not None:
                    a, b = upper.bounds, lower.bounds
                    joined = replace(
                        upper, bounds=(a[0], a[1], a[2], b[3]), area=-1, shadow=max(upper.shadow, lower.shadow)
                    )
                    out = [r for k, r in enumerate(out) if k != i and r is not lower] + [joined]
                    out.sort(key=lambda r: (r.bounds[1], r.bounds[0], -area_of(r.bounds)))
                    changed = True
                    break
        for i, rect in enumerate(out):
            x0, y0, x1, y1 = rect.bounds
            if rect.border_width:
                continue
            for p in pictures:
                wide = abs(p[0] - x0) <= 2 and abs(p[2] - x1) <= 2 and p[2] - p[0] >= 80 and p[3] - p[1] >= 40
                if wide and abs(p[3] - y0) <= 2:
                    out[i] = replace(rect, bounds=(x0, p[1], x1, y1))
                elif wide and abs(p[1] - y1) <= 2:
                    out[i] = replace(rect, bounds=(x0, y0, x1, p[3]))
        return out

    def _continues(self, upper: Rect, lower: Rect, rects: list[Rect], pictures: list[Bounds]) -> bool:
        """True when `lower` is the same panel as `upper`, going on below something of the panel's width."""
        if upper.color != lower.color or upper.border_width or lower.border_width:
            return False
        a, b = upper.bounds, lower.bounds
        if abs(a[0] - b[0]) > 1 or abs(a[2] - b[2]) > 1 or b[1] < a[3]:
            return False
        between = b[1] - a[3]
        if between <= 3:
            return True
        gap = (a[0], a[3], a[2], b[1])
        fillers = [r.bounds for r in rects if color_distance(r.color, self.background) >= CONTRAST] + pictures
        filled = any(
            abs(f[0] - a[0]) <= 2 and abs(f[2] - a[2]) <= 2 and shared(f, gap) >= 0.8 * area_of(gap)
            for f in fillers
            if f not in (a, b)
        )
        in_picture = any(abs(f[0] - a[0]) <= 2 and f[1] >= a[3] - 2 and f[3] <= b[1] + 2 for f in pictures)
        return filled and (in_picture or between < max(upper.height, lower.height))

    def _drop_remainders(self, rects: list[Rect]) -> list[Rect]:
        """Drop the rest of a bordered card that was found again as a box of its own: same colour, three edges shared."""
        out = []
        for rect in rects:
            again = False
            for other in rects:
                if other is rect or color_distance(other.color, rect.color) > 2:
                    continue
                if area_of(other.bounds) <= area_of(rect.bounds) or not inside(rect.bounds, other.bounds, 2):
                    continue
                slack = other.border_width + 2
                edges = [abs(p - q) <= slack for p, q in zip(rect.bounds, other.bounds, strict=True)]
                if sum(edges) >= 3 and (other.border_width or other.shadow or rect.border_width):
                    again = True
            if not again:
                out.append(rect)
        return out

    def _drop_lattice(self, rects: list[Rect]) -> list[Rect]:
        """Drop the cells of a faint background pattern: many small empty boxes of one size that hardly stand out."""

        def cell(rect: Rect) -> tuple[int, int] | None:
            faint = color_distance(rect.color, self._around(rect.bounds)) < 10
            # long bands are steps of a gradient and are joined elsewhere
            small = max(rect.width, rect.height) <= 50 and not rect.border_width
            return (rect.width // 2, rect.height // 2) if small and faint and not self._has_text(rect.bounds) else None

        cells = [cell(rect) for rect in rects]
        count = Counter(cells)
        return [rect for rect, c in zip(rects, cells, strict=True) if c is None or count[c] < 10]

    # what is not flat ---------------------------------------------------------------------------------------------

    def _pictures(self, rects: list[Rect]) -> tuple[list[Bounds], list[tuple[Bounds, RGB]]]:
        ink = ~self.base
        for text in self.texts:
            x0, y0, x1, y1 = text
            ink[max(0, y0 - 2) : y1 + 2, max(0, x0 - 3) : x1 + 3] = False
        ink &= ~self._soft()
        for rect in rects:
            self._clear_frame(ink, rect)
        rules: list[tuple[Bounds, RGB]] = []
        parts: list[tuple[Bounds, int]] = []
        for box, amount in blobs(ink):
            w, h = box[2] - box[0], box[3] - box[1]
            if min(w, h) <= LINE:
                if max(w, h) >= MIN_RULE and amount >= 0.6 * w * h:
                    color, _ = main_color(self.image[box[1] : box[3], box[0] : box[2]])
                    rules.append((box, color))
                elif min(w, h) >= 2 and max(w, h) >= 5:
                    parts.append((box, amount))
                continue
            if not self._halo(box, amount, rects):
                parts.append((box, amount))
        self.ink = ink
        pictures = [
            box
            for box, amount in merge_close(parts, gap=3)
            # what is smaller is the bullet of a list, which is no picture of its own
            if min(box[2] - box[0], box[3] - box[1]) >= 5 and max(box[2] - box[0], box[3] - box[1]) > 8 and amount >= 12
        ]
        return pictures, rules

    def _soft(self) -> NDArray[np.bool_]:
        """Pixels close to the page's colour that change only gradually: soft shadows, and the colour itself."""
        wide = self.image.astype(np.int16)
        off = np.abs(wide - np.array(self.background, np.int16)).max(-1)
        gray = np.ascontiguousarray(self.image.max(-1))
        steps = cv2.morphologyEx(gray, cv2.MORPH_GRADIENT, np.ones((3, 3), np.uint8))
        return (off <= 1) | ((off <= 48) & (steps <= 8))

    def _illustrations(self, rects: list[Rect], pictures: list[Bounds]) -> tuple[list[Rect], list[Bounds]]:
        """Flat boxes that are the ground of a drawing become one picture with it: no text of their own, much ink."""
        out: list[Rect] = []
        for rect in rects:
            x0, y0, x1, y1 = rect.bounds
            size = area_of(rect.bounds)
            drawn = [p for p in pictures if inside(p, rect.bounds, 2) and not inside(rect.bounds, p)]
            covered = sum(area_of(p) for p in drawn)
            read = sum(shared(t, rect.bounds) for t in self.texts)
            contains = any(r is not rect and inside(r.bounds, rect.bounds) and self._has_text(r.bounds) for r in rects)
            small = max(x1 - x0, y1 - y0) <= 80
            solid = drawn and max(self.ink[p[1] : p[3], p[0] : p[2]].mean() for p in drawn) > 0.9
            whole = size >= 0.6 * self.height * self.width
            ragged = drawn and (small or not solid)
            if (
                ragged
                and not whole
                and not contains
                and covered >= (0.12 if small else 0.3) * size
                and read < 0.02 * size
            ):
                pictures = [p for p in pictures if p not in drawn] + [rect.bounds]
            else:
                out.append(rect)
        # a small flat box that touches ink is a part of the icon drawn there
        kept: list[Rect] = []
        for rect in out:
            if max(rect.width, rect.height) <= 40 and not self._has_text(rect.bounds):
                grown = (rect.bounds[0] - 3, rect.bounds[1] - 3, rect.bounds[2] + 3, rect.bounds[3] + 3)
                near = [p for p in pictures if shared(p, grown) and max(p[2] - p[0], p[3] - p[1]) <= 80]
                outside = [p for p in near if not inside(p, rect.bounds, 1)]
                if outside:
                    boxes = [rect.bounds, *near]
                    joined = (min(b[0] for b in boxes), min(b[1] for b in boxes), max(b[2] for b in boxes), max(b[3] for b in boxes))  # fmt: skip
                    pictures = [p for p in pictures if p not in near] + [joined]
                    continue
            kept.append(rect)
        return kept, pictures

    def _has_text(self, bounds: Bounds) -> bool:
        return any(shared(t, bounds) >= 0.6 * area_of(t) for t in self.texts)

    def _small_rules(
        self, pictures: list[Bounds], rules: list[tuple[Bounds, RGB]]
    ) -> tuple[list[Bounds], list[tuple[Bounds, RGB]]]:
        """Short bars stacked closely are one icon (a menu sign), not rules."""
        short = [(box, 1) for box, _ in rules if max(box[2] - box[0], box[3] - box[1]) <= 40]
        stacks = [
            box
            for box, count in merge_close(short, gap=9)
            if count >= 2 and max(box[2] - box[0], box[3] - box[1]) <= 48
        ]
        left = [(box, color) for box, color in rules if not any(inside(box, stack) for stack in stacks)]
        left = [(box, color) for box, color in left if not any(inside(box, p) for p in pictures)]
        return pictures + stacks, left

    def _clear_frame(self, ink: NDArray[np.bool_], rect: Rect) -> None:
        """Take border, mixed corner pixels and shadow of a box out of the ink."""
        x0, y0, x1, y1 = rect.bounds
        b, out = (
            rect.border_width,
            2 + (min(40, rect.shadow * 2 + 4) if rect.shadow else 0),
        )
        ix0, iy0, ix1, iy1 = x0 + b + 1, y0 + b + 1, x1 - b - 1, y1 - b - 1
        r = int(np.ceil(rect.radius * 0.3)) + 1
        ox0, oy0 = max(0, x0 - out), max(0, y0 - out)
        keep = ink[max(0, iy0) : max(0, iy1), max(0, ix0) : max(0, ix1)].copy()
        if r > 1 and keep.size:
            c = min(r + int(rect.radius), *keep.shape)
            tri = np.add.outer(np.arange(c), np.arange(c)) < rect.radius * 0.6
            for view in (
                keep[:c, :c],
                keep[:c, ::-1][:, :c],
                keep[::-1][:c, :c],
                keep[::-1, ::-1][:c, :c],
            ):
                view[tri] = False
        ring = ink[oy0 : y1 + out, ox0 : x1 + out]
        ring[...] = False
        ink[max(0, iy0) : max(0, iy1), max(0, ix0) : max(0, ix1)] = keep

    def _halo(self, box: Bounds, amount: int, rects: list[Rect]) -> bool:
        """True for the remains of a shadow or a frame: little ink, all of it around one box."""
        if amount > 0.35 * area_of(box):
            return False
        for rect in rects:
            if inside(rect.bounds, box) and area_of(rect.bounds) >= 0.6 * area_of(box):
                return True
        return False

    def _drop_parts(self, rects: list[Rect], pictures: list[Bounds]) -> list[Rect]:
        """Flat boxes inside a picture belong to it unless text stands in them."""
        out = []
        for rect in rects:
            host = next(
                (p for p in pictures if inside(rect.bounds, p, 1) and area_of(p) > area_of(rect.bounds)),
                None,
            )
            if host is not None:
                texts = [t for t in self.texts if inside(t, rect.bounds, 3)]
                if not texts or area_of(rect.bounds) > 0.8 * area_of(host):
                    continue
            out.append(rect)
        return out

    # records ------------------------------------------------------------------------------------------------------

    def _mean(self, b: Bounds) -> RGB:
        crop = self.image[b[1] : b[3], b[0] : b[2]].reshape(-1, 3)
        r, g, blue = (int(v) for v in np.round(crop.mean(0)))
        return r, g, blue

    def _around(self, b: Bounds) -> RGB:
        """Most frequent colour just outside a box."""
        x0, y0, x1, y1 = b
        parts = []
        if y0 >= 2:
            parts.append(self.image[y0 - 2, x0:x1])
        if y1 + 1 < self.height:
            parts.append(self.image[y1 + 1, x0:x1])
        if x0 >= 2:
            parts.append(self.image[y0:y1, x0 - 2])
        if x1 + 1 < self.width:
            parts.append(self.image[y0:y1, x1 + 1])
        return main_color(np.concatenate(parts))[0] if parts else self.background

    def _shape(self, rect: Rect) -> Shape:
        framed = rect.border_width > 0
        kind = "outline" if framed and color_distance(rect.color, self._around(rect.bounds)) < 6 else "fill"
        return Shape(
            bounds=rect.bounds,
            kind=kind,
            color=rect.color,
            border_color=rect.border_color,
            border_width=float(rect.border_width),
            radius=round(rect.radius, 1),
        )

    def _worth(self, shape: Shape) -> float:
        order = {"fill": 3.0, "outline": 3.0, "picture": 2.0, "rule": 1.0}[shape.kind]
        return order + min(1.0, area_of(shape.bounds) / 20000)


def as_array(image: Image.Image | NDArray[np.uint8]) -> NDArray[np.uint8]:
    """uint8 [H, W, 3] of a picture; transparent parts lie on white, as in a browser."""
    if isinstance(image, np.ndarray):
        return np.ascontiguousarray(image[..., :3])
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", rgba.size, (255, 255, 255, 255)), rgba)
    return np.asarray(image.convert("RGB"))


def find_shapes(
    image: Image.Image | NDArray[np.uint8], texts: Sequence[Sequence[float]] = ()
) -> tuple[list[Shape], RGB]:
    """Shapes of a picture and the page's own colour.

    `texts` are boxes (x0, y0, x1, y1) of lines already read; their ink is not a shape. At most 120 shapes, unsorted.
    """
    array = as_array(image)
    height, width = array.shape[:2]
    rounded = [
        (
            max(0, int(np.floor(t[0]))),
            max(0, int(np.floor(t[1]))),
            min(width, int(np.ceil(t[2]))),
            min(height, int(np.ceil(t[3]))),
        )
        for t in texts
    ]
    shapes, background = _Finder(array, [t for t in rounded if area_of(t)]).run()
    return join_bands(shapes, array), background

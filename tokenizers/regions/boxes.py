"""Measure a box whose place is known: its own colour, border, corner radius and shadow."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from watersmeet.tokenizers.regions.rects import (
    MAX_BORDER,
    RGB,
    Bounds,
    color_distance,
    corner_radius,
    line_beside,
    main_color,
    walk_out,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class BoxLook:
    """What the pixels say about one box. `share` is how much of its free area has `color`; colours are RGB."""

    color: RGB
    share: float
    border_color: RGB | None
    border_width: float
    border_sides: str
    radius: float
    shadow: bool


def _free(image: NDArray[np.uint8], bounds: Bounds, exclude: Sequence[Bounds]) -> NDArray[np.uint8]:
    """Pixels [N, 3] of the box that lie outside `exclude`; along its edges when too few are left."""
    x0, y0, x1, y1 = bounds
    crop = image[y0:y1, x0:x1]
    mask = np.ones(crop.shape[:2], bool)
    for ex0, ey0, ex1, ey1 in exclude:
        mask[max(0, ey0 - 1 - y0) : max(0, ey1 + 1 - y0), max(0, ex0 - 1 - x0) : max(0, ex1 + 1 - x0)] = False
    if mask.sum() >= max(16, 0.03 * mask.size):
        return crop[mask]
    mask[...] = True
    mask[3:-3, 3:-3] = False
    return crop[mask]


def _border(image: NDArray[np.uint8], bounds: Bounds, side: str, inner: RGB) -> tuple[int, RGB | None]:
    """(width, colour) of the line along one side, looked for from one pixel outside to a few inside the box."""
    lines = []
    for depth in range(2, -MAX_BORDER - 3, -1):
        line = line_beside(image, bounds, side, depth)
        lines.append(main_color(line) if line is not None and len(line) else None)
    for start in range(1, 5):  # lines[3] is the first row inside the box
        found = lines[start]
        if found is None or found[1] < 0.6 or color_distance(found[0], inner) < 4:
            continue
        outside = lines[start - 1]
        if outside is not None and outside[1] >= 0.6 and color_distance(found[0], outside[0]) < 4:
            continue
        width = 1
        while start + width < len(lines):
            following = lines[start + width]
            if following is None or following[1] < 0.6 or color_distance(following[0], found[0]) > 3:
                break
            width += 1
        after = lines[start + width] if start + width < len(lines) else None
        if width <= MAX_BORDER and after is not None and color_distance(after[0], found[0]) >= 4:
            return width, found[0]
        return 0, None
    return 0, None


def _radius(image: NDArray[np.uint8], bounds: Bounds, look: list[RGB]) -> float:
    """Corner radius from what is missing of the box's own colours at its corners."""
    x0, y0, x1, y1 = bounds
    k = min(x1 - x0, y1 - y0) // 2
    if k < 3:
        return 0.0
    reach = min(k, 120)
    out = []
    crop = image[y0:y1, x0:x1].astype(np.int16)
    own = np.zeros(crop.shape[:2], bool)
    for color in look:
        own |= np.abs(crop - np.array(color, np.int16)).max(-1) <= 6
    for view in (own, own[:, ::-1], own[::-1], own[::-1, ::-1]):
        corner = view[:reach, :reach]
        first = np.where(corner.any(1), corner.argmax(1), reach)
        stop = int(np.argmax(first <= 0)) if (first <= 0).any() else reach
        # a staircase that only steps inwards; anything else is content
        steps = first[:stop]
        if len(steps) and (np.diff(steps) > 1).any():
            continue
        out.append(corner_radius(float(steps.sum())))
    return round(min(float(np.median(out)), (min(x1 - x0, y1 - y0)) / 2), 1) if len(out) >= 2 else 0.0


def measure_box(image_HW3: NDArray[np.uint8], box: Sequence[float], exclude: Sequence[Sequence[float]] = ()) -> BoxLook:
    """Look of `box` (x0, y0, x1, y1 px); `exclude` are boxes of what stands in it, which does not belong to its look."""
    height, width = image_HW3.shape[:2]

    def whole(b: Sequence[float]) -> Bounds:
        return (
            max(0, min(width, round(b[0]))),
            max(0, min(height, round(b[1]))),
            max(0, min(width, round(b[2]))),
            max(0, min(height, round(b[3]))),
        )

    bounds = whole(box)
    if bounds[2] - bounds[0] < 2 or bounds[3] - bounds[1] < 2:
        return BoxLook(color=(255, 255, 255), share=0.0, border_color=None, border_width=0.0, border_sides="", radius=0.0, shadow=False)  # fmt: skip
    pixels = _free(image_HW3, bounds, [whole(e) for e in exclude])
    color, share = main_color(pixels)
    if share < 0.35:
        r, g, b = (int(v) for v in np.median(pixels[:: max(1, len(pixels) // 4000)], axis=0))
        color = (r, g, b)
    sides = {side: _border(image_HW3, bounds, side, color) for side in "trbl"}
    lined = [side for side in "trbl" if sides[side][0]]
    border_color = sides[lined[0]][1] if lined else None
    # sides of another colour than the first are other things' edges
    lined = [s for s in lined if border_color and color_distance(sides[s][1] or color, border_color) <= 24]
    border = float(np.median([sides[s][0] for s in lined])) if lined else 0.0
    reach = max(walk_out(image_HW3, bounds, side, color)[3] for side in "blr")
    radius = _radius(image_HW3, bounds, [color] + ([border_color] if border_color else []))
    return BoxLook(
        color=color,
        share=round(share, 3),
        border_color=border_color if border else None,
        border_width=border,
        border_sides="".join(lined),
        radius=radius,
        shadow=reach >= 3,
    )

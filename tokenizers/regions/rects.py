"""Which flat areas are boxes: the rounded-rectangle test, the borders around a box, boxes made of thin lines."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watersmeet.tokenizers.regions.flat import Areas, pack_colors, unpack_color

RGB = tuple[int, int, int]
Bounds = tuple[int, int, int, int]  # x0, y0, x1, y1 in px, x1 and y1 exclusive

LINE = 4  # px: what is thinner is a line, not a box
MAX_BORDER = 6  # px
MAX_RADIUS = 32  # px, for boxes whose corners must be guessed between four lines


@dataclass(frozen=True, kw_only=True)
class Rect:
    """A box seen in the pixels. `ring` says that the area itself is only a frame."""

    bounds: Bounds
    color: RGB
    border_color: RGB | None = None
    border_width: int = 0
    radius: float = 0.0
    ring: bool = False
    area: int = -1  # index of the flat area it came from, -1 for boxes made of lines
    shadow: int = 0  # px that a soft shadow reaches out of it

    @property
    def width(self) -> int:
        return self.bounds[2] - self.bounds[0]

    @property
    def height(self) -> int:
        return self.bounds[3] - self.bounds[1]


def corner_radius(missing: float) -> float:
    """Radius whose quarter circle leaves `missing` pixels uncovered, half-covered edge pixels included.

    A quarter circle misses (1 - pi/4) r^2; about r of its edge pixels are mixed colours and do not belong to the area.
    """
    a, b = 1 - np.pi / 4, 0.45
    return float((-b + np.sqrt(b * b + 4 * a * missing)) / (2 * a)) if missing > 0 else 0.0


def fit_rect(mask: NDArray[np.bool_]) -> tuple[float, int] | None:
    """(corner radius, frame thickness or 0) when the area fills its own box like a rounded rectangle, else None.

    Holes do not matter, nor does what covers part of an edge: 60 % of each edge must be the area's own.
    """
    height, width = mask.shape
    left, right = mask.argmax(1), mask[:, ::-1].argmax(1)
    top, bottom = mask.argmax(0), mask[::-1].argmax(0)
    if not mask.any(1).all() or not mask.any(0).all():
        return None
    k = min(height, width) // 2
    corners = []
    for near_side, near_end in (
        (left, top),
        (right, top[::-1]),
        (left[::-1], bottom),
        (right[::-1], bottom[::-1]),
    ):
        # what lies under both profiles is missing at this corner
        reach = min(k, 200)
        side = np.minimum(near_side[:reach], reach)
        if side[0] == 0 or near_end[0] == 0:
            corners.append(0.0)
            continue
        stop = int(np.argmax(side <= 0)) if (side <= 0).any() else reach
        corners.append(corner_radius(float(side[:stop].sum())))
    radius = min(float(np.median(corners)), k)
    inset = int(min(np.ceil(radius), k - 1)) if k > 1 else 0
    rows, columns = slice(inset, height - inset), slice(inset, width - inset)
    # the very first rows of a large box may be shaded by its neighbour's shadow
    cover = [
        float((edge <= 1 + (min(2, float(np.median(edge))) if min(height, width) >= 40 else 0)).mean())
        for edge in (left[rows], right[rows], top[columns], bottom[columns])
    ]
    if min(cover) < 0.6 or sum(cover) < 3.0:
        return None
    if radius > 2:  # the corners must be round, not cut or ragged
        step = np.arange(inset) + 0.5
        model = radius - np.sqrt(np.maximum(radius**2 - (radius - step) ** 2, 0))
        wrong = [float(np.abs(edge[:inset] - model).mean()) for edge in (left, right, left[::-1], right[::-1])]
        if sorted(wrong)[1] > 1.0 + 0.1 * radius:
            return None
    thickness = 0
    if int(mask.sum()) < 0.6 * height * width and min(height, width) > 2 * LINE:
        depth = min(2 * MAX_BORDER, k)
        runs = [
            np.median(np.cumprod(part, axis=1).sum(1))
            for part in (
                mask[rows, :depth],
                mask[rows, ::-1][:, :depth],
                mask[:depth, columns].T,
                mask[::-1, columns][:depth].T,
            )
        ]
        if max(runs) <= MAX_BORDER:
            thickness = int(max(1, round(float(np.median(runs)))))
    return radius, thickness


def line_beside(image: NDArray[Any], bounds: Bounds, side: str, depth: int) -> NDArray[Any] | None:
    """Pixels of the line `depth` px outside (>= 0) or inside (< 0) one side, without its corners; None beyond the edge."""
    x0, y0, x1, y1 = bounds
    height, width = image.shape[:2]
    cut_x, cut_y = max(1, int((x1 - x0) * 0.2)), max(1, int((y1 - y0) * 0.2))
    if side in "tb":
        y = y0 - 1 - depth if side == "t" else y1 + depth
        return image[y, x0 + cut_x : x1 - cut_x] if 0 <= y < height and x1 - x0 > 2 * cut_x else None
    x = x0 - 1 - depth if side == "l" else x1 + depth
    return image[y0 + cut_y : y1 - cut_y, x] if 0 <= x < width and y1 - y0 > 2 * cut_y else None


def main_color(pixels_N3: NDArray[Any]) -> tuple[RGB, float]:
    """The most frequent colour and its share (within 3 levels a channel); white with share 0 for no pixels."""
    if pixels_N3.ndim == 3:  # a sample of a large box is enough
        step = max(1, int((pixels_N3.shape[0] * pixels_N3.shape[1] / 20000) ** 0.5))
        pixels_N3 = pixels_N3[::step, ::step]
    flat = pixels_N3.reshape(-1, 3)
    if not len(flat):
        return (255, 255, 255), 0.0
    packed = pack_colors(flat)
    middle = packed[len(packed) // 2]
    if np.count_nonzero(packed == middle) * 2 > len(packed):
        color = unpack_color(middle)  # more than half: no need to count the others
    else:
        values, counts = np.unique(packed, return_counts=True)
        color = unpack_color(values[counts.argmax()])
    close = np.abs(flat.astype(np.int16) - np.array(color, np.int16)).max(1) <= 3
    return color, float(close.mean())


def color_distance(a: RGB, b: RGB) -> int:
    return max(abs(int(p) - int(q)) for p, q in zip(a, b, strict=True))


def walk_out(image: NDArray[Any], bounds: Bounds, side: str, inner: RGB) -> tuple[int, RGB | None, RGB | None, int]:
    """Walk outwards over one side: (border width, border colour, settled colour outside, px of soft shadow)."""
    colors: list[RGB] = []
    for depth in range(MAX_BORDER + 4):
        line = line_beside(image, bounds, side, depth)
        if line is None or not len(line):
            break
        color, share = main_color(line)
        if share < 0.55:
            break
        colors.append(color)
    if not colors:
        return 0, None, None, 0
    border = 0
    first = colors[0]
    while border < len(colors) and color_distance(colors[border], first) <= 3:
        border += 1
    far = colors[-1]
    if border <= MAX_BORDER and border < len(colors):
        after = colors[border]
        step, whole = color_distance(first, after), color_distance(first, far)
        inner_step = color_distance(first, inner)
        # the edge of a border is abrupt; a shadow fades by small steps
        if step >= 4 and inner_step >= 4 and (step >= 0.5 * whole or step >= 24):
            reach = 0
            for color in colors[border:]:
                if color_distance(color, far) < 2:
                    break
                reach += 1
            return border, first, far, reach if reach > 1 else 0
    elif border <= MAX_BORDER and border == len(colors) and len(colors) < MAX_BORDER + 4:
        # the line ends at something uneven (a neighbour box, the picture's edge)
        if color_distance(first, inner) >= 4 and border <= 3:
            return border, first, None, 0
    reach = 0
    if len(colors) > 2:
        for color in colors:
            if color_distance(color, far) < 2:
                break
            reach += 1
        if reach == len(colors) or reach < 2:
            reach = 0
    return 0, None, far, reach


def add_border(image: NDArray[Any], rect: Rect) -> tuple[Rect, list[RGB | None]]:
    """Look around a filled box for a border: the box with it, and the colours that surround it (t, r, b, l)."""
    found = {side: walk_out(image, rect.bounds, side, rect.color) for side in "trbl"}
    outside = [found[side][2] for side in "trbl"]
    widths = [found[side][0] for side in "trbl"]
    colors = [found[side][1] for side in "trbl"]
    shadow = max(found[side][3] for side in "trbl")
    seen = [(w, c) for w, c in zip(widths, colors, strict=True) if w]
    if len(seen) >= 3:
        width = int(np.median([w for w, _ in seen]))
        color = seen[0][1]
        assert color is not None
        if all(c is not None and color_distance(c, color) <= 40 for _, c in seen) and width <= MAX_BORDER:
            x0, y0, x1, y1 = rect.bounds
            height, full = image.shape[:2]
            bounds = (
                max(0, x0 - width),
                max(0, y0 - width),
                min(full, x1 + width),
                min(height, y1 + width),
            )
            radius = rect.radius + width if rect.radius > 1 else rect.radius
            # an inner radius of a pixel or two leaves no trace inside; the corner of the border shows it
            grown = replace(
                rect,
                bounds=bounds,
                border_color=color,
                border_width=width,
                radius=radius,
                shadow=shadow,
            )
            return grown, outside
    return replace(rect, shadow=shadow), outside


def is_soft_ring(image: NDArray[Any], rect: Rect) -> bool:
    """True for one step of a soft shadow: its colour hardly differs from what lies just outside or just inside."""
    x0, y0, x1, y1 = rect.bounds
    b = rect.border_width
    color = rect.border_color
    if color is None:
        return False
    soft = 0
    for side in "trbl":
        outer, inner = (
            line_beside(image, rect.bounds, side, 0),
            line_beside(image, (x0 + b, y0 + b, x1 - b, y1 - b), side, -1),
        )
        steps = [
            color_distance(main_color(line)[0], color) for line in (outer, inner) if line is not None and len(line)
        ]
        soft += bool(steps) and min(steps) < 5
    return soft >= 2


def boxes_from_lines(areas: Areas, image: NDArray[Any], across: NDArray[Any], down: NDArray[Any]) -> list[Rect]:
    """Boxes whose four sides are thin lines that do not meet, because their corners are round and mixed in colour.

    `across` and `down` are indices of horizontal and vertical line areas.
    """
    if len(across) < 2 or len(down) < 2:
        return []
    order = np.argsort(areas.x0_C[down], kind="stable")
    down = down[order]
    flat = image.reshape(-1, 3)
    color_down = flat[areas.first_C[down]].astype(np.int16)
    color_across = flat[areas.first_C[across]].astype(np.int16)
    x0, y0, x1, y1 = areas.x0_C, areas.y0_C, areas.x1_C, areas.y1_C
    out: list[Rect] = []
    for i, a in enumerate(down[:400]):
        twins = (
            (np.abs(y0[down] - y0[a]) <= 2)
            & (np.abs(y1[down] - y1[a]) <= 2)
            & (x0[down] >= x1[a] + 6)
            & (np.abs(color_down - color_down[i]).max(1) <= 8)
        )
        for b in down[twins][:6]:
            left, right = int(x0[a]), int(x1[b])
            fits = (
                (np.abs(color_across - color_down[i]).max(1) <= 8)
                & (x0[across] >= left - 1)
                & (x0[across] <= left + MAX_RADIUS)
                & (x1[across] <= right + 1)
                & (x1[across] >= right - MAX_RADIUS)
                & (np.abs((x0[across] - left) - (right - x1[across])) <= 3)
            )
            lines = across[fits]
            above = lines[(y1[lines] <= y0[a] + 3) & (y0[lines] >= y0[a] - MAX_RADIUS)]
            below = lines[(y0[lines] >= y1[a] - 3) & (y1[lines] <= y1[a] + MAX_RADIUS)]
            if not len(above) or not len(below):
                continue
            top, bottom = above[np.argmax(y0[above])], below[np.argmin(y1[below])]
            bounds = (left, int(y0[top]), right, int(y1[bottom]))
            # round corners take as much from the sides as from the top; else the lines belong to two boxes
            if bounds[3] - bounds[1] < 8 or abs((int(x0[top]) - left) - (int(y0[a]) - bounds[1])) > 4:
                continue
            thickness = int(min(x1[a] - x0[a], y1[top] - y0[top]))
            inner = image[
                bounds[1] + thickness + 1 : bounds[3] - thickness - 1,
                left + thickness + 1 : right - thickness - 1,
            ]
            if not inner.size:
                continue
            color, _ = main_color(inner[:: max(1, inner.shape[0] // 64), :: max(1, inner.shape[1] // 64)])
            radius = float(max(x0[top] - left, y0[a] - bounds[1]))
            # the lines end where the curve leaves their first pixel: about sqrt(2 r) px before the corner's own end
            radius = radius + float(np.sqrt(radius)) * 0.5 if radius > 1 else radius
            out.append(
                Rect(
                    bounds=bounds,
                    color=color,
                    border_color=unpack_color(int(pack_colors(flat[areas.first_C[a]]))),
                    border_width=thickness,
                    radius=round(radius, 1),
                    ring=True,
                )
            )
            break
    return out

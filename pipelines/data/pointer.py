"""The pointers that recordings show: drawn large, made small, kept as sprites with a soft edge."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache

from PIL import Image, ImageDraw

KINDS = ("arrow", "hand", "beam")
_FINE = 4  # drawn so many times as large
_ARROW = ((0, 0), (0, 17), (4, 13), (7, 19), (10, 18), (7, 12), (12, 12))
_HAND = (
    (5, 0),
    (7, 0),
    (8, 7),
    (11, 6),
    (14, 7),
    (17, 9),
    (17, 15),
    (15, 21),
    (6, 21),
    (0, 13),
    (1, 11),
    (5, 14),
    (4, 2),
)
_BEAM = ((0, 0), (7, 0), (7, 2), (5, 2), (5, 16), (7, 16), (7, 18), (0, 18), (0, 16), (3, 16), (3, 2), (0, 2))
_SHAPES = {
    "arrow": (_ARROW, (0, 0)),
    "hand": (_HAND, (6, 0)),
    "beam": (_BEAM, (4, 9)),
}  # outline, the point that points


@dataclass(frozen=True, kw_only=True)
class Style:
    """How one recording's pointer looks. size: of the usual one. changes: into a hand over what can be pressed.

    halo: a pale disc below it. ripple: a press draws a ring that grows.
    """

    fill: str = "black"
    edge: str = "white"
    size: float = 1.0
    changes: bool = False
    halo: bool = False
    ripple: bool = False


def drawn_style(rng: random.Random) -> Style:
    """A style as recordings have it."""
    fill, edge = rng.choice((("black", "white"), ("black", "white"), ("white", "black")))
    return Style(
        fill=fill,
        edge=edge,
        size=rng.choice((1.0, 1.0, 1.0, 1.25, 1.6, 2.0)),
        changes=rng.random() < 0.5,
        halo=rng.random() < 0.12,
        ripple=rng.random() < 0.2,
    )


@cache
def sprite(kind: str, style: Style) -> tuple[Image.Image, tuple[int, int]]:
    """(RGBA picture, where in it the point is that points)."""
    outline, tip = _SHAPES[kind]
    scale = style.size * _FINE
    pad = 22 if style.halo else 2
    width, height = (2 * pad + max(p[k] for p in outline) + 1 for k in (0, 1))
    image = Image.new("RGBA", (round(width * scale), round(height * scale)), (0, 0, 0, 0))
    pen = ImageDraw.Draw(image)
    if style.halo:
        x, y = ((pad + t) * scale for t in tip)
        pen.ellipse((x - 20 * scale, y - 20 * scale, x + 20 * scale, y + 20 * scale), fill=(255, 214, 0, 110))
    points = [((x + pad) * scale, (y + pad) * scale) for x, y in outline]
    pen.line([*points, points[0], points[1]], fill=style.edge, width=round(2 * scale), joint="curve")
    pen.polygon(points, fill=style.fill)
    small = image.resize((round(width * style.size), round(height * style.size)), Image.Resampling.BOX)
    return small, (round((pad + tip[0]) * style.size), round((pad + tip[1]) * style.size))


def draw_pointer(frame: Image.Image, tip: tuple[int, int], kind: str, style: Style) -> None:
    """Put the pointer on `frame` so that it points at `tip`."""
    picture, point = sprite(kind, style)
    frame.paste(picture, (tip[0] - point[0], tip[1] - point[1]), picture)


def draw_ripple(frame: Image.Image, tip: tuple[int, int], age: float, lasting: float) -> None:
    """The ring of a press, `age` seconds after it."""
    radius = 6 + 22 * age / lasting
    box = (tip[0] - radius, tip[1] - radius, tip[0] + radius, tip[1] + radius)
    ImageDraw.Draw(frame).ellipse(box, outline=(90, 150, 250), width=3)

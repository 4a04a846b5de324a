"""Regions of a screenshot: what pixels alone say, before any model has looked.

Text regions are lines that were read (OCR); shape regions are boxes that were found: filled panels, outlined boxes,
pictures and icons, thin rules. Both are measured records of plain numbers, so they can also be made from a rendered
page to train on.
"""

from dataclasses import asdict, dataclass
from typing import Any

from watersmeet.core.geometry import Box
from watersmeet.pipelines.layout.tree import RGB

SHAPE_KINDS = ("fill", "outline", "picture", "rule")


@dataclass(frozen=True, kw_only=True, slots=True)
class TextRegion:
    """One read line. `font_size` in px; `weight` is 400 or 700; colours are measured inside and behind the glyphs."""

    box: Box
    text: str
    color: RGB = (0, 0, 0)
    background: RGB = (255, 255, 255)
    font_size: float = 16.0
    weight: int = 400
    confidence: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ShapeRegion:
    """One box found in the pixels: `fill` (flat colour), `outline` (bordered), `picture` (not flat), `rule` (thin line)."""

    box: Box
    kind: str
    color: RGB = (255, 255, 255)  # fill colour; mean colour of a picture
    border_color: RGB | None = None
    border_width: float = 0.0
    radius: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Regions:
    """All regions of one picture of `width` x `height` px, each list in reading order."""

    width: int
    height: int
    texts: tuple[TextRegion, ...] = ()
    shapes: tuple[ShapeRegion, ...] = ()
    background: RGB = (255, 255, 255)  # the page's own colour

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def is_page(self, box: Box) -> bool:
        """Whether `box` is a large part of the page with text on it: to take that for one picture is to copy the page."""
        if box.area < 0.35 * self.width * self.height:
            return False
        return sum(t.box.intersection(box) > 0.9 * t.box.area for t in self.texts) >= 5

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Regions":
        return cls(
            width=data["width"],
            height=data["height"],
            background=tuple(data["background"]),
            texts=tuple(TextRegion(**_plain(t)) for t in data["texts"]),
            shapes=tuple(ShapeRegion(**_plain(s)) for s in data["shapes"]),
        )


def _plain(data: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
    out["box"] = Box(**data["box"])
    return out

"""What the scores look at: lines, boxes and pixels of one page, from a render or from a picture alone."""

from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image

from watersmeet.core.geometry import Box
from watersmeet.pipelines.browser.render import RenderedPage
from watersmeet.pipelines.layout import walker
from watersmeet.pipelines.layout.regions import ShapeRegion, TextRegion
from watersmeet.pipelines.layout.tree import RGB


@dataclass(frozen=True, kw_only=True)
class ScoredLine:
    """One visual line; `kind` is one of `walker.LINE_KINDS`, or None where it cannot be known."""

    text: str
    box: Box
    color: RGB
    kind: str | None = None


@dataclass(frozen=True, kw_only=True)
class PageFacts:
    """One page at one size. `boxes` and `picture_cover` are None where a picture alone cannot tell."""

    width: int
    height: int
    picture: Image.Image
    lines: tuple[ScoredLine, ...]
    boxes: tuple[tuple[str, Box], ...] | None
    absolute_share: float = 0.0
    largest_picture: float = 0.0
    picture_cover: float | None = None
    overflow_x: float = 0.0
    cut_lines: int = 0


def facts_from_page(page: RenderedPage) -> PageFacts:
    """Facts of a rendered page, read from its DOM."""
    raw = page.raw
    lines = walker.dom_lines(raw, page.screenshot)
    return PageFacts(
        width=page.screenshot.width,
        height=page.screenshot.height,
        picture=page.screenshot.convert("RGB"),
        lines=tuple(ScoredLine(text=x.text, box=x.box, color=x.color, kind=x.kind) for x in lines if x.text.strip()),
        boxes=tuple(walker.dom_boxes(raw)),
        absolute_share=walker.absolute_share(raw),
        largest_picture=walker.largest_picture_share(raw),
        picture_cover=walker.picture_cover(raw),
        overflow_x=walker.overflow_x(raw),
        cut_lines=sum(line.cut for line in lines),
    )


def facts_from_picture(
    picture: Image.Image, texts: Sequence[TextRegion], shapes: Sequence[ShapeRegion] = ()
) -> PageFacts:
    """Facts of a picture: its read lines without kinds, its pixels, and how much of it found pictures cover."""
    area = float(picture.width * picture.height)
    cover = sum(s.box.area for s in shapes if s.kind == "picture") / area
    return PageFacts(
        width=picture.width,
        height=picture.height,
        picture=picture.convert("RGB"),
        lines=tuple(ScoredLine(text=t.text, box=t.box, color=t.color) for t in texts if t.text.strip()),
        boxes=None,
        picture_cover=min(1.0, cover),
    )

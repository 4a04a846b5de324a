"""Fill the styles of a layout tree from the picture it was read from.

The model only labels and groups; every colour, size and line here is measured. Measuring itself belongs to the regions
modality and is reached through the registry.
"""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
from PIL import Image

from watersmeet.core.geometry import Box
from watersmeet.pipelines.layout.regions import Regions, ShapeRegion
from watersmeet.pipelines.layout.tree import CONTAINERS, CONTROLS, RGB, TEXTS, Node, Style, TextLine
from watersmeet.pipelines.measure.dividers import add_dividers
from watersmeet.plugins import get_registry

FILL_CONTRAST = 2  # levels a channel: fainter fills cannot be seen
SAME_BOX = 0.7  # intersection over union from which a shape region is the node's own box
_FAMILIES = ("sans", "serif", "mono", "wide", "narrow")


def measure_tree(tree: Node, image: Image.Image, regions: Regions) -> Node:
    """`tree` with styles measured in `image`; boxes are pixels of that image. Kinds, texts and order stay as they are.

    Containers and controls get fill, border, radius and shadow; lines get colour, size, weight, family and underline;
    text leaves get an alignment. Thin lines that the tree does not mention become borders or `rule` nodes.
    """
    return _Measurer(image, regions).run(tree)


def _tuple(box: Box) -> tuple[float, float, float, float]:
    return box.x0, box.y0, box.x1, box.y1


def _distance(a: RGB, b: RGB) -> int:
    return max(abs(p - q) for p, q in zip(a, b, strict=True))


_LARGE = 160.0  # px: what is larger on both sides is a panel, and no panel is drawn as a pill
_PANEL_RADIUS = 28.0


def _plausible_radius(radius: float, box: Box) -> float:
    """`radius` in px, or 0 where a panel's corners only look cut because its colour changes towards them."""
    return 0.0 if radius > _PANEL_RADIUS and min(box.width, box.height) > _LARGE else round(radius, 1)


class _Measurer:
    def __init__(self, image: Image.Image, regions: Regions) -> None:
        self.encoder = get_registry().encoder("regions", {})
        self.array = np.asarray(image.convert("RGB"))
        self.regions = regions
        self.looks: dict[int, Any] = {}
        self.taken: set[Box] = set()  # boxes of shapes that are drawn by a container or a control

    def run(self, tree: Node) -> Node:
        lines = [line for node in tree.walk() for line in node.lines]
        found = self.encoder.measure_texts(self.array, [(_tuple(line.box), line.text) for line in lines])
        self.looks = {id(line): look for line, look in zip(lines, found, strict=True)}
        for node in tree.walk():
            if node.kind in CONTAINERS or node.kind in CONTROLS:
                shape = self._shape_of(node.box, ("fill", "outline"))
                if shape is not None:
                    self.taken.add(shape.box)
        measured = self._node(tree, self.regions.background, top=True)
        return add_dividers(measured, self.regions)

    # boxes --------------------------------------------------------------------------------------------------------

    def _shape_of(self, box: Box, kinds: tuple[str, ...]) -> ShapeRegion | None:
        best = max((s for s in self.regions.shapes if s.kind in kinds), key=lambda s: s.box.iou(box), default=None)
        return best if best is not None and best.box.iou(box) >= SAME_BOX else None

    def _node(self, node: Node, paper: RGB, top: bool = False) -> Node:
        """The node with its style; `paper` is the colour painted behind it."""
        if node.kind in TEXTS:
            return self._text(node, paper)
        style = node.style
        if top:
            paper = self.regions.background
            style = replace(style, background=paper)
        elif node.kind in CONTAINERS or node.kind in CONTROLS:
            style = self._fill(node, paper)
            paper = style.background or paper
        elif node.kind == "rule":
            color, _ = self._main(node.box)
            style = replace(style, background=color)
        elif node.kind == "check":
            style = self._fill(node, paper)
        else:
            color, _ = self._main(node.box)
            style = replace(style, color=color)
        lines = tuple(self._line(line) for line in node.lines)
        if node.kind in CONTROLS and lines:
            style = replace(self._common(style, lines), align=self._control_align(node, lines))
        children = tuple(self._node(child, paper) for child in node.children)
        return node.replace(style=style, lines=lines, children=children)

    def _main(self, box: Box) -> tuple[RGB, float]:
        look = self.encoder.measure_box(self.array, _tuple(box))
        return look.color, look.share

    def _fill(self, node: Node, paper: RGB) -> Style:
        """Fill, border, radius and shadow of a box that stands on `paper`."""
        exclude = [_tuple(child.box) for child in node.children] + [_tuple(line.box) for line in node.lines]
        look = self.encoder.measure_box(self.array, _tuple(node.box), exclude)
        shape = self._shape_of(node.box, ("fill", "outline"))
        over = self._on_picture(node)
        if shape is not None:
            background: RGB | None = shape.color
            border = (shape.border_color, shape.border_width, "trbl")
            if not shape.border_width and len(look.border_sides) >= 3:
                border = (look.border_color, look.border_width, look.border_sides)
            radius = shape.radius if shape.radius >= 1.5 else look.radius if look.radius >= 1.5 else 0.0
        else:
            # without a box of its own seen in the pixels only a clear and even colour counts
            background = look.color if look.share >= 0.6 and not over else None
            border = (look.border_color, look.border_width, look.border_sides)
            radius = 0.0
            if node.kind in CONTROLS and len(look.border_sides) >= 3:
                radius = look.radius
            elif len(look.border_sides) < 4:
                border = (None, 0.0, "trbl")
        if background is not None and _distance(background, paper) < FILL_CONTRAST:
            background = None
        color, width, sides = border
        if color is None or not width:
            color, width, sides = None, 0.0, "trbl"
        return replace(
            node.style,
            background=background,
            border_color=color,
            border_width=width,
            border_sides=sides or "trbl",
            radius=_plausible_radius(radius, node.box) if background is not None or width or look.shadow else 0.0,
            shadow=look.shadow and (shape is not None or node.kind in ("card", "button")),
        )

    def _on_picture(self, node: Node) -> bool:
        """True when most of the node lies on one of its own pictures (a headline over a photograph)."""
        return any(
            child.kind == "img" and child.box.intersection(node.box) >= 0.5 * node.box.area for child in node.children
        )

    # text ---------------------------------------------------------------------------------------------------------

    def _line(self, line: TextLine) -> TextLine:
        look = self.looks[id(line)]
        family = look.family if look.family in _FAMILIES else "sans"
        return replace(
            line,
            style=replace(
                line.style,
                color=look.color,
                font_size=look.font_size,
                font_weight=look.weight,
                font_family=family,
                underline=look.underline,
            ),
        )

    @staticmethod
    def _common(style: Style, lines: tuple[TextLine, ...]) -> Style:
        """What most of the lines' text has in common, as the node's own text style."""
        count: Counter[tuple[Any, ...]] = Counter()
        for line in lines:
            s = line.style
            count[s.color, s.font_weight, s.font_family, s.underline] += max(1, len(line.text))
        color, weight, family, underline = count.most_common(1)[0][0]
        sizes = sorted((line.style.font_size or 16.0, len(line.text)) for line in lines)
        # the longest line is measured best
        size = max(sizes, key=lambda s: s[1])[0]
        return replace(style, color=color, font_weight=weight, font_family=family, underline=underline, font_size=size)

    def _even(self, lines: tuple[TextLine, ...]) -> tuple[TextLine, ...]:
        """Lines of one paragraph share size and weight; single measurements scatter by a few per cent."""
        if len(lines) < 2:
            return lines
        weights = np.array([max(1, len(line.text)) for line in lines], float)
        sizes = np.array([line.style.font_size or 16.0 for line in lines])
        order = np.argsort(sizes)
        middle = float(sizes[order][np.searchsorted(np.cumsum(weights[order]), weights.sum() / 2)])
        usual = Counter[int | None]()
        for line in lines:
            usual[line.style.font_weight] += len(line.text)
        weight = usual.most_common(1)[0][0]
        return tuple(
            replace(
                line,
                style=replace(
                    line.style,
                    font_size=middle
                    if abs((line.style.font_size or 16.0) - middle) <= 0.15 * middle
                    else line.style.font_size,
                    font_weight=weight if len(line.text) < 12 else line.style.font_weight,
                ),
            )
            for line in lines
        )

    def _text(self, node: Node, paper: RGB) -> Node:
        lines = self._even(tuple(self._line(line) for line in node.lines))
        if not lines:
            return node
        style = replace(self._common(node.style, lines), align=_align([line.box for line in lines]))
        box, filled = node.box, self._badge(node, paper)
        if filled is not None:
            shape = filled
            box = node.box.union(shape.box)
            style = replace(
                style,
                background=shape.color if _distance(shape.color, paper) >= FILL_CONTRAST else None,
                border_color=shape.border_color,
                border_width=shape.border_width,
                radius=shape.radius,
                align="center",
            )
        return node.replace(
            style=style, lines=lines, box=box, children=tuple(self._node(c, paper) for c in node.children)
        )

    def _badge(self, node: Node, paper: RGB) -> ShapeRegion | None:
        """The small box painted right behind a text leaf (a badge, a tag, marked code), if there is one."""
        text = Box.around([line.box for line in node.lines])
        tight = [
            s
            for s in self.regions.shapes
            if s.kind in ("fill", "outline")
            and s.box not in self.taken
            and s.box.contains(text, 2.0)
            and s.box.width <= text.width + 4 * text.height
            and s.box.height <= 2.2 * text.height + 4
            and (s.border_width or _distance(s.color, paper) >= FILL_CONTRAST)
        ]
        return min(tight, key=lambda s: s.box.area, default=None)

    def _control_align(self, node: Node, lines: tuple[TextLine, ...]) -> str:
        text = Box.around([line.box for line in lines])
        left, right = text.x0 - node.box.x0, node.box.x1 - text.x1
        if node.kind == "button":
            return "center" if abs(left - right) <= max(4.0, 0.35 * max(left, right)) or left > 24 else "left"
        return "left" if left <= right + 4 else "right"


def _align(boxes: list[Box]) -> str | None:
    """Alignment of a block from the edges of its lines; None for a single line, which shows none."""
    if len(boxes) < 2:
        return None
    spread = {
        "left": max(b.x0 for b in boxes) - min(b.x0 for b in boxes),
        "center": max(b.center[0] for b in boxes) - min(b.center[0] for b in boxes),
        "right": max(b.x1 for b in boxes) - min(b.x1 for b in boxes),
    }
    best = min(spread, key=lambda side: (spread[side] > 3.0, spread[side] if spread[side] > 3.0 else 0))
    return best

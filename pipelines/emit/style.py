"""From measured styles to CSS declarations, and the few shared classes that carry the flow directions."""

from dataclasses import dataclass, field

from watersmeet.pipelines.emit.fonts import FAMILIES, Font
from watersmeet.pipelines.layout.tree import RGB, Style

Declarations = dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Shared:
    """A class used by many elements: rules for every width, at the picture's width (`wide`) and below (`small`).

    The `children` forms apply to the direct children.
    """

    always: Declarations = field(default_factory=dict)
    wide: Declarations = field(default_factory=dict)
    small: Declarations = field(default_factory=dict)
    wide_children: Declarations = field(default_factory=dict)
    small_children: Declarations = field(default_factory=dict)
    always_children: Declarations = field(default_factory=dict)


SHARED: dict[str, Shared] = {
    "row": Shared(
        always={"display": "flex"},
        wide={"align-items": "flex-start"},
        small={"flex-wrap": "wrap", "align-items": "center", "gap": "10px 16px"},
        wide_children={"flex": "none"},
    ),
    "column": Shared(
        always={"display": "flex", "flex-direction": "column"},
        small={"gap": "10px"},
    ),
    "grid": Shared(
        always={"display": "grid"},
        wide={"align-items": "start"},
        small={"grid-template-columns": "repeat(auto-fit, minmax(min(100%, 240px), 1fr))", "gap": "16px"},
    ),
    "tiles": Shared(  # a grid of narrow columns
        always={"display": "grid"},
        wide={"align-items": "start"},
        small={"grid-template-columns": "repeat(auto-fit, minmax(min(100%, 96px), 1fr))", "gap": "12px"},
    ),
    "stack": Shared(
        wide={"display": "grid", "grid-template-columns": "minmax(0, 1fr)"},
        small={"display": "flex", "flex-direction": "column", "gap": "10px"},
        wide_children={"grid-area": "1 / 1", "align-self": "start", "justify-self": "start"},
    ),
    "cover": Shared(  # a picture or panel with everything else in front of it
        always={"display": "grid", "grid-template-columns": "minmax(0, 1fr)"},
        always_children={"grid-area": "1 / 1"},
        wide_children={"align-self": "start", "justify-self": "start"},
    ),
    "cells": Shared(
        always={"display": "flex"},
        wide={"align-items": "flex-start"},
        small={"flex-wrap": "wrap", "gap": "8px"},
        wide_children={"flex": "none"},
        small_children={"flex": "1 1 64px"},
    ),
    "wrap": Shared(always={"display": "flex", "flex-direction": "column"}),
    "back": Shared(small={"width": "100%", "height": "100%", "object-fit": "cover"}),
    "fill": Shared(small={"flex": "1 1 240px"}),
    "pad": Shared(small={"padding": "12px 16px"}),
    "snug": Shared(small={"padding": "3px 8px", "align-self": "flex-start"}),
    "gutter": Shared(small={"padding-inline": "16px"}),
    "fluid": Shared(small={"height": "auto"}),
    "field": Shared(small={"min-height": "36px", "padding": "6px 10px"}),
    "source": Shared(wide={"white-space": "pre"}, small={"white-space": "pre-wrap"}),
    "grow": Shared(wide={"flex": "1 1 0"}),
    "line": Shared(wide={"display": "block"}),
    "source-line": Shared(always={"display": "block"}),
    "lines": Shared(wide={"display": "flex", "flex-direction": "column"}),
    "pieces": Shared(wide={"display": "flex"}),
}


def px(value: float) -> str:
    """`12.5px`, `0` for nothing; hundredths of a pixel are kept."""
    value = round(value, 2)
    if value == 0:
        return "0"
    return f"{value:g}px"


def rgb(color: RGB) -> str:
    return "#{:02x}{:02x}{:02x}".format(*(min(255, max(0, int(c))) for c in color))


def box_look(style: Style) -> Declarations:
    """What the box itself shows: fill, border, corners, shadow."""
    out: Declarations = {}
    if style.background is not None:
        out["background-color"] = rgb(style.background)
    if style.border_width > 0:
        width = f"{max(1, int(style.border_width + 0.01))}px"
        color = rgb(style.border_color) if style.border_color is not None else "currentcolor"
        sides = [name for name, key in _SIDES.items() if key in style.border_sides]
        if len(sides) == 4:
            out["border"] = f"{width} solid {color}"
        else:
            out.update({f"border-{side}": f"{width} solid {color}" for side in sides})
    if style.radius > 0:
        out["border-radius"] = px(style.radius)
    if style.shadow:
        out["box-shadow"] = "0 2px 8px rgba(0, 0, 0, 0.15)"
    return out


_SIDES = {"top": "t", "right": "r", "bottom": "b", "left": "l"}


def text_look(font: Font, style: Style, base: Font, base_color: RGB) -> Declarations:
    """What the letters show, as far as it differs from the page's own font and colour."""
    out: Declarations = {}
    color = style.color or (0, 0, 0)
    if color != base_color:
        out["color"] = rgb(color)
    if font.family != base.family:
        out["font-family"] = FAMILIES[font.family]
    if font.size != base.size:
        out["font-size"] = px(font.size)
    if font.weight != base.weight:
        out["font-weight"] = str(font.weight)
    if font.italic != base.italic:
        out["font-style"] = "italic" if font.italic else "normal"
    if style.underline:
        out["text-decoration"] = "underline"
    return out

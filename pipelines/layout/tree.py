"""The layout tree: the editable middle between a picture and its code.

Every node has a kind, a measured box in picture pixels and a style. Text leaves hold visual lines; controls hold lines
(value, placeholder, caption) and perhaps pictures; containers hold nodes. Whether a container runs as a row, a column
or a grid is not stored: it follows from the boxes of its children (`watersmeet.pipelines.emit`). The children of a
`list` are its items and the children of a `tr` are its cells, so neither needs a node of its own.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from watersmeet.core.errors import DecodeError
from watersmeet.core.geometry import Box

CONTAINERS = (
    "page",
    "nav",
    "header",
    "main",
    "aside",
    "footer",
    "section",
    "form",
    "list",
    "table",
    "tr",
    "card",
    "group",
)
TEXTS = ("h1", "h2", "h3", "h4", "text", "link", "label", "code")
CONTROLS = ("button", "input", "select", "textarea")
PICTURES = (
    "img",
    "icon",
    "check",
    "rule",
)  # one box each; `check` is a checkbox, radio or switch, `rule` a dividing line
KINDS = CONTAINERS + TEXTS + CONTROLS + PICTURES

RGB = tuple[int, int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Style:
    """What was measured (from pixels) or computed (from a DOM). None means: nothing of its own."""

    background: RGB | None = None
    color: RGB | None = None
    border_color: RGB | None = None
    border_width: float = 0.0  # px, all four sides unless border_sides says otherwise
    border_sides: str = "trbl"
    radius: float = 0.0  # px
    font_size: float | None = None  # px
    font_weight: int | None = None  # 400, 600, 700
    font_family: str | None = None  # "sans", "serif" or "mono"
    italic: bool = False
    underline: bool = False
    align: str | None = None  # "left", "center" or "right"
    shadow: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class TextLine:
    """One visual line of text: what stands between two line breaks of the picture."""

    text: str
    box: Box
    style: Style = field(default_factory=Style)


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """One node of the layout tree."""

    kind: str
    box: Box
    children: tuple["Node", ...] = ()
    lines: tuple[TextLine, ...] = ()
    style: Style = field(default_factory=Style)
    src: str | None = None  # file of a cropped picture, relative to the output folder
    alt: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise DecodeError(f"a layout node has the kind {self.kind!r}; expected one of {', '.join(KINDS)}")

    def walk(self) -> Iterator["Node"]:
        """This node and everything below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()

    def replace(self, **changes: Any) -> Self:
        return replace(self, **changes)

    def shifted(self, dx: float, dy: float) -> "Node":
        return self.replace(
            box=self.box.shifted(dx, dy),
            children=tuple(c.shifted(dx, dy) for c in self.children),
            lines=tuple(replace(line, box=line.box.shifted(dx, dy)) for line in self.lines),
        )

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries and lists, without the fields that hold their default."""
        out: dict[str, Any] = {"kind": self.kind, "box": _box_json(self.box)}
        if style := _style_json(self.style):
            out["style"] = style
        if self.lines:
            out["lines"] = [
                {"text": line.text, "box": _box_json(line.box)}
                | ({"style": s} if (s := _style_json(line.style)) else {})
                for line in self.lines
            ]
        if self.src is not None:
            out["src"] = self.src
        if self.alt:
            out["alt"] = self.alt
        if self.children:
            out["children"] = [child.to_json() for child in self.children]
        return out

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Node":
        try:
            return cls(
                kind=data["kind"],
                box=_box(data["box"]),
                style=_style(data.get("style", {})),
                lines=tuple(
                    TextLine(text=line["text"], box=_box(line["box"]), style=_style(line.get("style", {})))
                    for line in data.get("lines", ())
                ),
                src=data.get("src"),
                alt=data.get("alt", ""),
                children=tuple(cls.from_json(child) for child in data.get("children", ())),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DecodeError(
                f"a layout node cannot be read: {type(error).__name__} {error}; see docs/layout.md"
            ) from error


def _box_json(box: Box) -> list[float]:
    return [round(v, 1) for v in (box.x0, box.y0, box.x1, box.y1)]


def _box(values: list[float]) -> Box:
    x0, y0, x1, y1 = (float(v) for v in values)
    return Box(x0=x0, y0=y0, x1=x1, y1=y1)


_DEFAULT_STYLE = asdict(Style())


def _style_json(style: Style) -> dict[str, Any]:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(style).items() if v != _DEFAULT_STYLE[k]}


def _style(data: dict[str, Any]) -> Style:
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
    return Style(**values)

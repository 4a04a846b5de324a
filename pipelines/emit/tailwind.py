"""Writes a page with Tailwind's utility classes, and the plain style sheet of exactly the utilities that it uses.

So the page shows without Tailwind, and the classes are the ones that Tailwind itself would generate (arbitrary values
stand in square brackets). Breakpoints use Tailwind's own names where the number is one of theirs.
"""

import re

from watersmeet.pipelines.emit.elements import Element, Page
from watersmeet.pipelines.emit.fonts import FAMILIES
from watersmeet.pipelines.emit.html import CLIPPED, RESET, document, write_element
from watersmeet.pipelines.emit.style import SHARED, Declarations, px, rgb

_NAMED = {640: "sm", 768: "md", 1024: "lg", 1280: "xl", 1536: "2xl"}
_FIXED: dict[tuple[str, str], str] = {
    ("display", "flex"): "flex",
    ("display", "grid"): "grid",
    ("display", "block"): "block",
    ("flex-direction", "column"): "flex-col",
    ("flex-wrap", "wrap"): "flex-wrap",
    ("align-items", "flex-start"): "items-start",
    ("align-items", "start"): "items-start",
    ("align-items", "center"): "items-center",
    ("align-self", "start"): "self-start",
    ("align-self", "flex-start"): "self-start",
    ("align-self", "center"): "self-center",
    ("justify-self", "start"): "justify-self-start",
    ("flex", "none"): "flex-none",
    ("margin-left", "auto"): "ml-auto",
    ("width", "100%"): "w-full",
    ("height", "100%"): "h-full",
    ("height", "auto"): "h-auto",
    ("font-weight", "400"): "font-normal",
    ("font-weight", "500"): "font-medium",
    ("font-weight", "600"): "font-semibold",
    ("font-weight", "700"): "font-bold",
    ("font-style", "italic"): "italic",
    ("font-style", "normal"): "not-italic",
    ("text-decoration", "underline"): "underline",
    ("text-align", "left"): "text-left",
    ("text-align", "center"): "text-center",
    ("text-align", "right"): "text-right",
    ("white-space", "nowrap"): "whitespace-nowrap",
    ("white-space", "pre"): "whitespace-pre",
    ("white-space", "pre-wrap"): "whitespace-pre-wrap",
    ("object-fit", "cover"): "object-cover",
    ("background-color", "transparent"): "bg-transparent",
    ("letter-spacing", "normal"): "tracking-normal",
    ("grid-template-columns", "minmax(0, 1fr)"): "grid-cols-1",
}
_PREFIX = {
    "margin-top": "mt",
    "margin-bottom": "mb",
    "margin-left": "ml",
    "width": "w",
    "height": "h",
    "min-height": "min-h",
    "line-height": "leading",
    "letter-spacing": "tracking",
    "color": "text",
    "background-color": "bg",
    "font-size": "text",
    "font-weight": "font",
    "border-radius": "rounded",
    "box-shadow": "shadow",
    "accent-color": "accent",
    "flex": "flex",
    "grid-template-columns": "grid-cols",
    "padding-inline": "px",
}
_SIDES = (("t", "top"), ("r", "right"), ("b", "bottom"), ("l", "left"))


def write_tailwind(page: Page) -> dict[str, str]:
    """`index.html` and `tailwind.css`."""
    sheet = Utilities(page)
    body = "\n".join(write_element(page.body, sheet.classes, 0))
    head = ['<link rel="stylesheet" href="tailwind.css">']
    return {"index.html": document(page, body, head), "tailwind.css": sheet.css()}


def utilities(declarations: Declarations) -> list[tuple[str, Declarations]]:
    """The utility classes for `declarations`, each with what it sets."""
    out: list[tuple[str, Declarations]] = []
    for name, value in declarations.items():
        if (name, value) in _FIXED:
            out.append((_FIXED[name, value], {name: value}))
        elif name == "padding":
            out.extend(_padding(value))
        elif name == "gap":
            out.extend(_gap(value))
        elif name == "border" or name in ("border-top", "border-right", "border-bottom", "border-left"):
            out.extend(_border(name, value))
        elif match := re.fullmatch(r"repeat\((\d+), minmax\(0, 1fr\)\)", value):
            out.append((f"grid-cols-{match[1]}", {name: value}))
        elif name in _PREFIX:
            out.append((f"{_PREFIX[name]}-[{_arbitrary(value)}]", {name: value}))
        else:
            out.append((f"[{name}:{_arbitrary(value)}]", {name: value}))
    return out


def _arbitrary(value: str) -> str:
    return value.replace("_", r"\_").replace(", ", ",").replace(" ", "_").replace('"', "'")


def _padding(value: str) -> list[tuple[str, Declarations]]:
    parts = value.split()
    if len(parts) == 1:
        return [(f"p-[{value}]", {"padding": value})]
    if len(parts) == 2:
        return [
            (f"{key}-[{part}]", {name: part})
            for key, name, part in zip(("py", "px"), ("padding-block", "padding-inline"), parts, strict=True)
        ]
    # all four are written, so that a rule for narrow windows cannot leave one behind
    return [(f"p{key}-[{part}]", {f"padding-{side}": part}) for (key, side), part in zip(_SIDES, parts, strict=True)]


def _gap(value: str) -> list[tuple[str, Declarations]]:
    parts = value.split()
    if len(parts) == 1:
        return [(f"gap-[{value}]", {"gap": value})]
    return [(f"gap-y-[{parts[0]}]", {"row-gap": parts[0]}), (f"gap-x-[{parts[1]}]", {"column-gap": parts[1]})]


def _border(name: str, value: str) -> list[tuple[str, Declarations]]:
    width, _, color = value.split(" ", 2)
    side = name.removeprefix("border").removeprefix("-")
    key = f"-{side[0]}" if side else ""
    infix = f"-{side}" if side else ""
    shown = "current" if color == "currentcolor" else f"[{color}]"
    return [
        (f"border{key}" if width == "1px" else f"border{key}-[{width}]", {f"border{infix}-width": width}),
        (f"border{key}-{shown}", {f"border{infix}-color": color}),
    ]


class Utilities:
    """Gives every element its utility classes and collects the rules behind them."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.classes: dict[int, str] = {}
        self.rules: dict[str, dict[str, Declarations]] = {"always": {}, "wide": {}, "small": {}}
        name = _NAMED.get(page.breakpoint)
        self.prefix = {
            "always": "",
            "wide": f"{name}:" if name else f"min-[{page.breakpoint}px]:",
            "small": f"max-{name}:" if name else f"max-[{page.breakpoint}px]:",
        }
        self._visit(page.body, None)

    def _visit(self, element: Element, parent: Element | None) -> None:
        names: list[str] = []
        for part in ("always", "wide", "small"):
            declarations: Declarations = {}
            for shared in parent.shared if parent is not None else ():
                declarations |= getattr(SHARED[shared], f"{part}_children")
            for shared in element.shared:
                declarations |= getattr(SHARED[shared], part)
            declarations |= {"always": element.look, "wide": element.wide}.get(part, {})
            if parent is None:
                declarations |= self._body(part)
            for utility, sets in utilities(declarations):
                self.rules[part].setdefault(self.prefix[part] + utility, sets)
                names.append(self.prefix[part] + utility)
        self.classes[id(element)] = " ".join(dict.fromkeys(names))
        for child in element.children:
            self._visit(child, element)

    def _body(self, part: str) -> Declarations:
        font = self.page.base_font
        return {
            "always": {
                "background-color": rgb(self.page.background),
                "color": rgb(self.page.base_color),
                "font-family": FAMILIES[font.family],
                "font-size": px(font.size),
                "line-height": "1.4",
                "overflow-wrap": "anywhere",
            },
            "wide": {"white-space": "nowrap"},
            "small": {},
        }[part]

    def css(self) -> str:
        at = self.page.breakpoint
        out = [
            "/* what Tailwind's preflight does, as far as this page needs it */",
            RESET,
            "/* the utilities in use */",
        ]
        out.extend(_rules(self.rules["always"], ""))
        out.append(f"@media (min-width: {at}px) {{")
        if self.page.width < 640:
            out.extend("  " + line for line in CLIPPED)
        out.extend(_rules(self.rules["wide"], "  "))
        out.append("}")
        out.append(f"@media not all and (min-width: {at}px) {{")
        out.extend("  " + line for line in CLIPPED)
        out.extend(_rules(self.rules["small"], "  "))
        out.append("}")
        return "\n".join(out) + "\n"


def _rules(rules: dict[str, Declarations], pad: str) -> list[str]:
    # shorthands first, so that an element's longhands win wherever both are set
    ordered = sorted(rules.items(), key=lambda r: ("-" in next(iter(r[1])), r[0]))
    return [
        f"{pad}.{_selector(name)} {{ {' '.join(f'{k}: {v};' for k, v in declarations.items())} }}"
        for name, declarations in ordered
    ]


def _selector(name: str) -> str:
    """A class name as a selector: everything but letters, digits, `-` and `_` is escaped."""
    text = re.sub(r"([^\w-])", r"\\\1", name)
    return f"\\3{text[0]} {text[1:]}" if text[:1].isdigit() else text

"""Writes a page as one HTML file and one style sheet that a person can go on with."""

from collections.abc import Iterable
from html import escape

from watersmeet.pipelines.emit.elements import VOID, Element, Page
from watersmeet.pipelines.emit.fonts import FAMILIES
from watersmeet.pipelines.emit.style import SHARED, Declarations, px, rgb

RESET = """\
*, *::before, *::after { box-sizing: border-box; min-width: 0; border: 0 solid; }
body, h1, h2, h3, h4, p, ul, pre { margin: 0; padding: 0; }
h1, h2, h3, h4, th, pre, code, button, input, select, textarea { font: inherit; letter-spacing: inherit; color: inherit; }
ul { list-style: none; }
a { display: block; color: inherit; text-decoration: none; }
p, label, pre, li, td, th { display: block; padding: 0; text-align: left; }
hr { margin: 0; }
img, svg { display: block; max-width: 100%; }
button { appearance: none; padding: 0; border-radius: 0; background: none; cursor: pointer; }
button, input, select, textarea { display: block; }
input, select, textarea { margin: 0; padding: 0; border-radius: 0; max-width: 100%; }
textarea { resize: none; }
::placeholder { color: inherit; opacity: 1; }
table, tbody, tr { display: block; }
"""


# a phone must never scroll sideways, whatever pokes out
CLIPPED = ("html { overflow-x: hidden; }", "body { overflow-x: clip; }")


def write_html(page: Page, *, stylesheet: str = "styles.css") -> dict[str, str]:
    """`index.html` and `styles.css`."""
    sheet = Sheet(page)
    body = "\n".join(write_element(page.body, sheet.classes, 0))
    return {
        "index.html": document(page, body, [f'<link rel="stylesheet" href="{escape(stylesheet)}">']),
        stylesheet: sheet.css(),
    }


def document(page: Page, body: str, head: Iterable[str]) -> str:
    """The file around a body."""
    lines = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '  <meta charset="utf-8">',
        '  <meta name="viewport" content="width=device-width, initial-scale=1">',
        f"  <title>{escape(page.title)}</title>",
        *(f"  {line}" for line in head),
        "</head>",
        body,
        "</html>",
        "",
    ]
    return "\n".join(lines)


def write_element(element: Element, classes: dict[int, str], depth: int) -> list[str]:
    """The lines of `element` and its children, indented by two spaces a level. All text is escaped."""
    pad = "  " * depth
    start = f"<{element.tag}{_attributes(element, classes)}>"
    if element.tag in VOID and element.tag != "rect":
        return [pad + start]
    end = f"</{element.tag}>"
    if element.tag in ("pre", "textarea") or element.text is not None:
        return [pad + start + _inline(element, classes) + end]
    if not element.children:
        return [pad + start + end]
    lines = [pad + start]
    for child in element.children:
        lines.extend(write_element(child, classes, depth + 1))
    lines.append(pad + end)
    return lines


def _inline(element: Element, classes: dict[int, str]) -> str:
    """Content without any white space of its own, for elements where it would show."""
    if element.text is not None:
        # a textarea drops one newline at its start
        lead = "\n" if element.tag == "textarea" and element.text.startswith("\n") else ""
        return lead + escape(element.text, quote=False)
    out = []
    for child in element.children:
        out.append(f"<{child.tag}{_attributes(child, classes)}>{_inline(child, classes)}</{child.tag}>")
    return "".join(out)


def _attributes(element: Element, classes: dict[int, str]) -> str:
    out = []
    if names := classes.get(id(element), ""):
        out.append(f' class="{escape(names)}"')
    for name, value in element.attrs.items():
        out.append(f" {name}" if name == "checked" else f' {name}="{escape(value)}"')
    return "".join(out)


class Sheet:
    """Gives every element its classes and collects the rules: one class a look, one a placement, shared where equal."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.classes: dict[int, str] = {}
        self.looks: dict[str, Declarations] = {}
        self.places: dict[str, Declarations] = {}
        self.used: set[str] = set()
        names: dict[tuple[str, str], str] = {}
        counts: dict[str, int] = {}
        for element in page.body.walk():
            own = [name for name in element.shared if name in SHARED]
            self.used.update(own)
            for kind, declarations, rules in (
                (element.role, element.look, self.looks),
                ("at", element.wide, self.places),
            ):
                if not declarations:
                    continue
                key = (kind, repr(sorted(declarations.items())))
                if key not in names:
                    counts[kind] = counts.get(kind, 0) + 1
                    names[key] = f"{kind}-{counts[kind]}"
                    rules[names[key]] = declarations
                own.append(names[key])
            # the name that says what it is comes first
            own.sort(key=lambda n: (n in SHARED, n.startswith("at-")))
            self.classes[id(element)] = " ".join(own)

    def css(self) -> str:
        page = self.page
        font = page.base_font
        out = [RESET]
        out.append(
            rule(
                "body",
                {
                    "font-family": FAMILIES[font.family],
                    "font-size": px(font.size),
                    "line-height": "1.4",
                    "color": rgb(page.base_color),
                    "background-color": rgb(page.background),
                    "overflow-wrap": "anywhere",
                },
            )
        )
        out.extend(self._shared("always"))
        if self.looks:
            out.append("\n/* what things look like */")
            out.extend(rule(f".{name}", declarations) for name, declarations in self.looks.items())
        out.append(f"\n/* where things stand in a window of {page.width:g} px */")
        out.append(f"@media (min-width: {page.breakpoint}px) {{")
        out.append("  body { white-space: nowrap; }")
        if page.width < 640:
            out.extend("  " + line for line in CLIPPED)
        out.extend("  " + line for line in self._shared("wide"))
        out.extend("  " + rule(f".{name}", declarations) for name, declarations in self.places.items())
        out.append("}")
        out.append("\n/* narrow windows: rows wrap, lines flow, nothing is wider than the window */")
        out.append(f"@media (max-width: {page.breakpoint - 0.02:g}px) {{")
        out.extend("  " + line for line in CLIPPED)
        out.extend("  " + line for line in self._shared("small"))
        out.append("}")
        return "\n".join(out) + "\n"

    def _shared(self, part: str) -> list[str]:
        out = []
        for name, shared in SHARED.items():
            if name not in self.used:
                continue
            if declarations := getattr(shared, part):
                out.append(rule(f".{name}", declarations))
            if children := getattr(shared, f"{part}_children"):
                out.append(rule(f".{name} > *", children))
        return out


def rule(selector: str, declarations: Declarations) -> str:
    """One rule on one line."""
    return f"{selector} {{ {' '.join(f'{name}: {value};' for name, value in declarations.items())} }}"

"""Writes a page as a small React project: landmarks become components, repeated parts one component with props.

`index.html` also carries the finished markup, so the page shows before (and without) a build; the bundle then takes over.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from watersmeet.pipelines.emit.elements import VOID, Element, Page
from watersmeet.pipelines.emit.html import Sheet, document, write_element

_PARTS = ("nav", "header", "main", "aside", "footer", "section", "form", "table", "ul")
_RENAMED = {"class": "className", "for": "htmlFor", "checked": "defaultChecked", "value": "defaultValue"}
_PLAIN_TEXT = re.compile(r"[^{}<>&\\\s](?:[^{}<>&\\\n\r\t]*[^{}<>&\\\s])?")


@dataclass(kw_only=True)
class _Slot:
    """A place of a repeated part where its instances differ: a text, an attribute or a class."""

    name: str
    values: list[str]


@dataclass(kw_only=True)
class _Component:
    name: str
    root: Element
    slots: dict[tuple[int, str], _Slot] = field(default_factory=dict)  # (id of the first instance's element, what)


def write_react(page: Page) -> dict[str, str]:
    """`index.html`, `package.json`, `main.jsx`, `App.jsx`, `styles.css` and `components/*.jsx`."""
    page.body.tag = "div"
    project = _Project(page)
    files = {
        "index.html": project.index(),
        "package.json": _PACKAGE,
        "main.jsx": _MAIN,
        "App.jsx": project.module("App", page.body),
        "styles.css": project.sheet.css(),
    }
    for component in project.components:
        files[f"components/{component.name}.jsx"] = project.module(component.name, component.root, component)
    return files


class _Project:
    def __init__(self, page: Page) -> None:
        self.page = page
        self.sheet = Sheet(page)
        self.components: list[_Component] = []
        self.uses: dict[int, tuple[_Component, int]] = {}  # element -> component and which instance
        self.names: dict[str, int] = {"App": 1}
        self._plan(page.body)

    # which elements become components -------------------------------------------------------------------------------

    def _plan(self, element: Element) -> None:
        groups: dict[str, list[Element]] = {}
        for child in element.children:
            if _size(child) >= 3:
                groups.setdefault(_shape(child), []).append(child)
        for child in element.children:
            twins = groups.get(_shape(child), []) if _size(child) >= 3 else []
            if len(twins) > 1:
                if child is twins[0]:
                    self._repeat(twins)
                continue
            if child.tag in _PARTS and _size(child) >= 4 and element.tag not in ("ul", "tr", "tbody"):
                component = _Component(name=self._name(child), root=child)
                self.components.append(component)
                self.uses[id(child)] = (component, 0)
            self._plan(child)

    def _repeat(self, twins: list[Element]) -> None:
        component = _Component(name=self._name(twins[0]), root=twins[0])
        taken: dict[str, int] = {"children": 1, "key": 1}
        walks = [list(twin.walk()) for twin in twins]
        for parts in zip(*walks, strict=True):
            first = parts[0]
            for what, values in self._variable(parts):
                if len(set(values)) == 1:
                    continue
                same = next((s for s in component.slots.values() if s.values == values), None)
                component.slots[id(first), what] = same or _Slot(
                    name=_free(_slot_name(first, what), taken), values=values
                )
        self.components.append(component)
        for index, twin in enumerate(twins):
            self.uses[id(twin)] = (component, index)

    def _variable(self, parts: tuple[Element, ...]) -> Iterator[tuple[str, list[str]]]:
        if parts[0].text is not None:
            yield "text", [part.text or "" for part in parts]
        if any(self.sheet.classes.get(id(part)) for part in parts):
            yield "class", [self.sheet.classes.get(id(part), "") for part in parts]
        for name in parts[0].attrs:
            yield name, [part.attrs[name] for part in parts]

    def _name(self, element: Element) -> str:
        if element.tag == "section" and any(e.tag == "h1" for e in element.walk()):
            base = "Hero"
        elif element.tag in ("nav", "header", "main", "aside", "footer", "section", "form", "table"):
            base = element.tag.title()
        else:
            base = {"ul": "List", "tr": "Row", "li": "Item"}.get(element.tag, element.role.title().replace("-", ""))
        base = base if re.fullmatch(r"[A-Z][A-Za-z0-9]*", base) else "Part"
        self.names[base] = self.names.get(base, 0) + 1
        return base if self.names[base] == 1 else f"{base}{self.names[base]}"

    # writing --------------------------------------------------------------------------------------------------------

    def index(self) -> str:
        body = ["<body>", '  <div id="root">', *write_element(self.page.body, self.sheet.classes, 2), "  </div>"]
        body += ['  <script src="dist/app.js" defer></script>', "</body>"]
        return document(self.page, "\n".join(body), ['<link rel="stylesheet" href="styles.css">'])

    def module(self, name: str, root: Element, component: _Component | None = None) -> str:
        used: list[str] = []
        lines = self._jsx(root, 2, component, used, top=True)
        folder = "./components" if name == "App" else "."
        imports = [f'import {other} from "{folder}/{other}.jsx";' for other in sorted(set(used))]
        names = list(dict.fromkeys(slot.name for slot in component.slots.values())) if component else []
        props = "{ " + ", ".join(names) + " }" if names else ""
        head = "\n".join(imports) + "\n\n" if imports else ""
        return f"{head}export default function {name}({props}) {{\n  return (\n" + "\n".join(lines) + "\n  );\n}\n"

    def _jsx(
        self, element: Element, depth: int, inside: _Component | None, used: list[str], *, top: bool = False
    ) -> list[str]:
        pad = "  " * depth
        if not top and id(element) in self.uses:
            component, index = self.uses[id(element)]
            used.append(component.name)
            slots = {slot.name: slot.values[index] for slot in component.slots.values()}
            return _tag(
                pad, component.name, [f"{name}={_attribute(value)}" for name, value in slots.items()], close=True
            )
        slots_here = inside.slots if inside is not None else {}
        attributes = []
        classes = self.sheet.classes.get(id(element), "")
        for name, value in ([("class", classes)] if classes or (id(element), "class") in slots_here else []) + list(
            element.attrs.items()
        ):
            slot = slots_here.get((id(element), name))
            key = _RENAMED.get(name, name)
            if name == "checked":
                attributes.append(key)
            else:
                attributes.append(f"{key}={{{slot.name}}}" if slot is not None else f"{key}={_attribute(value)}")
        slot = slots_here.get((id(element), "text"))
        if element.tag == "textarea":
            if slot is not None or element.text:
                attributes.append(
                    f"defaultValue={{{slot.name if slot is not None else json.dumps(element.text, ensure_ascii=False)}}}"
                )
            return _tag(pad, element.tag, attributes, close=True)
        if element.tag in VOID or (element.text is None and not element.children):
            return _tag(pad, element.tag, attributes, close=True)
        start = _tag(pad, element.tag, attributes, close=False)
        if element.text is not None:
            content = f"{{{slot.name}}}" if slot is not None else _text(element.text)
            if len(start) == 1:
                return [f"{start[0]}{content}</{element.tag}>"]
            return [*start, f"{pad}  {content}", f"{pad}</{element.tag}>"]
        lines = list(start)
        for position, child in enumerate(element.children):
            if position and child.role in ("line", "part") and element.tag not in ("code", "pre"):
                lines.append(f'{pad}  {{" "}}')
            lines.extend(self._jsx(child, depth + 1, inside, used))
        lines.append(f"{pad}</{element.tag}>")
        return lines


def _tag(pad: str, name: str, attributes: list[str], *, close: bool) -> list[str]:
    """A start tag (or a closed one) on one line where it fits, else one attribute a line."""
    end = " />" if close else ">"
    line = f"{pad}<{' '.join([name, *attributes])}{end}"
    if len(line) <= 120 or len(attributes) < 2:
        return [line]
    return [f"{pad}<{name}", *(f"{pad}  {attribute}" for attribute in attributes), f"{pad}{end.strip()}"]


def _text(text: str) -> str:
    """Text between tags: as it stands where JSX reads it so, else as a quoted string."""
    return text if _PLAIN_TEXT.fullmatch(text) else "{" + json.dumps(text, ensure_ascii=False) + "}"


def _attribute(value: str) -> str:
    """An attribute's value. JSX strings know entities but no escapes, so anything unusual is a quoted expression."""
    return (
        f'"{value}"'
        if re.fullmatch(r"[^\"&\\{}<>\n\r\t]*", value)
        else "{" + json.dumps(value, ensure_ascii=False) + "}"
    )


def _size(element: Element) -> int:
    return sum(1 for _ in element.walk())


def _shape(element: Element) -> str:
    """What two parts must share to be one component: tags, roles and the names of their attributes."""
    inner = ",".join(_shape(child) for child in element.children)
    text = "t" if element.text is not None else ""
    return f"{element.tag}.{element.role}[{'|'.join(sorted(element.attrs))}]{text}({inner})"


def _slot_name(element: Element, what: str) -> str:
    if what == "text":
        if element.tag in ("h1", "h2", "h3", "h4"):
            return "title"
        name = {"item": "item", "cell": "cell", "nav-link": "link"}.get(element.role, element.role)
        return re.sub(r"[^a-z]", "", name) or "text"
    if what == "class":
        return (re.sub(r"[^a-z0-9]", "", element.role) or "part") + "Class"
    return re.sub(r"-(\w)", lambda m: m[1].upper(), what)


def _free(name: str, taken: dict[str, int]) -> str:
    taken[name] = taken.get(name, 0) + 1
    return name if taken[name] == 1 else f"{name}{taken[name]}"


_MAIN = """\
import { createRoot } from "react-dom/client";
import App from "./App.jsx";

createRoot(document.getElementById("root")).render(<App />);
"""

_PACKAGE = """\
{
  "name": "page",
  "private": true,
  "version": "0.1.0",
  "type": "module",
  "scripts": {
    "build": "esbuild main.jsx --bundle --minify --jsx=automatic --outfile=dist/app.js",
    "start": "esbuild main.jsx --bundle --jsx=automatic --outfile=dist/app.js --servedir=."
  },
  "dependencies": {
    "react": "^19.0.0",
    "react-dom": "^19.0.0"
  },
  "devDependencies": {
    "esbuild": "^0.25.0"
  }
}
"""

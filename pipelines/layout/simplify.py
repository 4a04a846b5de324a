"""From a walked page to a layout tree: the same tree that a model is asked to write for the page's picture.

Tags, ARIA roles and computed styles decide the kinds, never class names, so the rules hold for any framework. What
cannot be seen in a picture is left out: wrappers that paint nothing and hold one thing, empty elements, list markers.
"""

from dataclasses import replace
from typing import Any

from PIL import Image

from watersmeet.core.geometry import Box
from watersmeet.pipelines.layout.tree import RGB, Node, Style, TextLine
from watersmeet.pipelines.layout.walker import CHECKS, HEADINGS, PRESSED, Dom, DomLine, is_picture, lines_of, over
from watersmeet.pipelines.layout.xycut import xy_cut

TRACK = (239, 239, 239)  # what a browser paints behind a progress bar that has no style of its own
ICON_SIDE = 48  # px: pictures up to this size are icons
RULE_SIDE = 4  # px: painted boxes up to this thickness are dividing lines
MAX_DEPTH = 150  # elements nested deeper are read without their structure
SEMANTIC = {
    "nav": "nav",
    "header": "header",
    "main": "main",
    "aside": "aside",
    "footer": "footer",
    "section": "section",
    "article": "section",
    "form": "form",
    "ul": "list",
    "ol": "list",
    "menu": "list",
    "table": "table",
    "tr": "tr",
}
ROLES = {
    "navigation": "nav",
    "banner": "header",
    "main": "main",
    "complementary": "aside",
    "contentinfo": "footer",
    "region": "section",
    "article": "section",
    "form": "form",
    "search": "form",
    "list": "list",
    "table": "table",
    "grid": "table",
    "row": "tr",
}
FIELDS = {"select": "select", "textarea": "textarea", "input": "input"}


def to_tree(raw: dict[str, Any], screenshot: Image.Image | None = None) -> Node:
    """The layout tree of a walked page; root kind `page`, boxes in px of the viewport.

    With the page's `screenshot`, text that left no ink in the picture is dropped.
    """
    return _Builder(raw, screenshot).page()


class _Builder:
    def __init__(self, raw: dict[str, Any], screenshot: Image.Image | None) -> None:
        self.raw = raw
        self.dom = Dom(raw)
        self.lines: dict[int, list[DomLine]] = {}
        for line in lines_of(self.dom, screenshot):
            self.lines.setdefault(line.element, []).append(line)
        self.icons: dict[int, list[Box]] = {}
        for text in self.dom.texts:
            if text.get("icon"):
                self.icons.setdefault(self.dom.container(text["e"]), []).append(_box(text["box"]))
        # nodes that stand outside of their parent's box wait here until an ancestor's box holds them
        self.loose: list[Node] = []

    def page(self) -> Node:
        raw = self.raw
        box = Box(x0=0, y0=0, x1=raw["width"], y1=raw["height"])
        parts = self._build(0, 0) if self.dom.elements else []
        parts = _ordered([*parts, *self.loose])
        while len(parts) == 1 and parts[0].kind == "group" and _same_paint(parts[0].style, Style()):
            parts = list(parts[0].children)
        return Node(kind="page", box=box, children=tuple(parts), style=Style(background=self._background(box)))

    def _background(self, box: Box) -> RGB:
        """The page's colour: the body's where it covers the view, also when the root has one of its own."""
        for element in self.dom.elements[:2]:
            if element["tag"] == "body" and element["vis"] and _box(element["vis"]).area >= 0.9 * box.area:
                return self.dom.surfaces[element["i"]]
        red, green, blue = self.raw["background"]
        return red, green, blue

    def _build(self, i: int, depth: int) -> list[Node]:
        """The nodes that element `i` stands for: none, one, or its content when it is nothing of its own."""
        dom = self.dom
        element = dom.elements[i]
        leaf = self._leaf(i)
        if leaf is not None:
            return leaf
        before = len(self.loose)
        parts = self._content(i, depth)
        kind = self._semantic(i, parts)
        transparent = element["disp"] in ("inline", "contents") or element["tag"] in ("html", "body")
        picture = is_picture(element) and element["vis"] is not None
        painted = not transparent and dom.painted(i) and not self._plain_cell(i)
        if picture and not parts and len(self.loose) == before:
            return self._placed(i, self._picture(_box(element["vis"])))
        if picture:  # content on top of a background picture
            parts = [Node(kind="img", box=_box(element["vis"])), *parts]
        parts = _without_tints(parts)
        if kind is None and transparent:
            return parts
        if painted:
            return self._painted(i, kind, parts, before)
        if kind == "tr" and parts and self._row_paint(i) is not None:
            box = _box(element["vis"] or element["box"])
            return [Node(kind="tr", box=box, children=tuple(_ordered(parts)), style=self._row_paint(i) or Style())]
        if not parts:
            return []
        if kind is None and len(parts) == 1:
            return self._placed(i, parts[0])
        if kind is None and element["tag"] in ("thead", "tbody", "tfoot") and all(p.kind == "tr" for p in parts):
            return parts
        node = Node(kind=kind or "group", box=Box.around([p.box for p in parts]), children=tuple(_ordered(parts)))
        return self._placed(i, node)

    def _painted(self, i: int, kind: str | None, parts: list[Node], before: int) -> list[Node]:
        """A container that can be seen: it keeps its own box, and holds what stands inside of it."""
        box = _box(self.dom.elements[i]["vis"])
        style = self._paint(i)
        if not parts and len(self.loose) == before:
            return self._bare(i, box, style)
        waiting = self.loose[before:]
        del self.loose[before:]
        inside: list[Node] = []
        for part in [*parts, *waiting]:
            (inside if box.intersection(part.box) >= 0.5 * part.box.area else self.loose).append(part)
        if not inside:
            return self._bare(i, box, style)
        if kind is None and len(inside) == 1 and inside[0].kind == "card" and _close(inside[0].box, box):
            return self._placed(i, inside[0].replace(style=_merged(style, inside[0].style)))
        return self._placed(i, Node(kind=kind or "card", box=box, children=tuple(_ordered(inside)), style=style))

    def _cells(self, i: int) -> list[int]:
        return [k for k in self.dom.children[i] if self.dom.elements[k]["tag"] in ("td", "th")]

    def _row_paint(self, i: int) -> Style | None:
        """What all cells of row `i` are painted like; None when they differ or are not painted."""
        cells = self._cells(i)
        if not cells or not all(self.dom.painted(k) for k in cells):
            return None
        paints = [self._paint(k) for k in cells]
        return paints[0] if all(_same_paint(p, paints[0]) for p in paints) else None

    def _plain_cell(self, i: int) -> bool:
        """A cell that looks like its whole row: the row carries the paint, the cell is no box of its own."""
        element = self.dom.elements[i]
        return element["tag"] in ("td", "th") and self._row_paint(element["p"]) is not None

    def _bare(self, i: int, box: Box, style: Style) -> list[Node]:
        """Something painted with nothing in it: a dividing line, a swatch, a bar."""
        if min(box.width, box.height) <= RULE_SIDE:
            return [Node(kind="rule", box=box, style=style)] if max(box.width, box.height) >= 16 else []
        only_side = style.background is None and not style.shadow and len(style.border_sides) == 1
        if only_side:
            return [Node(kind="rule", box=_side(box, style), style=style)]
        return self._placed(i, Node(kind="card", box=box, style=style)) if box.area >= 64 else []

    def _placed(self, i: int, node: Node) -> list[Node]:
        """The node where it is, or put aside when it was taken out of the flow to stand somewhere else."""
        element = self.dom.elements[i]
        position = element.get("pos")
        if position == "fixed":
            self.loose.append(node)
            return []
        if position == "absolute" and element["p"] >= 0:
            home = _box(self.dom.elements[self.dom.container(element["p"])]["box"])
            if home.intersection(node.box) < 0.5 * node.box.area:
                self.loose.append(node)
                return []
        return [node]

    def _leaf(self, i: int) -> list[Node] | None:
        """The node of an element that holds no other nodes; None for containers."""
        dom = self.dom
        element = dom.elements[i]
        tag, role, kind = element["tag"], element.get("role", ""), element.get("type", "")
        box = _box(element["vis"]) if element["vis"] is not None else None
        if (tag == "input" and kind in CHECKS) or (role in ("checkbox", "radio", "switch") and not dom.texts_below(i)):
            return self._placed(i, Node(kind="check", box=box, style=self._paint(i))) if box else []
        if dom.is_button(i):
            return self._button(i)
        if tag in FIELDS and kind not in PRESSED and "pic" not in element:
            return self._control(i, FIELDS[tag], [])
        if is_picture(element) and not dom.texts_below(i) and ("pic" in element or not dom.children[i]):
            # frames that could be entered have no `pic`
            return self._placed(i, self._picture(box, element.get("alt") or element.get("label", ""))) if box else []
        if tag in ("progress", "meter") and box:
            style = self._paint(i)
            return [Node(kind="card", box=box, style=style if dom.painted(i) else replace(style, background=TRACK))]
        if tag == "hr" and box:
            return [Node(kind="rule", box=box, style=self._paint(i))]
        return None

    def _picture(self, box: Box, alt: str = "") -> Node:
        small = max(box.width, box.height) <= ICON_SIDE
        return Node(kind="icon" if small else "img", box=box, alt=alt)

    def _button(self, i: int) -> list[Node] | None:
        dom = self.dom
        below = list(dom.below(i))
        pictures = [dom.elements[k] for k in below if is_picture(dom.elements[k]) and dom.elements[k]["vis"]]
        boxes = [_box(p["vis"]) for p in pictures]
        boxes += [b for k in (i, *below) for b in self.icons.get(k, ())]
        lines = [line for k in (i, *below) for line in self.lines.get(k, ())]
        if len(lines) > 3 or any(max(b.width, b.height) > 2 * ICON_SIDE for b in boxes):
            return None  # a whole card that can be pressed
        if not lines and not boxes and not any(dom.painted(k) for k in (i, *below)):
            return []
        return self._control(i, "button", [self._picture(b) for b in boxes if b.area > 0])

    def _control(self, i: int, kind: str, children: list[Node]) -> list[Node]:
        element = self.dom.elements[i]
        if element["vis"] is None:
            return []
        lines = [line for k in (i, *self.dom.below(i)) for line in self.lines.get(k, ())]
        ink = self._ink(lines[0]) if lines else Style(font_size=float(element["fs"]))
        style = _merged(ink, self._paint(i))
        node = Node(
            kind=kind,
            box=_box(element["vis"]),
            lines=tuple(self._line(line) for line in lines),
            children=tuple(_ordered(children)),
            style=style,
            alt=element.get("label", ""),
        )
        return self._placed(i, node)

    def _content(self, i: int, depth: int) -> list[Node]:
        dom = self.dom
        parts: list[Node] = []
        if depth >= MAX_DEPTH:
            for k in dom.below(i):
                parts += self._texts(k)
        else:
            for child in dom.children[i]:
                parts += self._build(child, depth + 1)
        parts += self._texts(i)
        parts += [self._picture(box) for box in self.icons.get(i, ())]
        return parts

    def _texts(self, i: int) -> list[Node]:
        """The lines that element `i` lays out, as text leaves: lines of one paragraph stay together."""
        leaves: list[tuple[str, int, list[DomLine]]] = []
        for line in self.lines.get(i, ()):
            kind, owner = self._text_kind(line)
            if leaves and _follows(leaves[-1][2][-1], line, kind) and self._joins(leaves[-1], kind, owner, line):
                leaves[-1] = ("text" if leaves[-1][0] != kind else kind, owner, [*leaves[-1][2], line])
            else:
                leaves.append((kind, owner, [line]))
        return [
            Node(
                kind=kind,
                box=Box.around([line.box for line in lines]),
                lines=tuple(self._line(line) for line in lines),
                style=self._ink(max(lines, key=lambda line: len(line.text))),
            )
            for kind, _, lines in leaves
        ]

    def _joins(self, leaf: tuple[str, int, list[DomLine]], kind: str, owner: int, line: DomLine) -> bool:
        """Whether a line of this kind continues a leaf: the same thing, or running text with links in it."""
        if leaf[:2] == (kind, owner):
            return True
        if {leaf[0], kind} - {"text", "link"}:
            return False
        return any(self._mixed(part) for part in (leaf[2][-1], line))

    def _mixed(self, line: DomLine) -> bool:
        """Whether some, not all, of a line's pieces are inside links."""
        dom = self.dom
        inside = [any(e["tag"] == "a" for e in dom.ancestors(dom.texts[k]["e"])) for k in line.fragments]
        return any(inside) and not all(inside)

    def _text_kind(self, line: DomLine) -> tuple[str, int]:
        """Kind of a text leaf, and the element that a line must share with its neighbours to be joined to them."""
        dom = self.dom
        main = max(line.fragments, key=lambda k: len(dom.texts[k]["text"]))
        chain = list(dom.ancestors(dom.texts[main]["e"]))
        if line.kind == "heading":
            for element in chain:
                level = element["tag"][1] if element["tag"] in HEADINGS else None
                if level is None and element.get("role") == "heading":
                    level = "2"
                if level is not None:
                    return f"h{min(4, int(level))}", int(element["i"])
        if line.kind == "link":
            owner = next((e["i"] for e in chain if e["tag"] in ("a", "button", "summary") or e.get("role")), -1)
            return "link", int(owner)
        if line.kind in ("label", "code"):
            return line.kind, -1
        return "text", -1

    def _semantic(self, i: int, parts: list[Node]) -> str | None:
        element = self.dom.elements[i]
        role = element.get("role", "")
        if role in ("presentation", "none"):
            return None
        kind = ROLES.get(role) or SEMANTIC.get(element["tag"])
        if kind == "table":
            # a table that only arranges its page is no table
            rows = [p for p in parts if p.kind == "tr"]
            if len(rows) < 2 or max(len(r.children) for r in rows) < 2 or _has_table(rows):
                return None
        if kind == "tr" and (len(parts) < 2 and not self._in_table(i)):
            return None
        return kind

    def _in_table(self, i: int) -> bool:
        return any(e["tag"] == "table" or e.get("role") in ("table", "grid") for e in self.dom.ancestors(i))

    def _paint(self, i: int) -> Style:
        dom = self.dom
        element = dom.elements[i]
        widths = element.get("bw", [0, 0, 0, 0]) if dom.bordered(i) else [0, 0, 0, 0]
        sides = "".join(s for s, w in zip("trbl", widths, strict=True) if w > 0)
        return Style(
            background=dom.surfaces[i] if dom.filled(i) else None,
            border_color=over(element["bc"], dom.backdrop(i)) if sides else None,
            border_width=float(max(widths)),
            border_sides=sides or "trbl",
            radius=float(element.get("radius", 0.0)),
            shadow="shadow" in element,
        )

    def _line(self, line: DomLine) -> TextLine:
        return TextLine(text=line.text, box=line.box, style=self._ink(line))

    def _ink(self, line: DomLine) -> Style:
        dom = self.dom
        main = max(line.fragments, key=lambda k: len(dom.texts[k]["text"]))
        element = dom.elements[dom.texts[main]["e"]]
        underline = False
        for parent in dom.ancestors(element["i"]):
            underline = underline or "ul" in parent
            if parent["i"] == line.element:
                break
        return Style(
            color=line.color,
            font_size=line.font_size,
            font_weight=int(element["fw"]),
            font_family=element["ff"],
            italic="it" in element,
            underline=underline,
            align=_align(dom.elements[line.element]),
        )


def _align(element: dict[str, Any]) -> str:
    value, rtl = element["ta"].replace("-webkit-", ""), "rtl" in element
    if value in ("left", "center", "right"):
        return str(value)
    return "right" if (value == "end") != rtl else "left"


def _follows(last: DomLine, line: DomLine, kind: str) -> bool:
    """Whether `line` is the next line of the paragraph that ends with `last`."""
    size = last.font_size
    gap = line.box.y0 - last.box.y1
    below = line.box.y0 > last.box.y0 + 0.4 * last.box.height
    most = 2.5 if kind == "code" else 0.95
    near = min(last.box.x1, line.box.x1) > max(last.box.x0, line.box.x0) - size
    return below and -0.6 * size < gap < most * size and near and abs(line.font_size - size) <= 0.15 * size


def _ordered(nodes: list[Node]) -> list[Node]:
    """Nodes in reading order: rows from the left, columns from the top."""
    if len(nodes) < 2:
        return nodes
    return [nodes[k] for k in xy_cut([n.box for n in nodes]).order()]


def _without_tints(nodes: list[Node]) -> list[Node]:
    """Drop empty boxes that lie exactly on a picture: the picture as it is seen has their colour already."""
    pictures = [n.box for n in nodes if n.kind == "img"]
    return [
        n for n in nodes if not (n.kind == "card" and not n.children and any(n.box.iou(box) > 0.9 for box in pictures))
    ]


def _merged(under: Style, top: Style) -> Style:
    """`top` where it says something, else `under`."""
    base, plain = Style(), {}
    for name in Style.__dataclass_fields__:
        value = getattr(top, name)
        plain[name] = value if value != getattr(base, name) else getattr(under, name)
    return Style(**plain)


def _same_paint(a: Style, b: Style) -> bool:
    return (a.background, a.border_width, a.shadow) == (b.background, b.border_width, b.shadow)


def _side(box: Box, style: Style) -> Box:
    """The strip that the one drawn border of an empty box covers."""
    w = style.border_width
    if style.border_sides == "t":
        return Box(x0=box.x0, y0=box.y0, x1=box.x1, y1=box.y0 + w)
    if style.border_sides == "b":
        return Box(x0=box.x0, y0=box.y1 - w, x1=box.x1, y1=box.y1)
    if style.border_sides == "l":
        return Box(x0=box.x0, y0=box.y0, x1=box.x0 + w, y1=box.y1)
    return Box(x0=box.x1 - w, y0=box.y0, x1=box.x1, y1=box.y1)


def _has_table(rows: list[Node]) -> bool:
    return any(node.kind == "table" for row in rows for node in row.walk())


def _close(a: Box, b: Box) -> bool:
    return max(abs(a.x0 - b.x0), abs(a.y0 - b.y0), abs(a.x1 - b.x1), abs(a.y1 - b.y1)) <= 2


def _box(values: list[float]) -> Box:
    return Box(x0=values[0], y0=values[1], x1=values[2], y1=values[3])

"""What is settled for the whole page before its layout: stray rows, lines that were cut, the page's faces and colour."""

import math
import re
from collections import Counter
from dataclasses import replace

from watersmeet.core.geometry import Box
from watersmeet.pipelines.emit.fonts import FAMILIES, Font, clusters, installed, text_width
from watersmeet.pipelines.emit.text import SPACING_LIMIT, resolve_font
from watersmeet.pipelines.layout.tree import RGB, Node, TextLine

_UNUSABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")  # no file may carry these


def clean(node: Node) -> Node:
    """Texts as a page shows them: white space collapsed (kept inside code), characters that no file may carry removed."""

    def text(raw: str) -> str:
        raw = _UNUSABLE.sub("", raw)
        return re.sub(r"[\n\r]", " ", raw.expandtabs(4)).rstrip() if node.kind == "code" else " ".join(raw.split())

    return node.replace(
        lines=tuple(replace(line, text=text(line.text)) for line in node.lines),
        alt=" ".join(_UNUSABLE.sub("", node.alt).split()),
        src=None if node.src is None else _UNUSABLE.sub("", node.src),
        children=tuple(clean(child) for child in node.children),
    )


def tidy(node: Node, *, inside_table: bool) -> Node:
    """Rows that stand outside a table get one; pages inside pages become groups."""
    children: list[Node] = []
    rows: list[Node] = []

    def close() -> None:
        if rows:
            children.append(Node(kind="table", box=Box.around([r.box for r in rows]), children=tuple(rows)))
            rows.clear()

    for child in node.children:
        child = tidy(child, inside_table=child.kind == "table")
        if child.kind == "page":
            child = child.replace(kind="group")
        if child.kind == "tr" and not inside_table:
            rows.append(child)
            continue
        close()
        children.append(child)
    close()
    return node.replace(children=tuple(children))


def page_font(tree: Node) -> tuple[dict[str, str], Font, RGB]:
    """What to draw each family with, and the font and colour that most letters of the page have."""
    lines = [line for node in tree.walk() for line in node.lines if line.text.strip()]
    families = {
        "sans": _best_face(lines, "sans", ("wide", "narrow")),
        "serif": _best_face(lines, "serif", ("wide-serif",)),
    }
    fonts: Counter[Font] = Counter()
    colors: Counter[RGB] = Counter()
    for line in lines:
        fonts[resolve_font(line.text, line.box, line.style, families, Font())] += len(line.text)
        colors[line.style.color or (0, 0, 0)] += len(line.text)
    base = fonts.most_common(1)[0][0] if fonts else Font()
    return families, replace(base, weight=400, italic=False), colors.most_common(1)[0][0] if colors else (0, 0, 0)


def _best_face(lines: list[TextLine], family: str, others: tuple[str, ...]) -> str:
    """The face that fits the page's lines of `family` best: most pages have one, and it need not be as wide as Arial."""
    fits = [
        line
        for line in lines
        if line.style.font_size
        and (line.style.font_family or "sans") == family
        and len(line.text) > 3
        and line.box.width > 8
    ]
    letters = sum(len(line.text) for line in fits)
    if letters < 30:
        return family
    errors = {}
    for face in (family, *others):
        if not installed(face):
            continue
        off = 0.0
        for line in fits:
            font = Font(family=face, size=line.style.font_size or 16.0, weight=line.style.font_weight or 400)
            off += len(line.text) * abs(math.log(max(text_width(line.text, font), 1.0) / line.box.width))
        errors[face] = off / letters
    best = min(errors, key=lambda face: errors[face], default=family)
    # another face has to earn it: letter-spacing covers small differences
    return best if best != family and errors[family] > 0.03 and errors[best] < 0.6 * errors[family] else family


def within(tree: Node, width: float) -> Node:
    """Lines that would run over the right edge of the picture (they were cut there) get smaller letters."""

    def fit(line: TextLine) -> TextLine:
        size = line.style.font_size
        if not size or not line.text.strip():
            return line
        font = Font(family=line.style.font_family or "sans", size=size, weight=line.style.font_weight or 400)
        if font.family not in FAMILIES:
            return line
        least = text_width(line.text, font) - SPACING_LIMIT * size * clusters(line.text)
        room = max(width - line.box.x0, 1.0)
        if least <= room or line.box.x0 >= width:
            return line
        return replace(line, style=replace(line.style, font_size=math.floor(max(0.4, room / least) * size * 10) / 10))

    return tree.replace(
        lines=tuple(fit(line) for line in tree.lines), children=tuple(within(child, width) for child in tree.children)
    )

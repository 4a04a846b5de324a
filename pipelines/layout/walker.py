"""What a rendered page shows, as lines and boxes.

`walker.js` writes one record a page (all boxes are `[x0, y0, x1, y1]` in px of the viewport, after scrolling):

    width, height, scroll_x, scroll_y, doc_width, doc_height, background [r, g, b], title, lang, truncated
    elements: list in document order, parents first
        i, p        own index, index of the parent (-1: none)
        tag         lower case; role, type, href, alt, placeholder, id, label, cls, checked where the page has them
        box, vis    border box; what clipping leaves of it (null: nothing shows)
        disp        computed display; pos, float where not the default
        color, fs, fw, ff, ta   ink [r, g, b, a], size px, weight, "sans" | "serif" | "mono", alignment; it, ul, rtl
        bg, bgi     own background [r, g, b, a] and "url" or "gradient"
        bw, bc      border widths [top, right, bottom, left] and colour; radius; shadow
        pic         "img", "svg", "canvas", "video", "object", "frame" or "icon" (a glyph of an icon font)
    texts: list in document order, one entry for each visual line of each text node
        e, text, box          element it belongs to, collapsed text, box
        field, placeholder    text inside a control; color where a placeholder has its own
        icon                  a glyph of an icon font or a pictograph; `text` is empty
        cut, full             clipped: `full` is the whole box

Elements that show nothing and hold nothing are left out, and so is text that is transparent or covered.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from PIL import Image

from watersmeet.core.geometry import Box
from watersmeet.pipelines.layout.tree import RGB

HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
LINE_KINDS = ("heading", "link", "field", "label", "code", "cell", "item", "text")
PRESSED = ("submit", "button", "reset")
CHECKS = ("checkbox", "radio")
SMALLEST = 6  # px: pictures and controls below this side are no boxes anybody would count


@dataclass(frozen=True, kw_only=True, slots=True)
class DomLine:
    """One visual line. `element` is its block container, `fragments` index `raw["texts"]`; `cut`: clipped sideways."""

    text: str
    box: Box
    color: RGB
    kind: str
    font_size: float
    element: int
    fragments: tuple[int, ...]
    cut: bool = False


class Dom:
    """Indexes over one walker record; build it once when several questions are asked."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw = raw
        self.elements: list[dict[str, Any]] = raw["elements"]
        self.texts: list[dict[str, Any]] = raw["texts"]
        self.children: list[list[int]] = [[] for _ in self.elements]
        for element in self.elements:
            if element["p"] >= 0:
                self.children[element["p"]].append(element["i"])

    def ancestors(self, i: int) -> Iterator[dict[str, Any]]:
        """The element itself, then its parents."""
        while i >= 0:
            element = self.elements[i]
            yield element
            i = element["p"]

    def container(self, i: int) -> int:
        """The nearest element, from `i` upwards, that lays out its own lines."""
        for element in self.ancestors(i):
            if element["disp"] not in ("inline", "contents", "ruby") or element["tag"] in ("html", "body"):
                return int(element["i"])
        return 0

    @cached_property
    def surfaces(self) -> list[RGB]:
        """The colour that each element leaves behind its content (pictures and overlaps are not looked at)."""
        out: list[RGB] = []
        for element in self.elements:
            under = out[element["p"]] if element["p"] >= 0 else _rgb(self.raw["background"])
            out.append(over(element["bg"], under) if "bg" in element else under)
        return out

    def backdrop(self, i: int) -> RGB:
        """The colour that element `i` is painted on."""
        parent = self.elements[i]["p"]
        return self.surfaces[parent] if parent >= 0 else _rgb(self.raw["background"])

    def painted(self, i: int) -> bool:
        """Whether the element has a fill, border or shadow of its own that can be seen."""
        element = self.elements[i]
        if element["vis"] is None:
            return False
        return self.filled(i) or self.bordered(i) or "shadow" in element

    def filled(self, i: int) -> bool:
        element = self.elements[i]
        return "bg" in element and distance(self.surfaces[i], self.backdrop(i)) > 3

    def bordered(self, i: int) -> bool:
        element = self.elements[i]
        return "bw" in element and distance(over(element["bc"], self.backdrop(i)), self.backdrop(i)) > 3

    @cached_property
    def _texts_below(self) -> list[list[int]]:
        own: list[list[int]] = [[] for _ in self.elements]
        for k, text in enumerate(self.texts):
            for element in self.ancestors(text["e"]):
                own[element["i"]].append(k)
        return own

    def texts_below(self, i: int) -> list[int]:
        return self._texts_below[i]

    @cached_property
    def _ends(self) -> list[int]:
        ends = list(range(1, len(self.elements) + 1))
        for element in reversed(self.elements):
            if element["p"] >= 0:
                ends[element["p"]] = max(ends[element["p"]], ends[element["i"]])
        return ends

    def below(self, i: int) -> range:
        """All elements inside element `i`: in document order they stand right behind it."""
        return range(i + 1, self._ends[i])

    def is_button(self, i: int) -> bool:
        """A button by its tag or role, or a link or label that is drawn like one."""
        element = self.elements[i]
        if element["vis"] is None:
            return False
        tag, role = element["tag"], element.get("role", "")
        if tag == "button" or (tag == "input" and element.get("type") in PRESSED):
            return True
        if (tag not in ("a", "label", "summary") and role != "button") or element["disp"] in (
            "inline",
            "contents",
            "table-cell",
        ):
            return False
        box = element["box"]
        width, height = box[2] - box[0], box[3] - box[1]
        if not (14 <= height <= 80 and 14 <= width <= 480):
            return False
        framed = self.bordered(i) and min(element["bw"]) > 0
        if not (framed or self.filled(i)):
            return False
        if any("pic" in self.elements[k] and _tallest(self.elements[k]["box"]) > 48 for k in self.below(i)):
            return False
        boxes = [self.texts[k]["box"] for k in self.texts_below(i) if self.texts[k]["text"]]
        if not boxes:
            return any("pic" in self.elements[k] for k in self.below(i))
        return max(b[3] for b in boxes) - min(b[1] for b in boxes) <= 3.2 * element["fs"]


def dom_lines(raw: dict[str, Any], screenshot: Image.Image | None = None) -> list[DomLine]:
    """Visual lines of a page in document order: pieces of text closer than 1 em inside one block container.

    The kind of a line is that of most of its characters; a piece of text has the first of `LINE_KINDS` that any of
    its ancestors gives it. With the page's `screenshot`, lines that left no ink in the picture are dropped.
    """
    return lines_of(Dom(raw), screenshot)


def lines_of(dom: Dom, screenshot: Image.Image | None = None) -> list[DomLine]:
    """`dom_lines` for a record that is indexed already."""
    groups: dict[int, list[list[int]]] = {}
    order: list[tuple[int, list[int]]] = []
    for k, text in enumerate(dom.texts):
        if not text["text"]:
            continue
        home = dom.container(text["e"])
        lines = groups.setdefault(home, [])
        size = dom.elements[text["e"]]["fs"]
        for line in reversed(lines[-4:]):
            if _same_line(dom.texts[line[-1]]["box"], text["box"], size):
                line.append(k)
                break
        else:
            lines.append([k])
            order.append((home, lines[-1]))
    out = [_line(dom, home, pieces) for home, pieces in order]
    if screenshot is not None:
        pixels = np.asarray(screenshot.convert("RGB"))
        out = [line for line in out if has_ink(pixels, line.box)]
    return out


def _same_line(a: list[float], b: list[float], size: float) -> bool:
    shared = min(a[3], b[3]) - max(a[1], b[1])
    if shared <= 0.5 * min(a[3] - a[1], b[3] - b[1]):
        return False
    gap = max(a[0], b[0]) - min(a[2], b[2])
    return -0.5 * size < gap < size


def _line(dom: Dom, home: int, pieces: list[int]) -> DomLine:
    text = ""
    last: list[float] | None = None
    weights: dict[str, int] = {}
    for k in pieces:
        piece = dom.texts[k]
        box, size = piece["box"], dom.elements[piece["e"]]["fs"]
        if last is not None and max(box[0] - last[2], last[0] - box[2]) > 0.1 * size:
            text += " "
        text += piece["text"]
        last = box
        kind = _kind(dom, piece)
        weights[kind] = weights.get(kind, 0) + len(piece["text"])
    main = dom.texts[max(pieces, key=lambda k: len(dom.texts[k]["text"]))]
    element = dom.elements[main["e"]]
    boxes = [dom.texts[k]["box"] for k in pieces]
    return DomLine(
        text=text,
        box=Box(
            x0=min(b[0] for b in boxes),
            y0=min(b[1] for b in boxes),
            x1=max(b[2] for b in boxes),
            y1=max(b[3] for b in boxes),
        ),
        color=over(main.get("color") or element["color"] or [0, 0, 0, 1], dom.surfaces[main["e"]]),
        kind=max(weights, key=lambda name: (weights[name], -LINE_KINDS.index(name))),
        font_size=float(element["fs"]),
        element=home,
        fragments=tuple(pieces),
        cut=any(_cut_sideways(dom.texts[k]) for k in pieces),
    )


def _kind(dom: Dom, piece: dict[str, Any]) -> str:
    found: set[str] = set()
    if piece.get("field"):
        found.add("field")
    for element in dom.ancestors(piece["e"]):
        tag, role = element["tag"], element.get("role", "")
        if tag in HEADINGS or role == "heading":
            found.add("heading")
        elif (
            tag in ("a", "button", "summary")
            or role in ("button", "link", "tab", "menuitem")
            or (tag == "input" and element.get("type") in PRESSED)
        ):
            found.add("link")
        elif tag in ("input", "select", "textarea"):
            found.add("field")
        elif tag == "label":
            found.add("label")
        elif tag in ("pre", "code"):
            found.add("code")
        elif tag in ("td", "th") or role in ("cell", "gridcell", "columnheader", "rowheader"):
            found.add("cell")
        elif tag == "li" or role == "listitem":
            found.add("item")
    return next((kind for kind in LINE_KINDS if kind in found), "text")


def _cut_sideways(piece: dict[str, Any]) -> bool:
    if "full" not in piece:
        return False
    full, seen = piece["full"], piece["box"]
    return bool(full[2] > seen[2] + 1 or full[0] < seen[0] - 1)


def has_ink(pixels_HW3: np.ndarray, box: Box, least: int = 12) -> bool:
    """Whether the picture varies inside `box` by `least` levels of 255: text that cannot be seen does not."""
    height, width = pixels_HW3.shape[:2]
    part = pixels_HW3[
        max(0, int(box.y0)) : min(height, int(box.y1) + 1), max(0, int(box.x0)) : min(width, int(box.x1) + 1)
    ]
    if part.size == 0:
        return False
    return bool((part.max(axis=(0, 1)).astype(int) - part.min(axis=(0, 1)).astype(int)).max() >= least)


def dom_boxes(raw: dict[str, Any]) -> list[tuple[str, Box]]:
    """Visible pictures, buttons and inputs: `("image" | "button" | "input", box)`, document order."""
    dom = Dom(raw)
    out: list[tuple[str, Box]] = []
    for element in dom.elements:
        if element["vis"] is None:
            continue
        tag = element["tag"]
        kind = None
        if dom.is_button(element["i"]):
            kind = "button"
        elif tag in ("input", "select", "textarea") or element.get("role") in ("textbox", "combobox", "searchbox"):
            kind = "input"
        elif is_picture(element):
            kind = "image"
        if kind is not None:
            _put(out, kind, _box(element["vis"]))
    for text in dom.texts:
        if text.get("icon"):
            _put(out, "image", _box(text["box"]))
    return out


def _put(out: list[tuple[str, Box]], kind: str, box: Box) -> None:
    if min(box.width, box.height) < SMALLEST:
        return
    if not any(k == kind and b.iou(box) > 0.9 for k, b in out):
        out.append((kind, box))


def is_picture(element: dict[str, Any]) -> bool:
    """Pictures of any kind, background pictures included unless they are the page's own."""
    if "pic" in element:
        return True
    return element.get("bgi") == "url" and element["tag"] not in ("html", "body", "input", "select", "textarea")


def absolute_share(raw: dict[str, Any]) -> float:
    """Share (0 to 1) of the elements with text of their own that are absolute or fixed, or inside such an element."""
    dom = Dom(raw)
    owners = {text["e"] for text in dom.texts if text["text"] and not text.get("field")}
    if not owners:
        return 0.0
    out = sum(any(e.get("pos") in ("absolute", "fixed") for e in dom.ancestors(i)) for i in owners)
    return out / len(owners)


def largest_picture_share(raw: dict[str, Any]) -> float:
    """Area of the largest visible picture, the page's own background picture included, as a share of the viewport."""
    return max((box.area for box in _pictures(raw)), default=0.0) / max(1.0, raw["width"] * raw["height"])


def picture_cover(raw: dict[str, Any]) -> float:
    """Share of the viewport under pictures of any size together (overlaps counted once, to 4 px)."""
    columns, rows = int(raw["width"]) // 4 + 1, int(raw["height"]) // 4 + 1
    grid = np.zeros((rows, columns), dtype=bool)
    for box in _pictures(raw):
        grid[round(box.y0 / 4) : round(box.y1 / 4), round(box.x0 / 4) : round(box.x1 / 4)] = True
    return float(grid.sum() * 16 / max(1.0, raw["width"] * raw["height"]))


def _pictures(raw: dict[str, Any]) -> Iterator[Box]:
    for element in raw["elements"]:
        if element["tag"] in ("html", "body") and element["p"] <= 0 and element.get("bgi") == "url":
            yield Box(x0=0, y0=0, x1=raw["width"], y1=raw["height"])  # it is painted on the whole view
        elif element["vis"] is not None and (is_picture(element) or element.get("bgi") == "url"):
            yield _box(element["vis"])


def overflow_x(raw: dict[str, Any]) -> float:
    """How far the page can be scrolled sideways, in px (0: not at all)."""
    return max(0.0, float(raw["doc_width"]) - float(raw["width"]))


def cut_lines(raw: dict[str, Any]) -> int:
    """Number of lines that are clipped on the left or right."""
    return sum(line.cut for line in dom_lines(raw))


def over(color: list[float], under: RGB) -> RGB:
    """`color` [r, g, b, alpha] painted on `under`."""
    a = color[3] if len(color) > 3 else 1.0
    return (
        round(color[0] * a + under[0] * (1 - a)),
        round(color[1] * a + under[1] * (1 - a)),
        round(color[2] * a + under[2] * (1 - a)),
    )


def distance(a: RGB, b: RGB) -> int:
    """Largest difference of a channel."""
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


def _rgb(values: list[int]) -> RGB:
    return (int(values[0]), int(values[1]), int(values[2]))


def _box(values: list[float]) -> Box:
    return Box(x0=values[0], y0=values[1], x1=values[2], y1=values[3])


def _tallest(values: list[float]) -> float:
    return max(values[2] - values[0], values[3] - values[1])

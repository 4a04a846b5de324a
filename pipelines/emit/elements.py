"""The element tree: tags, texts and declarations of a page, before any target writes it down."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from watersmeet.core.geometry import Box
from watersmeet.pipelines.emit.flow import Flow, build, has_look
from watersmeet.pipelines.emit.fonts import Font, metrics
from watersmeet.pipelines.emit.prepare import clean, page_font, tidy, within
from watersmeet.pipelines.emit.style import Declarations, box_look, px, rgb, text_look
from watersmeet.pipelines.emit.text import Piece, Row, TextBlock
from watersmeet.pipelines.layout.tree import RGB, Node, Style

VOID = ("img", "input", "hr", "br", "rect")


@dataclass(kw_only=True)
class Element:
    """One element. `shared` names classes of `style.SHARED`; `look` holds at every width, `wide` at the picture's width."""

    tag: str
    role: str
    attrs: dict[str, str] = field(default_factory=dict)
    shared: list[str] = field(default_factory=list)
    look: Declarations = field(default_factory=dict)
    wide: Declarations = field(default_factory=dict)
    children: list["Element"] = field(default_factory=list)
    text: str | None = None  # an element holds text or elements, never both
    node: Node | None = None

    def walk(self) -> Iterator["Element"]:
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(kw_only=True)
class Page:
    """A page ready to be written: its body, and what the body's own rule must say."""

    body: Element
    title: str
    width: float
    breakpoint: int  # px: from this window width on the measured layout holds
    base_font: Font
    base_color: RGB
    background: RGB


@dataclass(frozen=True, kw_only=True)
class _Context:
    phrasing: bool = False  # only inline elements may stand here
    interactive: bool = False  # inside a link or button
    above: frozenset[str] = frozenset()
    item_tag: str | None = None  # li, td or th wanted by the parent


def make_page(tree: Node, title: str, width: float | None) -> Page:
    """The element tree of `tree`, whose box may start anywhere; `width` is the picture's width in px."""
    if tree.kind != "page":
        tree = Node(kind="page", box=tree.box, children=(tree,))
    width = float(width) if width else max(1.0, tree.box.width)
    tree = tidy(tree.shifted(-tree.box.x0, -tree.box.y0), inside_table=False)
    tree = within(clean(tree), width)
    families, base, color = page_font(tree)
    flow = build(tree, families, base, width)
    breakpoint = int(max(640, 0.8 * width)) if width >= 640 else int(width)
    maker = _Maker(base, color)
    body = maker.element(flow, _Context())
    return Page(
        body=body,
        title=title,
        width=width,
        breakpoint=breakpoint,
        base_font=base,
        base_color=color,
        background=tree.style.background or (255, 255, 255),
    )


_PLAIN = {
    "page": "body",
    "card": "div",
    "group": "div",
    "list": "ul",
    "table": "table",
    "tr": "tr",
    "text": "p",
    "link": "a",
    "code": "pre",
    "rule": "hr",
}


class _Maker:
    def __init__(self, base: Font, color: RGB) -> None:
        self.base, self.color = base, color
        self.seen_main = False
        self.fields = 0

    def element(self, flow: Flow, context: _Context) -> Element:
        kind = flow.kind
        if kind == "icon" or kind == "img":
            return self._picture(flow)
        if kind == "rule":
            return self._rule(flow, context)
        if kind in ("check", "input", "select", "textarea") and not flow.items:
            return self._field(flow, context)
        tag = self._tag(flow, context)
        element = Element(tag=tag, role=self._role(flow, tag, context), node=flow.node)
        element.look = box_look(flow.style) if kind != "page" else {}
        if kind in ("link", "button") and tag in ("a", "button"):
            element.attrs["href" if tag == "a" else "type"] = "#" if tag == "a" else "button"
        inner = self._inside(context, tag)
        if flow.items:
            self._container(element, flow, inner)
        elif flow.text is not None:
            self._text(element, flow.text, flow)
        else:
            element.look["min-height"] = px(min(flow.box.height, 400))
            element.wide["min-height"] = px(flow.box.height)
        return element

    # tags -----------------------------------------------------------------------------------------------------------

    def _tag(self, flow: Flow, context: _Context) -> str:
        kind = flow.kind
        if context.item_tag is not None and kind in ("text", "group", "card"):
            return context.item_tag
        if kind == "link" and not context.interactive:
            return "a"
        if kind == "button" and not context.interactive:
            return "button"
        if context.phrasing or kind in ("link", "button"):
            return "span"
        if kind == "code" and (flow.items or flow.text is None):
            return "div"
        if kind in ("text", "h1", "h2", "h3", "h4", "label") and flow.items and not _inline_only(flow):
            return "div" if kind in ("text", "label") else kind
        if kind in ("header", "footer") and context.above & {"header", "footer"}:
            return "div"
        if kind == "main" and (self.seen_main or context.above & {"header", "footer", "nav", "aside"}):
            return "section"
        if kind == "form" and "form" in context.above:
            return "div"
        if kind == "text" and flow.items:
            return "p"
        self.seen_main |= kind == "main"
        return _PLAIN.get(kind, kind)

    def _inside(self, context: _Context, tag: str) -> _Context:
        phrasing = context.phrasing or tag in ("p", "h1", "h2", "h3", "h4", "button", "label", "span", "pre")
        return _Context(
            phrasing=phrasing,
            interactive=context.interactive or tag in ("a", "button"),
            above=context.above | {tag},
        )

    def _role(self, flow: Flow, tag: str, context: _Context) -> str:
        kind = flow.kind
        if kind == "link":
            return "nav-link" if "nav" in context.above else "link"
        if tag == "li":
            return "item"
        if tag in ("td", "th"):
            return "cell"
        if kind == "group":
            return "panel" if has_look(flow.style) else "group"
        return {"page": "page", "img": "picture", "tr": "row"}.get(kind, kind)

    # containers -----------------------------------------------------------------------------------------------------

    def _container(self, element: Element, flow: Flow, context: _Context) -> None:
        if flow.kind != "page" and (has_look(flow.style) or flow.kind in ("header", "nav", "footer", "button")):
            element.shared.append("snug" if flow.box.height < 30 else "pad")
        element.wide |= _padding(flow.padding)
        inner = element
        if element.tag == "table":  # rows may only stand in a body, so that is where the layout belongs
            inner = Element(tag="tbody", role="rows")
            element.children.append(inner)
        shared = flow.direction
        if element.tag == "tr" and flow.direction == "row" and len(flow.items) <= 6:
            shared = "cells"
        if flow.direction == "stack" and _covers(flow):
            shared = "cover"
        if flow.direction == "grid" and max(flow.columns) < 180:
            shared = "tiles"
        inner.shared.insert(0, shared)
        if flow.direction == "grid":
            inner.wide["grid-template-columns"] = _tracks(flow)
            if flow.row_gap or flow.gap:
                gaps = [px(flow.row_gap), px(flow.gap)]
                inner.wide["gap"] = gaps[0] if gaps[0] == gaps[1] else " ".join(gaps)
        elif flow.gap:
            inner.wide["gap"] = px(flow.gap)
        if flow.center_items:
            inner.wide["align-items"] = "center"
        inner.children = [self._item(item, flow, element.tag, context) for item in flow.items]
        self._name_fields(inner.children)
        if shared == "cover":
            inner.children[0].shared.append("back")
            for child in inner.children[1:]:
                child.shared.append("pad")

    def _name_fields(self, siblings: list[Element]) -> None:
        """Tie a label to the field beside it, the one after it first."""
        for index, element in enumerate(siblings):
            if element.tag != "label":
                continue
            for near in siblings[index + 1 : index + 2] + siblings[max(index - 1, 0) : index]:
                fields = [e for e in near.walk() if e.tag in ("input", "select", "textarea")]
                if len(fields) == 1 and "id" not in fields[0].attrs:
                    self.fields += 1
                    fields[0].attrs["id"] = element.attrs["for"] = f"field-{self.fields}"
                    break

    def _item(self, item: Flow, parent: Flow, parent_tag: str, context: _Context) -> Element:
        """The element of one child, with its placement; wrapped as an item, row or cell where the parent asks for one."""
        place = _placement(item, parent)
        wrap: list[tuple[str, str]] = []
        if parent_tag == "ul":
            wrap = [("li", "item")]
        elif parent_tag == "tr":
            wrap = [("th" if _is_heading_row(parent) else "td", "cell")]
        elif parent_tag == "table" and item.kind != "tr":
            wrap = [("tr", "row"), ("td", "cell")]
        last = wrap[-1] if wrap else None
        if last is not None and item.kind in ("text", "group", "card"):
            child = self.element(item, replace(context, item_tag=last[0]))
            wrap.pop()
        else:
            child = self.element(item, context)
        for tag, role in reversed(wrap):
            child = Element(tag=tag, role=role, shared=["wrap"], children=[child])
        child.wide |= place
        if parent.direction == "row" and item.items and item.box.width > 200 and item.kind != "button":
            child.shared.append("fill")
        if _is_badge(item) and not wrap:
            # a round or square mark keeps its size in every window
            child.shared = [name for name in child.shared if name not in ("pad", "snug")]
            kept = {name: child.wide.pop(name) for name in ("padding", "width") if name in child.wide}
            child.look |= kept | {"flex": "none", "align-self": child.wide.get("align-self", "auto")}
            if child.look["align-self"] == "auto":
                del child.look["align-self"]
        if parent.kind == "page" and "pad" not in child.shared and child.tag not in ("img", "svg", "hr"):
            child.shared.append("gutter")
        if item.grow:
            child.shared.append("grow")
        return child

    # texts ----------------------------------------------------------------------------------------------------------

    def _text(self, element: Element, block: TextBlock, flow: Flow) -> None:
        """Put the lines of `block` into `element`: as plain text when there is one, else a span for each."""
        element.look |= text_look(block.font, block.style, self.base, self.color)
        if flow.text_align in ("center", "right"):
            element.look["text-align"] = flow.text_align
        if block.rtl:
            element.attrs["dir"] = "rtl"
            element.look.setdefault("text-align", "left")
        if flow.kind == "button" and flow.text_align == "left":
            element.look["text-align"] = "left"
        if has_look(flow.style) or flow.kind == "button":
            element.shared.append("snug" if flow.box.height < 30 and element.tag not in ("td", "th", "li") else "pad")
        element.wide |= _padding(flow.padding)
        if block.spacing:
            element.wide["letter-spacing"] = px3(block.spacing)
        target = element
        if element.tag == "pre":
            target = Element(tag="code", role="code-lines")
            element.shared.append("source")
            element.children.append(target)
        over_top, over_bottom, over_left = flow.inside
        single = len(block.rows) == 1 and len(block.rows[0].pieces) == 1
        if single and not any(flow.inside):
            piece = block.rows[0].pieces[0]
            element.wide["line-height"] = px(block.rows[0].height)
            if piece.spacing != block.spacing:
                element.wide["letter-spacing"] = px3(piece.spacing)
            target.text = piece.text
            return
        if block.pitch is not None:
            element.wide["line-height"] = px(block.pitch)
        if block.pitch is None or any(flow.inside):
            target.shared.append("lines")
        target.children.extend(self._line(row, block) for row in block.rows)
        if target is not element:
            for child in target.children:
                child.shared.append("source-line")
        first, last = target.children[0], target.children[-1]
        if over_top:
            first.wide["margin-top"] = px(block.rows[0].top + over_top)
        if over_bottom:
            last.wide["margin-bottom"] = px(over_bottom)
        if over_left:
            for line, row in zip(target.children, block.rows, strict=True):
                line.wide["margin-left"] = px(row.left + over_left)

    def _line(self, row: Row, block: TextBlock) -> Element:
        line = Element(tag="span", role="line", shared=["line"])
        if row.left > 0.5 or row.left < -0.5:
            line.wide["margin-left"] = px(row.left)
        if block.pitch is None:
            if abs(row.top) > 0.05:
                line.wide["margin-top"] = px(row.top)
            line.wide["line-height"] = px(row.height)
        if len(row.pieces) == 1:
            self._piece(line, row.pieces[0], block)
            return line
        line.shared.append("pieces")
        for piece in row.pieces:
            part = Element(tag="span", role="part")
            self._piece(part, piece, block)
            if abs(piece.left) > 0.05:
                part.wide["margin-left"] = px(piece.left)
            if abs(piece.top) > 0.05:
                part.wide["margin-top"] = px(piece.top)
            line.children.append(part)
        return line

    def _piece(self, element: Element, piece: Piece, block: TextBlock) -> None:
        element.text = piece.text
        if piece.font != block.font or piece.style != block.style:
            own = text_look(piece.font, piece.style, block.font, block.style.color or (0, 0, 0))
            if block.style.underline and not piece.style.underline:
                own.pop("text-decoration", None)
            element.look |= own
        if piece.font != block.font and block.pitch is None:
            element.wide["line-height"] = px(sum(metrics(piece.font)))
        if piece.spacing != block.spacing:
            element.wide["letter-spacing"] = px3(piece.spacing) if piece.spacing else "normal"

    # pictures and controls ------------------------------------------------------------------------------------------

    def _picture(self, flow: Flow) -> Element:
        node = flow.node
        assert node is not None
        role = "icon" if node.kind == "icon" else "picture"
        size = {"width": px(flow.box.width), "height": px(flow.box.height)}
        look = {k: v for k, v in box_look(node.style).items() if k != "background-color"}
        if node.src is not None:
            attrs = {"src": node.src, "alt": node.alt}
            return Element(tag="img", role=role, attrs=attrs, shared=["fluid"], look=look, wide=size, node=node)
        fill = rgb(node.style.background or node.style.color or (204, 204, 204))
        attrs = {"role": "img", "aria-label": node.alt or role, "viewBox": "0 0 1 1", "preserveAspectRatio": "none"}
        rect = Element(tag="rect", role="fill", attrs={"width": "1", "height": "1", "fill": fill})
        return Element(tag="svg", role=role, attrs=attrs, look=look | size, children=[rect], node=node)

    def _rule(self, flow: Flow, context: _Context) -> Element:
        style = flow.style
        color = style.background or style.border_color or style.color or (204, 204, 204)
        upright = flow.box.height > flow.box.width
        look = {"background-color": rgb(color)}
        look["width" if upright else "height"] = px(flow.box.width if upright else flow.box.height)
        wide = {"height": px(flow.box.height)} if upright else {}
        return Element(tag="span" if context.phrasing else "hr", role="rule", look=look, wide=wide, node=flow.node)

    def _field(self, flow: Flow, context: _Context) -> Element:
        node = flow.node
        assert node is not None
        size = {"width": px(flow.box.width), "height": px(flow.box.height)}
        if context.interactive:
            text = " ".join(line.text for line in node.lines)
            return Element(tag="span", role=node.kind, look=box_look(node.style), wide=size, text=text, node=node)
        if node.kind == "check":
            return self._check(node, size)
        element = Element(
            tag=node.kind, role=node.kind, shared=["field"], look=box_look(node.style), wide=size, node=node
        )
        if node.style.background is None:
            element.look["background-color"] = "transparent"
        block = flow.text
        if block is not None:
            element.look |= text_look(block.font, block.style, self.base, self.color)
            element.wide |= self._field_padding(flow, block)
            if block.spacing or block.rows[0].pieces[0].spacing:
                element.wide["letter-spacing"] = px3(block.spacing or block.rows[0].pieces[0].spacing)
        lines = [" ".join(p.text for p in row.pieces) for row in block.rows] if block is not None else []
        hint = block is not None and _is_faint(block.style, node.style)
        if node.kind == "input":
            element.attrs["type"] = "text"
            if lines:
                element.attrs["placeholder" if hint else "value"] = " ".join(lines)
            if node.alt:
                element.attrs["aria-label"] = node.alt
        elif node.kind == "textarea":
            element.text = "" if hint else "\n".join(lines)
            if hint:
                element.attrs["placeholder"] = "\n".join(lines)
            if block is not None:
                element.wide["line-height"] = px(block.pitch or block.rows[0].height)
        else:
            element.children.append(Element(tag="option", role="option", text=" ".join(lines)))
        return element

    def _field_padding(self, flow: Flow, block: TextBlock) -> Declarations:
        top, right, bottom, left = flow.border
        inner = Box(x0=flow.box.x0 + left, y0=flow.box.y0 + top, x1=flow.box.x1 - right, y1=flow.box.y1 - bottom)
        start = max(0.0, block.box.x0 - inner.x0 - (4.0 if flow.kind == "select" else 0.0))  # its own inner padding
        if flow.kind == "textarea":
            return _padding((max(0.0, block.box.y0 - inner.y0), 0.0, 0.0, start))
        offset = 2 * (block.box.center[1] - inner.center[1])
        if abs(offset) < 1.0:
            offset = 0.0
        return _padding((max(0.0, offset), 0.0, max(0.0, -offset), start))

    def _check(self, node: Node, size: Declarations) -> Element:
        round_ = node.style.radius >= 0.4 * min(node.box.width, node.box.height) > 0
        wide_box = node.box.width > 1.4 * node.box.height
        attrs = {"type": "radio" if round_ and not wide_box else "checkbox"}
        if node.alt:
            attrs["aria-label"] = node.alt
        fill = node.style.background
        look = dict(size)
        if fill is not None and _luminance(fill) < 0.8:
            attrs["checked"] = "checked"
            look["accent-color"] = rgb(fill)
        return Element(tag="input", role="check", attrs=attrs, look=look, node=node)


def px3(value: float) -> str:
    """Letter-spacing needs thousandths: it is paid once a letter."""
    return f"{round(value, 3):g}px"


def _inline_only(flow: Flow) -> bool:
    return all(
        i.kind in ("text", "link", "icon", "img", "button", "label", "input", "check", "select") for i in flow.items
    )


def _is_heading_row(row: Flow) -> bool:
    texts = [item.text for item in row.items]
    return bool(texts) and all(t is not None and t.font.bold for t in texts)


def _covers(flow: Flow) -> bool:
    """Whether the first item lies behind all others."""
    back = flow.items[0]
    return (
        len(flow.items) == 2
        and back.kind in ("img", "card", "group")
        and not back.items
        and back.box.contains(flow.items[1].box, slack=4.0)
    )


def _is_badge(item: Flow) -> bool:
    box = item.box
    return has_look(item.style) and max(box.width, box.height) <= 64 and 0.6 < box.width / box.height < 1.7


def _placement(item: Flow, parent: Flow) -> Declarations:
    out: Declarations = {}
    if abs(item.top) > 0.005:
        out["margin-top"] = px(item.top)
    if abs(item.bottom) > 0.005:
        out["margin-bottom"] = px(item.bottom)
    if item.auto_left:
        out["margin-left"] = "auto"
    elif abs(item.left) > 0.005:
        out["margin-left"] = px(item.left)
    if item.centered:
        out["align-self"] = "center"
    if item.width is not None and not item.grow:
        out["width"] = px(item.width)
    elif parent.direction == "stack":
        out["width"] = "100%"
    return out


def _padding(padding: tuple[float, float, float, float]) -> Declarations:
    top, right, bottom, left = (px(v) for v in padding)
    if top == right == bottom == left:
        return {} if top == "0" else {"padding": top}
    if top == bottom and left == right:
        return {"padding": f"{top} {left}"}
    return {"padding": f"{top} {right} {bottom} {left}"}


def _tracks(flow: Flow) -> str:
    if flow.equal_columns:
        return f"repeat({len(flow.columns)}, minmax(0, 1fr))"
    return " ".join(px(width) for width in flow.columns)


def _luminance(color: RGB) -> float:
    r, g, b = color
    return (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255


def _is_faint(text: Style, box: Style) -> bool:
    """Whether letters stand out so little that they are a placeholder."""
    ink = _luminance(text.color or (0, 0, 0))
    ground = _luminance(box.background or (255, 255, 255))
    return abs(ink - ground) < 0.72

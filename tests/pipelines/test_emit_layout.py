"""Random layout trees, emitted and rendered in Chromium, must land where they were measured."""

import random
import time
from dataclasses import replace
from pathlib import Path

import pytest

from watersmeet.core.geometry import Box
from watersmeet.pipelines.browser.render import Browser, RenderedPage
from watersmeet.pipelines.emit import emit
from watersmeet.pipelines.emit.fonts import Font, metrics, text_width
from watersmeet.pipelines.layout.tree import Node, Style, TextLine
from watersmeet.pipelines.layout.walker import dom_boxes

WORDS = "river stone light over early market paper twelve garden window Fjord quay jump AVAIL office".split()
COLORS = [(20, 20, 20), (200, 30, 40), (10, 90, 200), (90, 90, 90)]


class Maker:
    """Random trees. `mess` is the chance that a box is moved, so that it collides with others or leaves its parent."""

    def __init__(self, seed: int, *, width: int = 1280, height: int = 757, leaves: int = 60, mess: float = 0.0) -> None:
        self.rng = random.Random(seed)
        self.width, self.height, self.left, self.mess = width, height, leaves, mess
        self.count = 0

    def page(self) -> Node:
        box = Box(x0=0, y0=0, x1=self.width, y1=self.height)
        children = self.fill(Box(x0=0, y0=0, x1=self.width, y1=self.height), 0)
        return Node(kind="page", box=box, children=tuple(children), style=Style(background=(250, 250, 245)))

    def fill(self, box: Box, depth: int) -> list[Node]:
        """Children that cut `box` into rows or columns."""
        rng = self.rng
        if self.left <= 0 or box.width < 30 or box.height < 14:
            return []
        across = rng.random() < 0.5 and box.width > 240
        size = box.width if across else box.height
        parts = rng.randint(1 + (depth < 3), max(2, min(7, int(size / (110 if across else 40)))))
        edges = sorted(rng.uniform(0, 1) for _ in range(parts - 1))
        out = []
        for low, high in zip([0.0, *edges], [*edges, 1.0], strict=True):
            gap = rng.choice([0, 0, 2, 8, 12.5])
            a, b = low * size + gap, high * size - rng.choice([0, 2, 7])
            if b - a < (30 if across else 14):
                continue
            if across:
                part = Box(x0=box.x0 + a, y0=box.y0, x1=box.x0 + b, y1=box.y1)
            else:
                part = Box(x0=box.x0, y0=box.y0 + a, x1=box.x1, y1=box.y0 + b)
            out.extend(self.node(part, depth + 1))
        rng.shuffle(out)
        return out

    def node(self, box: Box, depth: int) -> list[Node]:
        rng = self.rng
        if rng.random() < self.mess:
            box = box.shifted(rng.uniform(-40, 40), rng.uniform(-25, 25))
        if depth < 7 and box.width > 60 and box.height > 40 and rng.random() < 0.55:
            kind = rng.choice(
                ["nav", "header", "main", "section", "form", "list", "table", "tr", "card", "group", "aside"]
            )
            style = Style()
            if rng.random() < 0.4 or kind == "card":
                style = Style(
                    background=rng.choice([(255, 255, 255), (230, 235, 240), None]),
                    border_color=(180, 180, 190),
                    border_width=rng.choice([0, 1, 2]),
                    border_sides=rng.choice(["trbl", "b", "t"]),
                    radius=rng.choice([0, 4, 8]),
                    shadow=rng.random() < 0.2,
                )
            pad = rng.choice([0, 4, 9]) if depth > 1 else 0
            inner = Box(x0=box.x0 + pad, y0=box.y0 + pad, x1=box.x1 - pad, y1=box.y1 - pad)
            children = self.fill(inner, depth)
            if children or style.background:
                return [Node(kind=kind, box=box, style=style, children=tuple(children))]
            return []
        self.left -= 1
        if self.left < 0:
            return []
        return self.leaf(box)

    def leaf(self, box: Box) -> list[Node]:
        rng = self.rng
        kind = rng.choice(
            [
                "text",
                "text",
                "text",
                "link",
                "h1",
                "h3",
                "label",
                "code",
                "button",
                "input",
                "select",
                "img",
                "icon",
                "rule",
                "check",
            ]
        )
        if kind in ("img", "icon"):
            box = replace(box, x1=min(box.x1, box.x0 + rng.uniform(12, 400)))
            return [Node(kind=kind, box=box, style=Style(background=(rng.randrange(256), 120, 90)))]
        if kind == "rule":
            return [
                Node(
                    kind=kind, box=replace(box, y1=box.y0 + rng.choice([1, 2])), style=Style(background=(200, 200, 200))
                )
            ]
        if kind == "check":
            return [Node(kind=kind, box=Box(x0=box.x0, y0=box.y0, x1=box.x0 + 14, y1=box.y0 + 14))]
        filled = kind in ("button", "input", "select") or rng.random() < 0.15
        style = Style()
        if filled:
            style = Style(
                background=(240, 240, 250), border_color=(90, 90, 90), border_width=rng.choice([0, 1]), radius=3
            )
            box = replace(box, y1=min(box.y1, box.y0 + rng.uniform(24, 60)), x1=min(box.x1, box.x0 + 300))
        lines = self.lines(box, 1 if kind in ("button", "input", "select") else rng.choice([1, 1, 2, 3]), filled, kind)
        if not lines and not filled:
            return []
        return [
            Node(
                kind=kind, box=box if filled else Box.around([li.box for li in lines]), lines=tuple(lines), style=style
            )
        ]

    def lines(self, box: Box, count: int, filled: bool, kind: str) -> list[TextLine]:
        rng = self.rng
        size = rng.choice([11, 12, 13.3, 14, 15, 16, 18, 20, 24, 32])
        font = Font(
            family="mono" if kind == "code" else rng.choice(["sans", "sans", "serif"]),
            size=size,
            weight=rng.choice([400, 400, 700]),
            italic=rng.random() < 0.1,
        )
        tall = sum(metrics(font))
        pitch = tall + rng.choice([0, 3, 5.5, 10])
        align = rng.choice(["left", "left", "center", "right", "mixed"])
        color = rng.choice(COLORS)
        lines = []
        for i in range(count):
            self.count += 1
            text = f"{self.count}{rng.choice(WORDS)}"
            while rng.random() < 0.8 and text_width(text + " twelve", font) < box.width - 12:
                text += " " + rng.choice(WORDS)
            width = text_width(text, font) * (rng.uniform(0.95, 1.05) if rng.random() < 0.5 else 1.0)
            free = box.width - width - 12
            x0 = (
                box.x0 + 6 + {"left": 0, "center": free / 2, "right": free, "mixed": max(0, free) * rng.random()}[align]
            )
            if not self.mess and x0 + width > self.width:
                continue
            y0 = (box.center[1] - count * pitch / 2 if filled else box.y0) + i * pitch + (pitch - tall) / 2
            if self.mess and rng.random() < self.mess:
                y0 += rng.uniform(-3, 3)
            style = Style(
                font_size=font.size,
                font_weight=font.weight,
                font_family=font.family,
                italic=font.italic,
                color=color,
                underline=rng.random() < 0.1,
            )
            if kind in ("button", "input", "select") and width > box.width - 14:
                continue
            lines.append(TextLine(text=text, box=Box(x0=x0, y0=y0, x1=x0 + width, y1=y0 + tall), style=style))
        return lines


def write(files: dict[str, str], folder: Path) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder / "index.html"


def drawn_lines(tree: Node) -> list[tuple[str, TextLine]]:
    return [(node.kind, line) for node in tree.walk() for line in node.lines]


def misplaced(tree: Node, page: RenderedPage, limit: float) -> list[str]:
    """Lines of `tree` that the browser shows elsewhere, in another colour, or not at all."""
    raw = page.raw
    found = {t["text"]: t for t in raw["texts"]}
    view = Box(x0=0, y0=0, x1=raw["width"], y1=raw["height"])
    out = []
    for kind, line in drawn_lines(tree):
        if not view.contains(line.box):
            continue
        got = found.get(line.text)
        if got is None:
            out.append(f"{kind} {line.text!r} {line.box} is missing")
            continue
        box = got["box"]
        if kind in ("input", "select"):  # the walker guesses the height of a control's text
            error = max(abs(box[0] - line.box.x0), abs((box[1] + box[3]) / 2 - line.box.center[1]))
        else:
            error = max(
                abs(x - y) for x, y in zip((line.box.x0, line.box.y0, line.box.x1, line.box.y1), box, strict=True)
            )
        if error > limit:
            out.append(f"{kind} {line.text!r} is {error:.1f} px off: {box} for {line.box}")
        if tuple(raw["elements"][got["e"]]["color"][:3]) != line.style.color:
            out.append(f"{kind} {line.text!r} has another colour: {raw['elements'][got['e']]['color']}")
    return out


def misfitting(tree: Node, page: RenderedPage) -> list[str]:
    """Pictures, buttons and fields of `tree` that have no counterpart of IoU > 0.9."""
    view = Box(x0=0, y0=0, x1=page.raw["width"], y1=page.raw["height"])
    drawn = dom_boxes(page.raw)
    names = {"img": "image", "icon": "image", "button": "button", "input": "input", "select": "input"}
    out = []
    for node in tree.walk():
        if node.kind in names and view.contains(node.box) and node.box.width > 8 and node.box.height > 8:
            best = max((box.iou(node.box) for kind, box in drawn if kind == names[node.kind]), default=0.0)
            if best <= 0.9:
                out.append(f"{node.kind} {node.box}: the best box has IoU {best:.2f}")
    return out


TIDY = [(1, 1280, 3), (2, 1280, 20), (3, 1280, 60), (4, 1280, 200), (5, 1280, 200), (6, 390, 30), (7, 390, 60)]
MESSY = [(11, 1280, 20), (12, 1280, 60), (13, 1280, 120), (14, 1280, 200), (15, 390, 40)]


@pytest.fixture(scope="module")
def rendered(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, int, int], tuple[Node, RenderedPage]]:
    """Every tree and its render: the picture's width for each, and a phone's."""
    jobs, keys = [], []
    folder = tmp_path_factory.mktemp("trees")
    for name, cases, mess in (("tidy", TIDY, 0.0), ("messy", MESSY, 0.25)):
        for seed, width, leaves in cases:
            height = 757 if width == 1280 else 844
            tree = Maker(seed, width=width, height=height, leaves=leaves, mess=mess).page()
            for target in ("html", "tailwind") if seed % 2 else ("html",):
                path = write(emit(tree, target, width=width), folder / f"{name}-{seed}-{target}")
                for window in {width, 390}:
                    jobs.append((path, window, height if window == width else 844, 0))
                    keys.append((f"{name}-{target}", seed, window, tree))
    pages = browser.open_many(jobs, per_sheet=16, timeout_s=120)
    assert all(page is not None for page in pages), "the browser left pages out"
    return {key[:3]: (key[3], page) for key, page in zip(keys, pages, strict=True) if page is not None}


Rendered = dict[tuple[str, int, int], tuple[Node, RenderedPage]]


@pytest.mark.parametrize(
    ("target", "seed", "width"),
    [(target, seed, width) for seed, width, _ in TIDY for target in (("html", "tailwind") if seed % 2 else ("html",))],
)
def test_every_line_of_a_tidy_tree_lands_on_its_box(rendered: Rendered, target: str, seed: int, width: int) -> None:
    tree, page = rendered[f"tidy-{target}", seed, width]
    assert misplaced(tree, page, 1.5) == []
    assert misfitting(tree, page) == []


@pytest.mark.parametrize(("seed", "width", "leaves"), MESSY)
def test_colliding_boxes_still_land_where_they_were_measured(
    rendered: Rendered, seed: int, width: int, leaves: int
) -> None:
    tree, page = rendered["messy-html", seed, width]
    bad = misplaced(tree, page, 1.5)
    # two boxes may each cover a line of the other; nothing may be shown in a wrong place
    assert [b for b in bad if "missing" not in b] == []
    assert len(bad) <= 0.06 * len(drawn_lines(tree)), bad


def test_nothing_is_positioned_absolutely(rendered: Rendered) -> None:
    for key, (_, page) in rendered.items():
        placed = [e["tag"] for e in page.raw["elements"] if e.get("pos") in ("absolute", "fixed")]
        assert placed == [], key


def test_a_phone_never_scrolls_sideways_and_cuts_no_text(rendered: Rendered) -> None:
    for key, (_, page) in rendered.items():
        if key[2] == 390 and key[0].startswith("tidy"):
            assert page.raw["doc_width"] <= 390, key
            cut = [t["text"] for t in page.raw["texts"] if t.get("full") and t["full"][2] > t["box"][2] + 1]
            assert cut == [], key


def test_a_large_tree_is_emitted_fast() -> None:
    tree = Maker(4, leaves=400).page()
    copies = 320 // sum(1 for _ in tree.walk()) + 1
    tree = tree.replace(children=tuple(c.shifted(0, 757 * k) for k in range(copies) for c in tree.children))
    count = sum(1 for _ in tree.walk())
    assert count >= 300
    for target in ("html", "tailwind", "react"):
        start = time.process_time()
        emit(tree, target)
        assert time.process_time() - start < 1.0 * count / 300, f"{target}: {count} nodes"

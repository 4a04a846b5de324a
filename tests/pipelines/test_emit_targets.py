"""The three targets say the same, escape everything, and are valid HTML."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from watersmeet.core.errors import UsageError
from watersmeet.core.geometry import Box
from watersmeet.pipelines.browser.render import Browser, RenderedPage
from watersmeet.pipelines.emit import TARGETS, emit
from watersmeet.pipelines.layout.tree import Node, Style, TextLine

HOSTILE = [
    "</script><script>alert(1)</script>",
    "{{x}} and {x} and ${x} and `y`",
    "\"double\" 'single' &amp; &lt;b&gt;",
    "<img src=x onerror=alert(1)>",
    "]]> --> <!-- */ // \\n \\u0041",
    "</textarea></style></title>",
    "*/}</p></body></html>",
    "emoji 🙂👩‍👩‍👧 ✓ done",
    "שלום עולם",
    "مرحبا بالعالم",
    "中文字符 와 日本語",
    "{/* comment */}",
    "a\u2028b",
    "=cmd 'x' > y",
]


def text(kind: str, content: str, x: float, y: float, *, width: float = 300, size: float = 16, **style: Any) -> Node:
    box = Box(x0=x, y0=y, x1=x + width, y1=y + 18)
    line = TextLine(text=content, box=box, style=Style(font_size=size, color=(20, 20, 20), **style))
    return Node(kind=kind, box=box, lines=(line,))


def page(*children: Node) -> Node:
    return Node(kind="page", box=Box(x0=0, y0=0, x1=1280, y1=757), children=children)


def hostile_page() -> Node:
    kinds = ["text", "link", "h1", "h2", "label", "code", "button", "text"]
    nodes = []
    for i, content in enumerate(HOSTILE):
        node = text(kinds[i % len(kinds)], content, 40 + 600 * (i % 2), 20 + 45 * (i // 2))
        nodes.append(node)
    y = 400.0
    for kind in ("input", "select", "textarea"):
        box = Box(x0=40, y0=y, x1=540, y1=y + 34)
        line = TextLine(text=HOSTILE[0], box=Box(x0=50, y0=y + 8, x1=500, y1=y + 26), style=Style(font_size=14))
        nodes.append(Node(kind=kind, box=box, lines=(line,), style=Style(border_width=1, border_color=(0, 0, 0))))
        y += 60
    nodes.append(
        Node(
            kind="img",
            box=Box(x0=700, y0=420, x1=900, y1=520),
            src='images/"a" b&c.png',
            alt='"><script>alert(2)</script>',
        )
    )
    return page(*nodes)


def card(x: float, number: int) -> Node:
    return Node(
        kind="card",
        box=Box(x0=x, y0=300, x1=x + 300, y1=460),
        style=Style(background=(240, 240, 240), border_width=1, border_color=(200, 200, 200), radius=6),
        children=(
            text("h3", f"Card {number}", x + 20, 320, size=20, font_weight=700),
            text("text", f"Words of card {number} {{n}}", x + 20, 360),
            text("link", "Read more", x + 20, 420),
        ),
    )


def rich_page() -> Node:
    """Every kind once, and parts that repeat."""
    items = tuple(text("link", name, 700 + 100 * i, 20, width=60) for i, name in enumerate(("Home", "Docs", "Blog")))
    rows = tuple(
        Node(
            kind="tr",
            box=Box(x0=40, y0=500 + 30 * r, x1=640, y1=530 + 30 * r),
            children=tuple(
                text("text", f"r{r}c{c}", 50 + 200 * c, 506 + 30 * r, width=60, font_weight=700 if r == 0 else 400)
                for c in range(3)
            ),
        )
        for r in range(3)
    )
    field = Style(border_width=1, border_color=(90, 90, 90))
    hint = TextLine(
        text="you@x.org", box=Box(x0=710, y0=508, x1=790, y1=526), style=Style(font_size=14, color=(150, 150, 150))
    )
    return page(
        Node(
            kind="header",
            box=Box(x0=0, y0=0, x1=1280, y1=60),
            style=Style(background=(225, 230, 240)),
            children=(
                text("link", "Brand", 40, 20, width=60),
                Node(
                    kind="nav",
                    box=Box(x0=700, y0=20, x1=960, y1=38),
                    children=(Node(kind="list", box=Box(x0=700, y0=20, x1=960, y1=38), children=items),),
                ),
            ),
        ),
        Node(
            kind="section",
            box=Box(x0=0, y0=60, x1=1280, y1=280),
            children=(
                Node(kind="img", box=Box(x0=0, y0=60, x1=1280, y1=280), style=Style(background=(190, 210, 230))),
                text("h1", "A heading", 40, 100, size=32, width=160),
                Node(
                    kind="text",
                    box=Box(x0=40, y0=150, x1=400, y1=200),
                    lines=tuple(
                        TextLine(
                            text=t,
                            box=Box(x0=40, y0=150 + 24 * i, x1=40 + w, y1=168 + 24 * i),
                            style=Style(font_size=16),
                        )
                        for i, (t, w) in enumerate((("Two lines of text that", 155), ("break here", 74)))
                    ),
                ),
                Node(
                    kind="button",
                    box=Box(x0=40, y0=220, x1=160, y1=256),
                    style=Style(background=(200, 60, 60), radius=4),
                    lines=(
                        TextLine(
                            text="Start",
                            box=Box(x0=82, y0=229, x1=118, y1=247),
                            style=Style(font_size=16, color=(255, 255, 255)),
                        ),
                    ),
                ),
            ),
        ),
        Node(kind="main", box=Box(x0=40, y0=300, x1=1000, y1=460), children=(card(40, 1), card(370, 2), card(700, 3))),
        Node(kind="table", box=Box(x0=40, y0=500, x1=640, y1=590), children=rows),
        Node(
            kind="form",
            box=Box(x0=700, y0=470, x1=1100, y1=640),
            children=(
                text("label", "Email", 700, 475, width=42),
                Node(kind="input", box=Box(x0=700, y0=500, x1=900, y1=534), style=field, lines=(hint,)),
                Node(kind="check", box=Box(x0=700, y0=550, x1=714, y1=564)),
                text("text", "Remember", 724, 548, width=80),
                Node(kind="textarea", box=Box(x0=700, y0=580, x1=900, y1=640), style=field),
            ),
        ),
        Node(kind="rule", box=Box(x0=40, y0=660, x1=1240, y1=661), style=Style(background=(200, 200, 200))),
        Node(
            kind="footer",
            box=Box(x0=0, y0=680, x1=1280, y1=757),
            children=(text("code", "npm start", 40, 700, font_family="mono", width=87),),
        ),
    )


def write(files: dict[str, str], folder: Path) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return folder / "index.html"


@pytest.fixture(scope="module")
def rendered(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RenderedPage]:
    folder = tmp_path_factory.mktemp("targets")
    names, jobs = [], []
    for name, tree in (("hostile", hostile_page()), ("rich", rich_page())):
        for target in TARGETS:
            path = write(emit(tree, target, title="</title><script>alert(3)</script>"), folder / f"{name}-{target}")
            names += [f"{name}-{target}", f"{name}-{target}-390"]
            jobs += [(path, 1280, 757, 0), (path, 390, 844, 0)]
    pages = browser.open_many(jobs, per_sheet=12, timeout_s=120)
    assert all(p is not None for p in pages), "the browser left pages out"
    return {name: p for name, p in zip(names, pages, strict=True) if p is not None}


def flat(content: str) -> str:
    """Without white space and emoji: the walker takes those for icons."""
    return re.sub(r"[\s\u200b-\u200d\U0001f000-\U0001ffff]+", "", content)


def test_emoji_stay_in_the_text() -> None:
    assert HOSTILE[7] in emit(hostile_page(), "html")["index.html"]


@pytest.mark.parametrize("target", TARGETS)
def test_hostile_text_comes_out_as_text(rendered: dict[str, RenderedPage], target: str) -> None:
    raw = rendered[f"hostile-{target}"].raw
    shown = [flat(t["text"]) for t in raw["texts"]]
    for content in HOSTILE:
        assert flat(content) in shown, f"{content!r} is not among {shown}"
    assert shown.count(flat(HOSTILE[0])) == 4  # once as text and in each of three controls
    assert [e for e in raw["elements"] if e["tag"] in ("b", "script", "object")] == []
    assert sum(e["tag"] == "img" for e in raw["elements"]) == 1


@pytest.mark.parametrize("target", ["tailwind", "react"])
@pytest.mark.parametrize("width", ["", "-390"])
def test_all_targets_show_the_same(rendered: dict[str, RenderedPage], target: str, width: str) -> None:
    one, other = rendered[f"rich-html{width}"].raw, rendered[f"rich-{target}{width}"].raw
    assert [t["text"] for t in one["texts"]] == [t["text"] for t in other["texts"]]
    for a, b in zip(one["texts"], other["texts"], strict=True):
        assert a["box"] == pytest.approx(b["box"], abs=0.2), a["text"]
    paint = [
        [(e["tag"], e.get("bg"), e.get("bw"), e["box"]) for e in raw["elements"] if e.get("bg") or e.get("bw")]
        for raw in (one, other)
    ]
    assert len(paint[0]) == len(paint[1])
    for p, q in zip(*paint, strict=True):
        assert p[:3] == q[:3]
        assert p[3] == pytest.approx(q[3], abs=0.2)


@pytest.mark.parametrize("target", TARGETS)
def test_no_file_carries_positions_or_inline_styles(target: str) -> None:
    for tree in (hostile_page(), rich_page()):
        for name, content in emit(tree, target).items():
            assert not re.search(r"position\s*:|\b(absolute|fixed)\b", content), name
            assert " style=" not in content, name


def test_tags_say_what_things_are() -> None:
    files = emit(rich_page(), "html")
    tags = Tags.of(files["index.html"])
    for tag in ("header", "nav", "ul", "li", "main", "section", "table", "tbody", "tr", "th", "td", "form", "label", "input",
                "textarea", "h1", "h3", "p", "a", "button", "hr", "footer", "code"):  # fmt: skip
        assert tag in tags.counts, f"there is no <{tag}>"
    assert tags.counts["li"] == 3 and tags.counts["td"] == 6 and tags.counts["th"] == 3


def test_unknown_targets_are_refused() -> None:
    with pytest.raises(UsageError, match="vue"):
        emit(rich_page(), "vue")


PHRASING = {
    "a",
    "b",
    "br",
    "button",
    "code",
    "img",
    "input",
    "label",
    "option",
    "select",
    "span",
    "svg",
    "rect",
    "textarea",
}
VOID = {"img", "input", "hr", "br", "meta", "link"}


class Tags(HTMLParser):
    """A nesting check of its own: what may stand in what, as the HTML standard has it for the tags in use."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.counts: dict[str, int] = {}
        self.faults: list[str] = []

    @classmethod
    def of(cls, html: str) -> "Tags":
        parser = cls()
        parser.feed(html)
        parser.close()
        if parser.open:
            parser.faults.append(f"left open: {parser.open}")
        return parser

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        parent = self.open[-1] if self.open else ""
        wants = {
            "li": ("ul",),
            "tr": ("tbody",),
            "tbody": ("table",),
            "td": ("tr",),
            "th": ("tr",),
            "option": ("select",),
        }
        if tag in wants and parent not in wants[tag]:
            self.faults.append(f"<{tag}> in <{parent}>")
        only = {"ul": "li", "table": "tbody", "tbody": "tr", "select": "option"}
        if parent in only and tag != only[parent]:
            self.faults.append(f"<{tag}> in <{parent}>")
        if parent == "tr" and tag not in ("td", "th"):
            self.faults.append(f"<{tag}> in <tr>")
        closed = {"p", "h1", "h2", "h3", "h4", "button", "label", "span", "pre", "code"} & set(self.open)
        if closed and tag not in PHRASING:
            self.faults.append(f"<{tag}> in {closed}")
        if {"a", "button"} & set(self.open) and tag in ("a", "button", "input", "select", "textarea"):
            self.faults.append(f"<{tag}> inside a link or button")
        if tag == "form" and "form" in self.open:
            self.faults.append("a form in a form")
        if tag == "main" and self.counts["main"] > 1:
            self.faults.append("a second <main>")
        if tag in ("header", "footer") and {"header", "footer"} & set(self.open):
            self.faults.append(f"<{tag}> in a header or footer")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> closes nothing")


def odd_page() -> Node:
    """Kinds nested as they never should be: a model may say anything."""
    box = Box(x0=0, y0=0, x1=1280, y1=757)
    kinds = ["main", "form", "header", "list", "table", "tr", "card", "nav", "footer", "section", "aside", "group"]
    leaves = [
        "text",
        "link",
        "button",
        "input",
        "img",
        "icon",
        "rule",
        "check",
        "code",
        "h1",
        "label",
        "select",
        "textarea",
    ]
    node: tuple[Node, ...] = ()
    for count, kind in enumerate((kinds + leaves) * 2):
        y = 10.0 + count * 14
        if kind in kinds:
            node = (Node(kind=kind, box=box, children=node),)
        elif kind in ("img", "icon", "rule", "check"):
            node = (Node(kind=kind, box=Box(x0=20, y0=y, x1=40, y1=y + 12)), *node)
        else:
            leaf = text(kind, f"t{count}", 60, y, width=20, size=11)
            node = (leaf.replace(children=node) if kind in ("link", "button", "text", "h1", "label") else leaf, *node)
            node = node[:1] if leaf.kind in ("link", "button", "text", "h1", "label") else node
    return page(*node)


@pytest.mark.parametrize("make", [hostile_page, rich_page, odd_page])
@pytest.mark.parametrize("target", TARGETS)
def test_the_html_is_validly_nested(make: Any, target: str) -> None:
    html = emit(make(), target)["index.html"]
    html = html.replace('<script src="dist/app.js" defer></script>', "")
    assert Tags.of(html).faults == []


def test_odd_nesting_loses_no_text() -> None:
    tree = odd_page()
    html = emit(tree)["index.html"]
    wanted = [line.text for node in tree.walk() for line in node.lines]
    lost = [t for t in wanted if not re.search(rf"\b{t}\b", html)]
    assert lost == []


# React ------------------------------------------------------------------------------------------------------------

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "npm"


@pytest.fixture(scope="module")
def node_modules() -> Path:
    """esbuild and React from npm, kept between runs in an ignored folder."""
    modules = CACHE / "node_modules"
    if not all((modules / name).is_dir() for name in ("esbuild", "react", "react-dom")):
        npm = shutil.which("npm")
        if npm is None:
            pytest.fail("npm was not found: the React test builds the emitted project; install Node.js 20 or newer")
        CACHE.mkdir(parents=True, exist_ok=True)
        packages = ["esbuild@^0.25.0", "react@^19.0.0", "react-dom@^19.0.0"]
        command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(CACHE), *packages]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if done.returncode:
            pytest.fail(f"npm could not install {', '.join(packages)}: {done.stderr.strip()[-300:]}")
    return modules


def test_the_react_project_builds_and_shows_the_same(
    browser: Browser, node_modules: Path, rendered: dict[str, RenderedPage], tmp_path: Path
) -> None:
    jobs = []
    for name, tree in (("hostile", hostile_page()), ("rich", rich_page())):
        folder = tmp_path / name
        index = write(emit(tree, "react"), folder)
        (folder / "node_modules").symlink_to(node_modules)
        script = json.loads((folder / "package.json").read_text())["scripts"]["build"]
        command = [str(node_modules / ".bin" / "esbuild"), *script.split()[1:]]
        built = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
        assert built.returncode == 0, built.stderr
        assert "warning" not in built.stderr.lower(), built.stderr
        # only the bundle may fill the page: the finished markup goes
        html = re.sub(r'<div id="root">.*</div>(?=\s*<script)', '<div id="root"></div>', index.read_text(), flags=re.S)
        assert '<div id="root"></div>' in html
        index.write_text(html)
        jobs.append((index, 1280, 757, 0))
    pages = browser.open_many(jobs, settle_ms=300, timeout_s=120)
    for name, got in zip(("hostile", "rich"), pages, strict=True):
        assert got is not None
        want = rendered[f"{name}-html"].raw["texts"]
        assert [t["text"] for t in got.raw["texts"]] == [t["text"] for t in want]
        for a, b in zip(want, got.raw["texts"], strict=True):
            assert a["box"] == pytest.approx(b["box"], abs=0.2), a["text"]


def test_repeated_parts_become_one_component_with_props() -> None:
    files = emit(rich_page(), "react")
    assert set(files) >= {"index.html", "package.json", "main.jsx", "App.jsx", "styles.css", "components/Card.jsx"}
    assert "({ title, text })" in files["components/Card.jsx"]
    uses = [content.count("<Card ") for content in files.values()]
    assert sum(uses) == 3

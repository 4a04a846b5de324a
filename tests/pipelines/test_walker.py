"""The walker: which text and which boxes a page really shows, and of what kind."""

import numpy as np
import pytest

from watersmeet.pipelines.browser.render import Browser, RenderedPage
from watersmeet.pipelines.layout.walker import (
    Dom,
    DomLine,
    absolute_share,
    cut_lines,
    dom_boxes,
    dom_lines,
    largest_picture_share,
    overflow_x,
    picture_cover,
)

DOT = "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' width='9' height='9'%3E%3Crect width='9' height='9'/%3E%3C/svg%3E"


def show(browser: Browser, body: str, style: str = "", width: int = 600, height: int = 400) -> RenderedPage:
    html = f"<!doctype html><style>body {{ margin: 10px; font: 16px Arial }} {style}</style>{body}"
    return browser.open(html, width=width, height=height)


def lines(browser: Browser, body: str, style: str = "", **size: int) -> list[DomLine]:
    return dom_lines(show(browser, body, style, **size).raw)


def words(browser: Browser, body: str, style: str = "", **size: int) -> list[str]:
    return [line.text for line in lines(browser, body, style, **size)]


def test_a_paragraph_is_cut_where_the_browser_breaks_it(browser: Browser) -> None:
    found = lines(browser, "<p style='width:120px;margin:0'>one two three <b>four</b> five six seven eight</p>")
    assert " ".join(line.text for line in found) == "one two three four five six seven eight"
    assert len(found) == 3
    tops = [line.box.y0 for line in found]
    assert tops == sorted(tops) and len(set(tops)) == 3
    assert all(line.box.x0 == 10 and line.box.x1 <= 130 for line in found)


def test_pieces_of_one_line_are_joined_with_the_spaces_they_show(browser: Browser) -> None:
    assert words(browser, "<p>see <a href=#>the docs</a>, <code>x</code>+<code>y</code> or<i> ask</i></p>") == [
        "see the docs, x+y or ask"
    ]
    assert words(browser, "<p>SB Admin <sup>2</sup></p>") == ["SB Admin 2"]


def test_blocks_and_wide_gaps_part_lines(browser: Browser) -> None:
    row = "<div style='display:flex;gap:4px'><span>a</span><span>b</span></div>"
    assert words(browser, row) == ["a", "b"]
    assert words(browser, "<p>left<span style='margin-left:60px'>right</span></p>") == ["left", "right"]
    assert words(browser, "<pre>a      b\nc</pre>") == ["a", "b", "c"]


def test_boxes_hug_the_ink_not_the_spaces(browser: Browser) -> None:
    (line,) = lines(browser, "<p style='margin:0'> <b>  word  </b> </p>")
    assert line.box.x0 == 10
    assert 35 < line.box.width < 45  # "word" in 16 px bold, without the space on either side


def test_white_space_and_case_as_shown(browser: Browser) -> None:
    body = "<p style='text-transform:uppercase'>many\n   blanks&nbsp;here</p><p style='text-transform:capitalize'>tail wags"
    assert words(browser, body) == ["MANY BLANKS HERE", "Tail Wags"]


KINDS = [
    ("heading", "<h2><a href=#>x</a></h2>"),
    ("heading", "<div role=heading>x</div>"),
    ("link", "<ul><li><a href=#>x</a></ul>"),
    ("link", "<button><span>x</span></button>"),
    ("link", "<div role=button>x</div>"),
    ("link", "<input type=submit value=x>"),
    ("field", "<label><input value=x></label>"),
    ("field", "<input placeholder=x>"),
    ("field", "<select><option>x<option>y</select>"),
    ("field", "<textarea>x</textarea>"),
    ("label", "<label>x</label>"),
    ("code", "<table><tr><td><code>x</code></table>"),
    ("cell", "<table><tr><td>x</table>"),
    ("cell", "<table><tr><th><ul><li>x</ul></table>"),
    ("item", "<ol><li><p>x</ol>"),
    ("text", "<p>x"),
]


def test_kind_of_a_line_is_the_first_that_any_ancestor_gives(browser: Browser) -> None:
    body = "".join(f"<section>{part}</section>" for _, part in KINDS)
    found = lines(browser, body, height=1600)
    assert {line.text for line in found} == {"x"}
    assert [line.kind for line in found] == [kind for kind, _ in KINDS]


def test_a_line_has_the_kind_of_most_of_its_characters(browser: Browser) -> None:
    assert lines(browser, "<p>much more text than <a href=#>link</a>")[0].kind == "text"
    assert lines(browser, "<p><a href=#>a link and hardly</a> text")[0].kind == "link"


HIDDEN = {
    "display": "<p style='display:none'>NO</p>",
    "visibility": "<p style='visibility:hidden'>NO</p>",
    "opacity": "<div style='opacity:0'><p>NO</p></div>",
    "transparent": "<p style='color:transparent'>NO</p>",
    "faint": "<p style='color:rgba(0,0,0,.04)'>NO</p>",
    "left": "<p style='position:absolute;left:-999px'>NO</p>",
    "indent": "<p style='text-indent:-9999px'>NO</p>",
    "below": "<p style='position:absolute;top:2900px'>NO</p>",
    "readers": "<span style='position:absolute;width:1px;height:1px;overflow:hidden;clip:rect(0,0,0,0)'>NO</span>",
    "clip": "<p style='clip-path:inset(50%)'>NO</p>",
    "details": "<details><summary>yes</summary><p>NO</p></details>",
    "menu": "<div style='height:0;overflow:hidden'><p>NO</p></div>",
    "panel": "<p style='margin:0'>NO</p><div style='position:absolute;inset:0;background:#eee'></div>",
    "script": "<script>var NO</script><style>NO{}</style><template>NO</template>",
    "field": "<input type=hidden value=NO>",
}


def test_what_cannot_be_seen_is_not_there(browser: Browser) -> None:
    """All in one page, each in a box of its own so that none hides another, and each says which one it is."""
    body = "".join(
        f"<section style='position:relative;height:60px'>{part.replace('NO', f'no-{how}')}</section>"
        for how, part in HIDDEN.items()
    )
    assert words(browser, body, height=1100) == ["yes"]


def test_what_can_be_seen_is_there(browser: Browser) -> None:
    body = (
        "<div style='visibility:hidden'><p style='visibility:visible'>shown again</p></div>"
        "<div style='height:0'><p>out of a box without height</p></div>"
        "<section><div style='display:contents'>contents</div></section>"
        "<div style='position:absolute;top:-500px'><p style='position:absolute;top:700px;width:200px'>back in view</p></div>"
        "<a href=# style='position:relative'>under a stretched link"
        "<span style='position:absolute;inset:0'></span></a>"
        "<p>under <span style='position:absolute;inset:0'></span>a transparent layer</p>"
    )
    assert words(browser, body) == [
        "shown again",
        "out of a box without height",
        "contents",
        "back in view",
        "under a stretched link",
        "under a transparent layer",
    ]


def test_ink_is_looked_for_in_the_picture(browser: Browser) -> None:
    page = show(browser, "<p style='color:#fff'>white on white</p><p>black</p>")
    assert [line.text for line in dom_lines(page.raw)] == ["white on white", "black"]
    assert [line.text for line in dom_lines(page.raw, page.screenshot)] == ["black"]


def test_clipping(browser: Browser) -> None:
    body = (
        "<div style='width:60px;overflow:hidden;white-space:nowrap'>cut off on the right hand side</div><p>whole</p>"
        "<p style='width:90px;overflow:hidden;white-space:nowrap;text-overflow:ellipsis'>a very long line ends in dots</p>"
        # absolute content is not clipped by a box that is no container of its own
        "<div style='width:30px;height:30px;overflow:hidden'><p style='position:absolute;left:100px'>loose</p></div>"
        "<div style='height:6px;overflow:hidden'>a sliver</div>"
    )
    page = show(browser, body)
    cut, whole, dots, loose = dom_lines(page.raw)
    assert cut.text == "cut off o" and cut.cut and cut.box.x1 <= 70
    assert whole.text == "whole" and not whole.cut
    assert dots.text.startswith("a very") and dots.text.endswith("\u2026") and len(dots.text) < 14
    assert loose.text == "loose" and not loose.cut
    assert cut_lines(page.raw) == 2


def test_sideways_scroll(browser: Browser) -> None:
    assert overflow_x(show(browser, "<p>fine", width=390).raw) == 0
    assert overflow_x(show(browser, "<div style='width:500px'>wide</div>", width=390).raw) == 120
    hidden = "html, body { overflow-x: hidden }"
    assert overflow_x(show(browser, "<div style='width:500px'>wide</div>", hidden, width=390).raw) >= 100


def test_field_text_stands_where_the_browser_draws_it(browser: Browser) -> None:
    """Compared with the picture: the estimated box must hold the ink of the field and little else."""
    style = (
        "section { height: 90px } input, select, textarea { border: 0; background: none; padding: 6px 12px;"
        "font: 16px Arial; width: 200px; resize: none }"
    )
    fields = (
        "<input value='Hamburg'>",
        "<input value='Hamburg' style='text-align:right'>",
        "<input type=submit value='Hamburg'>",
        "<textarea rows=3>Hamburg</textarea>",
        "<select style='appearance:none'><option>Hamburg</select>",
    )
    page = show(browser, "".join(f"<section>{field}</section>" for field in fields), style, height=500)
    found = dom_lines(page.raw)
    assert len(found) == len(fields)
    grey = np.asarray(page.screenshot.convert("L"))
    for k, (field, line) in enumerate(zip(fields, found, strict=True)):
        dark = np.argwhere(grey[10 + 90 * k : 100 + 90 * k] < 128)
        (y0, x0), (y1, x1) = dark.min(axis=0), dark.max(axis=0) + 1
        y0, y1 = y0 + 10 + 90 * k, y1 + 10 + 90 * k
        assert abs(line.box.x0 - x0) <= 4 and abs(line.box.x1 - x1) <= 4, field
        assert line.box.y0 <= y0 + 1 and line.box.y1 >= y1 - 1 and line.box.height < 20, field


def test_colours(browser: Browser) -> None:
    found = lines(
        browser,
        "<p style='color:#102030'>a</p><p style='color:rgba(0,0,0,.5)'>b</p><p style='color:oklch(0.6 0.2 30)'>c</p>"
        "<div style='background:#000'><p style='color:rgba(255,255,255,.5)'>d</p></div>"
        "<p style='background:linear-gradient(#f00,#f00);background-clip:text;color:transparent'>e</p>",
    )
    assert [line.text for line in found] == ["a", "b", "c", "d", "e"]
    assert found[0].color == (16, 32, 48)
    assert found[1].color == (128, 128, 128)
    assert found[2].color[0] > 150 > found[2].color[2]
    assert found[3].color == (128, 128, 128)
    assert found[4].color == (255, 0, 0)


def test_boxes(browser: Browser) -> None:
    body = (
        f'<img src="{DOT}" width=40 height=30><svg width=20 height=20><rect width=20 height=20 /></svg>'
        "<button>B</button><input><input type=checkbox><select></select><textarea></textarea>"
        "<a href=# style='display:inline-block;padding:8px 16px;background:#06c;color:#fff'>looks like one</a>"
        "<a href=#>plain link</a><div role=button>looks like text</div>"
        f'<div style="width:50px;height:50px;background:url(&quot;{DOT}&quot;)"></div>'
        "<img width=40 height=30 style='visibility:hidden'><input type=hidden>"
    )
    kinds = [kind for kind, _ in dom_boxes(show(browser, body).raw)]
    assert kinds == ["image", "image", "button", "input", "input", "input", "input", "button", "image"]


def test_icon_fonts_are_pictures(browser: Browser) -> None:
    style = ".i::before { content: '\\f101' } .i { display: inline-block; width: 20px }"
    page = show(browser, "<p><i class=i></i> Home</p><p>\U0001f600 &copy; 2026</p><h1>\uf015\uf015</h1>", style)
    home, copyright_line = dom_lines(page.raw)
    assert home.text == "Home"
    assert copyright_line.text == "\u00a9 2026"
    assert [kind for kind, _ in dom_boxes(page.raw)].count("image") >= 2


def test_absolute_share(browser: Browser) -> None:
    assert absolute_share(show(browser, "<p>a<p>b").raw) == 0
    assert absolute_share(show(browser, "<p>a<p>b<p>c<div style='position:fixed'><p>d</div>").raw) == 0.25
    assert absolute_share(show(browser, "<p style='position:absolute'>a").raw) == 1
    assert absolute_share(show(browser, "").raw) == 0


def test_picture_shares(browser: Browser) -> None:
    page = show(browser, f"<img src=\"{DOT}\" style='display:block;width:300px;height:200px;margin:-10px'>")
    assert largest_picture_share(page.raw) == pytest.approx(0.25, abs=0.01)
    assert picture_cover(page.raw) == pytest.approx(0.25, abs=0.02)
    pasted = show(browser, "", f'body {{ background: url("{DOT}") }} html {{ height: 100% }}')
    assert largest_picture_share(pasted.raw) > 0.9
    tiles = f"<img src=\"{DOT}\" style='float:left;width:150px;height:100px'>" * 16
    tiled = show(browser, tiles, "body { margin: 0 !important }")
    assert largest_picture_share(tiled.raw) == pytest.approx(1 / 16, abs=0.01)
    assert picture_cover(tiled.raw) > 0.95  # a picture cut into tiles is still a picture of the page


def test_shadow_roots_and_frames(browser: Browser) -> None:
    body = (
        "<div id=h><span>slotted</span></div><script>h.attachShadow({mode: 'open'}).innerHTML ="
        "'<p>in the shadow</p><slot></slot>'</script><iframe srcdoc='<p>in a frame</p>' width=200 height=60></iframe>"
    )
    assert words(browser, body) == ["in the shadow", "slotted", "in a frame"]


def test_elements_are_in_document_order_and_hold_their_texts(browser: Browser) -> None:
    raw = show(browser, "<div><p>a <b>b</b></p><ul><li>c</ul></div><p>d").raw
    dom = Dom(raw)
    assert [e["i"] for e in raw["elements"]] == list(range(len(raw["elements"])))
    assert all(e["p"] < e["i"] for e in raw["elements"])
    assert [raw["texts"][k]["text"] for k in dom.texts_below(0)] == ["a", "b", "c", "d"]
    div = next(e["i"] for e in raw["elements"] if e["tag"] == "div")
    assert [raw["elements"][k]["tag"] for k in dom.below(div)] == ["p", "b", "ul", "li"]


def test_long_pages_are_read_in_the_view_only(browser: Browser) -> None:
    body = "".join(f"<p>line {k}</p>" for k in range(3000))
    page = browser.open(f"<!doctype html>{body}", width=300, height=200, scroll_y=50_000)
    found = dom_lines(page.raw)
    assert 3 < len(found) < 10
    assert len(page.raw["elements"]) < 15

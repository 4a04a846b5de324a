"""From a page to the layout tree: kinds by tag, role and style; wrappers gone; what is painted kept."""

import pytest

from watersmeet.pipelines.browser.render import Browser
from watersmeet.pipelines.layout.simplify import to_tree
from watersmeet.pipelines.layout.tree import TEXTS, Node

DOT = "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' width='9' height='9'%3E%3Crect width='9' height='9'/%3E%3C/svg%3E"


def tree(browser: Browser, body: str, style: str = "", width: int = 800, height: int = 500) -> Node:
    html = f"<!doctype html><style>body {{ margin: 10px; font: 16px Arial }} {style}</style>{body}"
    page = browser.open(html, width=width, height=height)
    return to_tree(page.raw, page.screenshot)


def shape(node: Node) -> str:
    """A tree in one line: `nav(link'A' link'B')`."""
    text = "'" + "|".join(line.text for line in node.lines) + "'" if node.lines else ""
    inside = "(" + " ".join(shape(child) for child in node.children) + ")" if node.children else ""
    return node.kind + text + inside


def outline(browser: Browser, body: str, style: str = "") -> str:
    return shape(tree(browser, body, style))


def test_page_is_the_viewport(browser: Browser) -> None:
    root = tree(browser, "", "body { background: #123456 }", width=300, height=200)
    assert root.kind == "page" and root.children == ()
    assert (root.box.x1, root.box.y1) == (300, 200)
    assert root.style.background == (0x12, 0x34, 0x56)


def test_the_body_paints_over_the_root(browser: Browser) -> None:
    style = "html { background: #fff } body { background: #f8f9fc; min-height: 100vh; margin: 0 !important }"
    root = tree(browser, "<div style='background:#fff'><p>on white</p></div>", style)
    assert root.style.background == (0xF8, 0xF9, 0xFC)
    assert shape(root) == "page(card(text'on white'))"


def test_wrappers_go_and_semantics_stay(browser: Browser) -> None:
    body = "<div><div><div><p>alone</p></div></div></div><nav><div><ul><li><a href=#>one</a></ul></div></nav>"
    assert outline(browser, body) == "page(text'alone' nav(list(link'one')))"


def test_landmarks_by_tag_and_by_role(browser: Browser) -> None:
    by_tag = "<header><p>a</header><main><section><p>b<form><p>c</form></section></main><footer><p>d</footer>"
    by_role = (
        "<div role=banner><p>a</div><div role=main><div role=region><p>b<div role=search><p>c</div></div></div>"
        "<div role=contentinfo><p>d</div>"
    )
    wanted = "page(header(text'a') main(section(text'b' form(text'c'))) footer(text'd'))"
    assert outline(browser, by_tag) == wanted
    assert outline(browser, by_role) == wanted


def test_painted_boxes_are_cards_with_what_they_are_painted_with(browser: Browser) -> None:
    style = "div { background: #eee; border: 2px solid #900; border-radius: 6px; padding: 9px; width: 300px }"
    root = tree(browser, "<div><p>in it</p><p>too</p></div>", style)
    (card,) = root.children
    assert shape(card) == "card(text'in it' text'too')"
    assert card.style.background == (0xEE, 0xEE, 0xEE) and card.style.border_color == (0x99, 0, 0)
    assert (card.style.border_width, card.style.radius) == (2, 6)
    assert card.box.width == 322
    # a fill that cannot be told from what is behind it is no box
    assert outline(browser, "<div style='background:#fff'><p>plain</p></div>") == "page(text'plain')"


def test_headings(browser: Browser) -> None:
    body = "<h1>a</h1><h2>b</h2><h3>c</h3><h4>d</h4><h5>e</h5><h6>f</h6><div role=heading>g</div>"
    assert outline(browser, body) == "page(h1'a' h2'b' h3'c' h4'd' h4'e' h4'f' h2'g')"


def test_a_paragraph_with_links_is_one_text_and_links_alone_are_links(browser: Browser) -> None:
    running = "<p style='width:200px'>Read all of it in <a href=#>the long documentation of this</a> or ask us.</p>"
    (leaf,) = tree(browser, running).children
    assert leaf.kind == "text" and len(leaf.lines) == 3
    assert outline(browser, "<div><a href=#>one</a><br><a href=#>two</a></div>") == "page(link'one' link'two')"


def test_text_style(browser: Browser) -> None:
    body = "<p style='color:#c00;font:italic 700 20px Courier New;text-align:right'><u>styled</u></p>"
    style = tree(browser, body).children[0].style
    assert (style.color, style.font_size, style.font_weight) == ((0xCC, 0, 0), 20, 700)
    assert (style.font_family, style.italic, style.underline, style.align) == ("mono", True, True, "right")


def test_lists_and_markers(browser: Browser) -> None:
    body = "<ul><li>a<li><b>b</b> and <i>c</i><li><p>d</p><p>e</p></ul>"
    assert outline(browser, body) == "page(list(text'a' text'b and c' group(text'd' text'e')))"


def test_tables(browser: Browser) -> None:
    body = "<table><thead><tr><th>A<th>B</thead><tbody><tr><td>1<td><a href=#>2</a></tbody></table>"
    assert outline(browser, body) == "page(table(tr(text'A' text'B') tr(text'1' link'2')))"
    bordered = "td, th { border: 1px solid #888; padding: 8px }"
    root = tree(browser, body, bordered)
    assert shape(root) == "page(table(tr(text'A' text'B') tr(text'1' link'2')))"
    assert all(row.style.border_width == 1 for row in root.children[0].children)
    # one cell that stands out keeps its own box
    odd = body.replace("<td>1", "<td style='background:#fc0'>1")
    assert outline(browser, odd) == "page(table(tr(text'A' text'B') tr(card(text'1') link'2')))"


def test_a_table_that_only_arranges_the_page_is_no_table(browser: Browser) -> None:
    assert "table" not in outline(browser, "<table><tr><td><p>side</p><td><p>main</p><p>part</p></table>")


def test_controls(browser: Browser) -> None:
    body = (
        "<label>Name <input value='Ada'></label><p><select><option>red</select></p><textarea>words</textarea>"
        "<p><input type=checkbox> <button>Send</button></p>"
        "<a href=# style='display:inline-block;padding:6px 12px;background:#06c;color:#fff'>Go</a>"
    )
    found = [shape(n) for n in tree(browser, body).walk() if n.kind not in ("page", "group")]
    assert sorted(found) == sorted(
        ["label'Name'", "input'Ada'", "select'red'", "textarea'words'", "check", "button'Send'", "button'Go'"]
    )


def test_pictures_icons_and_rules(browser: Browser) -> None:
    body = (
        f'<img alt=big width=200 height=100 src="{DOT}"><hr><p><svg width=20 height=20><circle r=9 /></svg> with icon</p>'
        "<div style='height:1px;background:#999'></div>"
    )
    root = tree(browser, body)
    assert shape(root) == "page(img rule group(icon text'with icon') rule)"
    assert root.children[0].alt == "big"


def test_text_on_a_background_picture(browser: Browser) -> None:
    hero = f'<div style="background:url(&quot;{DOT}&quot;);height:200px;color:#fff"><h1>Over it</h1></div>'
    root = tree(browser, hero)
    assert shape(root) == "page(img h1'Over it')"
    unreadable = tree(browser, hero.replace("color:#fff", "color:#000"))  # black on the black of the picture
    assert shape(unreadable) == "page(img)"
    tinted = (
        f"<div style='position:relative;width:300px;height:200px'><img width=300 height=200 src=\"{DOT}\">"
        "<div style='position:absolute;inset:0;background:rgba(0,0,0,.4)'></div></div>"
    )
    assert outline(browser, tinted) == "page(img)"


def test_side_by_side_is_read_from_the_left(browser: Browser) -> None:
    body = "<div><p>second</p><p>third</p></div><aside><p>first</p><p>below</p></aside>"
    style = "body { display: flex; flex-direction: row-reverse; justify-content: flex-end; gap: 20px }"
    assert outline(browser, body, style) == "page(aside(text'first' text'below') group(text'second' text'third'))"


def test_what_is_taken_out_of_its_parent_is_held_by_what_it_stands_in(browser: Browser) -> None:
    body = (
        "<div style='background:#eee;padding:10px;width:300px'><p>inside</p>"
        "<button style='position:fixed;right:10px;bottom:10px'>help</button></div>"
    )
    assert outline(browser, body) == "page(card(text'inside') button'help')"


@pytest.mark.parametrize("depth", [40, 400])
def test_deep_pages(browser: Browser, depth: int) -> None:
    body = "<div style='border-left:1px solid #ddd'>" * depth + "<p>deep</p>"
    texts = [n for n in tree(browser, body, width=1000).walk() if n.kind in TEXTS]
    assert [t.lines[0].text for t in texts] == ["deep"]


def test_the_tree_survives_json(browser: Browser) -> None:
    root = tree(browser, "<header><h1>t</h1><a href=#>l</a></header><p style='background:#eee'>x</p>")
    again = Node.from_json(root.to_json())
    assert again.to_json() == root.to_json() and shape(again) == shape(root)

"""Layout trees written as markup and read back; the grammar as an endless source of markup."""

import numpy as np
import pytest

from watersmeet.core.errors import DecodeError
from watersmeet.core.geometry import Box
from watersmeet.pipelines.layout import grammar, markup
from watersmeet.pipelines.layout.regions import Regions, ShapeRegion, TextRegion
from watersmeet.pipelines.layout.tree import Node, Style, TextLine
from watersmeet.pipelines.layout.xycut import xy_cut

EOS = 2
IDS = {symbol: 3 + i for i, symbol in enumerate(markup.symbols())}
NAMES = {i: symbol for symbol, i in IDS.items()}


def box(x0, y0, x1, y1):
    return Box(x0=x0, y0=y0, x1=x1, y1=y1)


def leaf(kind, *boxes):
    lines = tuple(TextLine(text=f"{kind} {i}", box=b) for i, b in enumerate(boxes))
    return Node(kind=kind, box=Box.around(list(boxes)), lines=lines)


def page(*children):
    return Node(kind="page", box=box(0, 0, 1280, 757), children=children)


def regions(texts=(), shapes=()):
    return Regions(
        width=1280,
        height=757,
        texts=tuple(TextRegion(box=b, text=f"text {i}") for i, b in enumerate(texts)),
        shapes=tuple(ShapeRegion(box=b, kind="fill") for b in shapes),
    )


@pytest.fixture(scope="module")
def compiled():
    return grammar.LayoutGrammar(IDS, 1024, EOS)


def test_a_navigation_bar_is_written_as_its_example():
    bar, logo = box(0, 0, 1280, 60), box(10, 10, 50, 50)
    home, docs, button, caption = (
        box(100, 20, 160, 40),
        box(200, 20, 260, 40),
        box(1100, 10, 1200, 50),
        box(1120, 20, 1180, 40),
    )
    tree = page(
        Node(
            kind="nav",
            box=bar,
            style=Style(background=(1, 2, 3)),
            children=(
                Node(kind="img", box=logo),
                leaf("link", home),
                leaf("link", docs),
                Node(kind="button", box=button, lines=(TextLine(text="Go", box=caption),)),
            ),
        )
    )
    found = regions([home, docs, caption], [bar, logo, button])
    written = markup.encode(tree, found)
    assert " ".join(written) == "<nav> <s0> <img> <s1> <link> <t0> <link> <t1> <button> <s2> <t2> </> </>"
    back = markup.decode(written, found)
    assert back.warnings == () and back.unused_texts == ()
    nav = back.tree.children[0]
    assert (nav.kind, nav.box) == ("nav", bar)
    assert [child.kind for child in nav.children] == ["img", "link", "link", "button"]
    assert nav.children[3].lines[0].text == "text 2"


def test_lines_of_one_height_join_and_others_stay_lines():
    found = regions([box(10, 10, 90, 30), box(100, 11, 180, 31), box(10, 40, 90, 60), box(400, 41, 480, 61)])
    tree = markup.decode(["<text>", "<t0>", "<t1>", "<t2>", "<t3>"], found).tree
    assert [line.text for line in tree.children[0].lines] == ["text 0 text 1", "text 2", "text 3"]
    assert tree.children[0].lines[0].box == box(10, 10, 180, 31)


def test_a_box_without_a_shape_is_written_in_bins_and_read_within_half_a_bin():
    field = box(403, 211, 857, 262)
    written = markup.encode(page(Node(kind="input", box=field)), regions())
    assert written[0] == "<input>" and written[-1] == "</>" and len(written) == 6
    back = markup.decode(written, regions()).tree.children[0].box
    for got, want, size in zip(
        (back.x0, back.y0, back.x1, back.y1), (field.x0, field.y0, field.x1, field.y1), (1280, 757) * 2, strict=True
    ):
        assert abs(got - want) <= size / (markup.BINS - 1) / 2 + 1e-6


def test_wrappers_without_paint_and_parts_without_regions_are_left_out():
    line = box(10, 10, 90, 30)
    tree = page(
        Node(kind="group", box=line, children=(Node(kind="group", box=line, children=(leaf("text", line),)),)),
        leaf("text", box(500, 500, 600, 520)),
        Node(kind="icon", box=box(700, 700, 710, 710)),
    )
    assert markup.encode(tree, regions([line])) == ["<text>", "<t0>"]


def test_control_takes_its_shape_before_a_container_of_the_same_box():
    frame = box(100, 100, 300, 140)
    tree = page(Node(kind="card", box=frame, children=(Node(kind="input", box=frame),)))
    assert markup.encode(tree, regions(shapes=[frame])) == ["<card>", "<input>", "<s0>", "</>", "</>"]


def test_wrong_references_are_dropped_and_named():
    back = markup.decode(["<text>", "<t0>", "<t0>", "<t9>", "<img>", "<s4>", "</>"], regions([box(1, 1, 9, 9)]))
    assert [node.kind for node in back.tree.children] == ["text"]
    assert len(back.warnings) == 4
    with pytest.raises(DecodeError, match="<script>"):
        markup.decode(["<script>"], regions())


@pytest.mark.parametrize("seed", range(60))
def test_random_choices_of_the_mask_parse_close_and_refer_once(compiled, seed):
    rng = np.random.default_rng(seed)
    texts, shapes, budget = int(rng.integers(0, 60)), int(rng.integers(0, 30)), int(rng.integers(8, 200))
    mask = compiled.mask(texts=texts, shapes=shapes)
    written = []
    for remaining in range(budget, 0, -1):
        token = int(rng.choice(mask.allowed(remaining).nonzero()[0]))
        if token == EOS:
            break
        mask.accept(token)
        written.append(NAMES[token])
    else:
        pytest.fail(f"the budget of {budget} tokens ran out inside {written[-8:]}")
    found = regions(
        [box(0, 20 * i, 9, 20 * i + 9) for i in range(texts)], [box(i, i, i + 9, i + 9) for i in range(shapes)]
    )
    decoded = markup.decode(written, found)
    assert decoded.warnings == ()
    references = [s for s in written if s[1] in "ts" and s[2:-1].isdigit()]
    assert len(references) == len(set(references))
    depth = 0
    for symbol in written:
        depth += symbol in {f"<{k}>" for k in markup.CONTAINERS + markup.CONTROLS}
        depth -= symbol == markup.CLOSE
        assert 0 <= depth <= grammar.MAX_DEPTH
    assert depth == 0


def test_what_encode_writes_the_mask_allows(compiled):
    rng = np.random.default_rng(5)
    boxes = [box(x, y, x + 60, y + 16) for y in range(20, 700, 40) for x in range(20, 1200, 150)]
    rows = []
    for start in range(0, len(boxes), 8):
        row = boxes[start : start + 8]
        kind = str(rng.choice(["group", "card", "list", "nav"]))
        rows.append(
            Node(
                kind=kind,
                box=Box.around(row),
                children=tuple(leaf(str(rng.choice(["text", "h2", "link"])), b) for b in row),
            )
        )
    tree = page(*rows)
    written = markup.encode(tree, regions(boxes, [r.box for r in rows]))
    mask = compiled.mask(texts=len(boxes), shapes=len(rows))
    for at, symbol in enumerate(written):
        assert mask.allowed(1000)[IDS[symbol]], (at, symbol)
        mask.accept(IDS[symbol])
    assert mask.allowed(1000)[EOS]


def test_reference_offsets_wrap_around(compiled):
    mask = compiled.mask(texts=3, shapes=0, text_offset=254)
    mask.accept(IDS["<text>"])
    allowed = {NAMES[i] for i in mask.allowed(100).nonzero()[0]}
    assert allowed == {"<t254>", "<t255>", "<t0>"}


def test_the_mask_refuses_what_it_did_not_allow(compiled):
    mask = compiled.mask(texts=1, shapes=0)
    with pytest.raises(DecodeError):
        mask.accept(IDS["<t0>"])


def test_xy_cut_reads_columns_below_a_header_one_after_the_other():
    boxes = [
        box(0, 0, 1000, 40),
        box(0, 60, 200, 80),
        box(300, 60, 600, 80),
        box(0, 90, 200, 110),
        box(300, 95, 600, 115),
    ]
    assert xy_cut(boxes).order() == [0, 1, 3, 2, 4]


def test_xy_cut_keeps_every_box_once():
    rng = np.random.default_rng(3)
    for _ in range(50):
        corners = rng.uniform(0, 1000, (int(rng.integers(0, 40)), 2))
        boxes = [box(x, y, x + float(rng.uniform(1, 200)), y + float(rng.uniform(1, 50))) for x, y in corners]
        assert sorted(xy_cut(boxes).order()) == list(range(len(boxes)))

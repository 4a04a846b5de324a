"""Scores: identity is 1, blank and failed are 0, and the ways to flatter them do not work."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image, ImageDraw

from watersmeet.core.geometry import Box
from watersmeet.pipelines.score import PageFacts, ScoredLine, failed_scores, score_pages
from watersmeet.pipelines.score.color import delta_e, to_lab
from watersmeet.pipelines.score.match import match_lines
from watersmeet.pipelines.score.pixels import fill, main_color, mean_ssim, ssim

WORDS = "amber basil cedar delta ember fjord grove heron inlet jetty knoll ledge marsh north otter plume".split()


def box(x0, y0, x1, y1):
    return Box(x0=x0, y0=y0, x1=x1, y1=y1)


def lines(count, kind="text"):
    return tuple(
        ScoredLine(
            text=f"{WORDS[i % 16]} {WORDS[(i * 7 + 3) % 16]} {i}",
            box=box(40, 20 + 30 * i, 240, 40 + 30 * i),
            color=(20, 20, 20),
            kind=kind,
        )
        for i in range(count)
    )


def paint(found, boxes=(), size=(800, 600), ground=(255, 255, 255)):
    picture = Image.new("RGB", size, ground)
    draw = ImageDraw.Draw(picture)
    for _, b in boxes:
        draw.rectangle((b.x0, b.y0, b.x1, b.y1), fill=(30, 90, 200))
    for line in found:
        draw.text((line.box.x0, line.box.y0), line.text, fill=line.color, font_size=18)
    return picture


def facts(found, boxes=(), **changes):
    made = PageFacts(
        width=800,
        height=600,
        picture=paint(found, boxes),
        lines=tuple(found),
        boxes=tuple(boxes),
        picture_cover=sum(b.area for k, b in boxes if k == "image") / 480000,
    )
    return replace(made, **changes)


BOXES = (("image", box(400, 50, 700, 300)), ("button", box(400, 400, 500, 440)), ("input", box(400, 500, 700, 540)))
PAGE = facts(lines(16), BOXES)


def test_a_page_against_itself_is_one_everywhere():
    scores = score_pages(PAGE, PAGE, PAGE, PAGE)
    assert set(scores.to_json().values()) == {1.0}
    assert scores.unmatched_reference == () and scores.unmatched_result == ()


def test_a_blank_page_is_zero_where_it_counts():
    empty = facts((), (), picture=Image.new("RGB", (800, 600), main_color(PAGE.picture)), picture_cover=0.0)
    scores = score_pages(PAGE, empty, empty, PAGE)
    assert scores.look < 0.01 and scores.code < 0.01
    assert score_pages(empty, empty).look == 1.0
    pictures = facts((), BOXES)
    assert score_pages(pictures, empty).look < 0.01 and score_pages(pictures, pictures).look == 1.0


def test_a_failed_page_is_zero_everywhere():
    assert set(failed_scores().to_json().values()) == {0.0}


def test_half_of_the_lines_lowers_content_though_text_and_position_do_not_see_it():
    scores = score_pages(PAGE, facts(PAGE.lines[::2], BOXES))
    assert scores.text == scores.position == scores.color == 1.0
    assert scores.block == pytest.approx(2 / 3, abs=0.01)
    assert scores.content == pytest.approx(scores.block) and scores.line_iou == pytest.approx(scores.block)
    assert scores.role == 0.5 and len(scores.unmatched_reference) == 8


def test_extra_lines_lower_block():
    extra = tuple(
        replace(line, text=f"zzz qqq {i}{i}{i}", box=line.box.shifted(300, 0)) for i, line in enumerate(PAGE.lines)
    )
    scores = score_pages(PAGE, facts(PAGE.lines + extra, BOXES))
    assert scores.block == pytest.approx(2 / 3, abs=0.01)


def test_moved_lines_lower_position_and_line_iou_only():
    moved = tuple(replace(line, box=line.box.shifted(160, 0)) for line in PAGE.lines)
    scores = score_pages(PAGE, facts(moved, BOXES))
    assert scores.position == pytest.approx(1 - 160 / 800)
    assert scores.text == scores.block == 1.0
    assert scores.line_iou == pytest.approx(40 / 360)


def test_shuffled_lines_lower_position():
    order = np.random.default_rng(0).permutation(16)
    shuffled = tuple(replace(line, box=PAGE.lines[k].box) for line, k in zip(PAGE.lines, order, strict=True))
    scores = score_pages(PAGE, facts(shuffled, BOXES))
    want = np.mean([1 - abs(int(k) - i) * 30 / 600 for i, k in enumerate(order)])
    assert scores.text == 1.0 and scores.position == pytest.approx(float(want))


def test_a_pasted_screenshot_does_not_pay():
    pasted = facts((), (("image", box(0, 0, 800, 600)),), picture=PAGE.picture, picture_cover=1.0)
    scores = score_pages(PAGE, pasted)
    assert scores.fill == scores.ssim == scores.own_pixels == 0.0 and scores.look == 0.0
    behind = facts(PAGE.lines, BOXES, picture=PAGE.picture, picture_cover=1.0)
    assert score_pages(PAGE, behind).look == pytest.approx(0.5)


def test_absolute_elements_and_sideways_scroll_each_cost_a_part_of_code():
    absolute = score_pages(PAGE, replace(PAGE, absolute_share=1.0), PAGE, PAGE)
    assert absolute.code == pytest.approx(0.75) and absolute.look == 1.0
    own = replace(PAGE, absolute_share=0.6)
    assert score_pages(own, own, own, own).code == 1.0
    wide = replace(PAGE, overflow_x=200.0)
    assert score_pages(PAGE, PAGE, wide, PAGE).code == pytest.approx(0.75)
    assert score_pages(PAGE, PAGE, wide, wide).code == 1.0
    cut = replace(PAGE, cut_lines=4)
    assert score_pages(PAGE, PAGE, cut, PAGE).fits == pytest.approx(0.75)


def test_kinds_count_line_by_line():
    wrong = tuple(replace(line, kind="heading") for line in PAGE.lines[:4]) + PAGE.lines[4:]
    assert score_pages(PAGE, facts(wrong, BOXES)).role == 0.75
    unknown = facts(tuple(replace(line, kind=None) for line in PAGE.lines), boxes=(), picture=PAGE.picture)
    scores = score_pages(replace(unknown, boxes=None), PAGE)
    assert scores.role is None and scores.boxes is None and scores.code == 1.0


def test_boxes_are_matched_within_their_kind_at_half_overlap():
    near = (("image", box(400, 50, 700, 290)), ("button", box(400, 400, 500, 440)), ("button", box(400, 500, 700, 540)))
    assert score_pages(PAGE, facts(PAGE.lines, near)).boxes == pytest.approx(2 * 2 / 6)
    far = (("image", box(400, 50, 540, 300)),)
    assert score_pages(PAGE, facts(PAGE.lines, far)).boxes == 0.0


def test_a_line_broken_in_two_is_joined_again():
    whole = ScoredLine(text="amber basil cedar delta ember", box=box(40, 20, 440, 40), color=(0, 0, 0))
    parts = (
        replace(whole, text="amber basil cedar", box=box(40, 20, 260, 40)),
        replace(whole, text="delta ember", box=box(270, 20, 440, 40)),
    )
    other = ScoredLine(text="fjord grove", box=box(40, 80, 200, 100), color=(0, 0, 0))
    for left, right in (((whole, other), (*parts, other)), ((*parts, other), (whole, other))):
        matching = match_lines(left, right, 1000.0)
        assert len(matching.pairs) == 2 and not matching.lost and not matching.extra
        assert [ratio for _, _, ratio in matching.pairs] == [1.0, 1.0]


def test_equal_texts_match_the_nearer_one():
    found = [ScoredLine(text="Read more", box=box(40, y, 120, y + 20), color=(0, 0, 0)) for y in (20, 220, 420)]
    matching = match_lines(found, found[::-1], 1000.0)
    assert all(a.line.box == b.line.box for a, b, _ in matching.pairs)


# Lab pairs and their CIEDE2000 from the test data published with the formula (Sharma et al. 2005, table 1)
SHARMA = [
    ((50.0, 2.6772, -79.7751), (50.0, 0.0, -82.7485), 2.0425),
    ((50.0, -1.3802, -84.2814), (50.0, 0.0, -82.7485), 1.0000),
    ((50.0, 0.0, 0.0), (50.0, -1.0, 2.0), 2.3669),
    ((50.0, 2.4900, -0.0010), (50.0, -2.4900, 0.0009), 7.1792),
    ((50.0, 2.4900, -0.0010), (50.0, -2.4900, 0.0011), 7.2195),
    ((50.0, 2.5, 0.0), (73.0, 25.0, -18.0), 27.1492),
    ((50.0, 2.5, 0.0), (56.0, -27.0, -3.0), 31.9030),
    ((60.2574, -34.0099, 36.2677), (60.4626, -34.1751, 39.4387), 1.2644),
    ((22.7233, 20.0904, -46.6940), (23.0331, 14.9730, -42.5619), 2.0373),
    ((2.0776, 0.0795, -1.1350), (0.9033, -0.0636, -0.5514), 0.9082),
]


@pytest.mark.parametrize(("one", "two", "want"), SHARMA)
def test_ciede2000_agrees_with_the_published_pairs(one, two, want):
    assert float(delta_e(np.array(one), np.array(two))) == pytest.approx(want, abs=1e-4)
    assert float(delta_e(np.array(two), np.array(one))) == pytest.approx(want, abs=1e-4)


def test_colour_and_structure_agree_with_scikit_image():
    color = pytest.importorskip("skimage.color", reason="scikit-image is the peer of this test")
    metrics = pytest.importorskip("skimage.metrics")
    rng = np.random.default_rng(0)
    rgb = rng.integers(0, 256, (40, 3)).astype(np.uint8)
    np.testing.assert_allclose(to_lab(rgb), color.rgb2lab(rgb[None])[0], atol=0.02)
    np.testing.assert_allclose(
        delta_e(to_lab(rgb[:20]), to_lab(rgb[20:])),
        color.deltaE_ciede2000(to_lab(rgb[:20]), to_lab(rgb[20:])),
        atol=1e-6,
    )
    a = rng.integers(0, 256, (60, 80)).astype(np.float64)
    b = np.clip(a + rng.normal(0, 30, a.shape), 0, 255)
    want = metrics.structural_similarity(
        a, b, data_range=255, gaussian_weights=True, sigma=1.5, use_sample_covariance=False
    )
    assert mean_ssim(a, b) == pytest.approx(want, abs=0.01)


def test_fill_and_ssim_fall_with_distance():
    red = Image.new("RGB", (800, 600), "white")
    ImageDraw.Draw(red).rectangle((0, 0, 250, 600), fill="#c33")
    pink = Image.new("RGB", (800, 600), "white")
    ImageDraw.Draw(pink).rectangle((0, 0, 250, 600), fill="#e99")
    blank = Image.new("RGB", (800, 600), "white")
    assert fill(red, red) == 1.0 and fill(red, blank) == 0.0 and 0.2 < fill(red, pink) < 0.9
    assert ssim(red, red) == pytest.approx(1.0) and ssim(red, blank) == 0.0 and 0.0 < ssim(red, pink) < 1.0

"""What plain code takes for likely: each rule with a page on which it holds, and one on which it must keep silent."""

from dataclasses import replace

import pytest

from watersmeet.core.geometry import Box
from watersmeet.pipelines.video_to_spec.hints import NOTHING
from watersmeet.pipelines.video_to_spec.likely import likely, likely_targets
from watersmeet.pipelines.video_to_spec.prompt import Memory
from watersmeet.pipelines.video_to_spec.watch.turns import distance

FIELD = (200, 100, 420, 136)
WHOLE = (0, 0, 640, 400)


def test_a_button_is_meant_by_a_press_and_a_placeholder_by_typing(lined):
    button = lined(
        under=[("Save", 60, 52, 92, 66), ("Cancel", 130, 52, 176, 66)], place=(50, 46, 102, 72), point=(70, 58)
    )
    assert likely_targets(button) == {"click": "<t0>", "type": "<t0>"}
    empty = lined(
        under=[("Search", 560, 110, 610, 126)],
        before=[("Type here", 212, 110, 280, 126)],
        after=[("orders", 212, 110, 262, 126)],
        place=FIELD,
        letters=True,
    )
    assert likely_targets(empty)["type"] == "<t1>"


def test_what_a_field_held_is_not_what_it_is_called(lined):
    """Below the pointer stands the old value: a press would mean it, typing means the label."""
    value, label = ("Ada", 212, 110, 240, 126), ("First name", 200, 72, 270, 88)
    turn = lined(under=[value], before=[label], after=[value], place=FIELD, point=(230, 118), letters=True)
    assert likely_targets(turn) == {"click": "<t0>", "type": "<t1>"}


def test_a_box_to_tick_is_meant_by_its_label_and_an_icon_by_nothing(lined):
    tick = lined(under=[("Remember me", 46, 62, 140, 76)], place=(20, 60, 38, 78), point=(28, 68))
    assert likely_targets(tick)["click"] == "<t0>"
    icon = lined(under=[("Inbox", 120, 50, 160, 64)], place=(20, 42, 52, 74), point=(36, 58))
    assert likely_targets(icon) == {"click": NOTHING}


def test_a_row_is_pressed_far_behind_its_text_and_not_at_the_row_above(lined):
    rows = [("Utilities", 24, 50, 70, 62), ("Help", 24, 94, 52, 106)]
    assert likely_targets(lined(under=rows, place=(84, 72, 116, 104), point=(100, 88)))["click"] == "<t1>"
    # as far away, but above: another row
    assert likely_targets(lined(under=rows[:1], place=(24, 100, 56, 132), point=(40, 110)))["click"] == NOTHING


def test_without_a_pointer_a_link_is_called_like_the_page_that_came(lined):
    lines = [("Home", 20, 20, 80, 36), ("Tables", 20, 60, 80, 76)]
    came = [("TABLES", 200, 20, 300, 50)]
    assert likely_targets(lined(before=lines, after=came, place=WHOLE)) == {"click": "<t1>"}
    # what is as large as before only moved
    moved = [("Tables", 20, 80, 80, 96)]
    assert likely_targets(lined(before=lines, after=moved, place=WHOLE)) == {}


@pytest.mark.parametrize(("entries", "expected"), [(2, "<t1>"), (1, "<t0>")])
def test_without_a_pointer_a_menu_is_opened_by_the_line_above_it(lined, entries, expected):
    """What the menu covers is no target; where one line alone came, it is no menu, and the place is what changed."""
    lines = [("Covered", 320, 130, 380, 146), ("Ada Low", 320, 60, 380, 76), ("Far", 320, 4, 380, 20)]
    came = [("Profile", 310, 100, 380, 116), ("Log out", 310, 160, 380, 176)][:entries]
    turn = lined(before=lines, after=came, place=(300, 90, 400, 190))
    assert likely_targets(turn)["click"] == expected


def whole_turn(lined, kept, area=WHOLE, shows=("Orders", "New order")):
    x0, y0, x1, y1 = area
    areas = (Box(x0=x0, y0=y0, x1=x1, y1=y1),)
    return replace(lined(place=area), kept=kept, areas=areas, on_screen=frozenset(shows))


@pytest.mark.parametrize(
    ("kept", "area", "leads"),
    [
        (0.0, WHOLE, True),
        (0.4, WHOLE, None),
        (0.9, WHOLE, False),  # a theme, or a dimmed page
        (1.0, FIELD, False),
        (0.0, FIELD, None),  # the one line that was read went
    ],
)
def test_whether_another_screen_came_shows_in_what_stayed(lined, kept, area, leads):
    assert likely(whole_turn(lined, kept, area), Memory()).leads is leads


BOX, NOTE = (20, 60, 36, 76), (500, 20, 620, 60)


@pytest.mark.parametrize(
    ("still", "area", "acts"),
    [
        (0.03, BOX, False),  # it lit up
        (0.03, WHOLE, None),  # nothing lights up the whole page
        (0.4, BOX, True),  # a box that is ticked
        (0.4, NOTE, None),  # a note that came elsewhere
        (5.0, BOX, None),
        (None, BOX, None),
    ],
)
def test_a_press_comes_a_moment_after_the_pointer(lined, still, area, acts):
    point = None if still is None else (28, 68)
    turn = replace(whole_turn(lined, 1.0, area), still_s=still, point=point)
    turn = replace(turn, reach=None if point is None else distance(turn.areas[0], point))
    assert likely(turn, Memory()).acts is acts
    assert likely(replace(turn, letters=True), Memory()).acts is None


@pytest.mark.parametrize(("still", "kept", "action"), [(4.0, 0.0, "navigate"), (0.4, 0.0, None), (4.0, 0.9, None)])
def test_a_page_that_goes_while_the_pointer_rests_was_left_otherwise(lined, still, kept, action):
    turn = replace(whole_turn(lined, kept), still_s=still, point=(28, 68), reach=0.0)
    assert likely(turn, Memory()).action == action


def test_without_a_pointer_a_page_is_left_by_a_press(lined):
    turn, stayed = (replace(whole_turn(lined, kept), still_s=None) for kept in (0.0, 0.9))
    assert likely(turn, Memory(), blind=True).action == "click"
    assert likely(turn, Memory()).action is None  # it was not seen yet
    assert likely(stayed, Memory(), blind=True).action is None


def test_a_screen_is_called_like_its_largest_words(lined):
    """Not like a number that is larger, nor like what stands at the foot of the page; of equals like the upper one."""
    lines = [
        ("$4,572", 300, 60, 400, 100),
        ("Earnings", 20, 90, 120, 116),
        ("Orders", 20, 40, 100, 66),
        ("Dec", 500, 120, 560, 160),
        ("Follow us", 20, 340, 200, 380),
        ("Search for", 300, 10, 360, 24),
    ]
    turn = lined(before=[("Home", 20, 20, 60, 34)], after=lines, place=WHOLE)
    assert likely(turn, Memory()).title == "<t3>"
    assert likely(lined(after=lines[:1], place=WHOLE), Memory()).title is None


def test_a_page_that_was_seen_before_is_that_one_and_any_other_is_new(lined):
    turn = whole_turn(lined, 0.0)
    orders, other = frozenset({"Orders", "New order"}), frozenset({"Charts"})
    assert likely(turn, Memory(shown=[[orders], [other]], here=1)).screen == "<v0>"
    assert likely(turn, Memory(shown=[[orders], [other]], here=0)).screen is None
    assert likely(turn, Memory(shown=[[other]], here=0)).screen == "<new>"

"""Lines near what is acted on: each place as it stands on pages, and the line that a person would name."""

from dataclasses import replace

import pytest

from watersmeet.core.geometry import Box
from watersmeet.pipelines.video_to_spec.hints import NOTHING, likely_targets, near_lines
from watersmeet.pipelines.video_to_spec.watch.page import line_of


def box(x0, y0, x1, y1):
    return Box(x0=x0, y0=y0, x1=x1, y1=y1)


def turn_of(seen, *, under=(), before=(), after=(), place, point=None, letters=False):
    """A turn of 640 x 400 px with these lines, (text, x0, y0, x1, y1) each."""
    lines = [tuple(line_of(text, box(*at)) for text, *at in part) for part in (under, before, after)]
    turn = seen(2).turns[1]
    observed = replace(turn.observed, boxes=(box(0, 0, 8, 8), box(*place)) if letters else (box(*place),))
    return replace(
        turn, observed=observed, under=lines[0], before=lines[1], after=lines[2], point=point, letters=letters
    )


FIELD = (200, 100, 420, 136)


def placeholder(seen):
    """Typing into a field in which a placeholder stood, another field beside it."""
    return turn_of(
        seen,
        under=[("Search", 560, 110, 610, 126)],
        before=[("Type here", 212, 110, 280, 126)],
        after=[("orders", 212, 110, 262, 126)],
        place=FIELD,
        letters=True,
    )


def test_a_button_is_at_the_pointer_and_in_its_own_frame(seen):
    turn = turn_of(
        seen, under=[("Save", 60, 52, 92, 66), ("Cancel", 130, 52, 176, 66)], place=(50, 46, 102, 72), point=(70, 58)
    )
    assert near_lines(turn) == ["<t0>", "<t0>", NOTHING, NOTHING]


def test_an_icon_beside_a_text_has_none(seen):
    turn = turn_of(seen, under=[("Inbox", 120, 50, 160, 64)], place=(20, 42, 52, 74), point=(36, 58))
    assert near_lines(turn) == [NOTHING] * 4


@pytest.mark.parametrize(
    "label",
    [("Email", 200, 76, 240, 92), ("Email", 140, 110, 186, 126), ("Email", 212, 93, 246, 105)],
    ids=["above", "left", "on the frame"],
)
def test_the_label_of_a_field(seen, label):
    """Above it, before it, or set into its upper edge as Material Design does."""
    far = ("Billing address", 200, 20, 320, 44)
    turn = turn_of(
        seen,
        under=[far],
        before=[label],
        after=[("ada@x.org", 212, 110, 280, 126)],
        place=FIELD,
        point=(300, 118),
        letters=True,
    )
    assert near_lines(turn) == [NOTHING, NOTHING, "<t1>", "<t2>"]


def test_a_box_to_tick_has_its_label_behind_it_and_a_field_its_unit(seen):
    tick = turn_of(seen, under=[("Remember me", 46, 62, 140, 76)], place=(20, 60, 38, 78), point=(28, 68))
    assert near_lines(tick) == [NOTHING, NOTHING, "<t0>", NOTHING]
    unit, label = ("kg", 430, 110, 446, 126), ("Weight", 200, 72, 250, 88)
    assert near_lines(turn_of(seen, before=[unit, label], place=FIELD, point=(300, 118)))[2] == "<t1>"


def test_a_placeholder_stands_in_its_field(seen):
    turn = placeholder(seen)
    assert near_lines(turn) == [NOTHING, "<t1>", NOTHING, "<t2>"]


def test_below_a_field_and_far_above_it_is_no_label(seen):
    lines = [("Required", 200, 140, 260, 152), ("Profile", 200, 20, 260, 40)]
    assert near_lines(turn_of(seen, before=lines, place=FIELD, point=None)) == [NOTHING] * 4


def test_of_a_page_that_changes_as_a_whole_no_line_is_named(seen):
    turn = turn_of(
        seen, before=[("Orders", 20, 20, 80, 36)], after=[("Customers", 20, 20, 80, 36)], place=(0, 0, 640, 400)
    )
    assert near_lines(turn) == [NOTHING] * 4


def test_an_empty_field_of_a_page_that_is_written_from_the_right_has_its_label_there(seen):
    label = ("Name", 150, 110, 186, 126)
    turn = turn_of(seen, under=[label], place=FIELD, point=(230, 118))
    flipped = [("Name", 640 - 186, 110, 640 - 150, 126)]
    other = turn_of(seen, under=flipped, place=(220, 100, 440, 136), point=(410, 118))
    assert near_lines(turn) == near_lines(other) == [NOTHING, NOTHING, "<t0>", NOTHING]


def test_a_button_is_meant_by_a_press_and_a_placeholder_by_typing(seen):
    button = turn_of(
        seen, under=[("Save", 60, 52, 92, 66), ("Cancel", 130, 52, 176, 66)], place=(50, 46, 102, 72), point=(70, 58)
    )
    assert likely_targets(button) == {"click": "<t0>", "type": "<t0>"}
    empty = placeholder(seen)
    assert likely_targets(empty)["type"] == "<t1>"


def test_what_a_field_held_is_not_what_it_is_called(seen):
    """Below the pointer stands the old value: a press would mean it, typing means the label."""
    value, label = ("Ada", 212, 110, 240, 126), ("First name", 200, 72, 270, 88)
    turn = turn_of(seen, under=[value], before=[label], after=[value], place=FIELD, point=(230, 118), letters=True)
    assert likely_targets(turn) == {"click": "<t0>", "type": "<t1>"}


def test_a_box_to_tick_is_meant_by_its_label_and_an_icon_by_nothing(seen):
    tick = turn_of(seen, under=[("Remember me", 46, 62, 140, 76)], place=(20, 60, 38, 78), point=(28, 68))
    assert likely_targets(tick)["click"] == "<t0>"
    icon = turn_of(seen, under=[("Inbox", 120, 50, 160, 64)], place=(20, 42, 52, 74), point=(36, 58))
    assert likely_targets(icon) == {}


def test_without_a_pointer_a_link_is_called_like_the_page_that_came(seen):
    lines = [("Tables", 20, 60, 80, 76), ("Home", 20, 20, 80, 36)]
    came, page = [("TABLES", 200, 20, 300, 50)], (0, 0, 640, 400)
    assert likely_targets(turn_of(seen, before=lines, after=came, place=page)) == {"click": "<t0>"}
    assert likely_targets(turn_of(seen, before=lines[::-1], after=came, place=page)) == {}

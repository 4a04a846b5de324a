"""Lines near what is acted on: each place as it stands on pages, and the line that a person would name."""

import pytest

from watersmeet.pipelines.video_to_spec.hints import NOTHING, near_lines

FIELD = (200, 100, 420, 136)


def placeholder(lined):
    """Typing into a field in which a placeholder stood, another field beside it."""
    return lined(
        under=[("Search", 560, 110, 610, 126)],
        before=[("Type here", 212, 110, 280, 126)],
        after=[("orders", 212, 110, 262, 126)],
        place=FIELD,
        letters=True,
    )


def test_a_button_is_at_the_pointer_and_in_its_own_frame(lined):
    turn = lined(
        under=[("Save", 60, 52, 92, 66), ("Cancel", 130, 52, 176, 66)], place=(50, 46, 102, 72), point=(70, 58)
    )
    assert near_lines(turn) == ["<t0>", "<t0>", NOTHING, NOTHING]


def test_an_icon_beside_a_text_has_none(lined):
    turn = lined(under=[("Inbox", 120, 50, 160, 64)], place=(20, 42, 52, 74), point=(36, 58))
    assert near_lines(turn) == [NOTHING] * 4


@pytest.mark.parametrize(
    "label",
    [("Email", 200, 76, 240, 92), ("Email", 140, 110, 186, 126), ("Email", 212, 93, 246, 105)],
    ids=["above", "left", "on the frame"],
)
def test_the_label_of_a_field(lined, label):
    """Above it, before it, or set into its upper edge as Material Design does."""
    far = ("Billing address", 200, 20, 320, 44)
    turn = lined(
        under=[far],
        before=[label],
        after=[("ada@x.org", 212, 110, 280, 126)],
        place=FIELD,
        point=(300, 118),
        letters=True,
    )
    assert near_lines(turn) == [NOTHING, NOTHING, "<t1>", "<t2>"]


def test_a_box_to_tick_has_its_label_behind_it_and_a_field_its_unit(lined):
    tick = lined(under=[("Remember me", 46, 62, 140, 76)], place=(20, 60, 38, 78), point=(28, 68))
    assert near_lines(tick) == [NOTHING, NOTHING, "<t0>", NOTHING]
    unit, label = ("kg", 430, 110, 446, 126), ("Weight", 200, 72, 250, 88)
    assert near_lines(lined(before=[unit, label], place=FIELD, point=(300, 118)))[2] == "<t1>"


def test_a_placeholder_stands_in_its_field(lined):
    turn = placeholder(lined)
    assert near_lines(turn) == [NOTHING, "<t1>", NOTHING, "<t2>"]


def test_below_a_field_and_far_above_it_is_no_label(lined):
    lines = [("Required", 200, 140, 260, 152), ("Profile", 200, 20, 260, 40)]
    assert near_lines(lined(before=lines, place=FIELD, point=None)) == [NOTHING] * 4


def test_of_a_page_that_changes_as_a_whole_no_line_is_named(lined):
    turn = lined(before=[("Orders", 20, 20, 80, 36)], after=[("Customers", 20, 20, 80, 36)], place=(0, 0, 640, 400))
    assert near_lines(turn) == [NOTHING] * 4


def test_an_empty_field_of_a_page_that_is_written_from_the_right_has_its_label_there(lined):
    label = ("Name", 150, 110, 186, 126)
    turn = lined(under=[label], place=FIELD, point=(230, 118))
    flipped = [("Name", 640 - 186, 110, 640 - 150, 126)]
    other = lined(under=flipped, place=(220, 100, 440, 136), point=(410, 118))
    assert near_lines(turn) == near_lines(other) == [NOTHING, NOTHING, "<t0>", NOTHING]

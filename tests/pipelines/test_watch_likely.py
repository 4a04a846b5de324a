"""Lines that may be meant where no pointer is shown: those that lit up, and those that are called like what came."""

from types import SimpleNamespace

import pytest

from watersmeet.core.geometry import Box
from watersmeet.pipelines.video_to_spec.watch.episodes import Beat, Episode
from watersmeet.pipelines.video_to_spec.watch.page import Reading, line_of
from watersmeet.pipelines.video_to_spec.watch.turns import _likely

SIZE = 1000 * 600


def line(text, top, left=20):
    return line_of(text, Box(x0=left, y0=top, x1=left + 80, y1=top + 16))


def change(start_s, box, lasting_s=0.1):
    start, end = round(start_s * 1e6), round((start_s + lasting_s) * 1e6)
    beat = Beat(frame=0, time_us=start, last_frame=1, last_us=end, box=box)
    return Episode(beats=(beat,), areas=(box,), letters=False)


def likely(lines, came, last, start_s=5.0):
    page = Box(x0=200, y0=0, x1=1000, y1=600)
    before = SimpleNamespace(lines=lines, episode=change(start_s, page), last=last)
    reading = Reading(kept=(), gone=(), come=tuple(came), scrolled=0)
    return [one.text for one in _likely(before, reading, SIZE)]


MENU = [line(text, 40 * k) for k, text in enumerate(("Home", "Orders", "Tables", "Help"))]


def test_a_link_that_is_called_like_the_page_that_came_is_offered():
    assert likely(MENU, [line("Tables", 30, 300), line("Name", 90, 300)], None) == ["Tables"]
    assert likely(MENU, [line("ORDERS", 30, 300)], None) == ["Orders"]
    assert likely(MENU, [line("Welcome", 30, 300)], None) == []


@pytest.mark.parametrize(("ended_s", "lit"), [(4.5, ["Orders"]), (3.7, ["Orders"]), (2.0, [])])
def test_a_line_that_lit_up_shortly_before_comes_first(ended_s, lit):
    glow = change(ended_s - 0.1, Box(x0=10, y0=34, x1=180, y1=62))
    assert likely(MENU, [line("Tables", 30, 300)], glow) == [*lit, "Tables"]


def test_a_page_that_came_is_no_light_and_there_are_never_many():
    assert likely(MENU, [], change(4.5, Box(x0=0, y0=0, x1=900, y1=600))) == []
    names = [line("Row", 20 * k) for k in range(9)]
    assert len(likely(names, [line("Row", 300, 300)], None)) == 4

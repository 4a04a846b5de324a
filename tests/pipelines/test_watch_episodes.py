"""Episodes of pages that are drawn by hand: what belongs together is one, and what never rests is none."""

import numpy as np
import pytest
from PIL import Image, ImageDraw

from watersmeet.core.geometry import Box
from watersmeet.pipelines.data.pointer import Style
from watersmeet.pipelines.data.recording import Recording, font
from watersmeet.pipelines.video_to_spec.watch import episodes as module
from watersmeet.pipelines.video_to_spec.watch.episodes import MOST_BEATS, episodes
from watersmeet.pipelines.video_to_spec.watch.motion import Area, Difference, Motion
from watersmeet.pipelines.video_to_spec.watch.pointer import track
from watersmeet.pipelines.video_to_spec.watch.presses import Presses, presses

SIZE = (640, 400)
RATE = 30


@pytest.fixture
def film():
    made = Recording(size=SIZE, rate=RATE)
    made.show(0, 12, Image.new("RGB", SIZE, (246, 247, 249)))
    return made


def found(film, seconds):
    """Episodes of the first seconds, found on the drawn pictures themselves."""
    motion, differences = Motion(), []
    for i, (time_us, picture) in enumerate(film.frames(seconds)):
        one = motion.push(np.asarray(picture), time_us, i)
        differences += [] if one is None else [one]
    seen, pointer, rest = presses(differences)
    return episodes(rest, pointer, SIZE, seen)


def spans(listed):
    return [(round(e.start_us / 1e6, 2), round(e.end_us / 1e6, 2)) for e in listed]


def panel(colour, size=(200, 120)):
    return Image.new("RGB", size, colour)


def test_what_fades_in_is_one_episode_from_its_first_to_its_last_frame(film):
    film.layers.clear()
    film.show(0, 12, Image.new("RGB", SIZE, (90, 100, 120)))
    film.drop_down(1.0, 4.0, (100, 100), ["One", "Two", "Three"], fade=0.15)
    coming, going = found(film, 5)
    # the step next to full opacity, a ninth, is paler than what a codec does to a picture
    assert spans([coming, going]) == [(1.0, 1.1), (3.9, 4.0)]
    assert coming.box.iou(Box(x0=100, y0=100, x1=300, y1=196)) > 0.9 and not coming.letters


def test_a_menu_of_300_ms_comes_and_goes_at_these_times(film):
    film.drop_down(1.0, 1.3, (100, 100), ["One", "Two"])
    listed = found(film, 3)
    times = [beat.time_us for one in listed for beat in one.beats]
    assert times == [1_000_000, 1_300_000]
    assert not any(one.letters for one in listed)
    assert Box.around([one.box for one in listed]).iou(Box(x0=100, y0=100, x1=300, y1=168)) > 0.9


def test_two_presses_a_third_of_a_second_apart_are_two(film):
    film.show(1.0, 12, panel("navy"), (40, 40))
    film.show(1.3, 12, panel("maroon"), (380, 240))
    listed = found(film, 3)
    assert spans(listed) == [(1.0, 1.0), (1.3, 1.3)]
    assert listed[0].box == Box(x0=40, y0=40, x1=240, y1=160)
    assert listed[1].box == Box(x0=380, y0=240, x1=580, y1=360)


@pytest.mark.parametrize("seed", range(2))
def test_typing_is_one_episode_however_long_one_thinks_and_begins_with_its_focus(film, seed):
    """A field is framed by a press at 1 s; the first letter comes 0.6 s later, half a word, a pause of 1.1 s, the rest."""
    field = panel("white", (240, 36))
    field.paste((70, 120, 240), (0, 0, 240, 2))
    field.paste((70, 120, 240), (0, 34, 240, 36))
    film.show(1.0, 12, field, (80, 120))
    letters = 1.6 + np.cumsum(np.random.default_rng(seed).gamma(6.0, 1 / 48, 7))
    letters[4:] += 1.1

    def draw(frame, age):
        shown = "Harbour"[: int(np.searchsorted(letters - 1.0, age + 1e-9, side="right"))]
        pen = ImageDraw.Draw(frame)
        pen.text((90, 128), shown, fill="black", font=font(16))
        x = 91 + pen.textlength(shown, font=font(16))
        pen.line((x, 128, x, 146), fill="black")

    film.show(1.0, 12, draw)
    (one,) = found(film, 6)
    assert one.letters and one.start_us == 1_000_000
    assert one.end_us / 1e6 == pytest.approx(letters[-1], abs=1.01 / RATE)
    assert len(one.beats) <= MOST_BEATS and one.beats[0].box.width > 200
    assert all(Box(x0=80, y0=120, x1=322, y1=158).contains(area) for area in one.areas)


def test_typing_behind_a_blinking_caret_that_stood_there_is_one(film):
    """As `Recording` types: no frame around the field, a caret all the time, also before and behind the word."""
    start = 2.0
    film.type_text(start, "on time", (90, 128), until=9, seed=1)
    done = film.events[-1].end
    listed = [one for one in found(film, 7) if one.letters]
    (one,) = listed
    # the caret that comes first is where typing began
    assert start - 0.05 <= one.start_us / 1e6 <= start + 0.4
    assert one.end_us / 1e6 == pytest.approx(done, abs=0.6)


def test_a_caret_a_clock_and_a_spinner_by_themselves_are_none(film):
    film.type_text(0.5, "", (90, 128), until=12)
    film.clock(0, 12, (540, 10))
    film.spin(0.2, 11.8, (320, 300))
    assert found(film, 7) == []


def test_what_happens_beside_a_clock_and_a_spinner_is_found(film):
    film.clock(0, 12, (540, 10))
    film.spin(0.2, 11.8, (320, 300))
    film.show(4.5, 12, panel("navy"), (40, 40))
    assert spans(found(film, 7)) == [(4.5, 4.5)]


def test_a_page_that_changes_as_a_whole_is_not_restless(film):
    """Even five times in a row, a second apart: each is what somebody did."""
    for k in range(5):
        film.show(2.0 + k, 12, Image.new("RGB", SIZE, (200 - 40 * (k % 2), 90 + 30 * k, 60)))
    assert spans(found(film, 7)) == [(2.0 + k, 2.0 + k) for k in range(5)]


def test_the_pointer_is_no_change_of_the_page_but_what_it_does_is(film):
    film.move(0.0, 500, 50)
    film.move(2.0, 120, 90, lasting=0.8)
    film.show(2.5, 12, panel("navy"), (40, 160))
    film.move(4.0, 420, 300, lasting=0.7)
    assert spans(found(film, 5)) == [(2.5, 2.5)]


# ---------------------------------------------------------------------- beats


def differences(*listed):
    """(time in ms, box) of each."""
    return [
        Difference(frame=ms // 10, time_us=ms * 1000, areas=(Area(box=box, pixels=int(box.area)),))
        for ms, box in listed
    ]


BIG, INSIDE = Box(x0=100, y0=100, x1=500, y1=300), Box(x0=120, y0=120, x1=480, y1=280)


def test_a_change_within_the_place_that_changed_goes_on_with_it_for_a_while():
    def made(gap, box):
        return len(episodes(differences((1000, BIG), (1000 + gap, box)), track([]), SIZE, Presses()))

    assert [made(gap, INSIDE) for gap in (100, 400, 460)] == [1, 1, 2]
    other = Box(x0=0, y0=310, x1=400, y1=390)
    assert [made(gap, other) for gap in (100, 140)] == [1, 2]


def test_beats_are_parted_by_quiet_and_of_many_the_ends_are_kept():
    listed = [(1000 + 40 * k, BIG) for k in range(4)]
    listed += [(1240 + 120 * k, INSIDE) for k in range(9)]
    (one,) = episodes(differences(*listed), track([]), SIZE, Presses())
    times = [(beat.time_us // 1000, beat.last_us // 1000) for beat in one.beats]
    assert times == [(1000, 1120), (1240, 1240), (1360, 1360), (1960, 1960), (2080, 2080), (2200, 2200)]
    assert (one.beats[0].frame, one.beats[0].last_frame) == (100, 112)
    assert one.areas == (BIG,) and one.box == BIG
    assert (one.start_us, one.end_us) == (1_000_000, 2_200_000)


def test_a_place_is_restless_only_while_it_does_not_rest():
    """A small note changes every half second for three seconds; ten seconds later it changes once."""
    note = Box(x0=500, y0=20, x1=560, y1=40)
    listed = [(1000 + 500 * k, note) for k in range(7)] + [(14_000, note)]
    assert spans(episodes(differences(*listed), track([]), SIZE, Presses())) == [(14.0, 14.0)]
    seldom = [(1000 + 1400 * k, note) for k in range(7)]
    assert len(episodes(differences(*seldom), track([]), SIZE, Presses())) == 7
    assert module._RESTLESS_US < 3_000_000


def differences_of(film, seconds):
    motion = Motion()
    listed = [motion.push(np.asarray(picture), us, i) for i, (us, picture) in enumerate(film.frames(seconds))]
    return [one for one in listed if one is not None]


@pytest.mark.parametrize("rate", [15, 30])
@pytest.mark.parametrize("answer", [0.12, 0.3])
def test_a_press_that_the_recorder_draws_is_the_start_and_no_change(rate, answer):
    """The pointer rests on a highlighted entry, presses at 2 s with a ring, and the page is answered later."""
    film = Recording(size=SIZE, rate=rate, pointer=Style(ripple=True), presses=[2.0])
    film.show(0, 5, Image.new("RGB", SIZE, (246, 247, 249)))
    film.show(1.6, 5, panel((190, 205, 235), (160, 50)), (60, 80))
    film.show(2 + answer, 5, panel((90, 100, 120), (600, 300)), (20, 60))
    film.move(0.0, 500, 300)
    film.move(1.5, 120, 105, lasting=0.9)
    listed = found(film, 4)
    assert [one.start_us / 1e6 for one in listed] == pytest.approx([1.6, 2 + answer], abs=1.01 / rate)
    hover, page = listed
    assert [beat.press_us for beat in hover.beats] == [None]
    assert page.beats[0].press_us / 1e6 == pytest.approx(2.0, abs=1.01 / rate)
    assert all(beat.press_us is None for beat in page.beats[1:])


def test_what_grows_elsewhere_than_at_the_pointer_is_the_pages():
    """A badge that pops up while the pointer rests at the other end, and one before the pointer was ever seen to move."""
    film = Recording(size=SIZE, rate=RATE)
    film.show(0, 6, Image.new("RGB", SIZE, (246, 247, 249)))
    for start, x in ((0.5, 80), (3.0, 560)):
        for k in range(5):
            side = 12 + 8 * k
            at = (x - side // 2, 60 - side // 2)
            film.show(start + k / RATE, 6, panel((200, 40, 40), (side, side)), at)
    film.move(0.0, 500, 300)
    film.move(2.0, 120, 305, lasting=0.9)
    differences = differences_of(film, 5)
    assert presses(differences) == (Presses(), track(differences), differences)
    assert spans(found(film, 5)) == [(0.5, 0.63), (3.0, 3.13)]


def test_a_switch_below_the_pointer_is_no_ring():
    film = Recording(size=SIZE, rate=RATE)
    film.show(0, 5, Image.new("RGB", SIZE, (246, 247, 249)))
    film.show(2.0, 5, panel((30, 110, 230), (40, 22)), (100, 94))
    film.move(0.0, 500, 300)
    film.move(1.5, 120, 105, lasting=0.9)
    differences = differences_of(film, 4)
    assert presses(differences) == (Presses(), track(differences), differences)
    assert spans(found(film, 4)) == [(2.0, 2.0)]


def test_a_caret_that_goes_out_before_another_page_comes_is_not_its_beginning(film):
    """A field is left as it is: its caret goes out a second before a link elsewhere leads to another page."""
    film.show(0, 1.0, panel("black", (2, 20)), (200, 110))
    film.show(2.0, 12, panel((90, 100, 120), (640, 400)))
    assert spans(found(film, 4)) == [(2.0, 2.0)]


def test_a_clock_that_comes_to_a_full_minute_is_still_a_clock(film):
    film.clock(-55, 12, (540, 10))
    assert found(film, 11) == []


def test_a_clock_that_is_seen_for_three_seconds_is_a_clock(film):
    for second in range(1, 4):
        film.show(second + 0.2, 12, panel((40 * second, 60, 60), (9, 12)), (600, 20))
    film.show(5.0, 12, panel((90, 100, 120), (640, 400)))
    assert spans(found(film, 6)) == [(5.0, 5.0)]
    # three letters of one place at the speed of fingers are not
    film.layers.clear()
    film.show(0, 12, Image.new("RGB", SIZE, (246, 247, 249)))
    for time, shade in ((1.2, 40), (2.1, 80), (3.15, 120)):
        film.show(time, 12, panel((shade, 60, 60), (9, 12)), (600, 20))
    assert [beat.time_us for one in found(film, 6) for beat in one.beats] == [1_200_000, 2_100_000, 3_166_667]

"""The pointer, followed on frames that are drawn by hand: where it is known to be, it is found, and nowhere else."""

import numpy as np
import pytest
from PIL import Image, ImageDraw

from watersmeet.core.geometry import Box
from watersmeet.pipelines.data.pointer import Style, draw_pointer, sprite
from watersmeet.pipelines.video_to_spec.watch import motion
from watersmeet.pipelines.video_to_spec.watch.motion import Motion
from watersmeet.pipelines.video_to_spec.watch.pointer import joined, point_of, track

SIZE = (640, 400)
RATE = 30
NEAR = 9.0  # px between where the pointer points and where it is found


def page():
    """Something to move over: stripes of text-like marks and a dark bar."""
    picture = Image.new("RGB", SIZE, (245, 246, 248))
    pen = ImageDraw.Draw(picture)
    pen.rectangle((0, 0, SIZE[0], 40), fill=(30, 60, 110))
    for y in range(70, 380, 30):
        for x in range(30, 600, 12):
            pen.rectangle((x, y, x + 7, y + 9), fill=(60, 60, 70))
    return picture


def seen(pictures, keys=()):
    """Differences between pictures that are 1/30 s apart."""
    one = Motion()
    found = [one.push(np.asarray(p), round(i * 1e6 / RATE), i, i in keys) for i, p in enumerate(pictures)]
    return [difference for difference in found if difference is not None]


def journey(stops, frames_between):
    """Tips of a pointer that rests at each stop for a while and moves between them with ease."""
    tips = []
    for a, b in zip(stops, stops[1:], strict=False):
        tips += [a] * 6
        shares = [0.5 - 0.5 * np.cos(np.pi * (k + 1) / frames_between) for k in range(frames_between)]
        tips += [(round(a[0] + (b[0] - a[0]) * s), round(a[1] + (b[1] - a[1]) * s)) for s in shares]
    return [*tips, *[stops[-1]] * 6]


def filmed(tips, below=lambda i, picture: None, style=None):
    base, out = page(), []
    for i, tip in enumerate(tips):
        picture = base.copy()
        below(i, picture)
        draw_pointer(picture, tip, "arrow", style or Style())
        out.append(picture)
    return out


def rests(tips):
    """(frame, tip) of the last frame of each rest after the first movement."""
    return [
        (i, tip)
        for i, tip in enumerate(tips)
        if i > 12 and tip == tips[i - 1] and (i + 1 == len(tips) or tips[i + 1] != tip)
    ]


def assert_found(tips, found):
    stops = rests(tips)
    assert len(stops) >= 2
    for frame, tip in stops:
        box = found.at(round(frame * 1e6 / RATE))
        assert box is not None
        point = point_of(box)
        assert np.hypot(point[0] - tip[0], point[1] - tip[1]) <= NEAR, (frame, tip, box)


STOPS = ((80, 90), (420, 300), (500, 120), (200, 210))


@pytest.mark.parametrize("frames", [4, 8, 20, 45])
@pytest.mark.parametrize("size", [1.0, 1.6])
def test_wherever_the_pointer_rests_it_is_found(frames, size):
    """From 4 frames for 400 px to a slow hand."""
    tips = journey(STOPS, frames)
    assert_found(tips, track(seen(filmed(tips, style=Style(size=size)))))


def test_how_long_it_has_stood_and_from_how_far_it_came():
    tips = journey(STOPS, 12)
    found = track(seen(filmed(tips)))
    frames = [frame for frame, _ in rests(tips)]
    for before, frame, a, b in zip(frames, frames[1:], STOPS[1:], STOPS[2:], strict=False):
        us = [round(at * 1e6 / RATE) for at in (before, frame)]
        # six frames of rest of which one ends the movement
        assert found.still_us(us[1]) == pytest.approx(5e6 / RATE, abs=2.1e6 / RATE)
        assert found.way(*us) == pytest.approx(np.hypot(a[0] - b[0], a[1] - b[1]), abs=2 * NEAR)
        assert found.way(us[1], us[1]) == 0.0
    assert found.still_us(0) is None and found.way(0, 33_333) == 0.0


def test_when_a_place_was_last_free_of_it():
    tips = journey(STOPS, 12)
    found = track(seen(filmed(tips)))
    frame, us = rests(tips)[-1][0], round((len(tips) - 1) * 1e6 / RATE)
    place = found.at(us)
    away = found.away(place, 0, us)
    # some frames of its way before it came to rest there
    assert frame - 18 < away * RATE / 1e6 < frame
    box = found.at(away)
    assert (
        box.intersection(place) == 0 and np.hypot(*(a - b for a, b in zip(box.center, place.center, strict=True))) < 120
    )
    assert found.away(place, us - 100_000, us) is None
    elsewhere = Box(x0=600, y0=360, x1=620, y1=380)
    assert found.away(elsewhere, 0, us) == us
    assert track([]).away(place, 0, us) is None


def test_before_it_moves_nobody_knows_where_it_is():
    tips = journey(STOPS[:2], 12)
    found = track(seen(filmed(tips)))
    assert found.at(0) is None and found.at(4 * 33_333) is None
    assert track(seen([page()] * 8)).boxes == track([]).boxes == ()


def test_a_highlight_below_the_pointer_and_a_spinner_elsewhere_do_not_take_its_place():
    """A button turns pale blue while the pointer is above it; a small arc turns in the corner all the time."""

    def below(i, picture):
        pen = ImageDraw.Draw(picture)
        for x, y in STOPS[1:]:
            button = (x - 40, y - 16, x + 50, y + 20)
            above = button[0] <= tips[i][0] <= button[2] and button[1] <= tips[i][1] <= button[3]
            pen.rectangle(button, fill=(205, 225, 250) if above else "white", outline=(90, 90, 90))
        angle = i * 15 % 360
        pen.arc((590, 8, 618, 36), angle, angle + 270, fill="white", width=3)

    tips = journey(STOPS, 15)
    found = track(seen(filmed(tips, below)))
    assert_found(tips, found)
    corner = Box(x0=585, y0=0, x1=625, y1=45)
    assert not any(corner.contains(box) for box in found.boxes)


def test_an_arrow_that_becomes_a_hand_stays_where_it_is():
    tips = journey(STOPS, 12)
    pictures = filmed(tips)
    hand = page()
    draw_pointer(hand, tips[-1], "hand", Style())
    differences = seen([*pictures, hand, hand])
    found = track(differences)
    assert differences[-1].frame == len(pictures) and found.parts[len(pictures)]
    box = found.at(10**9)
    assert np.hypot(*np.subtract(point_of(box), tips[-1])) <= NEAR


def test_what_changes_in_place_is_no_pointer():
    """Letters that are typed, a spinner, a clock, a fading note, a bar that grows: each by itself and all together."""

    def typed(i, pen):
        for k in range(i // 4):
            pen.rectangle((60 + 9 * k, 200, 66 + 9 * k, 212), fill="black")
        if i % 32 < 16:
            pen.line((62 + 9 * (i // 4), 198, 62 + 9 * (i // 4), 214), fill="black")

    def spinner(i, pen):
        pen.arc((400, 100, 428, 128), i * 15, i * 15 + 270, fill=(60, 110, 220), width=3)

    def clock(i, pen):
        pen.rectangle((560, 10, 620, 30), fill="white")
        pen.text((564, 12), f"{i // 30:02}:{i % 30:02}", fill="black")

    def note(i, pen):
        shade = 245 - max(0, 200 - abs(i - 45) * 10)
        pen.rectangle((200, 330, 420, 370), fill=(shade, shade, shade))

    def bar(i, pen):
        pen.rectangle((40, 300, 40 + 5 * i, 304), fill=(20, 120, 40))

    for layers in ((typed,), (spinner,), (clock,), (note,), (bar,), (typed, spinner, clock, note, bar)):
        pictures = []
        for i in range(90):
            picture = Image.new("RGB", SIZE, (245, 246, 248))
            for layer in layers:
                layer(i, ImageDraw.Draw(picture))
            pictures.append(picture)
        assert track(seen(pictures)).boxes == (), layers


def test_the_areas_that_a_movement_explains_lie_where_the_pointer_went():
    tips = journey(STOPS[:2], 10)
    pictures = filmed(tips)
    differences = seen(pictures)
    found = track(differences)
    picture, point = sprite("arrow", Style())
    assert set(found.parts) <= {one.frame for one in differences} and found.parts
    for frame, boxes in found.parts.items():
        way = [tips[max(0, frame - 1)], tips[frame]]
        at = [Box(x0=x - point[0], y0=y - point[1], x1=x - point[0] + picture.width, y1=y - point[1] + picture.height)
              for x, y in way]  # fmt: skip
        assert all(Box.around(at).contains(box, 6) for box in boxes)
    # nothing of a movement is left over as a change of the page
    assert all(one.frame in found.parts for one in differences)


def test_boxes_that_nearly_touch_are_one():
    a, b, c = (Box(x0=x, y0=0, x1=x + 10, y1=10) for x in (0, 15, 31))
    assert joined([a, b, c], 6) == [Box(x0=0, y0=0, x1=41, y1=10)]
    assert joined([a, b, c], 5) == [Box(x0=0, y0=0, x1=25, y1=10), c]
    assert joined([], 5) == []


# ---------------------------------------------------------------------- differences


def noise(picture, most, seed):
    values = np.asarray(picture).astype(int)
    return np.clip(values + np.random.default_rng(seed).integers(-most, most + 1, values.shape), 0, 255).astype(
        np.uint8
    )


def test_a_difference_is_where_it_was_drawn_and_the_codecs_noise_is_none():
    base = np.asarray(page())
    changed = base.copy()
    changed[100:140, 200:280] = (200, 30, 30)
    one = Motion()
    frames = [base, noise(base, 10, 1), noise(base, 10, 2), noise(changed, 10, 3), noise(changed, 10, 4)]
    found = [one.push(frame, i, i) for i, frame in enumerate(frames)]
    assert [f is not None for f in found] == [False, False, False, True, False]
    (area,) = found[3].areas
    assert Box(x0=198, y0=98, x1=282, y1=142).contains(area.box) and area.box.contains(
        Box(x0=202, y0=102, x1=278, y1=138)
    )
    assert area.pixels == pytest.approx(80 * 40, rel=0.3)
    assert (found[3].frame, found[3].time_us) == (3, 3)


def test_equal_frames_and_a_reused_memory_are_compared_as_they_were_pushed():
    one, memory = Motion(), np.asarray(page()).copy()
    assert one.push(memory, 0, 0) is None and one.push(memory, 1, 1) is None
    memory[200:260, 100:300] = 0
    assert one.push(memory, 2, 2) is not None
    memory[:] = np.asarray(page())
    assert one.push(memory, 3, 3).areas[0].box.area == pytest.approx(200 * 60, rel=0.1)


def test_a_key_frame_may_move_everything_a_little_but_not_much():
    base = np.full((200, 300, 3), 120, np.uint8)
    moved = base + np.uint8((motion.STEP + motion.KEY_STEP) // 2)
    for key, expected in ((False, True), (True, False)):
        one = Motion()
        one.push(base, 0, 0, False)
        assert (one.push(moved, 1, 1, key) is not None) is expected
    # where every frame is a key frame, they are as any other
    one = Motion()
    one.push(base, 0, 0, True)
    assert one.push(moved, 1, 1, True) is not None
    one = Motion()
    one.push(base, 0, 0, False)
    assert one.push(base + np.uint8(motion.KEY_STEP + 4), 1, 1, True) is not None


def test_many_small_areas_are_one_large():
    base = np.full((480, 640, 3), 255, np.uint8)
    dots = base.copy()
    for y in range(8, 480, 32):
        for x in range(8, 640, 32):
            dots[y : y + 8, x : x + 8] = 0
    one = Motion()
    one.push(base, 0, 0)
    (area,) = one.push(dots, 1, 1).areas
    assert area.box == Box(x0=8, y0=8, x1=8 + 19 * 32 + 8, y1=8 + 14 * 32 + 8)

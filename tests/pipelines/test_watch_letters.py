"""Dots of a password and carets: drawn, squeezed by a codec, and beside each other."""

import numpy as np
import pytest
from PIL import Image, ImageDraw

from watersmeet.core.geometry import Box
from watersmeet.pipelines.data.recording import font
from watersmeet.pipelines.video_to_spec.watch import turns
from watersmeet.pipelines.video_to_spec.watch.episodes import Beat, Episode
from watersmeet.pipelines.video_to_spec.watch.letters import BULLET, bullets, without_caret
from watersmeet.pipelines.video_to_spec.watch.page import line_of

SIZE = (640, 400)
PAPER, INK = (246, 247, 249), (30, 30, 30)


def box_of(text, place, size=16):
    left, top, right, bottom = ImageDraw.Draw(Image.new("RGB", (1, 1))).textbbox(place, text, font=font(size))
    return Box(x0=left, y0=top, x1=right, y1=bottom)


def drawn(texts):
    """A picture of texts, {place: text}."""
    picture = Image.new("RGB", SIZE, PAPER)
    for place, text in texts.items():
        ImageDraw.Draw(picture).text(place, text, fill=INK, font=font(16))
    return np.asarray(picture).copy()


def dots(count, step=9, size=6, picture=None, at=(60, 100)):
    picture = Image.fromarray(drawn({})) if picture is None else picture
    for k in range(count):
        x = at[0] + step * k
        ImageDraw.Draw(picture).ellipse((x, at[1], x + size - 1, at[1] + size - 1), fill=INK)
    return np.asarray(picture)


@pytest.mark.parametrize("count", [4, 9, 16])
def test_a_hidden_password_is_as_many_dots_as_were_typed(count):
    place = Box(x0=60, y0=92, x1=60 + 9 * count, y1=114)
    found = bullets(dots(count), place)
    assert found.text == BULLET * count and found.record["text"] == found.text
    around = Box(x0=60, y0=100, x1=60 + 9 * count - 3, y1=106)
    assert found.box.contains(around) and around.contains(found.box, 5)
    # dots that are further apart, or words, are none
    assert bullets(dots(count, step=30), place) is None


@pytest.mark.parametrize("count", [4, 9, 14])
@pytest.mark.parametrize("quality", [35, 75])
@pytest.mark.parametrize("labelled", [False, True])
def test_dots_that_a_codec_made_a_chain_are_counted_too(count, quality, labelled, tmp_path):
    """Three px wide at distances of four and a half, as a squeezed recording has them, in a field with a frame, and with a label
    that moved into the frame meanwhile."""
    large = Image.new("RGB", (1280, 800), PAPER)
    pen = ImageDraw.Draw(large)
    for k in range(count):
        pen.ellipse((240 + 18 * k, 402, 240 + 18 * k + 13, 415), fill=INK)
    pen.rectangle((190, 360, 900, 456), outline=(150, 170, 230), width=6)
    if labelled:
        pen.text((240, 344), "Password", fill=INK, font=font(36))
    large.resize((320, 200), Image.Resampling.BOX).resize((640, 400), Image.Resampling.BICUBIC).save(
        tmp_path / "a.jpg", quality=quality
    )
    picture = np.asarray(Image.open(tmp_path / "a.jpg"))[::2, ::2]
    label = Box(x0=58, y0=84, x1=110, y1=96)
    place = Box(x0=60, y0=88 if labelled else 94, x1=62 + 4.5 * count, y1=110)
    picture = np.ascontiguousarray(picture)
    assert bullets(picture, place, [label] if labelled else []).text == BULLET * count


@pytest.mark.parametrize("size", [8, 9, 10, 11, 12, 14])
@pytest.mark.parametrize(
    "words", ["museum", "morrow moon", "nummern", "wwwww", "aeronaut can", "-----", "......", "~~~~~"]
)
def test_small_letters_in_a_row_are_no_dots(words, size):
    picture = Image.new("RGB", (400, 60), PAPER)
    ImageDraw.Draw(picture).text((60, 24), words, fill=INK, font=font(size))
    place = Box(x0=58, y0=20, x1=64 + 0.7 * size * len(words), y1=24 + 1.3 * size)
    assert bullets(np.asarray(picture), place, read=[place]) is None
    if words not in ("wwwww", "nummern"):
        assert bullets(np.asarray(picture), place) is None


def test_words_a_rule_and_three_dots_are_no_password():
    place = Box(x0=50, y0=92, x1=240, y1=118)
    assert bullets(drawn({(60, 95): "Harbour office"}), place) is None
    assert bullets(dots(3), place) is None
    assert bullets(drawn({}), place) is None
    assert bullets(drawn({}), Box(x0=636, y0=398, x1=640, y1=400)) is None


@pytest.mark.parametrize(
    ("read", "typed"), [("Every|", "Every"), ("Ada L |", "Ada L"), ("a|b", "a|b"), ("|", "|"), ("Ada", "Ada")]
)
def test_a_caret_that_was_read_as_a_bar_is_not_typed(read, typed):
    line = line_of(read, Box(x0=10, y0=10, x1=90, y1=26))
    found = turns._without_bar(line)
    assert (found.text, found.record["text"], found.box) == (typed, typed, line.box)


def test_a_caret_is_taken_away_and_letters_are_not():
    text, place = "Harbourill", (60, 100)
    clean = drawn({place: text})
    letters = box_of(text, place)
    with_caret = clean.copy()
    x = int(letters.x1) + 3
    with_caret[int(letters.y0) - 3 : int(letters.y1) + 4, x] = 0
    typed = Box(x0=letters.x0, y0=letters.y0 - 4, x1=x + 1, y1=letters.y1 + 4)
    assert np.array_equal(without_caret(with_caret, typed), clean)
    assert not np.array_equal(with_caret, clean)
    # the given picture is as it was, and without a caret nothing is touched
    assert (with_caret[int(letters.y0), x] == 0).all()
    assert np.array_equal(without_caret(clean, typed), clean)
    assert np.array_equal(without_caret(clean, Box(x0=0, y0=0, x1=3, y1=3)), clean)


def test_a_caret_right_behind_the_last_dot_hides_none():
    """What is painted over a caret takes the dot beside it along, so dots are counted with the caret too."""
    count, size = 9, 4
    picture = np.array(dots(count, step=5, size=size))
    x = 60 + 5 * (count - 1) + size + 1
    picture[93:112, x] = INK
    place = Box(x0=60, y0=96, x1=x, y1=110)
    cleaned = without_caret(picture, place)
    assert not np.array_equal(cleaned, picture)
    assert [len(bullets(one, place).text) for one in (picture, cleaned)] == [count, count - 1]


def test_a_line_that_the_pointer_hid_is_put_right_wherever_a_turn_shows_it(lined):
    """Also where a bar was taken from its end; texts and the lines they come from stay the same ones."""
    typed, place = ("Sevng sod", 212, 110, 262, 126), (200, 100, 420, 136)
    turn = lined(
        before=[("Name", 200, 72, 240, 88)], after=[typed, ("Saved", 20, 20, 60, 36)], place=place, letters=True
    )
    old = line_of("Sevng sod|", Box(x0=212, y0=110, x1=262, y1=126))
    new = line_of("Serving soldiers", Box(x0=212, y0=109, x1=320, y1=127))
    found = turns.mended(turn, old, new)
    assert [line.text for line in found.after] == ["Serving soldiers", "Saved"]
    assert [(t.text, t.came) for t in found.observed.texts] == [
        ("Name", False),
        ("Serving soldiers", True),
        ("Saved", True),
    ]
    assert found.observed.boxes == turn.observed.boxes and found.observed.moments == turn.observed.moments
    elsewhere = line_of("Sevng sod|", Box(x0=212, y0=210, x1=262, y1=226))
    assert turns.mended(turn, elsewhere, new) is turn


def beat(*corners):
    x0, y0, x1, y1 = corners
    return Beat(frame=0, time_us=0, last_frame=0, last_us=0, box=Box(x0=x0, y0=y0, x1=x1, y1=y1))


def test_a_clock_that_ticks_meanwhile_is_not_where_letters_came():
    """Its second comes with a letter once, and by itself once; the frame of the field shone up at the press."""
    field, clock = Box(x0=200, y0=100, x1=420, y1=136), Box(x0=600, y0=20, x1=630, y1=32)
    letters = [beat(212 + 8 * k, 110, 220 + 8 * k, 126) for k in range(4)]
    both = beat(244, 20, 630, 126)
    episode = Episode(
        beats=(beat(200, 100, 420, 136), *letters, both, beat(600, 20, 630, 32)), areas=(field, clock), letters=True
    )
    assert turns._typed_place(episode) == Box(x0=212, y0=100, x1=420, y1=126)
    alone = Episode(beats=(beat(200, 100, 420, 136), *letters), areas=(field,), letters=True)
    assert turns._typed_place(alone) == Box(x0=212, y0=110, x1=244, y1=126)

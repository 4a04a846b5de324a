"""The lines of a screen, kept while it changes: a reader that knows what was drawn says when it is asked, and about what."""

import cv2
import numpy as np
import pytest
from PIL import Image, ImageDraw

from watersmeet.core.geometry import Box
from watersmeet.pipelines.data.recording import font
from watersmeet.pipelines.video_to_spec.watch.page import Page, line_of, words_of

SIZE = (640, 400)
PAPER, INK = (246, 247, 249), (30, 30, 30)


def box_of(text, place, size=16):
    left, top, right, bottom = ImageDraw.Draw(Image.new("RGB", (1, 1))).textbbox(place, text, font=font(size))
    return Box(x0=left, y0=top, x1=right, y1=bottom)


def drawn(texts, paper=PAPER, ink=INK):
    """A picture of texts, {place: text}."""
    picture = Image.new("RGB", SIZE, paper)
    for place, text in texts.items():
        ImageDraw.Draw(picture).text(place, text, fill=ink, font=font(16))
    return np.asarray(picture).copy()


class Reader:
    """Finds texts that it knows in a crop by comparing pixels, in any colours; counts how often and how much it read."""

    def __init__(self, *texts):
        self.known = {}
        for text in texts:
            # glyphs as marks: ink or not
            box = box_of(text, (0, 0))
            marks = drawn({(0, 0): text}, (255,) * 3, (0,) * 3)[..., 0] < 128
            self.known[text] = marks[int(box.y0) : int(box.y1), int(box.x0) : int(box.x1)]
        self.calls, self.pixels = 0, 0

    def __call__(self, crop):
        self.calls, self.pixels = self.calls + 1, self.pixels + crop.shape[0] * crop.shape[1]
        gray = crop.astype(int).sum(2)
        ink = np.abs(gray - np.median(gray)) > 320
        found = []
        for text, marks in sorted(self.known.items(), key=lambda one: -len(one[0])):
            if ink.shape[0] >= marks.shape[0] and ink.shape[1] >= marks.shape[1]:
                wrong = cv2.matchTemplate(ink.astype(np.float32), marks.astype(np.float32), cv2.TM_SQDIFF)
                least, _, (x, y), _ = cv2.minMaxLoc(wrong)
                if least < 0.1 * marks.sum():
                    ink[y : y + marks.shape[0], x : x + marks.shape[1]] = False  # no shorter word of the same
                    box = {"x0": x, "y0": y, "x1": x + marks.shape[1], "y1": y + marks.shape[0]}
                    found.append({"text": text, "box": box})
        return found


def said(page):
    return {line.text: (round(line.box.x0), round(line.box.y0)) for line in page.lines}


def where(*pairs):
    return {text: (round(box_of(text, place).x0), round(box_of(text, place).y0)) for place, text in pairs}


FIRST = {(20, 20): "Orders", (20, 80): "Harbour office", (20, 120): "Opening hours", (400, 300): "Save"}


@pytest.fixture
def reader():
    return Reader(*FIRST.values(), "Saved now", "Prices", "Ferry")


def area(text, place):
    return box_of(text, place)


def test_the_first_picture_is_read_whole_and_later_only_what_changed(reader):
    page = Page(reader)
    first = page.update(drawn(FIRST), [], None)
    assert said(page) == where(*FIRST.items()) and reader.calls == 1 and reader.pixels == SIZE[0] * SIZE[1]
    assert {line.text for line in first.come} == set(FIRST.values()) and first.kept == first.gone == ()
    second = {**FIRST, (400, 300): "Prices"}
    reader.pixels = 0
    found = page.update(drawn(second), [area("Prices", (400, 300))], None)
    assert ([line.text for line in found.gone], [line.text for line in found.come]) == (["Save"], ["Prices"])
    assert len(found.kept) == 3 and reader.calls == 2 and reader.pixels < 0.05 * SIZE[0] * SIZE[1]
    assert said(page) == where(*second.items())


def test_a_line_that_grew_is_read_as_one_line(reader):
    """What is there of "Saved now" looks as "Save" did."""
    page = Page(reader)
    page.update(drawn(FIRST), [], None)
    old = box_of("Save", (400, 300))
    new = drawn({**FIRST, (400, 300): "Saved now"})
    found = page.update(new, [Box(x0=old.x1, y0=old.y0, x1=old.x1 + 45, y1=old.y1)], None)
    assert ([line.text for line in found.gone], [line.text for line in found.come]) == (["Save"], ["Saved now"])
    # something further away leaves it alone
    page = Page(reader)
    page.update(drawn(FIRST), [], None)
    beside = drawn({**FIRST, (450, 300): "Ferry"})
    found = page.update(beside, [box_of("Ferry", (450, 300))], None)
    assert ([line.text for line in found.gone], [line.text for line in found.come]) == ([], ["Ferry"])


def test_without_a_change_nothing_is_read(reader):
    page = Page(reader)
    page.update(drawn(FIRST), [], None)
    found = page.update(drawn(FIRST), [], None)
    tiny = page.update(drawn(FIRST), [Box(x0=5, y0=5, x1=10, y1=30)], None)
    assert reader.calls == 1 and len(found.kept) == len(tiny.kept) == 4 and found.come == found.gone == ()


def test_a_line_that_is_still_there_is_not_read_again_although_its_surroundings_changed(reader):
    page = Page(reader)
    page.update(drawn(FIRST), [], None)
    second = drawn({**FIRST, (300, 100): "Prices"})
    found = page.update(second, [Box(x0=10, y0=60, x1=600, y1=150)], None)
    assert [line.text for line in found.come] == ["Prices"] and found.gone == () and len(found.kept) == 4


def test_other_colours_keep_the_lines(reader):
    """A theme switch: everything changed, and nothing was read."""
    page = Page(reader)
    page.update(drawn(FIRST), [], None)
    before = reader.calls
    found = page.update(drawn(FIRST, (20, 24, 32), (235, 235, 240)), [Box(x0=0, y0=0, x1=SIZE[0], y1=SIZE[1])], None)
    assert {line.text for line in found.kept} == set(FIRST.values()) and found.come == found.gone == ()
    assert said(page) == where(*FIRST.items()) and reader.calls <= before + 1


NAMES = ("Harbour", "Ferry to the islands", "Ice", "Tide tables of the year", "Lost and found", "Pilots", "Fuel and water",
         "Cranes", "A berth for a night", "Weather", "Shipyard", "Customs and duties", "Rescue", "Old maps")  # fmt: skip
ROWS = {name: (20 + 37 * i % 90, 56 + 40 * i + 11 * (i % 3)) for i, name in enumerate(NAMES)}


def long_page(offset):
    """Rows of a list, unevenly spaced, below a bar that stays."""
    picture = drawn({(x, y - offset): name for name, (x, y) in ROWS.items()})
    picture[:40] = (30, 60, 110)
    return picture, {name for name, (_, y) in ROWS.items() if 42 <= y - offset <= 380}


def test_a_line_that_moved_by_a_scroll_keeps_its_text_and_only_the_rest_is_read():
    page = Page(reader := Reader(*NAMES))
    first, names = long_page(0)
    page.update(first, [], None)
    assert set(said(page)) == names
    below = [Box(x0=0, y0=41, x1=SIZE[0], y1=SIZE[1])]
    for offset, scrolled in ((75, 75), (0, -75)):
        reader.pixels, before = 0, names
        picture, names = long_page(offset)
        found = page.update(picture, below, None)
        assert found.scrolled == scrolled and reader.pixels < 0.5 * SIZE[0] * SIZE[1]
        assert {line.text for line in found.come} == names - before
        assert said(page) == where(*(((ROWS[name][0], ROWS[name][1] - offset), name) for name in names))
        assert all(line.record["box"]["y0"] == line.box.y0 for line in page.lines)


def with_pointer(picture, tip):
    from watersmeet.pipelines.data.pointer import Style, draw_pointer

    image = Image.fromarray(picture)
    draw_pointer(image, tip, "arrow", Style())
    return np.asarray(image).copy(), Box(x0=tip[0] - 2, y0=tip[1] - 2, x1=tip[0] + 13, y1=tip[1] + 20)


def test_a_line_behind_the_pointer_stays_and_what_was_hidden_is_read_once_it_is_seen(reader):
    page = Page(reader)
    # the pointer lies over "Opening hours" from the start: it cannot be read
    covered, pointer = with_pointer(drawn(FIRST), (50, 122))
    page.update(covered, [], pointer)
    assert "Opening hours" not in said(page)
    # it moves to "Harbour office", which was read already and stays
    moved, later = with_pointer(drawn(FIRST), (60, 84))
    found = page.update(moved, [area("Harbour office", (20, 80))], later)
    assert "Harbour office" in said(page) and "Harbour office" not in {line.text for line in found.gone}
    free = page.update(drawn(FIRST), [], None)
    assert said(page) == where(*FIRST.items()) and free.gone == ()
    assert [line.text for line in free.come] in (["Opening hours"], [])


# ---------------------------------------------------------------------- words, dots, carets


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Save", "Save"),
        ("  Save   as ", "Save as"),
        ("→ Next", "Next"),
        ("✓", ""),
        ("\ue5cd Close \U0001f5d1", "Close"),
        ("—", ""),
        ("3", "3"),
        ("Ünal 漢", "Ünal 漢"),
        ("50 %", "50 %"),
        ("- Email -", "Email"),
        ("— First name", "First name"),
        ("Non-stop", "Non-stop"),
        ("A - B", "A - B"),
        ("-2%", "-2%"),
        ("", ""),
    ],
)
def test_words_are_what_is_left_without_icons(text, words):
    assert words_of(text) == words


class Garbled:
    """Reads one line, and not all of it where a pointer is on it."""

    def __init__(self, text, hidden):
        self.text, self.hidden = text, hidden

    def __call__(self, crop):
        dark = (np.asarray(crop).sum(2) == 0).any()
        box = {"x0": 20.0, "y0": 20.0, "x1": 150.0, "y1": 36.0}
        record = {"text": self.hidden if dark else self.text, "box": box, "color": [0, 0, 0], "background": [255] * 3}
        return [record | {"font_size": 14.0, "weight": 400, "confidence": 1.0}]


@pytest.mark.parametrize(("hidden", "mended"), [("Sevng sodiers", True), ("Other words", False)])
def test_what_was_typed_below_the_pointer_is_read_again_when_it_is_gone(hidden, mended):
    """As if it had been read so from the beginning: it neither came nor went. Another text in its place did."""
    page = Page(lambda crop: [])
    blank, typed, place = drawn({}), drawn({(20, 20): "Serving soldiers"}), Box(x0=20, y0=20, x1=150, y1=36)
    page.update(blank, [], None)
    page._read = Garbled("Serving soldiers", hidden)
    pointer = Box(x0=80, y0=24, x1=92, y1=40)
    covered = typed.copy()
    covered[24:40, 80:92] = 0
    assert [line.text for line in page.update(covered, [place], pointer).come] == [hidden]
    assert page.take_mended() == []
    # the pointer rests, then goes, and nothing else happens
    assert page.update(covered, [], pointer).come == ()
    reading = page.update(typed, [], None)
    assert [line.text for line in page.lines] == ["Serving soldiers"]
    assert (reading.come == reading.gone == ()) is mended
    pairs = page.take_mended()
    assert [(old.text, new.text) for old, new in pairs] == ([(hidden, "Serving soldiers")] if mended else [])
    assert page.take_mended() == []
    assert page.update(typed, [], None).come == ()


def test_a_made_line_has_the_form_of_a_read_one():
    line = line_of("abc", Box(x0=10, y0=20, x1=40, y1=32), {"color": [1, 2, 3]})
    assert line.record["color"] == [1, 2, 3] and line.record["font_size"] == 10 and line.record["text"] == "abc"
    moved = line.moved(0, -5)
    assert moved.box == Box(x0=10, y0=15, x1=40, y1=27) and moved.record["box"]["y1"] == 27 and line.box.y0 == 20

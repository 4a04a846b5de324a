"""Reading a drawn screen: the words, their places, and what must stay apart."""

import numpy as np
import pytest
from PIL import Image, ImageDraw

from watersmeet.tokenizers.regions import ocr
from watersmeet.tokenizers.regions.fonts import load_font
from watersmeet.tokenizers.regions.read import read, read_texts


@pytest.fixture(scope="module")
def screen():
    image = Image.new("RGB", (960, 200), "white")
    draw = ImageDraw.Draw(image)
    font = load_font("sans", 400, 16)
    truth = {}

    def put(text, x, y, fill=(33, 37, 41)):
        draw.text((x, y), text, fill=fill, font=font, anchor="ls")
        truth[text] = (x, y - 0.905 * 16, x + font.getlength(text), y + 0.212 * 16)

    put("Home", 20, 30)
    put("Products", 84, 30)
    long = "A long small line that runs on and on over the whole width of the page until the recogniser would give up"
    put(long, 20, 80)
    draw.rectangle((20, 120, 99, 155), fill=(13, 110, 253))
    draw.rectangle((100, 120, 189, 155), fill=(25, 135, 84))
    put("Save", 42, 143, "white")
    put("Cancel", 120, 143, "white")
    return image, truth


def test_texts_places_and_separation(screen):
    image, truth = screen
    regions = read(image)
    found = {t["text"]: t for t in regions["texts"]}
    assert set(found) == set(truth)  # menu entries and buttons apart, the long line whole and without lost spaces
    for text, box in truth.items():
        got = [found[text]["box"][side] for side in ("x0", "y0", "x1", "y1")]
        assert max(abs(a - b) for a, b in zip(got, box, strict=True)) <= 3, (text, got, box)
        assert found[text]["font_size"] == pytest.approx(16, rel=0.06)
        assert found[text]["confidence"] > 0.8
    assert found["Save"]["background"] == [13, 110, 253]


@pytest.mark.parametrize(
    ("family", "gap", "apart"), [("sans", 12, True), ("serif", 12, True), ("mono", 9, False), ("mono", 22, True)]
)
def test_entries_of_a_menu_are_texts_of_their_own(family, gap, apart):
    """What a browser puts between entries is wider than a space; that of a typewriter is wide by itself."""
    image = Image.new("RGB", (560, 90), "white")
    draw, font = ImageDraw.Draw(image), load_font(family, 400, 15)
    entries, x = ["Order desk", "Tables", "Docs", "Products"], 20.0
    for entry in entries:
        draw.text((x, 30), entry, fill="black", font=font, anchor="ls")
        x += font.getlength(entry) + gap
    draw.text((20, 70), "A plain sentence with usual spaces", fill="black", font=font, anchor="ls")
    found = [
        record["text"] for record in sorted(read_texts(image), key=lambda r: (r["box"]["y0"] > 45, r["box"]["x0"]))
    ]
    sentence = "A plain sentence with usual spaces"
    assert found == ([*entries, sentence] if apart else [" ".join(entries), sentence])


@pytest.mark.parametrize("logo", [22, 12], ids=["beside a larger name", "beside a smaller one"])
def test_a_menu_of_one_line_with_a_name_of_another_size(logo):
    """The gaps between entries are all there is, or the only ones that a reader sees as gaps."""
    image = Image.new("RGB", (640, 60), "white")
    draw = ImageDraw.Draw(image)
    entries, x = [("Asking Kit", logo), ("Tables", 14), ("Docs", 14), ("Payment received", 14)], 20.0
    for entry, size in entries:
        font = load_font("sans", 400, size)
        draw.text((x, 34), entry, fill="black", font=font, anchor="ls")
        x += font.getlength(entry) + 0.95 * max(size, 14)
    found = sorted(read_texts(image), key=lambda r: r["box"]["x0"])
    assert [record["text"] for record in found] == [entry for entry, _ in entries]


def test_capitals_that_stand_wide_are_one_text():
    image = Image.new("RGB", (400, 60), "white")
    draw, font, x = ImageDraw.Draw(image), load_font("sans", 400, 14), 20.0
    for char in "SIGNED IN AS ADA":
        draw.text((x, 34), char, fill="black", font=font, anchor="ls")
        x += font.getlength(char) + 1.4
    assert [record["text"] for record in read_texts(image)] == ["SIGNED IN AS ADA"]


def test_nothing_to_read():
    assert ocr.read_lines(np.full((40, 40, 3), 255, np.uint8)) == []
    assert ocr.read_lines(np.zeros((1, 1, 3), np.uint8)) == []


def test_pieces_cut_between_words():
    image = Image.new("RGB", (1000, 40), "white")
    font = load_font("sans", 400, 14)
    ImageDraw.Draw(image).text((10, 26), "word " * 24, fill=(0, 0, 0), font=font, anchor="ls")
    pieces = ocr._pieces(np.asarray(image), (10, 14, 10 + int(font.getlength("word " * 24)), 27))
    assert len(pieces) > 1
    ink = (np.asarray(image)[14:27] < 128).any((0, 2))
    for (_, end), (start, _) in zip(pieces, pieces[1:], strict=False):
        assert end == start
        assert not ink[end - 1 : end + 2].any()


def test_missing_spaces_come_from_the_pixels():
    read_ = ocr._Read("Signin", [1.0] * 6, [5, 12, 18, 25, 40, 46])
    assert ocr._space(read_, [(28, 36)]).text == "Sign in"
    assert ocr._space(ocr._Read("Sign in", [1.0] * 7, [5, 12, 18, 25, 31, 40, 46]), [(28, 36)]).text == "Sign in"


@pytest.mark.parametrize(
    ("text", "sure", "box", "noise"),
    [("Save", 0.9, (0, 0, 30, 12), False), ("Save", 0.3, (0, 0, 30, 12), True), ("口", 0.9, (0, 0, 14, 14), True), ("-", 0.6, (0, 0, 8, 2), False), ("_.", 0.6, (0, 0, 9, 9), True), ("7", 0.95, (0, 0, 7, 11), False)],
)  # fmt: skip
def test_noise(text, sure, box, noise):
    assert ocr._is_noise(text, sure, box) is noise


def lined(words, noise=0, seed=0, ink=(20, 20, 20)):
    """White paper with a word a line, 40 px apart."""
    picture = Image.new("RGB", (260, 40 * len(words)), "white")
    pen = ImageDraw.Draw(picture)
    for row, word in enumerate(words):
        pen.text((20, 40 * row + 8), word, fill=ink, font=load_font("sans", 400, 20))
    values = np.asarray(picture).astype(np.int16)
    moved = np.random.default_rng(seed).integers(-noise, noise + 1, values.shape) if noise else 0
    return np.clip(values + moved, 0, 255).astype(np.uint8)


def test_a_line_that_was_read_is_not_read_again_and_another_one_is(monkeypatch):
    asked = []
    recognise = ocr._Models.recognise
    monkeypatch.setattr(
        ocr._Models, "recognise", lambda self, batch: asked.append(len(batch)) or recognise(self, batch)
    )

    def read(words, memory, **how):
        del asked[:]
        lines = ocr.read_lines(lined(words, **how), [], memory)
        return {line.text: line.box for line in lines}, sum(asked)

    memory = ocr.ReadLines()
    first, count = read(["Orders", "Invoice 17"], memory)
    assert set(first) == {"Orders", "Invoice 17"} and count == 2
    # elsewhere, and with what a codec does to it
    again, count = read(["Customers", "Invoice 17", "Orders"], memory, noise=6, seed=1)
    assert set(again) == {"Customers", "Orders", "Invoice 17"} and count == 1
    assert again["Orders"][1] == pytest.approx(first["Orders"][1] + 80, abs=1.5)
    # one other letter is another line
    other, count = read(["Invoice 11", "Orders"], memory)
    assert set(other) == {"Invoice 11", "Orders"} and count == 1
    # and so are other colours; what was read without a memory is the same
    assert read(["Orders"], memory, ink=(20, 20, 200))[1] == 1
    plain, count = read(["Customers", "Invoice 17", "Orders"], None, noise=6, seed=1)
    assert (set(plain), count) == (set(again), 3)


def test_a_memory_of_lines_has_an_end(monkeypatch):
    monkeypatch.setattr(ocr.ReadLines, "_MOST", 3)
    memory = ocr.ReadLines()
    crops = [np.full((48, 100 + 8 * i, 3), 20 * i, np.uint8) for i in range(5)]
    for i, crop in enumerate(crops):
        memory.keep(crop, False, ocr._Read(str(i), [1.0], [3.0]))
    assert [memory.recall(crop, False) is not None for crop in crops] == [False, False, True, True, True]
    assert memory.recall(crops[4], True) is None
    assert memory.recall(crops[4], False).text == "4"

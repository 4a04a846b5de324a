"""Marks, tables and the whole task, on charts whose tables are known."""

import io

import numpy as np
import pytest
from PIL import Image, ImageDraw
from watersmeet_chart_to_table.draw import HELD_OUT, draw
from watersmeet_chart_to_table.encode import LABELS, Encoder
from watersmeet_chart_to_table.marks import Mark, find_boxes, read_number
from watersmeet_chart_to_table.pipeline import ChartToTable, name_marks
from watersmeet_chart_to_table.table import Table, read_table
from watersmeet_chart_to_table.teach import marks_of

from watersmeet import DecodeError, WatersmeetError


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("20", 20), ("-4.5", -4.5), ("\N{MINUS SIGN}4", -4), ("1,200", 1200), ("3.5k", 3500), ("2M", 2e6), ("20%", 20), ("40 -", 40),
        (", 50", 50), (") 40", 40), ("0 1", 0), ("abc", None), ("", None), ("1,2,3", None), ("2019 Q1", None), ("-", None),
    ],
)  # fmt: skip
def test_numbers_are_read_with_what_stands_beside_them(text, number):
    assert read_number(text) == number


def test_boxes_of_one_colour_are_found_to_the_pixel_also_across_lines_and_in_jpeg():
    picture = Image.new("RGB", (300, 200), "white")
    pen = ImageDraw.Draw(picture)
    boxes = [(20, 60, 60, 180), (80, 20, 120, 180), (140, 150, 180, 180)]
    for (x0, y0, x1, y1), colour in zip(boxes, ("#1f77b4", "#1f77b4", "#d62728"), strict=True):
        pen.rectangle((x0, y0, x1 - 1, y1 - 1), fill=colour)
    pen.line((0, 100, 299, 100), fill="#dddddd")
    jpeg = io.BytesIO()
    picture.save(jpeg, "JPEG", quality=85)
    for shown, slack in ((picture, 0), (Image.open(jpeg).convert("RGB"), 2)):
        found = [mark.box for mark in find_boxes(np.asarray(shown), [])]
        for box in boxes:
            assert any(np.abs(np.subtract(box, other)).max() <= slack for other in found), (box, found)


def test_a_table_is_read_from_named_marks_whichever_way_bars_lie():
    ticks = [Mark(box=(0, 190 - 40 * i, 10, 200 - 40 * i), text=str(10 * i)) for i in range(5)]
    bars = [Mark(box=(30, 195 - 4 * 25, 50, 195)), Mark(box=(70, 195 - 4 * 7, 90, 195))]
    names = [Mark(box=(32, 205, 48, 215), text="a"), Mark(box=(72, 205, 88, 215), text="b")]
    upright = read_table(bars, ticks, names)
    assert [name for name, _ in upright.rows] == ["a", "b"] and np.allclose([v for _, v in upright.rows], [25, 7])

    def turned(marks):
        return [Mark(box=(200 - m.box[3], m.box[0], 200 - m.box[1], m.box[2]), text=m.text) for m in marks]

    lying = read_table(turned(bars), turned(ticks), turned(names))
    assert [name for name, _ in lying.rows] == ["a", "b"] and np.allclose([v for _, v in lying.rows], [25, 7])
    # one number that was misread does not tilt the axis
    wrong = [*ticks[:-1], Mark(box=ticks[-1].box, text="400")]
    assert np.allclose([v for _, v in read_table(bars, wrong, names).rows], [25, 7])
    with pytest.raises(DecodeError, match="no bars were found"):
        read_table([], ticks, names)
    with pytest.raises(DecodeError, match="1 numbers of an axis were read"):
        read_table(bars, ticks[:1], names)
    assert read_table(bars, ticks, names[:1]).warnings == ("the bar at 80 px has no name",)


def test_csv_quotes_what_needs_it():
    assert Table(rows=(("a, b", 1234567.0), ("c", -0.5))).to_csv() == 'name,value\n"a, b",1.235e+06\nc,-0.5\n'


def test_the_order_of_marks_only_orders_the_answers_features():
    marks = [Mark(box=(10 * i, 0, 10 * i + 5, 50), text="" if i % 2 else str(i)) for i in range(6)]
    [seen, asked] = Encoder().encode((100, 100, marks))
    [turned, _] = Encoder().encode((100, 100, marks[::-1]))
    assert (seen.data.flip(0) - turned.data).abs().max() < 1e-6 and (asked.data[:, -1] == 1).all()


def test_the_model_that_comes_with_it_names_marks_of_charts_it_never_saw():
    rng, right, total = np.random.default_rng(11), 0, 0
    for _ in range(6):
        chart = draw(rng, HELD_OUT)
        marks, labels = marks_of(chart, rng)
        found = name_marks(marks, chart.picture.size)
        right += sum(LABELS[label] == other for label, other in zip(labels, found, strict=True))
        total += len(marks)
    assert right / total > 0.9


@pytest.mark.parametrize("kind", ["blank", "noise", "text"])
def test_what_is_no_chart_is_one_sentence_and_leaves_nothing(kind, tmp_path):
    pixels = np.full((120, 160, 3), 255, np.uint8)
    if kind == "noise":
        pixels = np.random.default_rng(0).integers(0, 256, pixels.shape, dtype=np.uint8)
    picture = Image.fromarray(pixels)
    if kind == "text":
        ImageDraw.Draw(picture).text((20, 50), "no chart at all", fill="black")
    picture.save(tmp_path / "it.png")
    with pytest.raises(DecodeError, match=r"it\.png: "):
        ChartToTable().run([tmp_path / "it.png"], None, tmp_path / "out", lambda what, share: None)
    assert not (tmp_path / "out").exists()


def test_damaged_files_and_wrong_settings_are_one_sentence(tmp_path):
    (tmp_path / "it.png").write_bytes(b"\x89PNG\r\n\x1a\nrubbish")
    with pytest.raises(DecodeError, match="it.png"):
        ChartToTable().run([tmp_path / "it.png"], None, tmp_path / "out", lambda what, share: None)
    with pytest.raises(WatersmeetError, match="no setting 'modle'; did you mean 'model'"):
        ChartToTable({"modle": "x"})


def test_a_chart_becomes_csv(tmp_path):
    picture = Image.new("RGB", (10, 10))
    rng = np.random.default_rng(3)
    while picture.width < 400:
        chart = draw(rng, HELD_OUT)
        picture = chart.picture
    picture.save(tmp_path / "chart.png")
    done = ChartToTable().run([tmp_path / "chart.png"], None, tmp_path / "out", lambda what, share: None)
    lines = (tmp_path / "out" / "table.csv").read_text().splitlines()
    assert done.files == ("table.csv",) and lines[0] == "name,value" and 2 <= len(lines) <= len(chart.names) + 2

"""Links in running text: the part of a line that has another colour, through a codec's 4:2:0."""

import numpy as np
import pytest
from PIL import Image, ImageDraw

from watersmeet.core.geometry import Box
from watersmeet.pipelines.data.recording import font, write_video
from watersmeet.pipelines.video_to_spec.watch.links import link_at
from watersmeet.pipelines.video_to_spec.watch.page import line_of
from watersmeet.tokenizers.video.process import Video

PAPERS = {
    "white": ((255, 255, 255), (90, 96, 110), (32, 96, 224)),
    "dark": ((24, 26, 32), (190, 190, 196), (236, 64, 122)),
}


def drawn(parts, paper, tmp_path, size=15):
    """(picture as a recording shows it, line, middles of the parts); parts are (text, colour)."""
    picture = Image.new("RGB", (640, 64), paper)
    pen, x, middles = ImageDraw.Draw(picture), 20.0, []
    for text, colour in parts:
        pen.text((x, 20), text, fill=colour, font=font(size))
        middles.append((x + pen.textlength(text.strip(), font=font(size)) / 2, 30.0))
        x += pen.textlength(text, font=font(size))
    write_video(tmp_path / "a.mp4", [(k * 40_000, picture) for k in range(2)], crf=26, rate=25)
    with Video(tmp_path / "a.mp4") as video:
        seen = [frame.pixels.copy() for frame in video.frames()][-1]
    text = "".join(text for text, _ in parts)
    return seen, line_of(text, Box(x0=18, y0=18, x1=x + 2, y1=42)), middles


@pytest.mark.parametrize("name", PAPERS)
@pytest.mark.parametrize("size", [13, 16, 20])
def test_a_link_is_found_below_the_pointer_and_beside_it_the_text(name, size, tmp_path):
    paper, ink, blue = PAPERS[name]
    parts = [("Already have an account? ", ink), ("Sign in here", blue), (" or ask us", ink)]
    picture, line, middles = drawn(parts, paper, tmp_path, size)
    link = link_at(picture, line, middles[1])
    assert link.text == "Sign in here"
    assert abs(link.box.center[0] - middles[1][0]) < 4 and link.box.width < 0.4 * line.box.width
    assert link_at(picture, line, middles[0]).text == "Already have an account?"
    assert link_at(picture, line, middles[2]).text == "or ask us"
    assert link_at(picture, line, (line.box.x1 + 60, 30.0)) is None


@pytest.mark.parametrize("text", ["Forgot Your Password?", "Save", "Total 1,204 EUR", "iiiiiii lllll WWWWW"])
@pytest.mark.parametrize("name", PAPERS)
def test_a_line_of_one_colour_has_none(text, name, tmp_path):
    paper, ink, blue = PAPERS[name]
    for colour in (ink, blue):
        picture, line, middles = drawn([(text, colour)], paper, tmp_path)
        assert link_at(picture, line, middles[0]) is None


def test_gaps_that_the_reader_did_not_see_are_bridged(tmp_path):
    paper, ink, blue = PAPERS["white"]
    picture, line, middles = drawn([("Do not have an account? ", ink), ("Create one", blue)], paper, tmp_path)
    misread = line_of("Donot havean account? Create one", line.box)
    assert link_at(picture, misread, middles[1]).text == "Create one"


def test_a_pointer_on_a_line_is_no_link(tmp_path):
    paper, ink, _ = PAPERS["white"]
    picture, line, middles = drawn([("Sign in ", ink), ("now", ink)], paper, tmp_path)
    cover = Box(x0=middles[1][0] - 16, y0=18, x1=middles[1][0] + 18, y1=44)
    picture[18:44, int(cover.x0) : int(cover.x1)] = np.array([250, 220, 40], dtype=np.uint8)
    assert link_at(picture, line, middles[1], cover) is None
    assert link_at(picture, line, middles[1]) is not None

"""Composed recordings: what is drawn when, and that the file says the same times."""

import numpy as np
import pytest

from watersmeet.core.errors import ConfigError
from watersmeet.pipelines.data.recording import Recording, write_video
from watersmeet.tokenizers.video.process import Video


@pytest.fixture
def film():
    made = Recording(size=(320, 180), rate=20)
    made.show(0, 3, lambda frame, age: frame.paste((240, 240, 240), (0, 0, *frame.size)))
    return made


def dark(picture, box):
    return int((np.asarray(picture.crop(box)) < 128).any(2).sum())


def test_a_menu_is_open_exactly_while_it_is_said_to_be(film):
    film.drop_down(1.0, 1.3, (40, 20), ["One", "Two"])
    (event,) = film.events
    assert (event.kind, event.start, event.end) == ("dropdown", 1.0, 1.3)
    shown = [dark(film.frame(i / 20), event.box) > 0 for i in range(60)]
    assert shown == [20 <= i < 26 for i in range(60)]
    assert dark(film.frame(1.1), (0, 120, 320, 180)) == 0


def test_letters_come_one_by_one_and_are_all_there_when_it_is_said(film):
    done = film.type_text(0.5, "word", (20, 100), until=3, seed=4)
    boxes = (20, 95, 200, 125)
    counts = [dark(film.frame(t), boxes) for t in (0.49, done + 1e-6, 2.9)]
    assert counts[0] == 0 and counts[1] > 20 and 0.5 < done < 2.5
    assert film.events[0].text == "word" and film.events[0].end == done
    again = Recording(size=(320, 180), rate=20)
    assert again.type_text(0.5, "word", (20, 100), until=3, seed=4) == done


def test_the_cursor_arrives_when_it_is_said_and_never_leaves_the_way_between(film):
    film.move(0.0, 10, 10)
    film.move(2.0, 200, 100, lasting=1.0)
    assert [film.cursor_at(t) for t in (0.0, 0.9, 2.0, 2.9)] == [(10, 10), (10, 10), (200, 100), (200, 100)]
    way = [film.cursor_at(1 + i / 10) for i in range(11)]
    assert way == sorted(way) and way[5] == (105, 55)
    with pytest.raises(ConfigError, match="elsewhere at 1.0 s"):
        film.move(1.0, 0, 0)
    with pytest.raises(ConfigError, match="ends at 1 s but starts at 2"):
        film.show(2, 1, lambda frame, age: None)


def test_a_page_scrolls_from_one_offset_to_the_other_and_stays(film):
    from PIL import Image

    rows = np.arange(600, dtype=np.uint16)
    page = Image.fromarray(np.repeat((rows % 250).astype(np.uint8)[:, None, None], 320, 1).repeat(3, 2))
    film.scroll(1, 2, page, (0, 200), until=3)
    top = [film.frame(t).getpixel((5, 0))[0] for t in (1.0, 1.5, 2.0, 2.9)]
    assert top == [0, 100, 200, 200]


def test_the_file_has_the_frames_at_their_times(film, tmp_path):
    film.drop_down(1.0, 1.3, (40, 20), ["One", "Two"])
    frames = [(time, picture) for time, picture in film.frames() if time != 1_500_000]  # a recorder left one out
    assert write_video(tmp_path / "a.mp4", frames, crf=10) == 59
    with Video(tmp_path / "a.mp4") as video:
        found = [(frame.time_us, frame.pixels.copy()) for frame in video.frames()]
    assert [time for time, _ in found] == [time for time, _ in frames]
    for (_, pixels), (_, picture) in zip(found[::7], frames[::7], strict=True):
        assert np.abs(pixels.astype(int) - np.asarray(picture)).mean() < 3

"""A whole recording looked at: composed with known times and texts, encoded, decoded, read by a reader that knows them."""

from bisect import bisect_right

import numpy as np
import pytest
from PIL import Image, ImageDraw

from watersmeet.core.errors import DecodeError, UsageError
from watersmeet.core.geometry import Box
from watersmeet.pipelines.data.pointer import Style
from watersmeet.pipelines.data.recording import Recording, font, write_video
from watersmeet.pipelines.video_to_spec import markup
from watersmeet.pipelines.video_to_spec.learn import prepare
from watersmeet.pipelines.video_to_spec.learn.store import read_lesson
from watersmeet.pipelines.video_to_spec.observed import CHANGE, END, LAST_END, LAST_PRESS, PRESS
from watersmeet.pipelines.video_to_spec.prompt import VIDEO
from watersmeet.pipelines.video_to_spec.spec import Evidence, Screen, Spec, Step
from watersmeet.pipelines.video_to_spec.truth import Truth, write_truth
from watersmeet.pipelines.video_to_spec.watch.brief import moment_of
from watersmeet.pipelines.video_to_spec.watch.episodes import Beat, Episode
from watersmeet.pipelines.video_to_spec.watch.look import look
from watersmeet.pipelines.video_to_spec.watch.pointer import Track
from watersmeet.pipelines.video_to_spec.watch.turns import ANSWER_US
from watersmeet.plugins.registry import get_registry

SIZE, RATE = (640, 400), 25
PAPER = (246, 247, 249)
HEAD, SAVE, NOTE, DONE = "Orders of today", "Save the order", "Saved and sent", "All orders"
PLACES = {HEAD: (30, 20), SAVE: (420, 320), NOTE: (60, 200), DONE: (30, 20)}
BUTTON = (400, 308, 560, 348)


def words(pen, text):
    pen.text(PLACES[text], text, fill=(20, 20, 20), font=font(18))


def box_of(text):
    left, top, right, bottom = ImageDraw.Draw(Image.new("RGB", (1, 1))).textbbox(PLACES[text], text, font=font(18))
    return Box(x0=left, y0=top, x1=right, y1=bottom)


class Regions:
    """Reads by looking where a known text would be: the crop's place is found by what stands in it."""

    def __init__(self, differ=0.25):
        import cv2

        self.cv2, self.known, self.crops, self.differ = cv2, {}, [], differ
        for text in PLACES:
            canvas = Image.new("RGB", SIZE, "white")
            words(ImageDraw.Draw(canvas), text)
            box = box_of(text)
            gray = np.asarray(canvas.convert("L"))[int(box.y0) : int(box.y1), int(box.x0) : int(box.x1)]
            self.known[text] = (gray < 128).astype(np.float32)

    def text_reader(self):
        return self.read_texts

    def read_texts(self, crop):
        self.crops.append(crop.shape)
        ink = (np.abs(crop.astype(int).sum(2) - np.median(crop.astype(int).sum(2))) > 320).astype(np.float32)
        out = []
        for text, marks in self.known.items():
            if ink.shape[0] < marks.shape[0] or ink.shape[1] < marks.shape[1]:
                continue
            least, _, (x, y), _ = self.cv2.minMaxLoc(self.cv2.matchTemplate(ink, marks, self.cv2.TM_SQDIFF))
            if least < self.differ * marks.sum():
                box = {"x0": x, "y0": y, "x1": x + marks.shape[1], "y1": y + marks.shape[0]}
                look = {"color": [20, 20, 20], "background": [246, 247, 249], "font_size": 18.0, "weight": 400}
                out.append({"text": text, "box": box, "confidence": 0.9, **look})
        return out

    @staticmethod
    def find_shapes(crop, texts):
        from watersmeet.tokenizers.regions.shapes import find_shapes

        return find_shapes(crop, texts)


@pytest.fixture(scope="module")
def composed(tmp_path_factory):
    """The pointer goes to a button; pressed at 2.0 s it is answered 0.12 s later by a note that stays, and from 5.0 s on
    by another page, after a press at 4.88 s."""
    film = Recording(size=SIZE, rate=RATE)

    def first(frame, age):
        frame.paste(PAPER, (0, 0, *SIZE))
        pen = ImageDraw.Draw(frame)
        words(pen, HEAD)
        pen.rectangle(BUTTON, fill="white", outline=(60, 60, 60), width=2)
        words(pen, SAVE)

    def note(frame, age):
        pen = ImageDraw.Draw(frame)
        pen.rectangle((40, 180, 300, 240), fill=(200, 240, 205))
        words(pen, NOTE)

    def other(frame, age):
        frame.paste((150, 170, 240), (0, 0, *SIZE))
        words(ImageDraw.Draw(frame), DONE)

    film.show(0, 5, first)
    film.show(2.12, 5, note)
    film.show(5, 6, other)
    film.move(0.0, 100, 120)
    film.move(1.6, 544, 324, lasting=0.9)
    film.move(4.0, 300, 60, lasting=0.8)
    path = tmp_path_factory.mktemp("look") / "a.mp4"
    write_video(path, film.frames(), crf=12, rate=RATE)
    regions = Regions()
    encoders = {"video": get_registry().encoder("video", VIDEO), "regions": regions}
    shares = []
    return path, encoders, look(path, encoders=encoders, progress=shares.append), shares, list(regions.crops)


def test_turns_are_at_the_times_at_which_the_page_changed(composed):
    _, _, sight, shares, _ = composed
    assert sight.source.path == "a.mp4" and sight.source.frames == len(sight.times_us) == 6 * RATE
    assert (sight.source.width, sight.source.height) == SIZE and sight.source.duration_s == pytest.approx(6.0, abs=0.05)
    assert sight.pointer and shares == sorted(shares) and shares[-1] == 1.0
    first, saved, gone = sight.turns
    assert [m.time_us for m in first.observed.moments] == [0]
    for turn, change, before in ((saved, 2.12, None), (gone, 5.0, saved)):
        moments = turn.observed.moments
        assert moments[CHANGE].t_s == pytest.approx(change, abs=1e-6)
        assert moments[PRESS].time_us == moments[CHANGE].time_us - ANSWER_US
        assert moments[END].time_us >= moments[CHANGE].time_us
        last = (0, 0) if before is None else tuple(before.observed.moments[i].time_us for i in (PRESS, END))
        assert (moments[LAST_PRESS].time_us, moments[LAST_END].time_us) == last
        for one in moments:
            assert one.frame == bisect_right(sight.times_us, one.time_us) - 1
            assert one.shown_us == sight.times_us[one.frame]


def test_texts_are_those_that_were_drawn_where_they_were_drawn(composed):
    _, _, sight, _, crops = composed
    first, saved, gone = sight.turns
    assert first.on_screen == {HEAD, SAVE} and saved.on_screen == {HEAD, SAVE, NOTE} and gone.on_screen == {DONE}
    assert [line.text for line in saved.under][:1] == [SAVE]
    assert [line.text for line in saved.after] == [NOTE] and [line.text for line in gone.after] == [DONE]
    assert {line.text for line in gone.before} <= {HEAD, SAVE, NOTE} and gone.before
    for turn in sight.turns:
        texts = turn.observed.texts
        lines = [*turn.under, *turn.before, *turn.after]
        assert [(t.text, t.box) for t in texts] == [(line.text, line.box) for line in lines]
        assert [t.came for t in texts] == [False] * (len(lines) - len(turn.after)) + [True] * len(turn.after)
        for line in lines:
            assert box_of(line.text).iou(line.box) > 0.8
    # the second page of text was read alone
    assert crops[0][:2] == (SIZE[1], SIZE[0]) and any(h * w < 0.35 * SIZE[0] * SIZE[1] for h, w, _ in crops[1:])


def test_places_are_what_was_pressed_and_what_changed(composed):
    _, _, sight, _, _ = composed
    _, saved, gone = sight.turns
    pressed, changed = saved.observed.boxes[:2]
    assert pressed.iou(Box(x0=400, y0=308, x1=561, y1=349)) > 0.85
    assert changed.iou(Box(x0=40, y0=180, x1=301, y1=241)) > 0.9
    assert saved.reach == pytest.approx(np.hypot(544 - 301, 324 - 241), abs=25)
    assert gone.observed.boxes[1].area > 0.9 * SIZE[0] * SIZE[1]
    assert (saved.kept, gone.kept) == (1.0, 0.0) and not saved.letters and saved.scrolled == gone.scrolled == 0
    assert saved.pause_s == pytest.approx(2.12) and gone.pause_s == pytest.approx(5.0 - saved.observed.moments[END].t_s)


def test_patches_are_handed_out_once_each_by_the_end_of_their_turn(composed):
    _, _, sight, _, _ = composed
    last = -1
    for turn in sight.turns:
        times = turn.patches.time_us
        assert len(times) == len(turn.patches.data) == len(turn.patches.coords) > 0
        assert last < times.min() and times.tolist() == sorted(times)
        assert times.max() <= turn.observed.moments[-1 if len(turn.observed.moments) == 1 else END].time_us
        last = times.max()


def test_the_same_file_gives_the_same_sight(composed):
    path, encoders, sight, _, _ = composed
    again = look(path, encoders=encoders)
    assert again.source == sight.source and again.times_us == sight.times_us
    for one, other in zip(sight.turns, again.turns, strict=True):
        assert (one.observed, one.on_screen, one.areas, one.under) == (
            other.observed, other.on_screen, other.areas, other.under,
        )  # fmt: skip
        for name in ("data", "coords", "time_us"):
            assert np.array_equal(getattr(one.patches, name), getattr(other.patches, name))


def test_a_still_recording_is_one_turn_and_no_video_is_an_error(composed, tmp_path):
    _, encoders, _, _, _ = composed
    film = Recording(size=(320, 180), rate=10)
    film.show(0, 1, Image.new("RGB", (320, 180), "white"))
    write_video(tmp_path / "still.mp4", film.frames(), rate=10)
    sight = look(tmp_path / "still.mp4", encoders=encoders)
    assert len(sight.turns) == 1 and not sight.pointer and sight.turns[0].after == ()
    (tmp_path / "no.mp4").write_bytes(b"no video")
    with pytest.raises(DecodeError, match=r"no\.mp4"):
        look(tmp_path / "no.mp4", encoders=encoders)


def test_a_lesson_about_it_says_what_was_done(composed, tmp_path, monkeypatch):
    """Two presses of which everything is known; what is to be written about them decodes to them."""
    path, encoders, sight, _, _ = composed

    def step(index, frames, target, go):
        return Step(
            index=index,
            start_s=frames[0] / RATE,
            end_s=frames[1] / RATE,
            action="click",
            target=target,
            text=None,
            box=(400.0, 308.0, 561.0, 349.0) if target else None,
            from_screen="s1",
            to_screen=go,
            evidence=tuple(Evidence(t_s=sight.times_us[i] / 1e6, frame=i) for i in frames),
            confidence=1.0,
        )

    spec = Spec(
        source=sight.source,
        screens=(
            Screen(id="s1", title=HEAD, first_seen_s=0.0, thumbnail="frames/s1.png"),
            Screen(id="s2", title=DONE, first_seen_s=5.0, thumbnail="frames/s2.png"),
        ),
        steps=(step(1, (50, 53), SAVE, "s1"), step(2, (122, 125), None, "s2")),
        features=(),
        patterns=(),
        open_questions=(),
    )
    truth = Truth(
        spec=spec, times_us=sight.times_us, shown=(), cursor=True, variations=(), pages=(), split="train", seed=1
    )
    (tmp_path / "a.mp4").write_bytes(path.read_bytes())
    write_truth(truth, tmp_path / "a.json")
    monkeypatch.setattr(prepare, "_encoders", lambda: encoders)
    (tmp_path / "out").mkdir()
    prepare.teach(tmp_path / "a.json", tmp_path / "out" / "a.json")
    lesson = read_lesson(tmp_path / "out" / "a.json")
    turns = [
        markup.Written(observed=turn.observed, markup=written)
        for turn, written in zip(lesson.turns, lesson.written, strict=True)
    ]
    found = markup.decode(turns, spec.source)
    assert found.warnings == () and [screen.title for screen in found.spec.screens] == [HEAD, DONE]
    assert [(s.action, s.target, s.to_screen) for s in found.spec.steps] == [
        ("click", SAVE, "s1"),
        ("click", None, "s2"),
    ]
    assert [s.start_s for s in found.spec.steps] == pytest.approx([2.0, 4.88], abs=0.05)


def test_a_folder_without_recordings_teaches_nothing(tmp_path):
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(UsageError, match="holds no recordings; make some with"):
        prepare.prepare(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def covered(tmp_path_factory):
    """A note comes while the pointer is elsewhere, which then rests on its letters until another page comes."""
    film = Recording(size=SIZE, rate=RATE, pointer=Style(size=2.4))

    def first(frame, age):
        frame.paste(PAPER, (0, 0, *SIZE))
        words(ImageDraw.Draw(frame), HEAD)

    def other(frame, age):
        frame.paste((150, 170, 240), (0, 0, *SIZE))
        words(ImageDraw.Draw(frame), DONE)

    film.show(0, 4, first)
    film.show(2.0, 4, lambda frame, age: words(ImageDraw.Draw(frame), NOTE))
    film.show(4, 5, other)
    film.move(0.0, 300, 60)
    film.move(0.8, 420, 300, lasting=0.6)
    film.move(2.8, PLACES[NOTE][0] + 40, PLACES[NOTE][1] + 4, lasting=0.6)
    path = tmp_path_factory.mktemp("covered") / "a.mp4"
    write_video(path, film.frames(), crf=12, rate=RATE)
    return path


def test_what_the_pointer_rests_on_is_read_as_it_was_before_it_came(covered):
    encoder = get_registry().encoder("video", VIDEO)
    with encoder.video(covered) as video:
        shown = [frame.pixels.copy() for frame in video.frames([2_500_000, 3_900_000])]
    # the reader cannot read what is shown in the end
    assert [any(one["text"] == NOTE for one in Regions(0.1).read_texts(picture)) for picture in shown] == [True, False]
    sight = look(covered, encoders={"video": encoder, "regions": Regions(0.1)})
    _, came, gone = sight.turns
    assert [line.text for line in came.after] == [NOTE] and came.on_screen == {HEAD, NOTE}
    assert [line.text for line in gone.under][:1] == [NOTE] and gone.on_screen == {DONE}


def brief_menu(folder, *, pointer):
    """A menu with one entry is open for 0.32 s, in which the pointer goes to the entry, which is pressed."""
    film = Recording(size=SIZE, rate=RATE)

    def page(frame, age):
        frame.paste(PAPER, (0, 0, *SIZE))
        words(ImageDraw.Draw(frame), HEAD)
        words(ImageDraw.Draw(frame), SAVE)

    def menu(frame, age):
        frame.paste((255, 255, 255), (40, 180, 240, 240))
        words(ImageDraw.Draw(frame), NOTE)

    film.show(0, 5, page)
    film.show(2.0, 2.32, menu)
    if pointer:
        film.move(0.0, 300, 60)
        film.move(1.6, 480, 330, lasting=0.4)
        film.move(2.2, PLACES[NOTE][0] + 150, PLACES[NOTE][1] + 10, lasting=0.14)
    path = folder / f"brief-{pointer}.mp4"
    write_video(path, film.frames(), crf=12, rate=RATE)
    return path


@pytest.mark.parametrize("pointer", [True, False])
def test_an_entry_of_a_menu_that_is_open_for_a_moment_can_be_meant(pointer, tmp_path):
    encoder = get_registry().encoder("video", VIDEO)
    sight = look(brief_menu(tmp_path, pointer=pointer), encoders={"video": encoder, "regions": Regions()})
    (turn,) = [turn for turn in sight.turns[1:] if any(1.9 < m.t_s < 2.4 for m in turn.observed.moments[:3])]
    assert [line.text for line in turn.before][-1] == NOTE and not turn.after
    # it was there in between alone
    assert turn.on_screen == {HEAD, SAVE} == sight.turns[0].on_screen
    found = next(text for text in turn.observed.texts if text.text == NOTE)
    assert not found.came and found.box.iou(box_of(NOTE)) > 0.5


def test_what_stays_where_it_came_is_not_looked_at_in_between():
    box = Box(x0=0, y0=0, x1=100, y1=50)
    times = tuple(range(0, 4_000_000, 40_000))

    def beat(start_s):
        start = round(start_s * 1e6)
        return Beat(frame=0, time_us=start, last_frame=0, last_us=start, box=box)

    none = Track(times_us=(), boxes=(), parts={})

    def moment(*starts, letters=False, track=none):
        return moment_of(Episode(beats=tuple(map(beat, starts)), areas=(box,), letters=letters), track, times)

    assert moment(1.0, 1.32) == 1_280_000
    assert moment(1.0) is moment(1.0, 1.08) is moment(1.0, 1.32, letters=True) is None
    places = (Box(x0=10, y0=10, x1=30, y1=40), Box(x0=60, y0=10, x1=80, y1=40))
    assert moment(1.0, 1.32, track=Track(times_us=(0, 1_200_000), boxes=places, parts={})) == 1_280_000
    assert moment(1.0, 1.32, track=Track(times_us=(0, 1_200_000), boxes=places[:1] * 2, parts={})) is None

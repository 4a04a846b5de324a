"""Recordings that are made: what is told of them is what their frames show, and a seed says everything."""

import json
import random
import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw
from typer.testing import CliRunner

from watersmeet.cli.app import app as command_line
from watersmeet.core.errors import ConfigError, RenderError, UsageError
from watersmeet.pipelines.data.generator.pages import generate, site
from watersmeet.pipelines.data.generator.pictures import drawn
from watersmeet.pipelines.data.packages import PACKAGES, package
from watersmeet.pipelines.data.recording import Recording, write_video
from watersmeet.pipelines.video_to_spec.recordings import make as making
from watersmeet.pipelines.video_to_spec.recordings.app import CSS, app_page, source_of
from watersmeet.pipelines.video_to_spec.recordings.build import build
from watersmeet.pipelines.video_to_spec.recordings.director import BULLET, Director, Pace, _keystrokes
from watersmeet.pipelines.video_to_spec.recordings.film import Film
from watersmeet.pipelines.video_to_spec.recordings.stage import APP, Dress, opened
from watersmeet.pipelines.video_to_spec.recordings.told import claims_of
from watersmeet.pipelines.video_to_spec.recordings.walk import Habits, Walk
from watersmeet.pipelines.video_to_spec.score import count, is_shown, scores_of
from watersmeet.pipelines.video_to_spec.truth import read_truth
from watersmeet.tokenizers.video.process import Video

SIZE = (640, 400)
PAGE = f"""<!doctype html><title>t</title><style>{CSS} body{{margin:20px;font:16px Arial;background:#fff;color:#111}}
button,input,a{{font:16px Arial}} [data-view]{{min-height:900px!important}}</style>
<section data-view="one"><h1>Orders</h1>
<span class="w-anchor"><button data-menu="m">Sort by</button><div class="w-menu" role="menu" id="m" hidden><a data-item="">Price</a></div></span>
<button data-busy="1200" data-say="Order saved" data-ms="1500" data-after="Saved" data-during="Saving…">save</button>
<button data-modal="d" style="text-transform:uppercase">New</button> <button data-tip="What this is">Help</button>
<a href="#" data-go="two" data-wait="600">Reports</a>
<div class="field"><label>Name</label><div><input value="Ada"></div></div>
<div class="field"><label>Password</label><div><input type="password"></div></div></section>
<section data-view="two" hidden><h1>Reports</h1><p data-countdown data-then="one" data-from="2">0:02</p></section>
<div class="w-layer"><form class="w-dialog" role="dialog" id="d" data-dim="" hidden><h4>New order</h4>
<input type="email" placeholder="Email" required><button data-submit="" data-clear="">Send</button></form></div>
<div id="toasts" style="right:20px;bottom:20px"></div><script>{source_of("app.js")}</script><script>app.show("one")</script>"""


def find(stage, kind, text):
    return next(t for t in stage.things() if (t.kind, t.text) == (kind, text))


@pytest.fixture(scope="module")
def played(browser, tmp_path_factory):
    """Every kind of act once, on a small page; (director, its recording)."""
    recording = Recording(size=SIZE, rate=30)
    with opened(browser, SIZE, tmp_path_factory.mktemp("none"), {APP: PAGE}) as stage:
        stage.open("/app.html")
        director = Director(stage, recording, random.Random(1), Pace(mistakes=0.3), cursor=True)
        director.rest(0.5)
        assert director.click(find(stage, "menu", "Sort by"))
        assert director.click(find(stage, "item", "Price"), hurry=True)
        assert director.hover(find(stage, "tip", "Help"))
        director.type_into(find(stage, "field", "Name"), " Lovelace", "append")
        director.type_into(find(stage, "field", "Name"), "Grace", "replace")
        director.type_into(find(stage, "field", "Password"), "secret", "fill")
        assert director.click(find(stage, "busy", "save"))
        director.rest(2.0)
        assert director.click(find(stage, "modal", "NEW"))
        assert director.click(find(stage, "submit", "Send"))
        director.type_into(find(stage, "field", "Email"), "ada", "fill")
        assert director.key("Enter")
        assert director.key("Escape")
        assert not director.key("F7"), "what changes nothing is no act"
        assert director.scroll(250) and director.scroll(-250) and not director.scroll(-100)
        assert director.click(find(stage, "go", "Reports"))
        assert director.wait_for_screen(5.0)
        director.rest(0.4)
        director.finish()
    return director, recording


def test_acts_are_told_with_what_was_read_before_them(played):
    director, _ = played
    assert [(a.action, a.target, a.text, a.from_screen, a.to_screen) for a in director.acts] == [
        ("click", "Sort by", None, "s1", "s1"),
        ("click", "Price", None, "s1", "s1"),
        ("hover", "Help", None, "s1", "s1"),
        ("type", "Name", " Lovelace", "s1", "s1"),
        ("type", "Name", "Grace", "s1", "s1"),
        ("type", "Password", BULLET * 6, "s1", "s1"),
        ("click", "save", None, "s1", "s1"),
        ("click", "NEW", None, "s1", "s1"),
        ("click", "Send", None, "s1", "s1"),
        ("type", "Email", "ada", "s1", "s1"),
        ("key", None, "Enter", "s1", "s1"),
        ("key", None, "Escape", "s1", "s1"),
        ("scroll", None, "down", "s1", "s1"),
        ("scroll", None, "up", "s1", "s1"),
        ("click", "Reports", None, "s1", "s2"),
        ("wait", None, None, "s2", "s1"),
    ]
    assert [(s.id, s.title) for s in director.screens.values()] == [("s1", "Orders"), ("s2", "Reports")]
    starts = [act.start for act in director.acts]
    assert starts == sorted(starts) and all(act.start <= act.end for act in director.acts)


def test_the_page_reacts_a_tenth_of_a_second_after_the_press(played):
    """Before the reaction the frames show nothing of it, whatever the pointer did."""
    director, recording = played
    press = director.acts[0]
    box = director.shown[0].box
    assert director.shown[0].kind == "dropdown"
    reaction = director.shown[0].start_s - press.start
    assert 0.07 <= reaction <= 0.14 + 1e-6
    clip = (int(box[0]) + 2, int(box[1]) + 20, int(box[2]) - 2, int(box[3]) - 2)
    frames = {t: recording.frame(t).crop(clip).tobytes() for t in (press.start, press.start + reaction - 0.002)}
    assert len(set(frames.values())) == 1
    assert recording.frame(press.start + reaction + 0.002).crop(clip).tobytes() not in frames.values()


def test_what_comes_and_goes_by_itself_is_told_with_its_times(played):
    director, _ = played
    shown = {kind: [s for s in director.shown if s.kind == kind] for kind in {s.kind for s in director.shown}}
    dropdown = shown["dropdown"][0]
    assert 0.2 <= dropdown.end_s - dropdown.start_s <= 0.4
    busy, toast = shown["busy state"][0], shown["toast"][0]
    assert (busy.text, toast.text) == ("Saving…", "Order saved")
    assert busy.end_s - busy.start_s == pytest.approx(1.2, abs=0.01)
    assert toast.start_s == pytest.approx(busy.end_s, abs=1e-6)
    assert toast.end_s - toast.start_s == pytest.approx(1.5, abs=0.01)
    assert [s.text for s in shown["required field"]] == ["This field is required"]
    assert [s.text for s in shown["inline validation"]] == ["Enter a valid email address"]
    assert shown["popover"][0].text == "What this is" and len(shown["modal"]) >= 1
    save = next(a for a in director.acts if a.target == "save")
    assert save.end == pytest.approx(busy.end_s, abs=1e-6), "a busy state belongs to the step"
    wait = director.acts[-1]
    assert wait.end - director.acts[-2].end == pytest.approx(wait.end - wait.start)
    assert {"busy", "spinner", "moves by itself", "correction", "password", "prefilled: append"} <= director.variations


def test_typing_changes_a_little_of_the_picture_letter_by_letter(played):
    director, recording = played
    act = next(a for a in director.acts if a.text == "Grace")
    times = np.arange(act.start, act.end + 0.1, 1 / 30)
    frames = [np.asarray(recording.frame(t)) for t in times]
    shares = [float((a != b).any(axis=2).mean()) for a, b in zip(frames, frames[1:], strict=False)]
    changes = [share for share in shares[8:] if share]
    assert len(changes) >= 5 and np.median(changes) < 0.002


def test_a_page_without_anything_to_ask_for_gives_nothing_from_the_network(browser, tmp_path):
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack/a.html").write_text("<img src='http://example.org/x.png'><h1>A</h1><img src='../../secret.txt'>")
    (tmp_path.parent / "secret.txt").write_text("no")
    seen = []
    with opened(browser, SIZE, tmp_path, {}) as stage:
        stage.page.on("requestfinished", lambda request: seen.append(request.url))
        stage.open("/packages/pack/a.html", settle_ms=20)
        assert stage.ask("screen()") == {"key": "/packages/pack/a.html", "title": "A"}
        with pytest.raises(RenderError, match="acted on"), opened(browser, SIZE, tmp_path, {}) as other:
            other.open("/packages/../secret.txt")
    assert seen == ["http://pages.test/packages/pack/a.html"]


def test_buttons_of_other_peoples_pages_are_dressed_the_same_way_every_time(browser, tmp_path):
    buttons = "".join(f'<button type="button">Button {i}</button>' for i in range(12))
    (tmp_path / "a.html").write_text(f"<h1>A</h1>{buttons}")
    kinds = []
    for seed, times in ((5, 2), (6, 1)):
        with opened(browser, SIZE, tmp_path, {}, Dress(seed=seed, share=1.0, words=("One two", "Three"))) as stage:
            for _ in range(times):
                stage.open("/packages/a.html", settle_ms=20)
                kinds.append([(t.kind, t.text) for t in stage.things()])
    assert kinds[0] == kinds[1] != kinds[2]
    assert len(kinds[0]) == 12 and len({kind for kind, _ in kinds[0]}) >= 3


def test_links_of_a_site_lead_to_its_pages_and_its_buttons_open_menus(browser, tmp_path):
    links = "".join(f"<li><a href='#'>Link {i}</a></li>" for i in range(4))
    buttons = "".join(f"<button type='button'>Button {i}</button>" for i in range(30))
    frame = f"<nav class='w-side'><ul>{links}</ul></nav>"
    field = "<div><label>City</label><div><input></div></div>"
    made = {f"/page-{k}.html": f"{frame}<h1>Page {k}</h1>{buttons if k == 1 else field}" for k in (1, 2)}
    dress = Dress(seed=3, share=1.0, words=("One two", "Three"), pages=tuple(made))
    with opened(browser, SIZE, tmp_path, made, dress) as stage:
        stage.open("/page-1.html", settle_ms=20)
        found = stage.things()
        assert [(t.text, t.href, t.on) for t in found if t.kind == "go"] == [
            (f"Link {i}", f"/page-{1 + i % 2}.html", i == 0) for i in range(4)
        ]
        director = Director(stage, Recording(size=SIZE), random.Random(1), Pace(), cursor=True)
        assert director.click(next(t for t in found if t.kind == "menu"))
        assert [one["kind"] for one in stage.ask("open()")] == ["dropdown"]
        assert director.click(next(t for t in stage.things() if t.kind == "item")) and stage.ask("open()") == []
        assert director.click(find(stage, "go", "Link 3"))
        assert stage.ask("screen()")["title"] == "Page 2"
        assert [thing.text for thing in stage.things() if thing.kind == "field"] == ["City"]
    assert [act.to_screen for act in director.acts] == ["s1", "s1", "s2"]


def test_pages_of_a_site_have_one_frame_and_pictures_that_are_served(browser, tmp_path):
    pages = site(4, tmp_path, "/packages", 3)
    assert pages == site(4, tmp_path, "/packages", 3) and len(set(pages)) == 3
    sides = [re.findall(r'class="w-side">.*?</(?:nav|aside|div)>', page) for page in site(7, tmp_path, "/packages", 8)]
    assert len({side for found in sides for side in found}) == 1 < sum(map(len, sides))
    # a page alone draws its own each time
    assert generate(3, tmp_path) == generate(3, tmp_path) != generate(4, tmp_path)
    assert drawn("photo3.jpg")[:3] == drawn("portrait79.jpg")[:3] == b"\xff\xd8\xff"
    assert drawn("photo160.jpg") is drawn("../photo3.jpg") is drawn("portrait80.jpg") is None
    with opened(browser, SIZE, tmp_path, {"/a.html": "<img src='/pictures/portrait1.jpg'>"}) as stage:
        stage.open("/a.html", settle_ms=20)
        assert stage.page.evaluate("document.images[0].naturalWidth") == 96


def test_a_menu_of_another_peoples_page_can_be_open_for_a_third_of_a_second(browser, tmp_path):
    """Such pages get time to finish what they do, but not while the user is already going on."""
    (tmp_path / "a.html").write_text(
        "<style>.dropdown-menu{display:none} .show{display:block}</style><h1>A</h1>"
        "<button data-toggle='dropdown' onclick=\"m.classList.toggle('show')\">Menu</button>"
        "<div id='m' class='dropdown-menu' onclick=\"m.classList.remove('show')\"><a href='#'>One</a></div>"
    )
    with opened(browser, SIZE, tmp_path, {}) as stage:
        stage.open("/packages/a.html", settle_ms=20)
        director = Director(stage, Recording(size=SIZE), random.Random(1), Pace(), cursor=True)
        walk = Walk(director, random.Random(1), Habits(seconds=1.0, quick_menus=1.0))
        assert walk._menu(find(stage, "menu", "Menu"))
    assert [(act.action, act.target) for act in director.acts] == [("click", "Menu"), ("click", "One")]
    (menu,) = [one for one in director.shown if one.kind == "dropdown"]
    assert 0.2 <= menu.end_s - menu.start_s <= 0.4 and director.variations == {"quick dropdown"}


@pytest.mark.parametrize(("escape", "closed"), [(1.0, ("key", "Escape")), (0.0, ("click", "Menu"))])
def test_a_menu_without_an_entry_to_choose_is_left_by_the_key_or_by_a_press(browser, tmp_path, escape, closed):
    (tmp_path / "a.html").write_text(
        "<style>.dropdown-menu{display:none} .show{display:block}</style><h1>A</h1>"
        "<button data-toggle='dropdown' onclick=\"m.classList.toggle('show')\">Menu</button>"
        "<div id='m' class='dropdown-menu'><a href='http://elsewhere.example/'>Another site</a></div>"
        "<script>onkeydown = (e) => e.key === 'Escape' && m.classList.remove('show')</script>"
    )
    with opened(browser, SIZE, tmp_path, {}) as stage:
        stage.open("/packages/a.html", settle_ms=20)
        director = Director(stage, Recording(size=SIZE), random.Random(1), Pace(), cursor=True)
        assert Walk(director, random.Random(1), Habits(seconds=1.0, escape=escape))._menu(find(stage, "menu", "Menu"))
    opening, closing = director.acts
    assert (opening.action, opening.target) == ("click", "Menu")
    assert (closing.action, closing.text if closing.action == "key" else closing.target) == closed


def test_who_likes_fields_chooses_them_oftener(browser, tmp_path):
    (tmp_path / "a.html").write_text("<label>Name <input></label><button data-toggle='tooltip' title='x'>Tip</button>")
    with opened(browser, SIZE, tmp_path, {}) as stage:
        stage.open("/packages/a.html", settle_ms=20)
        field = next(thing for thing in stage.things() if thing.kind == "field")
        director = Director(stage, Recording(size=SIZE), random.Random(1), Pace(), cursor=True)
        usual, eager = (
            Walk(director, random.Random(1), Habits(seconds=1.0, fields=k))._weight(field) for k in (1, 2.5)
        )
    assert eager == 2.5 * usual > 0


# ---------------------------------------------------------------------- from a seed to a file


@pytest.fixture(scope="module")
def recorded(browser, tmp_path_factory):
    """One recording of a made-up product, without style sheets of packages; (folder, truth, path of the video)."""
    folder = tmp_path_factory.mktemp("recordings")
    # a small and slow one, since two of it are made
    quick = {"package": "generated", "size": (960, 600), "rate": 15, "gap": 0.0, "cursor": True}
    seed = next(s for s in range(9999) if quick.items() <= vars(making.wishes(s, "train")).items())
    truth = making.make(seed, "train", folder, browser, folder / "a.mp4", seconds=4)
    return folder, truth, folder / "a.mp4"


def test_a_seed_says_everything(recorded, browser):
    folder, truth, video = recorded
    again = making.make(truth.seed, "train", folder, browser, folder / "b.mp4", seconds=4)
    assert vars(again) | {"spec": None} == vars(truth) | {"spec": None}
    assert (again.spec.steps, again.spec.screens) == (truth.spec.steps, truth.spec.screens)
    # what happens is the same to the last digit; a browser may draw an edge or a caret otherwise on a busy machine
    with Video(video) as one, Video(folder / "b.mp4") as other:
        apart = [
            np.abs(a.pixels.astype(np.int16) - b.pixels).mean()
            for a, b in zip(one.frames(), other.frames(), strict=True)
        ]
    assert len(apart) == len(truth.times_us) and np.median(apart) < 0.5 and np.mean(np.array(apart) < 2) > 0.9
    assert app_page(3, folder, 1280) != app_page(4, folder, 1280) == app_page(4, folder, 1280)


def test_the_file_shows_what_is_told_of_it(recorded):
    """Read by the project's own decoder: times, size, and a page that changes at each step."""
    _, truth, video = recorded
    assert read_truth(video.with_suffix(".json")) == truth
    with Video(video) as read:
        kept = {}
        times = []
        cited = {e.frame for _, proof in truth.spec.proofs() for e in proof}
        for frame in read.frames():
            times.append(frame.time_us)
            if frame.index in cited:
                kept[frame.index] = frame.pixels.astype(np.int16)
    assert tuple(times) == truth.times_us
    assert {pixels.shape for pixels in kept.values()} == {(truth.spec.source.height, truth.spec.source.width, 3)}
    assert len(truth.spec.steps) >= 1
    for step in truth.spec.steps:
        first, last = kept[step.evidence[0].frame], kept[step.evidence[-1].frame]
        assert (np.abs(first - last).max(axis=2) > 40).sum() > 20, f"step {step.index} is not to be seen"
        assert all(is_shown(e, truth.times_us) for e in step.evidence)
    perfect = scores_of(count(truth.spec, truth))
    assert perfect.step_f1 == 1.0 and perfect.unproven == 0 and perfect.dropdowns in (None, 1.0)


@pytest.mark.parametrize(
    ("aspect", "rotation"),
    [(Fraction(1), 90), (Fraction(1), 180), (Fraction(1), 270), (Fraction(4, 3), 0), (Fraction(5, 6), 0)],
)
def test_pixel_aspect_and_rotation_leave_the_picture_upright(aspect, rotation, tmp_path):
    upright = Image.new("RGB", (480, 240), "white")
    pen = ImageDraw.Draw(upright)
    for corner, colour in (((0, 0), "red"), ((400, 0), "lime"), ((0, 160), "blue"), ((400, 160), "black")):
        pen.rectangle((*corner, corner[0] + 79, corner[1] + 79), fill=colour)
    frames = [(k * 100_000 + 1_400_000, making.stored(upright, aspect, rotation)) for k in range(3)]
    write_video(tmp_path / "a.mp4", frames, pixel_aspect=aspect, rotation=rotation)
    with Video(tmp_path / "a.mp4") as read:
        found = [(frame.time_us, frame.pixels.astype(np.int16)) for frame in read.frames()]
    assert [time for time, _ in found] == [0, 100_000, 200_000]
    assert found[0][1].shape == (240, 480, 3)
    assert np.abs(found[0][1] - np.asarray(upright, dtype=np.int16)).mean() < 6


def test_no_package_is_in_both_splits():
    assert making.PLACES["val"] == ("startbootstrap-sb-admin-2", "material-dashboard")
    for split, names in making.PLACES.items():
        assert all(package(name).split == split and package(name).pages for name in names)
    assert not set(making.PLACES["train"]) & set(making.PLACES["val"])
    drawn = {split: {making.wishes(seed, split).package for seed in range(300)} for split in making.SPLITS}
    assert drawn["val"] == set(making.PLACES["val"])
    assert drawn["train"] == {"generated", "site", *making.PLACES["train"]}
    validation = {item.name for item in PACKAGES if item.split == "val"}
    assert not validation & drawn["train"]
    with pytest.raises(ConfigError, match="split is 'test'"):
        making.wishes(1, "test")


def test_all_difficulties_are_drawn():
    drawn = [making.wishes(seed, "train") for seed in range(300)]
    assert {wish.cursor for wish in drawn} == {wish.variable_rate for wish in drawn} == {True, False}
    assert {wish.rotation for wish in drawn} == {0, 90, 180, 270}
    assert {wish.pixel_aspect for wish in drawn} == {1, Fraction(4, 3), Fraction(5, 6)}
    assert max(wish.gap for wish in drawn) == 12 and {wish.start_offset_us for wish in drawn} == {0, 1_400_000}
    for wish in drawn:
        assert not (wish.rotation and wish.pixel_aspect != 1)
        stored = making.stored(Image.new("RGB", wish.size), wish.pixel_aspect, 0)
        assert stored.width % 2 == stored.height % 2 == 0
        assert wish.size in (
            (stored.width * wish.pixel_aspect, stored.height),
            (stored.width, stored.height / wish.pixel_aspect),
        )


def test_missing_packages_are_named(tmp_path):
    with pytest.raises(UsageError, match=r"lacks startbootstrap-sb-admin-2, material-dashboard; fetch with"):
        build(tmp_path / "out", tmp_path, count=1, split="val", seed=1)
    with pytest.raises(UsageError, match="--split is 'test'"):
        build(tmp_path / "out", tmp_path, count=1, split="test", seed=1)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_command_writes_pairs_and_goes_on_where_it_was(tmp_path):
    for name, page in (("startbootstrap-sb-admin-2", "a.html"), ("material-dashboard", "pages/b.html")):
        file = tmp_path / "packages" / name / page
        file.parent.mkdir(parents=True)
        links = "".join(
            f'<p><button type="button">Act {i}</button> <input placeholder="Field {i}"></p>' for i in range(8)
        )
        file.write_text(
            f"<!doctype html><title>{name}</title><style>a{{}}</style><h1>{name}</h1>{links}{'<!-- -->' * 60}"
        )
    out = tmp_path / "out"
    call = [
        "data",
        "recordings",
        "--out",
        str(out),
        "--split",
        "val",
        "--seed",
        "3",
        "--seconds",
        "4",
        "--root",
        str(tmp_path),
    ]
    first = CliRunner().invoke(command_line, [*call, "--count", "1"])
    assert first.exit_code == 0, first.output
    before = (out / "val-000003.mp4").stat().st_mtime_ns
    second = CliRunner().invoke(command_line, [*call, "--count", "2"])
    assert second.exit_code == 0, second.output
    assert sorted(p.name for p in out.iterdir()) == [
        "val-000003.json",
        "val-000003.mp4",
        "val-000004.json",
        "val-000004.mp4",
    ]
    assert (out / "val-000003.mp4").stat().st_mtime_ns == before
    truth = json.loads((out / "val-000004.json").read_text())
    assert truth["split"] == "val" and truth["spec"]["source"]["path"] == "val-000004.mp4"
    assert {page.split("/")[0] for page in truth["pages"]} <= set(making.PLACES["val"])


# ---------------------------------------------------------------------- parts


@given(st.text(alphabet="abc XYZ.@1é", max_size=20), st.integers(0, 10_000), st.sampled_from([0.0, 0.2, 0.9]))
def test_keystrokes_with_corrections_leave_the_text(text, seed, mistakes):
    field = ""
    for key in _keystrokes(text, random.Random(seed), mistakes):
        field = field[:-1] if key == "Backspace" else field + key
    assert field == text


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 30), st.integers(0, 20), st.integers(0, 255)), max_size=6))
def test_a_film_shows_at_every_time_what_was_painted_until_then(paints):
    paints = sorted(paints, key=lambda one: one[0])
    film = Film(Image.new("RGB", (40, 30)))
    for at, x, y, value in paints:
        film.paint(at / 10, Image.new("RGB", (8, 8), (value, value, value)), (x, y))
    for now in (0.0, 0.55, 2.0, 0.3, 1.0):
        expected = np.zeros((30, 40, 3), np.uint8)
        for at, x, y, value in paints:
            if at / 10 <= now + 1e-9:
                expected[y : y + 8, x : x + 8] = value
        frame = Image.new("RGB", (40, 30), "red")
        film.draw(frame, now)
        assert np.array_equal(np.asarray(frame), expected)


def test_fading_goes_from_one_picture_to_the_next_and_ends_there():
    film = Film(Image.new("RGB", (10, 10), (0, 0, 0)))
    assert film.fade(1.0, Image.new("RGB", (10, 10), (200, 100, 0)), 0.2, 30) == (0, 0, 10, 10)
    values = []
    for k in range(8):
        frame = Image.new("RGB", (10, 10))
        film.draw(frame, 1.0 + k / 30)
        values.append(frame.getpixel((3, 3))[0])
    assert values[0] == 0 and values[6:] == [200, 200]
    assert values == sorted(values) and len(set(values)) == 7


BOARD = f"""<!doctype html><html data-theme="light"><title>t</title><style>{CSS} body{{margin:20px;font:16px Arial;background:#fff;color:#111}}
.w-note{{background:#fff;border:1px solid #888}}</style><section data-view="one"><h1>Board</h1><div class="w-lanes">
<div class="w-lane" data-lane><div class="w-note" data-card>Paint the fence</div></div><div class="w-lane" data-lane></div></div></section>
<div id="toasts"></div><script>{source_of("app.js")}</script><script>app.show("one")</script></html>"""


def test_a_card_is_dragged_to_another_lane_and_nothing_else_happens(browser, tmp_path):
    recording = Recording(size=SIZE, rate=30)
    with opened(browser, SIZE, tmp_path, {APP: BOARD}) as stage:
        stage.open("/app.html")
        director = Director(stage, recording, random.Random(1), Pace(), cursor=True)
        card = find(stage, "card", "Paint the fence")
        lanes = stage.ask(f"lanes({card.ref})")
        assert len(lanes) == 1, "the lane that it lies in is none to go to"
        assert director.drag(card, tuple(lanes[0]))
        director.rest(0.3)
        director.finish()
        after = find(stage, "card", "Paint the fence")
        looks = stage.page.evaluate("document.documentElement.className")
    [act] = director.acts
    assert after.box[0] > card.box[2] - 20, "it is in the right lane"
    assert looks == "", "letting go beside every button is no press on the theme's"
    assert (act.action, act.target, act.pattern) == ("click", "Paint the fence", "card")
    assert 0.4 <= act.end - act.start <= 1.1
    _, patterns = claims_of(director.acts, director.shown, [round(k * 1e6 / 30) for k in range(200)])
    assert [claim.name for claim in patterns] == ["drag"]
    moved = [recording.cursor_at(act.start + share * (act.end - act.start)) for share in (0.3, 0.6, 1.0)]
    assert moved[0][0] < moved[1][0] < moved[2][0] == lanes[0][0]

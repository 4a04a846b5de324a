"""What is written of a specification: looked at with a browser, with node and with a Markdown table's own rules."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from PIL import Image, ImageDraw

from watersmeet.pipelines.video_to_spec.flow import HIGH, WIDE, flow_of
from watersmeet.pipelines.video_to_spec.markdown import clock, spec_markdown
from watersmeet.pipelines.video_to_spec.outputs import THUMBNAIL, cropped, write_outputs
from watersmeet.pipelines.video_to_spec.skeleton import playwright_test
from watersmeet.pipelines.video_to_spec.spec import Claim, Evidence, Screen, Source, Spec, Step, read_spec

HOSTILE = "<img src=x onerror=\"document.title='run'\">|`$(x)` \N{LINE SEPARATOR}*/"
SIZE = (640, 360)


def cite(frame):
    return Evidence(t_s=frame / 10, frame=frame)


def step(index, frame, action, target, text=None, come="s1", go="s1", box=(100.0, 50.0, 180.0, 80.0)):
    return Step(
        index=index,
        start_s=frame / 10,
        end_s=frame / 10 + 0.5,
        action=action,
        target=target,
        text=text,
        box=box,
        from_screen=come,
        to_screen=go,
        evidence=(cite(frame), cite(frame + 5)),
        confidence=0.875,
    )


SPEC = Spec(
    source=Source(path=f"{HOSTILE}.mp4", duration_s=80.0, frames=800, width=640, height=360),
    screens=tuple(
        Screen(id=f"s{i}", title=title, first_seen_s=t, thumbnail=f"frames/s{i}.png")
        for i, title, t in ((1, "Orders", 0.0), (2, HOSTILE, 3.5), (3, "Done", 60.0))
    ),
    steps=(
        step(1, 10, "type", "Name", HOSTILE),
        step(2, 20, "type", "Password", "\N{BULLET}" * 5),
        step(3, 30, "click", HOSTILE, go="s2"),
        step(4, 40, "click", None, come="s2", go="s1"),
        step(5, 50, "scroll", None, "up", box=None),
        step(6, 60, "key", None, "Control+k", box=None),
        step(7, 70, "hover", "Help"),
        step(8, 80, "click", "Save", go="s2"),
        step(9, 500, "wait", None, come="s2", go="s3", box=None),
        step(10, 600, "navigate", None, come="s3", go="s1", box=None),
        step(11, 700, "click", None, box=None),
    ),
    features=(Claim(name=HOSTILE, description="Orders are saved.", evidence=(cite(30),)),),
    patterns=(Claim(name="dropdown", description="A menu opens.", evidence=(cite(61), cite(75))),),
    open_questions=(HOSTILE,),
)


def picture_at(t_s):
    """A picture whose colour says its time."""
    picture = Image.new("RGB", SIZE, (round(t_s * 3) % 256, 40, 200))
    ImageDraw.Draw(picture).rectangle((100, 50, 180, 80), fill="white")
    return picture


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spec")
    asked = []

    def frame_at(t_s):
        asked.append(t_s)
        return picture_at(t_s)

    return folder, write_outputs(SPEC, frame_at, folder), asked


def test_all_files_are_there_and_frames_are_asked_for_once_in_order(written):
    folder, names, asked = written
    assert sorted(names) == sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    assert names[0] == "report.html" and read_spec(folder / "spec.json") == SPEC
    assert all(a < b for a, b in pairwise(asked))
    wanted = {e.t_s for _, proof in SPEC.proofs() for e in proof} | {s.first_seen_s for s in SPEC.screens}
    assert set(asked) == wanted | {s.start_s for s in SPEC.steps}


def test_each_thumbnail_is_the_frame_of_its_time(written):
    folder, _, _ = written
    for screen in SPEC.screens:
        with Image.open(folder / screen.thumbnail) as small:
            assert small.size == (480, 270)
            assert small.getpixel((5, 5)) == picture_at(screen.first_seen_s).getpixel((5, 5))
    with Image.open(folder / "frames/frame-000505.png") as small:
        assert small.getpixel((5, 5)) == picture_at(50.5).getpixel((5, 5))


def test_a_crop_shows_its_target_with_a_ring_around_it():
    part = cropped(picture_at(3.0), SPEC.steps[2])
    assert part.size == (80 + 120, 30 + 50 + 60)
    white = [(x, y) for x in range(part.width) for y in range(part.height) if part.getpixel((x, y)) == (255, 255, 255)]
    assert (min(x for x, _ in white), min(y for _, y in white)) == (60, 50)
    assert part.getpixel((57, 70)) == (225, 60, 40)
    assert cropped(picture_at(3.0), SPEC.steps[5]).size == (480, 270)
    large = Image.new("RGB", (4000, 4000))
    assert max(cropped(large, step(1, 1, "click", "x", box=(0.0, 0.0, 3999.0, 3999.0))).size) <= max(THUMBNAIL)


def test_times_are_written_in_minutes_and_thousandths():
    assert [clock(t) for t in (0.0, 5.0625, 59.9996, 75.25, 3600.0)] == [
        "0:00.000",
        "0:05.062",
        "1:00.000",
        "1:15.250",
        "60:00.000",
    ]


def test_markdown_keeps_every_text_as_text():
    text = spec_markdown(SPEC)
    table = [line for line in text.splitlines() if line.startswith("| ") and "frames/frame" in line]
    assert len(table) == len(SPEC.steps)
    for line in table:
        assert len(re.findall(r"(?<!\\)\|", line)) == 7, line
    assert not re.search(r"(?<!\\)<", text) and "\N{LINE SEPARATOR}" not in text
    assert "0:03.000 – 0:03.500" in text and "[0:06.100](frames/frame-000061.png)" in text


# ---------------------------------------------------------------------- the report


class Links(HTMLParser):
    def __init__(self):
        super().__init__()
        self.ids, self.targets, self.tags, self.pictures = [], [], [], []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.tags.append(tag)
        if "id" in values:
            self.ids.append(values["id"])
        if tag == "a":
            self.targets.append(values["href"])
        if tag == "img":
            self.pictures.append(values["src"])


def test_the_report_is_one_file_whose_links_all_lead_somewhere(written):
    folder, _, _ = written
    page = Links()
    text = (folder / "report.html").read_text("utf-8")
    page.feed(text)
    assert len(set(page.ids)) == len(page.ids)
    assert page.targets and all(t[0] == "#" and t[1:] in page.ids for t in page.targets)
    assert page.pictures and all(src.startswith("data:image/jpeg;base64,") for src in page.pictures)
    assert "script" not in page.tags and "link" not in page.tags and HOSTILE not in text
    for _, proof in SPEC.proofs():
        for one in proof:
            assert f"frame-{one.frame}" in page.ids and f"#frame-{one.frame}" in page.targets


def test_a_browser_shows_the_report_and_jumps_to_a_frame(written, browser):
    folder, _, _ = written
    shown = browser.open(folder / "report.html", width=1280, height=900, full_page=True)
    assert shown.blocked == () and not shown.timed_out
    text = json.dumps(shown.raw, ensure_ascii=False)
    assert "onerror=" in text and "Numbers on arrows are steps." in text
    with browser.live(
        width=1280, height=900, answer=lambda _: ((folder / "report.html").read_bytes(), "text/html")
    ) as page:
        page.goto("http://pages.test/report.html")
        assert page.title().startswith("Specification from <img")
        assert page.evaluate("[...document.images].every(i => { i.loading = 'eager'; return true })")
        page.wait_for_function("[...document.images].every(i => i.complete && i.naturalWidth > 100)")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.locator("#step-9 .cite").last.click()
        target = page.locator("figure:target")
        assert target.get_attribute("id") == "frame-505"
        box = target.bounding_box()
        assert box["y"] >= -1 or page.evaluate("scrollY") > 0
        page.locator(".line a").nth(7).click()
        assert page.locator("tr:target").get_attribute("id") == "step-8"


def test_the_flow_graph_has_an_arrow_for_each_pair_of_screens():
    flow = flow_of(SPEC)
    assert [node.stays for node in flow.nodes] == [6, 0, 0]
    assert [(edge.label, edge.first) for edge in flow.edges] == [("3, 8", 3), ("4", 4), ("9", 9), ("10", 10)]
    for node in flow.nodes:
        assert node.x >= 0 and node.x + WIDE <= flow.width and node.y >= 0 and node.y + HIGH <= flow.height
    for edge in flow.edges:
        numbers = [float(n) for n in re.findall(r"-?[\d.]+", edge.path)]
        for x, y in (numbers[:2], numbers[4:]):
            on = [
                n
                for n in flow.nodes
                if (min(abs(x - n.x), abs(x - n.x - WIDE)) < 0.2 and n.y - 0.2 <= y <= n.y + HIGH + 0.2)
                or (min(abs(y - n.y), abs(y - n.y - HIGH)) < 0.2 and n.x - 0.2 <= x <= n.x + WIDE + 0.2)
            ]
            assert len(on) == 1, "an arrow begins and ends at the border of a box"
    assert len({edge.path for edge in flow.edges}) == 4


def test_no_label_of_the_flow_graph_lies_on_another_or_on_a_box():
    """Ten screens, and steps there and back between those that are far apart."""
    shot = SPEC.screens[0]
    screens = tuple(replace(shot, id=f"s{i + 1}") for i in range(10))
    pairs = [(0, 7), (7, 8), (8, 7), (7, 0), (0, 3), (3, 0), (4, 3), (3, 9), (9, 3), (1, 2), (2, 1), (5, 6), (6, 5)]
    moved = replace(SPEC.steps[0], target=None)
    steps = tuple(
        replace(moved, index=i + 1, from_screen=f"s{a + 1}", to_screen=f"s{b + 1}") for i, (a, b) in enumerate(pairs)
    )
    flow = flow_of(replace(SPEC, screens=screens, steps=steps, features=(), patterns=()))
    assert len(flow.edges) == len(pairs)
    for i, edge in enumerate(flow.edges):
        for other in flow.edges[:i]:
            assert abs(edge.x - other.x) >= 14 or abs(edge.y - other.y) >= 14, (edge.label, other.label)
        for node in flow.nodes:
            inside = node.x < edge.x < node.x + WIDE and node.y < edge.y < node.y + HIGH
            assert not inside, (edge.label, node.id)


def test_an_empty_specification_has_all_its_files(tmp_path):
    empty = Spec(source=SPEC.source, screens=(), steps=(), features=(), patterns=(), open_questions=())
    names = write_outputs(empty, picture_at, tmp_path)
    assert set(names) == {"report.html", "spec.md", "spec.json", "flow.spec.ts"}
    assert "No step was found." in (tmp_path / "report.html").read_text("utf-8")


# ---------------------------------------------------------------------- the test skeleton

STUB = """
const calls = [];
const node = (path) => new Proxy(() => {}, {
  get: (_, name) => name === "then" ? undefined : (...args) => {
    const next = [...path, [name, ...args.map((a) => (typeof a === "function" ? "page" : a))]];
    calls.push(next);
    return node(next);
  },
});
const page = new Proxy({}, { get: (_, name) => name === "mouse" || name === "keyboard" ? node([[name]]) : (...args) => node([]) [name](...args) });
export const expect = (what) => ({ toBeVisible: () => { calls.push([["visible"]]); } });
export const test = (title, run) => { calls.push([["test", title]]); run({ page }).then(() => console.log(JSON.stringify(calls))); };
test.step = async (title, run) => { calls.push([["step", title]]); await run(); };
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not on this machine")
def test_the_playwright_test_runs_against_a_recording_stand_in(tmp_path):
    """node reads it, and calls come in the order of the steps with the very texts."""
    package = tmp_path / "node_modules/@playwright/test"
    package.mkdir(parents=True)
    (package / "index.mjs").write_text(STUB)
    (package / "package.json").write_text('{"name": "@playwright/test", "main": "index.mjs", "exports": "./index.mjs"}')
    file = tmp_path / "flow.spec.mjs"
    file.write_text(playwright_test(SPEC), encoding="utf-8")
    subprocess.run(["node", "--check", str(file)], check=True, timeout=120)
    done = subprocess.run(["node", str(file)], check=True, timeout=120, capture_output=True, text=True)
    calls = json.loads(done.stdout)
    assert sum(call[-1][0] == "step" for call in calls) == len(SPEC.steps)
    assert [call[-1] for call in calls if call[-1][0] == "fill"] == [["fill", HOSTILE], ["fill", ""]]
    assert [["getByText", HOSTILE, {"exact": True}], ["first"], ["click"]] in calls
    assert [["mouse"], ["click", 140, 65]] in calls
    assert [["mouse"], ["wheel", 0, -216]] in calls
    assert [["keyboard"], ["press", "Control+k"]] in calls
    assert sum(call == [["visible"]] for call in calls) == 5

"""Generated pages, variants of package pages, and the plan that keeps packages apart."""

import random
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("faker")
pytest.importorskip("wordfreq")

from watersmeet.pipelines.data import plan as planning
from watersmeet.pipelines.data.generator import pages, pictures
from watersmeet.pipelines.data.packages import PACKAGES, needs_network, package, pages_of
from watersmeet.pipelines.data.reading import misread, readable, seen_lines, worn
from watersmeet.pipelines.data.remix import localise, remix

NOWHERE = Path("/nonexistent")
VOID = {"meta", "link", "input", "img", "br", "hr", "col", "source", "wbr"}


class _Balance(HTMLParser):
    """Counts elements and depth, and fails on an end tag that closes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.count = self.depth = 0
        self.faults: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.count += 1
        if tag not in VOID:
            self.stack.append(tag)
            self.depth = max(self.depth, len(self.stack))

    def handle_endtag(self, tag: str) -> None:
        if self.stack and self.stack[-1] == tag:
            self.stack.pop()
        elif tag not in ("circle", "rect", "path", "line", "polyline", "polygon", "ellipse"):
            self.faults.append(f"</{tag}> inside {self.stack[-3:]}")


def _parse(html: str) -> _Balance:
    parser = _Balance()
    parser.feed(html)
    return parser


def test_a_page_is_a_pure_function_of_its_seed() -> None:
    first = pages.generate(7, NOWHERE)
    random.random()  # the global generator must not matter
    pages.generate(8, NOWHERE)
    assert pages.generate(7, NOWHERE) == first
    assert pages.generate(9, NOWHERE)[1] != first[1]


def test_a_page_is_the_same_in_another_process() -> None:
    code = "import hashlib,sys;from pathlib import Path;from watersmeet.pipelines.data.generator.pages import generate;print(hashlib.sha256(generate(11, Path('/nonexistent'))[1].encode()).hexdigest())"
    out = [
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PATH": ""},
        ).stdout
        for seed in ("1", "2")
    ]
    assert out[0] == out[1] != ""


def test_pages_have_the_spread_of_real_ones() -> None:
    found = [_parse(pages.generate(seed, NOWHERE)[1]) for seed in range(40)]
    counts = sorted(p.count for p in found)
    assert counts[2] < 100 and counts[20] > 90 and counts[-3] > 220
    assert max(p.depth for p in found) >= 13
    kinds = {pages.generate(seed, NOWHERE)[0] for seed in range(60)}
    assert len(kinds) >= 12


@pytest.mark.parametrize("kind", sorted(pages.KINDS))
def test_every_kind_is_well_formed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "KINDS", {kind: pages.KINDS[kind]})
    for seed in range(4):
        _, html = pages.generate(seed, NOWHERE, narrow=seed == 3)
        assert not _parse(html).faults
        assert not re.search(r"(src|href)=[\"'](https?:)?//", html), "a page must not need the network"
        assert "None" not in re.sub(r"<style>.*?</style>", "", html, flags=re.S).split("<body>")[1][:200]


def test_pictures_are_pure() -> None:
    assert pictures.photo(3, 40, 30).tobytes() == pictures.photo(3, 40, 30).tobytes()
    assert pictures.photo(3, 40, 30).tobytes() != pictures.photo(4, 40, 30).tobytes()
    assert pictures.portrait(5, 24).size == (24, 24)


def _fake_packages(root: Path) -> None:
    for item in PACKAGES:
        if not item.pages:
            continue
        pattern = item.pages[0].replace("**", "deep").replace("*", "page")
        for k in range(2):
            file = root / "packages" / item.folder / pattern.replace("page.html", f"page{k}.html")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"<html><head></head><body>{'<p>words of a page</p>' * 60}{item.name} {k}</body></html>")


def test_splits_never_share_a_package(tmp_path: Path) -> None:
    _fake_packages(tmp_path)
    train, val = planning.real_jobs(tmp_path, "train"), planning.real_jobs(tmp_path, "val")
    held_out = {"startbootstrap-sb-admin-2", "material-dashboard"}
    assert {job.package for job in val} == held_out
    assert not held_out & {job.package for job in train}
    assert not {job.page for job in val} & {job.page for job in train}
    # a page may be reached under one folder only: names that start alike must not leak
    assert not any(folder in job.page.split("/") for job in train for folder in held_out)


def test_the_plan_is_fixed_and_its_ids_are_unique(tmp_path: Path) -> None:
    _fake_packages(tmp_path)
    first = planning.plan(tmp_path, "train", real=40, generated=20)
    assert first == planning.plan(tmp_path, "train", real=40, generated=20)
    assert len({job.id for job in first}) == len(first)
    assert sum(job.package == "generated" for job in first) == 20


def test_caps_and_hidden_variants(tmp_path: Path) -> None:
    _fake_packages(tmp_path)
    item = package("mkdocs-doc")
    before = pages_of(item, tmp_path / "packages")
    hidden = before[0].with_name(f".view3-{before[0].name}")
    hidden.write_text(before[0].read_text())
    assert pages_of(item, tmp_path / "packages") == before


def test_pages_that_need_the_network_are_known() -> None:
    assert needs_network('<link rel="stylesheet" href="https://a.example/x.css">')
    assert not needs_network(
        '<link rel="stylesheet" href="https://a.example/x.css"><link rel="stylesheet" href="own.css">'
    )
    assert not needs_network("<p>no style at all</p>")


def test_remote_files_are_replaced_or_taken_out() -> None:
    page = Path("/srv/packages/theme/dist/index.html")
    html = '<head><script src="https://c.example/font-awesome/all.js" defer></script><link rel="stylesheet" href="//c.example/other.css"></head>'
    out = localise(html, page, Path("/srv/packages"))
    assert "//c.example" not in out
    assert 'href="../../fortawesome-fontawesome-free/css/all.min.css"' in out


def test_a_variant_is_pure_and_keeps_tags() -> None:
    page = Path("/srv/packages/theme/dist/index.html")
    html = "<html><head></head><body><script>var keep = 'these words stay';</script><h1>Some title here</h1><p>A few words &amp; more</p></body></html>"
    variants = [remix(html, page, Path("/srv/packages"), seed) for seed in range(1, 12)]
    assert variants == [remix(html, page, Path("/srv/packages"), seed) for seed in range(1, 12)]
    assert len(set(variants)) > 6
    for variant in variants:
        assert "these words stay" in variant
        assert variant.count("<h1>") == variant.count("</p>") == 1


def test_a_reader_joins_close_neighbours_and_skips_icon_glyphs() -> None:
    lines = [
        ((0.0, 0.0, 40.0, 16.0), "first"),
        ((46.0, 0.0, 90.0, 16.0), "second"),
        ((200.0, 0.0, 240.0, 16.0), "far"),
        ((0.0, 30.0, 9.0, 46.0), "\uf101"),
    ]
    assert [text for _, text in seen_lines(lines)] == ["first second", "far"]
    # the edge of a button between them keeps them apart
    assert [text for _, text in seen_lines(lines, [(44.0, -4.0, 96.0, 20.0)])] == ["first", "second", "far"]
    assert readable("a\u200b\ue000 \xa0b") == "a b"


def test_a_worse_reader_errs_but_invents_no_text() -> None:
    texts = [
        {
            "box": {"x0": 10.0, "y0": 20.0 * i, "x1": 110.0, "y1": 20.0 * i + 14},
            "text": f"line number {i}",
            "color": [0, 0, 0],
            "background": [255, 255, 255],
            "font_size": 12.0,
            "weight": 400,
            "confidence": 1.0,
        }
        for i in range(60)
    ]
    shapes = [
        {
            "box": {"x0": 0.0, "y0": 0.0, "x1": 200.0, "y1": 900.0},
            "kind": "fill",
            "color": [9, 9, 9],
            "border_color": None,
            "border_width": 0.0,
            "radius": 0.0,
        }
    ]
    regions = {"width": 390, "height": 844, "background": [255, 255, 255], "texts": texts, "shapes": shapes}
    out = [worn(regions, random.Random(seed)) for seed in range(20)]
    assert out[3] == worn(regions, random.Random(3))
    assert texts[0]["text"] == "line number 0" and shapes[0]["box"]["x1"] == 200.0, (
        "the clean record must stay as it is"
    )
    assert any(len(r["texts"]) < 60 for r in out)
    assert sum(len(r["texts"]) for r in out) > 20 * 50
    for r in out:
        for item in (*r["texts"], *r["shapes"]):
            assert item["box"]["x1"] > item["box"]["x0"] >= 0 and item["box"]["y1"] > item["box"]["y0"] >= 0
    assert misread("hello", random.Random(0), 0.0) == "hello"

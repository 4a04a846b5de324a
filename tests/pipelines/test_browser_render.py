"""Rendering: sizes, offline, scripts that never end, pages that lie, many pages in one sheet."""

import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from watersmeet.core.errors import RenderError
from watersmeet.pipelines.browser.render import Browser, RenderedPage


def texts(page: RenderedPage) -> list[str]:
    return [t["text"] for t in page.raw["texts"]]


def test_viewport_is_what_was_asked_for(browser: Browser) -> None:
    page = browser.open("<!doctype html><body style='margin:0;background:#102030'>", width=333, height=222)
    assert page.screenshot.size == (333, 222) and page.screenshot.mode == "RGB"
    assert (page.raw["width"], page.raw["height"]) == (333, 222)
    assert page.screenshot.getpixel((332, 221)) == (0x10, 0x20, 0x30)
    assert page.raw["background"] == [0x10, 0x20, 0x30]
    assert not page.timed_out and not page.blocked


def test_text_in_grey_not_in_subpixel_colours(browser: Browser) -> None:
    pixels = np.asarray(browser.open("<h1>Hamburgefons</h1>", width=300, height=80).screenshot).astype(int)
    assert np.ptp(pixels, axis=2).max() == 0
    assert pixels.min() < 60


def test_missing_file(browser: Browser, tmp_path: Path) -> None:
    with pytest.raises(RenderError, match=r"no\.html cannot be rendered: there is no such file"):
        browser.open(tmp_path / "no.html")


def test_relative_addresses_of_files_and_of_text_with_a_base(browser: Browser, tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    Image.new("RGB", (40, 30), (200, 0, 0)).save(folder / "dot.png")
    html = "<!doctype html><html><head><title>t</title></head><body style='margin:0'><img src='dot.png'></body></html>"
    (folder / "page.html").write_text(html)
    for page in (
        browser.open(folder / "page.html", width=100, height=80),
        browser.open(html, base=folder, width=100, height=80),
    ):
        assert page.screenshot.getpixel((20, 15)) == (200, 0, 0)
        assert page.raw["title"] == "t"
        assert next(e for e in page.raw["elements"] if e["tag"] == "img")["box"] == [0, 0, 40, 30]


def test_no_network_and_each_missing_request_is_listed(browser: Browser) -> None:
    page = browser.open(
        "<link rel=stylesheet href='https://cdn.example.com/a.css'><img src='http://127.0.0.1:9/x.png'>"
        "<p id=o>waiting</p><script>fetch('http://localhost:80/').then(() => o.textContent = 'out',"
        " () => o.textContent = 'blocked')</script>",
        width=300,
        height=200,
    )
    assert set(page.blocked) == {"https://cdn.example.com/a.css", "http://127.0.0.1:9/x.png", "http://localhost/"}
    assert "out" not in texts(page)


def test_a_page_cannot_read_other_files(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("secret words")
    (tmp_path / "page.html").write_text(
        "<p id=o>?</p><script>fetch('secret.txt').then(r => r.text()).then(t => o.textContent = t,"
        " () => o.textContent = 'refused')</script>"
    )
    assert "secret words" not in texts(browser.open(tmp_path / "page.html", width=300, height=200))


def test_a_script_that_never_ends(tmp_path: Path) -> None:
    with Browser(timeout_s=3, settle_ms=0) as hasty:
        started = time.monotonic()
        page = hasty.open("<h1>Before</h1><script>for (;;);</script><p>After", width=300, height=200)
        assert time.monotonic() - started < 60
        assert page.timed_out and "never ended" in page.notes[0]
        assert texts(page) == ["Before", "After"]
        assert texts(hasty.open("<p>next", width=100, height=100)) == ["next"]


def test_scripts_run_or_not(browser: Browser) -> None:
    html = "<p id=o>off</p><script>o.textContent = 'on'</script>"
    assert texts(browser.open(html, width=200, height=100)) == ["on"]
    assert texts(browser.open(html, width=200, height=100, javascript=False)) == ["off"]


def test_dialogs_and_animations_do_not_hold_up(browser: Browser) -> None:
    page = browser.open(
        "<style>@keyframes in { from { opacity: 0 } to { opacity: 1 } } p { animation: in 60s }</style>"
        "<p>faded in</p><script>alert('x'); confirm('y')</script>",
        width=200,
        height=100,
    )
    assert texts(page) == ["faded in"]
    assert np.asarray(page.screenshot).min() < 60


def test_a_page_cannot_fake_its_measurements(browser: Browser) -> None:
    page = browser.open(
        "<p>honest</p><script>Element.prototype.getBoundingClientRect = () => ({left: 0, top: 0, right: 1, bottom: 1});"
        "window.getComputedStyle = () => ({}); Range.prototype.getClientRects = () => [];"
        "Array.prototype.push = () => 0; document.querySelectorAll = () => [];</script>",
        width=200,
        height=100,
    )
    assert texts(page) == ["honest"]
    assert page.raw["texts"][0]["box"][0] == 8


def test_scrolled(browser: Browser) -> None:
    html = "<style>* { scroll-behavior: smooth } p { margin: 0; height: 300px }</style>" + "".join(
        f"<p>part {k}</p>" for k in range(5)
    )
    page = browser.open(html, width=200, height=250, scroll_y=600)
    assert page.raw["scroll_y"] == 600
    assert texts(page) == ["part 2"]


def test_full_page_is_capped(browser: Browser) -> None:
    page = browser.open("<body style='margin:0;height:20000px'>x", width=60, height=100, full_page=True)
    assert page.screenshot.size == (60, 16000)
    assert "20000 px high" in page.notes[0]
    page = browser.open("<body style='margin:0;height:700px'>x", width=60, height=100, full_page=True)
    assert page.screenshot.size == (60, 700)


def test_many_pages_in_one_sheet(browser: Browser, tmp_path: Path) -> None:
    """Each frame is like the page alone: its own size, scroll position, media queries and relative addresses."""
    Image.new("RGB", (10, 10), (0, 160, 0)).save(tmp_path / "dot.png")
    jobs = []
    for k in range(7):
        path = tmp_path / f"{k}.html"
        path.write_text(
            f"<!doctype html><style>body {{ margin: 0; background: rgb({k * 30}, 0, 99) }}"
            f"@media (max-width: 250px) {{ p {{ color: white }} }} p {{ margin: 0; height: 400px }}</style>"
            f"<img src='dot.png' style='display:block'><p>page {k}</p><p>below {k}</p>"
        )
        jobs.append((path, 200 if k % 2 else 300, 150, 410 if k == 3 else 0))
    pages = browser.open_many(jobs, per_sheet=4)
    for k, (page, job) in enumerate(zip(pages, jobs, strict=True)):
        assert page is not None
        assert page.source == str(job[0])
        assert page.screenshot.size == (job[1], 150)
        assert page.raw["width"] == job[1]
        assert page.screenshot.getpixel((job[1] - 1, 149)) == (k * 30, 0, 99)
        assert texts(page) == ([f"below {k}"] if k == 3 else [f"page {k}"])
        if k != 3:
            assert page.screenshot.getpixel((5, 5)) == (0, 160, 0)
        assert page.raw["texts"][0]["box"][0] == 0
        ink = page.raw["elements"][-1]["color"][:3]
        assert ink == ([255, 255, 255] if job[1] == 200 else [0, 0, 0])


@pytest.mark.slow
def test_one_bad_page_does_not_take_the_sheet_with_it(tmp_path: Path) -> None:
    (tmp_path / "good.html").write_text("<p>good")
    (tmp_path / "bad.html").write_text("<p>bad<script>for (;;);</script>")
    (tmp_path / "leaver.html").write_text("<p>stays<script>top.location = 'about:blank'; window.close()</script>")
    jobs = [(tmp_path / f"{name}.html", 200, 100, 0) for name in ("good", "bad", "leaver", "good")]
    with Browser(timeout_s=5, settle_ms=0) as hasty:
        pages = hasty.open_many(jobs, timeout_s=5)
        assert [page is not None and texts(page) for page in pages] == [["good"], False, ["stays"], ["good"]]


def test_one_page_alone_and_in_a_sheet_look_alike(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "p.html"
    path.write_text(
        "<!doctype html><h1>Alike</h1><p>Some <b>words</b> and <a href=#>a link</a>.<p><input value=v><button>B</button>"
    )
    alone = browser.open(path, width=320, height=240)
    (framed,) = browser.open_many([(path, 320, 240, 0)])
    assert framed is not None
    assert framed.raw["texts"] == alone.raw["texts"]
    assert framed.raw["elements"] == alone.raw["elements"]
    assert np.array_equal(np.asarray(framed.screenshot), np.asarray(alone.screenshot))

"""Pages rendered offline in one Chromium, each with what the page shows (see `watersmeet.pipelines.layout.walker`).

`Browser.open` renders one page with care: no network, no reading of other files by its scripts, a time limit, and the
page is read from a world of its own, so that a page cannot fake its measurements. `Browser.open_many` renders many
trusted local pages for data building, several frames to a screenshot.
"""

import contextlib
import html as html_escape
import io
import json
import math
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from PIL import Image

from watersmeet.core.errors import RenderError
from watersmeet.pipelines.browser.find import find_chromium

MAX_HEIGHT = 16_000  # px; Chromium cannot capture much more in one piece
MAX_SHEET = 8_000  # px along either side of a sheet of frames, below the largest texture of software rendering
START_MS = 120_000  # a cold start on a busy machine takes long
_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)
LIVE = "http://pages.test"  # a name that no network has
LOCAL_SCHEMES = ("file:", "data:", "blob:", "about:", "chrome-error:")
FLAGS = (
    "--no-sandbox",  # a container's root has no user namespaces; pages have no network and no files of their own
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--hide-scrollbars",
    "--mute-audio",
    "--force-color-profile=srgb",
    "--font-render-hinting=none",
    "--disable-lcd-text",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--proxy-server=http://0.0.0.0:1",  # nothing answers there, numeric addresses included
    "--proxy-bypass-list=<-loopback>",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
)
FRAME_FLAGS = ("--allow-file-access-from-files", "--disable-web-security")


@cache
def walker_source() -> str:
    """The text of `walker.js`: one expression that evaluates to `{settle, walk}`."""
    return files("watersmeet.pipelines.layout").joinpath("walker.js").read_text(encoding="utf-8")


@dataclass(frozen=True, kw_only=True)
class RenderedPage:
    """One page as the browser showed it.

    `raw` is the walker's record (format: `watersmeet.pipelines.layout.walker`). `blocked` lists the addresses of
    requests that would have needed the network. `timed_out` means that the page was captured before it was ready;
    `notes` says in words what was unusual (height cut, scripts switched off, ...).
    """

    screenshot: Image.Image
    raw: dict[str, Any]
    blocked: tuple[str, ...] = ()
    timed_out: bool = False
    notes: tuple[str, ...] = ()
    source: str = ""


@dataclass(kw_only=True)
class _Log:
    """Requests of one page that the missing network swallowed."""

    blocked: list[str] = field(default_factory=list)

    def request(self, request: Any) -> None:
        url = request.url
        if not url.startswith(LOCAL_SCHEMES) and url[:300] not in self.blocked:
            self.blocked.append(url[:300])


class Browser:
    """One Chromium through Playwright, a context manager. `settle_ms` is waited after fonts are ready."""

    def __init__(self, *, timeout_s: float = 15.0, settle_ms: int = 100) -> None:
        self.timeout_s = timeout_s
        self.settle_ms = settle_ms
        self._playwright: Any = None
        self._strict: Any = None
        self._frames: Any = None
        self._contexts: dict[tuple[str, bool], Any] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the browser. Safe to call twice; a later `open` starts a new one."""
        for browser in (self._strict, self._frames):
            if browser is not None:
                with contextlib.suppress(Exception):
                    browser.close()
        self._strict = self._frames = None
        self._contexts.clear()
        if self._playwright is not None:
            _release_driver()
            self._playwright = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    # ------------------------------------------------------------------ one page

    def open(
        self,
        page: Path | str,
        *,
        width: int = 1280,
        height: int = 757,
        base: Path | None = None,
        javascript: bool = True,
        scroll_y: int = 0,
        full_page: bool = False,
    ) -> RenderedPage:
        """Render a file (`Path`) or the text of a page (`str`, relative addresses resolved in the folder `base`).

        The picture is `width` x `height` px (`full_page`: as high as the page, 16,000 px at most), RGB.
        Raises `RenderError` when the file is missing or the browser fails; a page that is slow or never ready is
        captured as it stands, with `timed_out` set.
        """
        path, url = self._address(page, base)
        notes: list[str] = []
        rendered = self._open(url, width, height, javascript, scroll_y, full_page, notes)
        if rendered is None and javascript:
            notes.append("a script of the page never ended: rendered without scripts")
            rendered = self._open(url, width, height, False, scroll_y, full_page, notes)
        if rendered is None:
            raise RenderError(
                f"{path} could not be rendered within {self.timeout_s:.0f} s, with and without its scripts"
            )
        shot, raw, blocked, late = rendered
        late = late or any("never ended" in note for note in notes)
        return RenderedPage(
            screenshot=shot, raw=raw, blocked=tuple(blocked), timed_out=late, notes=tuple(notes), source=str(path)
        )

    def _address(self, page: Path | str, base: Path | None) -> tuple[str, str]:
        if isinstance(page, Path):
            if not page.is_file():
                raise RenderError(f"{page} cannot be rendered: there is no such file")
            return str(page), page.resolve().as_uri()
        text = page
        if base is not None:
            # `<base>` has to stand before the first address of the page, and must not push it into quirks mode
            tag = f'<base href="{html_escape.escape(base.resolve().as_uri())}/">'
            low = text.lower()
            at = low.find("<head")
            at = (
                low.find(">", at) + 1 if at >= 0 else (low.find(">") + 1 if low.lstrip().startswith("<!doctype") else 0)
            )
            text = text[:at] + tag + text[at:]
        target = self._scratch() / f"page-{time.monotonic_ns()}.html"
        target.write_text(text, encoding="utf-8-sig")  # the mark at its start tells the encoding
        return "the page text", target.as_uri()

    def _open(
        self, url: str, width: int, height: int, javascript: bool, scroll_y: int, full_page: bool, notes: list[str]
    ) -> tuple[Image.Image, dict[str, Any], list[str], bool] | None:
        """Picture, record, blocked requests, late?; None when the page hangs so that nothing can be asked of it."""
        from playwright.sync_api import Error, TimeoutError

        limit = self.timeout_s * 1000
        log = _Log()
        tab: Any = None
        try:
            tab = self._context("strict", javascript).new_page()
            tab.on("request", log.request)
            tab.on("dialog", lambda dialog: dialog.dismiss())
            tab.set_default_timeout(limit)
            tab.set_viewport_size({"width": width, "height": height})
            late = False
            try:
                tab.goto(url, wait_until="load", timeout=limit)
            except TimeoutError:
                late = True
            if late and javascript:
                try:
                    tab.wait_for_function("() => true", timeout=limit / 3)
                except TimeoutError:
                    self._unhang("strict")
                    return None  # asking for anything would wait for ever
            cdp = tab.context.new_cdp_session(tab)
            walk = _World(cdp)
            settle = self.settle_ms if javascript else 0  # timers stand still where scripts are off
            walk.run(f"__w.settle(document, {scroll_y}, {settle})")
            if not javascript:
                tab.wait_for_timeout(self.settle_ms)
            if full_page:
                tall = int(walk.run("Math.max(document.documentElement.scrollHeight, innerHeight)"))
                if tall > MAX_HEIGHT:
                    notes.append(f"the page is {tall} px high: cut at {MAX_HEIGHT} px")
                tab.set_viewport_size({"width": width, "height": min(tall, MAX_HEIGHT)})
                walk.run(f"__w.settle(document, 0, {settle})")
            raw = walk.run("__w.walk(document)")
            return capture(cdp), raw, log.blocked, late
        except TimeoutError:
            self._unhang("strict")
            return None
        except Error as error:
            if not self._alive("strict"):
                self._drop("strict")
            raise RenderError(f"the browser failed on {url}: {_first_line(error)}") from error
        finally:
            if tab is not None:
                with contextlib.suppress(Exception):
                    tab.close(run_before_unload=False)

    # ------------------------------------------------------------------ many pages

    def open_many(
        self,
        jobs: Sequence[tuple[Path, int, int, int]],
        *,
        per_sheet: int = 12,
        javascript: bool = True,
        settle_ms: int = 50,
        timeout_s: float = 60.0,
    ) -> list[RenderedPage | None]:
        """Render many local pages, `(path, width, height, scroll_y)` each, several frames to one screenshot.

        Answers in the order of `jobs`; None where a page could not be rendered (it is tried once more alone).
        Meant for pages that are trusted: frames share one process and may read local files.
        """
        results: list[RenderedPage | None] = [None] * len(jobs)
        order = sorted(range(len(jobs)), key=lambda i: (jobs[i][1], jobs[i][2]))
        start = 0
        while start < len(order):
            width, height = jobs[order[start]][1:3]
            columns = max(1, min(MAX_SHEET // max(width, 1), math.ceil(math.sqrt(per_sheet * height / width))))
            rows = max(1, min(MAX_SHEET // max(height, 1), math.ceil(per_sheet / columns)))
            size = min(per_sheet, columns * rows)
            chunk = [i for i in order[start : start + size] if jobs[i][1:3] == (width, height)]
            start += len(chunk)
            pages = self._sheet([jobs[i] for i in chunk], columns, javascript, settle_ms, timeout_s)
            if pages is None:
                pages = [
                    (self._sheet([jobs[i]], 1, javascript, settle_ms, timeout_s) or [None])[0]
                    if len(chunk) > 1
                    else None
                    for i in chunk
                ]
            for i, page in zip(chunk, pages, strict=True):
                results[i] = page
        return results

    def _sheet(
        self, jobs: list[tuple[Path, int, int, int]], columns: int, javascript: bool, settle_ms: int, timeout_s: float
    ) -> list[RenderedPage | None] | None:
        """One sheet of frames of equal size; None when the sheet as a whole failed."""
        from playwright.sync_api import Error

        width, height = jobs[0][1:3]
        rows = math.ceil(len(jobs) / columns)
        sandbox = "allow-same-origin allow-scripts" if javascript else "allow-same-origin"
        frames = "".join(
            f'<iframe sandbox="{sandbox}" style="left:{k % columns * width}px;top:{k // columns * height}px" '
            f'width={width} height={height} data-src="{html_escape.escape(Path(job[0]).resolve().as_uri())}"></iframe>'
            for k, job in enumerate(jobs)
        )
        host = self._scratch() / "sheet.html"
        host.write_text(_HOST.replace("{frames}", frames), encoding="utf-8")
        tab: Any = None
        log = _Log()
        try:
            # its own context scripts must run in, whatever the pages may do
            tab = self._context("frames", True).new_page()
            tab.on("request", log.request)
            tab.on("dialog", lambda dialog: dialog.dismiss())
            tab.set_viewport_size({"width": columns * width, "height": rows * height})
            tab.goto(host.as_uri(), wait_until="commit", timeout=timeout_s * 1000)
            scrolls = json.dumps([job[3] for job in jobs])
            tab.evaluate(
                f"() => {{ window.__w = {walker_source()}; window.run({scrolls}, {settle_ms}, {timeout_s * 500}) }}"
            )
            tab.wait_for_function("() => window.done", timeout=timeout_s * 1000, polling=30)
            shot = capture(tab.context.new_cdp_session(tab))
            found = json.loads(tab.evaluate("() => JSON.stringify(window.done)"))  # one string is quicker than a tree
        except Error:
            self._unhang("frames")
            if not self._alive("frames"):
                self._drop("frames")
            return None
        finally:
            if tab is not None:
                with contextlib.suppress(Exception):
                    tab.close(run_before_unload=False)
        pages: list[RenderedPage | None] = []
        for k, (job, item) in enumerate(zip(jobs, found, strict=True)):
            if item["raw"] is None:
                pages.append(None)
                continue
            x, y = k % columns * width, k // columns * height
            pages.append(
                RenderedPage(
                    screenshot=shot.crop((x, y, x + width, y + height)),
                    raw=item["raw"],
                    blocked=tuple(log.blocked) if len(jobs) == 1 else (),
                    timed_out=item["late"],
                    source=str(job[0]),
                )
            )
        return pages

    # ------------------------------------------------------------------ a page to act on

    @contextlib.contextmanager
    def live(self, *, width: int, height: int, answer: Callable[[str], tuple[bytes, str] | None]) -> Iterator[Any]:
        """A page of Playwright in a context of its own, for scripted use. Nothing of it comes from a network.

        Whatever is asked of `LIVE` is given by `answer(path)`, as (content, media type) or None where there is nothing.
        The page's timers stand still until its `clock` is told to run; styles neither move nor fade.
        """
        from urllib.parse import unquote, urlsplit

        from playwright.sync_api import Error

        def give(route: Any) -> None:
            url = urlsplit(route.request.url)
            found = answer(unquote(url.path)) if f"{url.scheme}://{url.netloc}" == LIVE else None
            route.abort() if found is None else route.fulfill(body=found[0], content_type=found[1])

        context = self._new_context("frames", True, viewport={"width": width, "height": height})
        try:
            context.route("**/*", give)
            page = context.new_page()
            page.set_default_timeout(START_MS)
            page.on("dialog", lambda dialog: dialog.dismiss())
            page.clock.install(time=0)
            yield page
        except Error as error:
            raise RenderError(f"the browser failed on a page that is acted on: {_first_line(error)}") from error
        finally:
            with contextlib.suppress(Exception):
                context.close()

    # ------------------------------------------------------------------ the browser itself

    def _scratch(self) -> Path:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="watersmeet-")
        return Path(self._folder.name)

    def _context(self, which: str, javascript: bool) -> Any:
        key = (which, javascript)
        if key not in self._contexts:
            self._contexts[key] = self._new_context(which, javascript)
        return self._contexts[key]

    def _new_context(self, which: str, javascript: bool, **other: Any) -> Any:
        return self._launch(which).new_context(
            java_script_enabled=javascript,
            device_scale_factor=1,
            reduced_motion="reduce",
            color_scheme="light",
            locale="en-US",
            timezone_id="UTC",
            service_workers="block",
            accept_downloads=False,
            offline=True,
            **other,
        )

    def _launch(self, which: str) -> Any:
        held = self._strict if which == "strict" else self._frames
        if held is not None:
            return held
        path = find_chromium()
        if self._playwright is None:
            self._playwright = _hold_driver()
        from playwright.sync_api import Error

        try:
            args = [*FLAGS, *(FRAME_FLAGS if which == "frames" else ())]
            browser = self._playwright.chromium.launch(executable_path=str(path), args=args, timeout=START_MS)
        except Error as error:
            raise RenderError(
                f"{path} did not start: {_first_line(error)}; set WATERSMEET_CHROMIUM to a working Chromium"
            ) from error
        if which == "strict":
            self._strict = browser
        else:
            self._frames = browser
        return browser

    def _alive(self, which: str) -> bool:
        held = self._strict if which == "strict" else self._frames
        return held is not None and held.is_connected()

    def _unhang(self, which: str) -> None:
        """End the processes that run pages: one that never answers would stall every later page of its process."""
        held = self._strict if which == "strict" else self._frames
        if held is None:
            return
        with contextlib.suppress(Exception):
            session = held.new_browser_cdp_session()
            for process in session.send("SystemInfo.getProcessInfo")["processInfo"]:
                if process["type"] == "renderer":
                    with contextlib.suppress(OSError):
                        os.kill(process["id"], _KILL)
            session.detach()

    def _drop(self, which: str) -> None:
        """Forget a browser that died, so that the next page gets a new one."""
        self._contexts = {key: value for key, value in self._contexts.items() if key[0] != which}
        if which == "strict":
            self._strict = None
        else:
            self._frames = None


# Playwright's driver runs once a thread, however many browsers are open in it
_driver = threading.local()


def _hold_driver() -> Any:
    if getattr(_driver, "users", 0) == 0:
        try:
            from playwright.sync_api import Error, sync_playwright
        except ImportError as error:
            raise RenderError(
                "rendering needs the Python package playwright; install it with `pip install playwright`"
            ) from error
        try:
            _driver.playwright = sync_playwright().start()
        except Error as error:
            raise RenderError(f"Playwright did not start: {_first_line(error)}") from error
        _driver.users = 0
    _driver.users += 1
    return _driver.playwright


def _release_driver() -> None:
    if getattr(_driver, "users", 0) == 0:
        return
    _driver.users -= 1
    if _driver.users == 0:
        with contextlib.suppress(Exception):
            _driver.playwright.stop()
        _driver.playwright = None


class _World:
    """The walker in an isolated world of a page: same DOM, but none of the page's own changes to the language."""

    def __init__(self, cdp: Any) -> None:
        self._cdp = cdp
        frame = cdp.send("Page.getFrameTree")["frameTree"]["frame"]["id"]
        self._id = cdp.send("Page.createIsolatedWorld", {"frameId": frame, "worldName": "walker"})["executionContextId"]
        self.run(f"void (globalThis.__w = {walker_source()})")

    def run(self, expression: str) -> Any:
        answer = self._cdp.send(
            "Runtime.evaluate",
            {"expression": expression, "contextId": self._id, "returnByValue": True, "awaitPromise": True},
        )
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            text = details.get("exception", {}).get("description") or details.get("text", "")
            raise RenderError(f"reading the page failed: {text.splitlines()[0] if text else 'unknown fault'}")
        return answer["result"].get("value")


def capture(cdp: Any, clip: tuple[int, int, int, int] | None = None) -> Image.Image:
    """What the page shows, or of that the part `clip` (left, top, right, bottom)."""
    import base64

    options: dict[str, Any] = {"format": "png", "optimizeForSpeed": True}
    if clip is not None:
        x, y, right, bottom = clip
        options["clip"] = {"x": x, "y": y, "width": right - x, "height": bottom - y, "scale": 1}
    data = cdp.send("Page.captureScreenshot", options)["data"]
    return Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


_HOST = """<!doctype html><meta charset="utf-8"><style>
html, body { margin: 0; background: #fff; overflow: hidden }
iframe { position: absolute; border: 0; background: #fff; visibility: hidden }
</style><body>{frames}<script>
window.run = async (scrolls, settleMs, limitMs) => {
  const wait = (t) => new Promise((done) => setTimeout(done, t));
  const frames = [...document.querySelectorAll("iframe")];
  const items = await Promise.all(frames.map(async (frame, k) => {
    const item = { raw: null, late: false };
    const loaded = new Promise((done) => frame.addEventListener("load", () => done(true), { once: true }));
    frame.src = frame.dataset.src;
    item.late = !(await Promise.race([loaded, wait(limitMs).then(() => false)]));
    try { await Promise.race([window.__w.settle(frame.contentDocument, scrolls[k], settleMs), wait(limitMs)]); }
    catch (e) { item.error = String(e); }
    return item;
  }));
  // hidden until now: painting the whole sheet at every step of every page would take half of the time
  frames.forEach((frame) => { frame.style.visibility = "visible"; });
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  frames.forEach((frame, k) => {
    try { items[k].raw = window.__w.walk(frame.contentDocument); } catch (e) { items[k].error = String(e); }
  });
  window.done = items;
};
</script>"""

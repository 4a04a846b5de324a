"""A browser page that a recording is made of: what it shows, what can be acted on, and its time, which stands still."""

from __future__ import annotations

import json
import mimetypes
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

from PIL import Image

from watersmeet.pipelines.browser.render import LIVE, Browser, capture
from watersmeet.pipelines.data.generator.pictures import drawn
from watersmeet.pipelines.data.remix import localise
from watersmeet.pipelines.video_to_spec.recordings.app import CSS, source_of

APP = "/app.html"
Rect = tuple[int, int, int, int]

_STILL = """*,*::before,*::after{transition:none!important;animation:none!important;caret-color:transparent!important;scroll-behavior:auto!important}
[class*=material-icons],[class*=material-symbols]{width:1em!important;height:1em!important;overflow:hidden!important;display:inline-block!important;color:transparent!important;background:rgba(127,127,127,.55)!important;border-radius:3px}
.fixed-plugin,.ps__rail-x,.ps__rail-y{display:none!important}"""
_COLOURS = ":root{--s:#fff;--i:#222;--b:#ccc;--p:#3b6fd4;--g:#fff}"


@dataclass(frozen=True, kw_only=True)
class Dress:
    """What buttons of other people's pages, which do nothing by themselves, are given to do: drawn by `seed`, to a `share`.

    words: what notes and dialogs say. pages: where links in menus and bars lead that lead nowhere; some buttons then open menus.
    """

    seed: int
    share: float
    words: tuple[str, ...]
    pages: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Thing:
    """Something that can be acted on. `text`: as it reads, of a field its label or placeholder. `ref` holds until the page changes."""

    ref: int
    kind: str
    box: tuple[float, float, float, float]
    text: str | None
    type: str = ""
    value: str = ""
    href: str = ""
    required: bool = False
    on: bool = False
    modal: bool = False
    form: int = -1
    data: dict[str, str] = field(default_factory=dict)

    @property
    def center(self) -> tuple[int, int]:
        return round((self.box[0] + self.box[2]) / 2), round((self.box[1] + self.box[3]) / 2)


class Stage:
    """One page of a fixed size."""

    def __init__(self, page: Any, size: tuple[int, int], dress: Dress | None = None) -> None:
        self.page = page
        self.dress = dress
        self.size = size  # (width, height)
        self.own_time = False  # whether the page's own timers are those of `app.js` alone
        self._owed_ms = 0.0
        self._cdp = page.context.new_cdp_session(page)

    def open(self, path: str, *, settle_ms: int = 3000) -> None:
        """Go to `path` below `LIVE`, with everything that draws itself already drawn."""
        self.page.goto(f"{LIVE}{path}", wait_until="load")
        self.arrange(settle_ms=settle_ms)

    def arrange(self, *, settle_ms: int = 3000) -> None:
        """What every new document needs before it can be filmed."""
        self.page.wait_for_load_state("load")
        self.page.add_style_tag(content=_STILL)
        self.page.evaluate("() => document.fonts.ready.then(() => 0)")
        self.run(settle_ms)
        self.own_time = self.ask("own()")
        if self.dress is not None and not self.own_time:
            self.page.add_style_tag(content=CSS + _COLOURS)
            self.page.add_script_tag(content=source_of("app.js"))
            # the same page is dressed the same way whenever it is come to
            self.page.evaluate(source_of("dress.js"), asdict(self.dress))

    def run(self, ms: int) -> None:
        """Run the clock that the page's own timers follow."""
        from playwright.sync_api import Error

        # a timer of the page that fails is the page's affair, as it would be in any browser
        with suppress(Error):
            self.page.clock.run_for(ms)

    def ask(self, call: str) -> Any:
        """The value of one call of the functions of `things.js`, e.g. `screen()`."""
        # one string is quicker than a tree, and nothing of the page's own changes to the language reaches it
        text = self.page.evaluate(
            f"() => JSON.stringify((window.__things ??= {source_of('things.js')}).{call} ?? null)"
        )
        return json.loads(text) if text else None

    def things(self) -> list[Thing]:
        """Everything in view that can be acted on."""
        return [Thing(**{**one, "box": tuple(one["box"])}) for one in self.ask("things()")]

    def path_of(self, href: str) -> str:
        """The path below `LIVE` that an address on the page leads to, "" if it leads elsewhere."""
        whole = urljoin(self.page.url, href)
        return urlsplit(whole).path if whole.startswith(LIVE + "/") else ""

    def look(self, clip: Rect | None = None) -> Image.Image:
        """The picture, or a part of it in px of the viewport."""
        if clip is None:
            self._run_clock()
        top = self.ask("still()")
        if clip is None:
            return capture(self._cdp)
        return capture(self._cdp, (clip[0], clip[1] + top, clip[2], clip[3] + top))

    def _run_clock(self) -> None:
        # timers of other people's pages run before they can be seen, not at every step, since each call takes a while
        if not self.own_time and self._owed_ms >= 1:
            self.run(round(self._owed_ms))
        self._owed_ms = 0.0

    def pass_time(self, ms: float) -> None:
        """Let time pass for the page's own timers."""
        self.ask(f"pass({ms})")
        self._owed_ms += ms


@contextmanager
def opened(
    browser: Browser, size: tuple[int, int], packages: Path, made: Mapping[str, str], dress: Dress | None = None
) -> Iterator[Stage]:
    """A stage that knows the pages `made`, by path, drawn pictures below `/pictures` and the files of the packages below
    `/packages`."""
    root = packages.resolve()

    def answer(path: str) -> tuple[bytes, str] | None:
        if path in made:
            return made[path].encode(), "text/html; charset=utf-8"
        if path.startswith("/pictures/"):
            picture = drawn(path.removeprefix("/pictures/"))
            return None if picture is None else (picture, "image/jpeg")
        inside = path.removeprefix("/packages/")
        file = (root / inside).resolve()
        if inside == path or not file.is_relative_to(root) or not file.is_file():
            return None
        if file.suffix == ".html":
            return _page(file, root).encode(), "text/html; charset=utf-8"
        return file.read_bytes(), mimetypes.guess_type(file.name)[0] or "application/octet-stream"

    with browser.live(width=size[0], height=size[1], answer=answer) as page:
        yield Stage(page, size, dress)


def _page(file: Path, root: Path) -> str:
    """A package's page with what it would load from elsewhere taken from packages or left out."""
    html = localise(file.read_text("utf-8", "replace"), file, root)
    return re.sub(r"<meta[^>]+http-equiv=[\"']?refresh[^>]*>", "", html, flags=re.I)

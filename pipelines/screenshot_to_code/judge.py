"""Render code and compare it with the picture it was made from."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from watersmeet.core.errors import RenderError
from watersmeet.pipelines.browser.render import Browser, RenderedPage
from watersmeet.pipelines.score import PageFacts, Scores, facts_from_page, score_pages

PHONE_WIDTH, PHONE_HEIGHT = 390, 844


@dataclass(frozen=True, kw_only=True)
class Judged:
    """How one page of code came out: its render at the picture's size and its scores."""

    page: RenderedPage
    scores: Scores


class Judge:
    """Compares rendered pages with one reference, at the reference's size and at phone width."""

    def __init__(self, browser: Browser, reference: PageFacts, reference_390: PageFacts | None = None) -> None:
        self.browser = browser
        self.reference = reference
        self.reference_390 = reference_390

    def __call__(self, index: Path, *, narrow: bool = True) -> Judged:
        """Render the page file `index` and score it; `narrow=False` leaves the phone-width render out.

        Raises RenderError if the browser cannot show it.
        """
        width, height = self.reference.width, self.reference.height
        # scripts stay off: the code is judged by what it shows, and a server's answer is not trusted
        page = self.browser.open(index, width=width, height=height, javascript=False)
        phone = None
        if narrow:
            small = self.browser.open(index, width=PHONE_WIDTH, height=PHONE_HEIGHT, javascript=False)
            phone = facts_from_page(small)
        scores = score_pages(self.reference, facts_from_page(page), phone, self.reference_390)
        return Judged(page=page, scores=scores)


def write_files(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write a page's files below `folder`; names may have folders of their own."""
    for name, content in files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            target.write_bytes(content)
        else:
            target.write_text(content, encoding="utf-8")


def try_judge(judge: Judge | None, index: Path, *, narrow: bool = True) -> tuple[Judged | None, str]:
    """The judgement, or None and the reason why there is none."""
    if judge is None:
        return None, "no browser was found, so nothing was rendered"
    try:
        return judge(index, narrow=narrow), ""
    except RenderError as error:
        return None, str(error)


def browser_facts(judged: Judged | None) -> list[tuple[str, Any]]:
    """What the report says about the render."""
    if judged is None:
        return []
    rows: list[tuple[str, Any]] = [("Page notes", note) for note in judged.page.notes]
    rows += [("Blocked request", address) for address in judged.page.blocked]
    if judged.page.timed_out:
        rows.append(("Time limit", "the page was captured before it said it was ready"))
    return rows

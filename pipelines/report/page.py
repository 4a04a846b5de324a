"""`report.html`: one page that shows how close a result is, without network and without scripts of others."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import jinja2
import numpy as np
from PIL import Image

from watersmeet.core.geometry import Box


@dataclass(frozen=True, kw_only=True)
class ScoreRow:
    """One number of the report: `value` 0 to 1, or None where it cannot be known, with what it means."""

    name: str
    value: float | None
    meaning: str


@dataclass(frozen=True, kw_only=True)
class Unmatched:
    """A text line that stands on one side only; `side` is "input" or "result"."""

    side: str
    text: str
    box: Box


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything that the page shows. Picture names are files beside the report; None if there is no such picture."""

    title: str
    input_name: str
    render_name: str | None
    difference_name: str | None
    scores: Sequence[ScoreRow] = ()
    basis: str = ""
    unmatched: Sequence[Unmatched] = ()
    warnings: Sequence[str] = ()
    files: Sequence[str] = ()
    candidates: Sequence[tuple[str, float]] = ()
    chosen: str = ""
    facts: Sequence[tuple[str, str]] = field(default_factory=tuple)


def render_report(report: Report) -> str:
    """The page as HTML; every text in it is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template("report.html.j2").render(report=report)


def difference_map(picture: Image.Image, render: Image.Image) -> Image.Image:
    """Where the two differ: the picture in pale grey, differences in red by their size (mean absolute RGB difference).

    The render is placed on the picture's canvas; what only one of them covers counts as different.
    """
    canvas = Image.new("RGB", picture.size, (255, 0, 255))
    canvas.paste(render.convert("RGB"), (0, 0))
    a = np.asarray(picture.convert("RGB"), dtype=np.float32)
    b = np.asarray(canvas, dtype=np.float32)
    # square root: small differences of colour stay visible beside misplaced text
    strength = np.sqrt(np.abs(a - b).mean(axis=2, keepdims=True) / 255.0)
    grey = 255.0 - (255.0 - a.mean(axis=2, keepdims=True)) * 0.25
    red = np.array([214.0, 39.0, 40.0], dtype=np.float32)
    mixed = grey * (1 - strength) + red * strength
    return Image.fromarray(mixed.clip(0, 255).astype(np.uint8))

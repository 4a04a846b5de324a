"""The same job given to a large model, behind a server or loaded here: it writes the page itself, and the same checks
follow."""

import json
from dataclasses import dataclass

from PIL import Image

from watersmeet.core.errors import RemoteError
from watersmeet.core.geometry import Box
from watersmeet.pipelines.layout.regions import Regions
from watersmeet.pipelines.models.asked import AskedModel
from watersmeet.pipelines.models.remote import RemoteModel, code_block

PROMPT = """Write one self-contained HTML page that looks like this screenshot when it is shown in a window of \
{width} x {height} pixels.
Use semantic tags, flexbox and grid, and one <style> element; no absolute positioning, no scripts, nothing that is \
loaded from the network. Copy every text exactly. The page must also fit a window of 390 pixels without sideways \
scrolling. Answer with the HTML only."""

BLIND = """

The screenshot cannot be shown to you. This was read of it, boxes in pixels as left, top, right and bottom:
{read}"""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The page that a model wrote, and what was odd about it."""

    html: str
    warnings: tuple[str, ...]


def ask_for_page(model: RemoteModel | AskedModel, picture: Image.Image, regions: Regions) -> Answer:
    """Ask for the page; a model that sees no pictures is told what was read of this one.

    Raises RemoteError when the answer holds no HTML at all.
    """
    prompt = PROMPT.format(width=picture.width, height=picture.height)
    if isinstance(model, AskedModel) and not model.sees:
        read = {
            "texts": [_row(t.text, t.box) for t in regions.texts],
            "boxes": [_row("", s.box) for s in regions.shapes],
        }
        prompt += BLIND.format(read=json.dumps(read, ensure_ascii=False))
    text = model.ask(prompt, picture)
    html = code_block(text)
    lowered = html.lower()
    if "<" not in html or not any(
        tag in lowered for tag in ("<html", "<body", "<div", "<main", "<p", "<h1", "<section")
    ):
        start = " ".join(text.split())[:120]
        place = f" at {model.url}" if isinstance(model, RemoteModel) else ""
        raise RemoteError(f"the model {model.name!r}{place} answered without HTML; it begins {start!r}")
    warnings = []
    if "</html>" not in lowered and "<html" in lowered:
        warnings.append("the model's page ends without </html>; it may have been cut off")
    if "<script" in lowered:
        warnings.append("the model's page holds scripts; they were switched off while it was rendered and scored")
    return Answer(html=html if "<!doctype" in lowered else f"<!doctype html>\n{html}", warnings=tuple(warnings))


def _row(text: str, box: Box) -> list[object]:
    edges: list[object] = [round(edge) for edge in (box.x0, box.y0, box.x1, box.y1)]
    return [text, *edges] if text else edges

"""The same job given to a model behind a server: it writes the page itself, and the same checks follow."""

from dataclasses import dataclass

from PIL import Image

from watersmeet.core.errors import RemoteError
from watersmeet.pipelines.models.remote import RemoteModel, code_block

PROMPT = """Write one self-contained HTML page that looks like this screenshot when it is shown in a window of \
{width} x {height} pixels.
Use semantic tags, flexbox and grid, and one <style> element; no absolute positioning, no scripts, nothing that is \
loaded from the network. Copy every text exactly. The page must also fit a window of 390 pixels without sideways \
scrolling. Answer with the HTML only."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The page that a server wrote, and what was odd about it."""

    html: str
    warnings: tuple[str, ...]


def ask_for_page(model: RemoteModel, picture: Image.Image) -> Answer:
    """Ask for the page. Raises RemoteError when the answer holds no HTML at all."""
    text = model.ask(PROMPT.format(width=picture.width, height=picture.height), picture)
    html = code_block(text)
    lowered = html.lower()
    if "<" not in html or not any(
        tag in lowered for tag in ("<html", "<body", "<div", "<main", "<p", "<h1", "<section")
    ):
        start = " ".join(text.split())[:120]
        raise RemoteError(f"the model {model.name!r} at {model.url} answered without HTML; it begins {start!r}")
    warnings = []
    if "</html>" not in lowered and "<html" in lowered:
        warnings.append("the server's page ends without </html>; it may have been cut off")
    if "<script" in lowered:
        warnings.append("the server's page holds scripts; they were switched off while it was rendered and scored")
    return Answer(html=html if "<!doctype" in lowered else f"<!doctype html>\n{html}", warnings=tuple(warnings))

"""A sample as a picture for people: the view with boxes coloured by kind, and the markup beside it."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from watersmeet.pipelines.data.samples import DataError
from watersmeet.pipelines.layout.tree import CONTROLS, PICTURES, TEXTS, Node

COLORS = {
    "nav": "#8000ff", "header": "#8000ff", "footer": "#8000ff", "aside": "#8000ff", "main": "#b080ff", "section": "#b080ff", "form": "#ff00ff",
    "list": "#00a000", "table": "#006000", "tr": "#60c060", "card": "#ff8000", "group": "#a0a0a0",
}  # fmt: skip


def color_of(kind: str) -> str:
    """Outline colour of a kind: texts blue, links sky, headings red, controls pink, pictures brown."""
    if kind in COLORS:
        return COLORS[kind]
    if kind in ("h1", "h2", "h3", "h4"):
        return "#e00000"
    if kind == "link":
        return "#00a0e0"
    if kind in TEXTS:
        return "#0000e0"
    return "#e000a0" if kind in CONTROLS else "#906000" if kind in PICTURES else "#000000"


def find_sample(path: Path, which: str) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """(chunk folder, index entry, detail) of the sample with the id or running number `which`."""
    number = 0
    for index_file in sorted(path.glob("chunk-*/index.json")):
        entries = json.loads(index_file.read_text("utf-8"))["samples"]
        for k, entry in enumerate(entries):
            if which in (entry["id"], str(number + k)):
                with (index_file.parent / "detail.jsonl").open(encoding="utf-8") as lines:
                    for i, line in enumerate(lines):
                        if i == k:
                            return index_file.parent, entry, json.loads(line)
        number += len(entries)
    raise DataError(f"{path} has no sample {which!r}; it holds {number}, numbered from 0")


def picture_of(chunk: Path, entry: dict[str, Any]) -> Image.Image:
    """The sample's picture put together from its patches, at the scale at which the model sees it."""
    first, count = entry["patches"]
    rows, columns = entry["grid"]
    patches = np.load(chunk / "patches.npy", mmap_mode="r")[first : first + count]
    p = round((patches.shape[1] // 3) ** 0.5)
    pixels = (
        np.array(patches).reshape(rows, columns, p, p, 3).transpose(0, 2, 1, 3, 4).reshape(rows * p, columns * p, 3)
    )
    return Image.fromarray(pixels)


def _enlarged(chunk: Path, entry: dict[str, Any], width: int, height: int) -> Image.Image:
    """What the model sees, at the size of the view; the last row and column of patches stick out and are cut."""
    small = picture_of(chunk, entry)
    columns = entry["grid"][1]
    side = small.width // columns
    scale = next(s for s in (1.0, 0.5, 0.25, 0.125) if columns == -(-round(width * s) // side))
    return small.resize((round(small.width / scale), round(small.height / scale)), Image.Resampling.BICUBIC).crop(
        (0, 0, width, height)
    )


def _rendered(path: Path, chunk: str, name: str) -> Image.Image | None:
    """The view as it was rendered, where the first stage's files still lie beside the samples."""
    for archive_file in sorted(path.parent.glob(f"raw/*/{chunk}.zip")):
        with zipfile.ZipFile(archive_file) as archive:
            if f"{name}.png" in archive.namelist():
                return Image.open(io.BytesIO(archive.read(f"{name}.png"))).convert("RGB")
    return None


def pretty(markup: str) -> str:
    """Markup with one node a line, indented by depth."""
    out: list[str] = []
    depth = 0
    for symbol in markup.split():
        name = symbol[1:-1]
        if symbol == "</>":
            depth -= 1
        elif name[:1] in "tsxy" and name[1:].isdigit():
            out[-1] += symbol if out else ""
        else:
            out.append("  " * depth + symbol)
            depth += name not in TEXTS and name not in PICTURES
    return "\n".join(out)


def draw_sample(path: Path, which: str) -> tuple[Image.Image, str]:
    """(picture, description) of one sample: left the tree, right the regions, then the markup as text."""
    chunk, entry, detail = find_sample(path, which)
    width, height = detail["width"], detail["height"]
    base = _rendered(path, chunk.name, entry["id"]) or _enlarged(chunk, entry, width, height)
    left, right = base.copy(), base.copy()
    font = ImageFont.load_default(11)
    draw = ImageDraw.Draw(left)
    for node in Node.from_json(detail["tree"]).walk():
        b = node.box
        draw.rectangle((b.x0, b.y0, max(b.x0, b.x1 - 1), max(b.y0, b.y1 - 1)), outline=color_of(node.kind))
        if node.kind not in ("text", "link", "tr", "group", "page"):
            draw.text((b.x0 + 2, b.y0), node.kind, fill=color_of(node.kind), font=font)
    draw = ImageDraw.Draw(right)
    for prefix, items, tint in (
        ("s", detail["regions"]["shapes"], "#e06000"),
        ("t", detail["regions"]["texts"], "#0060e0"),
    ):
        for i, item in enumerate(items):
            b = item["box"]
            draw.rectangle((b["x0"], b["y0"], max(b["x0"], b["x1"] - 1), max(b["y0"], b["y1"] - 1)), outline=tint)
            draw.text((b["x0"] + 1, b["y0"] - 2), f"{prefix}{i}", fill=tint, font=font)
    written = pretty(detail["markup"])
    sheet = Image.new("RGB", (width * 2 + 10 + 420, max(height, 757)), "white")
    sheet.paste(left, (0, 0))
    sheet.paste(right, (width + 10, 0))
    pen = ImageDraw.Draw(sheet)
    lines = written.splitlines()
    per_column = max(1, sheet.height // 9)
    for k, line in enumerate(lines[: per_column * 2]):
        pen.text(
            (width * 2 + 14 + k // per_column * 210, k % per_column * 9),
            line[:38],
            fill="black",
            font=ImageFont.load_default(8),
        )
    texts = "\n".join(f"t{i}: {t['text']}" for i, t in enumerate(detail["regions"]["texts"]))
    about = f"{entry['id']} ({entry['package']}), {width}x{height}, {entry['texts']} texts, {entry['shapes']} shapes, {len(detail['markup'].split())} symbols"
    return sheet, f"{about}\n\n{written}\n\n{texts}"

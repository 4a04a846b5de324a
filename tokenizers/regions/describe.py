"""Regions of a picture as plain records: what was read and what was found, measured and in reading order."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from watersmeet.tokenizers.regions.glyphs import TextLook, measure_texts
from watersmeet.tokenizers.regions.order import reading_order
from watersmeet.tokenizers.regions.shapes import Shape, as_array, find_shapes

Box = tuple[float, float, float, float]


def _box(bounds: Sequence[float]) -> dict[str, float]:
    return {name: float(value) for name, value in zip(("x0", "y0", "x1", "y1"), bounds, strict=True)}


def text_record(box: Box, text: str, confidence: float, look: TextLook) -> dict[str, Any]:
    """The plain form of one text."""
    return {
        "box": _box(box),
        "text": text,
        "color": list(look.color),
        "background": list(look.background),
        "font_size": look.font_size,
        "weight": look.weight,
        "confidence": round(float(confidence), 3),
    }


def _shape_record(shape: Shape) -> dict[str, Any]:
    return {
        "box": _box(shape.bounds),
        "kind": shape.kind,
        "color": list(shape.color),
        "border_color": None if shape.border_color is None else list(shape.border_color),
        "border_width": shape.border_width,
        "radius": shape.radius,
    }


def arrange_nested(regions: Mapping[str, Any]) -> list[tuple[str, int, int, int]]:
    """Texts and shapes of `regions` together, in reading order, frames before their contents.

    Entries are (kind, index, depth, parent): kind "t" or "s", index into `texts` or `shapes`, number of frames around
    it, index of the closest one in `shapes` or -1.
    """
    shapes, texts = regions["shapes"], regions["texts"]
    boxes = [tuple(float(item["box"][k]) for k in ("x0", "y0", "x1", "y1")) for item in (*shapes, *texts)]
    frames = [shape["kind"] != "rule" for shape in shapes] + [False] * len(texts)
    return [
        ("s", i, depth, parent) if i < len(shapes) else ("t", i - len(shapes), depth, parent)
        for i, depth, parent in reading_order(boxes, frames)  # type: ignore[arg-type]
    ]


def sort_regions(regions: dict[str, Any]) -> dict[str, Any]:
    """The same regions with both lists in reading order."""
    order = arrange_nested(regions)
    return regions | {
        "texts": [regions["texts"][i] for kind, i, _, _ in order if kind == "t"],
        "shapes": [regions["shapes"][i] for kind, i, _, _ in order if kind == "s"],
    }


def describe(
    image: Image.Image | NDArray[np.uint8],
    texts: Sequence[tuple[Box, str]] | Sequence[tuple[Box, str, float]],
) -> dict[str, Any]:
    """Regions of `image` whose texts are known: `texts` holds (box, text) or (box, text, confidence), boxes in px.

    Returns the plain form of a `Regions` record (lists, numbers, strings only): width, height, background, texts with
    colours, size and weight, shapes; both lists in reading order. Texts that are blank or lie outside are left out.
    Deterministic.
    """
    array = as_array(image)
    height, width = array.shape[:2]
    kept: list[tuple[Box, str, float]] = []
    for item in texts:
        b, text = item[0], " ".join(item[1].split())
        box = (
            max(0.0, float(b[0])),
            max(0.0, float(b[1])),
            min(float(width), float(b[2])),
            min(float(height), float(b[3])),
        )
        if text and box[2] - box[0] >= 1 and box[3] - box[1] >= 1:
            kept.append((box, text, float(item[2]) if len(item) > 2 else 1.0))  # type: ignore[misc]
    shapes, background = find_shapes(array, [box for box, _, _ in kept])
    looks = measure_texts(array, [(box, text) for box, text, _ in kept])
    regions = {
        "width": int(width),
        "height": int(height),
        "background": list(background),
        "texts": [text_record(*item, look) for item, look in zip(kept, looks, strict=True)],
        "shapes": [_shape_record(shape) for shape in sorted(shapes, key=lambda s: (s.bounds, s.kind))],
    }
    return sort_regions(regions)

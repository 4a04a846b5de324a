"""Cut the pictures and icons of a tree out of the screenshot and let the tree use them."""

import hashlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from watersmeet.core.geometry import Box
from watersmeet.pipelines.layout.tree import Node
from watersmeet.plugins import get_registry

FOLDER = "images"
ICON = 64  # px: pictures up to this size on even paper become transparent around their ink
_INPAINT = 3.0  # px, radius of the Telea fill


def crop_pictures(tree: Node, image: Image.Image, folder: str | Path) -> Node:
    """`tree` whose `img` and `icon` nodes name a PNG file below `folder` (`src` is relative to it).

    Equal crops share a file. Text of the tree that stands over a picture is filled in from its surroundings, or it
    would be seen twice. Pictures outside the image keep `src` None.
    """
    return _Cropper(tree, np.asarray(image.convert("RGB")), Path(folder)).run(tree)


def _over(node: Node, inside_picture: bool = False) -> Iterator[tuple[Box, bool]]:
    """Boxes of everything that is painted besides pictures: (box, True) for bare text, (box, False) for filled boxes."""
    if node.kind not in ("img", "icon", "page") and (node.style.background is not None or node.style.border_width):
        yield node.box, False
    for line in node.lines:
        yield line.box, True
    for child in node.children:
        yield from _over(child)


class _Cropper:
    def __init__(self, tree: Node, array: NDArray[np.uint8], folder: Path) -> None:
        self.encoder: Any = get_registry().encoder("regions", {})
        self.array, self.folder = array, folder
        self.painted = list(_over(tree))
        self.names: dict[str, str] = {}
        self.count = {"img": 0, "icon": 0}

    def run(self, node: Node) -> Node:
        if node.kind in ("img", "icon") and (src := self._crop(node)) is not None:
            node = node.replace(src=src)
        return node.replace(children=tuple(self.run(child) for child in node.children))

    def _crop(self, node: Node) -> str | None:
        height, width = self.array.shape[:2]
        box = node.box.clipped(width, height)
        x0, y0, x1, y1 = round(box.x0), round(box.y0), round(box.x1), round(box.y1)
        if x1 - x0 < 1 or y1 - y0 < 1:
            return None
        pixels = self._without_text(node.box, x0, y0, x1, y1)
        alpha = None
        if max(x1 - x0, y1 - y0) <= ICON:
            pixels, alpha = self._cut_out(pixels, x0, y0, x1, y1)
        picture = Image.fromarray(pixels if alpha is None else np.dstack([pixels, alpha]))
        buffer = io.BytesIO()
        picture.save(buffer, "PNG", optimize=picture.width * picture.height < 40000)
        return self._store(node.kind, buffer.getvalue())

    def _store(self, kind: str, data: bytes) -> str:
        key = hashlib.sha256(data).hexdigest()
        if key not in self.names:
            self.count[kind] += 1
            name = f"{FOLDER}/{kind}-{self.count[kind]}.png"
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(".part")
            part.write_bytes(data)
            part.replace(path)
            self.names[key] = name
        return self.names[key]

    def _without_text(self, own: Box, x0: int, y0: int, x1: int, y1: int) -> NDArray[np.uint8]:
        """The crop with the tree's text over it, and what peeps out around its filled boxes, painted away."""
        crop = np.ascontiguousarray(self.array[y0:y1, x0:x1])
        mask = np.zeros(crop.shape[:2], np.uint8)
        for box, bare in self.painted:
            shared = box.intersection(own)
            # a panel that holds the picture is behind it, not over it
            if shared <= 0 or box.contains(own, 1.0) or shared < 0.5 * box.area:
                continue
            grow = 2 if bare else 1
            part = (
                slice(max(0, round(box.y0) - y0 - grow), max(0, round(box.y1) - y0 + grow)),
                slice(max(0, round(box.x0) - x0 - grow), max(0, round(box.x1) - x0 + grow)),
            )
            if bare:
                text = crop[part]
                if text.size:
                    ink = self.encoder.ink_of(np.ascontiguousarray(text))[3]
                    mask[part] |= cv2.dilate((ink > 0.15).astype(np.uint8), np.ones((5, 5), np.uint8))
            else:
                mask[part] = 1
        if not mask.any() or mask.all():
            return crop
        bgr = cv2.inpaint(np.ascontiguousarray(crop[..., ::-1]), mask, _INPAINT, cv2.INPAINT_TELEA)
        return np.ascontiguousarray(bgr[..., ::-1])

    def _cut_out(
        self, crop: NDArray[np.uint8], x0: int, y0: int, x1: int, y1: int
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint8] | None]:
        """(pixels, alpha) of an icon on even paper; alpha None where the paper is not even."""
        height, width = self.array.shape[:2]
        edge = self.array[max(0, y0 - 2) : min(height, y1 + 2), max(0, x0 - 2) : min(width, x1 + 2)]
        frame = np.ones(edge.shape[:2], bool)
        frame[2:-2, 2:-2] = False
        around = edge[frame]
        if not len(around):
            return crop, None
        values, counts = np.unique(around, axis=0, return_counts=True)
        paper = values[counts.argmax()].astype(np.int16)
        if float((np.abs(around.astype(np.int16) - paper).max(1) <= 2).mean()) < 0.75:
            return crop, None
        distance = np.abs(crop.astype(np.int16) - paper).max(-1)
        peak = int(distance.max())
        if peak < 12:
            return crop, None
        strong = crop[distance >= 0.85 * peak]
        ink = np.median(strong, axis=0)
        way = ink - paper
        share = np.clip((crop.astype(np.float32) - paper) @ way / float(way @ way), 0, 1)
        rebuilt = paper + share[..., None] * way
        if float(np.abs(rebuilt - crop).max(-1).mean()) <= 3.0:
            # one colour: the mixed pixels at its edges are that colour, partly transparent
            flat = np.empty_like(crop)
            flat[:] = ink.round().astype(np.uint8)
            return flat, (share * 255).round().astype(np.uint8)
        # several colours: take away the paper that reaches the edge
        same = np.pad((distance <= 2).astype(np.uint8), 1, constant_values=1)
        _, labels = cv2.connectedComponents(same, connectivity=4)
        outside = (labels == labels[0, 0])[1:-1, 1:-1] & (distance <= 2)
        return crop, np.where(outside, 0, 255).astype(np.uint8)

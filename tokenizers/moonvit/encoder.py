"""Pictures and clips to patches. Shapes: n tokens, F frames, p pixels on a side of a patch, R x C cells of an item.

A cell is 2 x 2 patches and becomes one token, so a picture of H x W pixels after padding gives H * W / 784 tokens.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from watersmeet.core.errors import DecodeError
from watersmeet.core.stream import Span, content_key
from watersmeet.tokenizers.image.decode import Limits, load_image
from watersmeet.tokenizers.moonvit.settings import MERGE, complete

VERSION = 1
"""Part of every key; raised when equal pixels and settings would give other patches than before."""

Source = str | os.PathLike[str] | bytes | Image.Image | np.ndarray

# those that change what the patches are; the sizes of the tower do not
_KEYED = (
    "patch", "frames", "patch_limit", "side_limit", "frame_patch_limit", "video_patch_limit", "background", "square",
    "light_first", "light", "dark", "fill",
)  # fmt: skip


class Encoder:
    """Encodes a picture (path, a file's bytes, Pillow image, uint8 array [H, W, 3] or [H, W]) or a clip (a list of them).

    settings: see `settings.ENCODER` and `settings.TOWER`; the attribute `settings` is the complete set. No files.
    """

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        self.settings = complete(settings or {})
        self.files: dict[str, bytes] = {}
        self.limits = Limits(max_pixels=self.settings["max_pixels"], max_bytes=self.settings["max_bytes"])

    @property
    def max_tokens(self) -> int | None:
        """Most tokens one picture can give, whatever its size; None where clips are read, which may have any length.

        R rows of cells take more than (2R - 2) p scaled pixels, and a picture has fewer than p pixels beside its whole
        patches, so that these alone, scaled, are more than (2R - 3) p + 1 pixels; the same holds for columns, and the two
        multiplied are at most `patch_limit` patches of p * p pixels. A single row or column is bound by `side_limit` only.
        """
        return None if self.settings["frames"] > 1 else math.prod(self._largest_grid())

    def _largest_grid(self) -> tuple[int, int]:
        """Rows and columns that no picture exceeds, the larger number first."""
        p, side = self.settings["patch"], self.settings["side_limit"] // MERGE
        area = self.settings["patch_limit"] * p * p

        def most(rows: int) -> int:
            # (2R - 3) p + 2 whole pixels in one direction leave so many for (2C - 3) p + 2 in the other
            left = area // ((MERGE * rows - 3) * p + 2) - 2 + 3 * p
            return max(1, min(side, left // (MERGE * p)))

        return max([(side, 1), *((most(rows), rows) for rows in range(2, side + 1))], key=math.prod)

    def largest(self) -> Image.Image:
        """The picture with most tokens that is found; with the default settings it has `max_tokens`."""
        p, side = self.settings["patch"], self.settings["side_limit"]
        rows, columns = self._largest_grid()
        # sides of which as little as possible counts as whole patches
        sizes = (
            (w * p + p - 1, h * p + p - 1)
            for w in range(max(1, MERGE * columns - MERGE), MERGE * side)
            for h in range(max(1, MERGE * rows - MERGE), MERGE * side)
        )
        best, most = (1, 1), 1
        for size in sizes:
            if math.prod(size) <= self.limits.max_pixels and (found := math.prod(self.grid(*size))) > most:
                best, most = size, found
                if most == rows * columns:
                    break
        return Image.new("RGB", best, (120, 90, 60))

    def scaled_size(self, width: int, height: int, limit: int | None = None) -> tuple[int, int]:
        """Size (w, h) in pixels at which a picture is read, before padding; never larger than it is."""
        p, side = self.settings["patch"], self.settings["side_limit"]
        limit = self.settings["patch_limit"] if limit is None else limit
        patches = max(1, width // p) * max(1, height // p)
        scale = min(1.0, math.sqrt(limit / patches), side * p / width, side * p / height)
        return min(max(1, int(width * scale)), side * p), min(max(1, int(height * scale)), side * p)

    def grid(self, width: int, height: int, limit: int | None = None) -> tuple[int, int]:
        """Rows and columns of cells, which are tokens, of a picture of this size in pixels."""
        w, h = self.scaled_size(width, height, limit)
        cell = MERGE * self.settings["patch"]
        return -(-h // cell), -(-w // cell)

    def encode(self, item: Source | Sequence[Source]) -> list[Span]:
        """One span for a picture; one for each group of up to `frames` consecutive frames of a clip.

        data    [n, F, 4, 3 * p * p] uint8: frames, the cell's patches row by row, and a patch's values as channel, row,
                column; F is the setting `frames`, and frames that an item has not are zero
        coords  [n, 5] int64: row and column of the cell, rows R and columns C of the item, its number of frames
        source  box (left, top, right, bottom) of each cell in pixels of the upright picture; in a clip with the first
                and last frame's index added

        Raises DecodeError for bad media, and for a clip where the setting `frames` is 1.
        """
        if not isinstance(item, Sequence) or isinstance(item, (str, bytes)):
            picture = self._open(item)
            return [self._span([self._pixels(picture, None)], picture.size, None, picture.tobytes())]
        most = self.settings["frames"]
        if most == 1:
            raise DecodeError(f"a clip of {len(item)} frames, but the moonvit setting frames is 1; set it to 4")
        if not item:
            raise DecodeError("a clip without frames, expected at least one")
        pictures = [self._open(frame) for frame in item]
        for index, picture in enumerate(pictures):
            if picture.size != pictures[0].size:
                raise DecodeError(f"frame {index} of the clip is {picture.size}, but frame 0 is {pictures[0].size}")
        limit = min(self.settings["frame_patch_limit"], round(self.settings["video_patch_limit"] / len(pictures)))
        spans = []
        for first in range(0, len(pictures), most):
            group = pictures[first : first + most]
            pixels = [self._pixels(picture, limit) for picture in group]
            content = b"".join(picture.tobytes() for picture in group)
            spans.append(self._span(pixels, group[0].size, (first, first + len(group) - 1), content, limit))
        return spans

    def _open(self, source: Source) -> Image.Image:
        """Upright picture of mode RGB or RGBA."""
        if isinstance(source, np.ndarray):
            if source.dtype != np.uint8 or source.ndim not in (2, 3) or 0 in source.shape:
                raise DecodeError(f"image array is {source.shape} {source.dtype}, expected uint8 [H, W, 3] or [H, W]")
            if source.ndim == 3 and source.shape[2] not in (3, 4):
                raise DecodeError(f"image array of shape {source.shape} is not [H, W, 3], [H, W, 4] or [H, W]")
            source = Image.fromarray(source)
        return load_image(source, self.limits, keep_alpha=True)[0]

    def _pixels(self, picture: Image.Image, limit: int | None) -> np.ndarray:
        """uint8 [2 R p, 2 C p, 3]: resized, without transparency, padded at the right and at the bottom with zero.

        Pillow's own bicubic filter is what the model was trained on: it widens when it shrinks (so nothing aliases)
        and rounds to whole values.
        """
        size = self.scaled_size(*picture.size, limit)
        if self.settings["fill"] == "before_resize":
            picture = self._opaque(picture)
        if size != picture.size:
            picture = picture.resize(size, Image.Resampling.BICUBIC)
        values = np.asarray(self._opaque(picture))
        cell = MERGE * self.settings["patch"]
        return np.pad(values, ((0, -values.shape[0] % cell), (0, -values.shape[1] % cell), (0, 0)))

    def _opaque(self, picture: Image.Image) -> Image.Image:
        """RGB; transparent pixels mixed with the background in float32 and cut, not rounded, to whole values."""
        kind = self.settings["background"]
        if picture.mode != "RGBA" or kind == "none":
            return picture.convert("RGB")
        values = np.asarray(picture)
        rows, columns = np.indices(values.shape[:2]) // self.settings["square"]
        dark_parity = 1 if self.settings["light_first"] else 0
        board = np.where((rows + columns) % 2 == dark_parity, self.settings["dark"], self.settings["light"])
        plain = {"white": 255, "black": 0, "gray": 128}
        under = board if kind == "chessboard" else np.full_like(board, plain[kind])
        alpha = values[..., 3:].astype(np.float32) / np.float32(255)
        mixed = alpha * values[..., :3] + (1 - alpha) * under[..., None].astype(np.float32)
        return Image.fromarray(mixed.astype(np.uint8))

    def _span(
        self,
        pixels: list[np.ndarray],
        size: tuple[int, int],
        frames: tuple[int, int] | None,
        content: bytes,
        limit: int | None = None,
    ) -> Span:
        p, most = self.settings["patch"], self.settings["frames"]
        cell = MERGE * p
        rows, columns = pixels[0].shape[0] // cell, pixels[0].shape[1] // cell
        n = rows * columns
        data = np.zeros((n, most, MERGE * MERGE, 3 * p * p), dtype=np.uint8)
        for index, values in enumerate(pixels):
            # row of cells, row in the cell, row of the patch; the same for columns; channel
            cells = values.reshape(rows, MERGE, p, columns, MERGE, p, 3).transpose(0, 3, 1, 4, 6, 2, 5)
            data[:, index] = cells.reshape(n, MERGE * MERGE, 3 * p * p)
        place = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).reshape(-1, 2)
        shape = torch.tensor([[rows, columns, len(pixels)]]).expand(n, 3)
        (width, height), (w, h) = size, self.scaled_size(*size, limit)
        x_edges = [min(width, round(column * cell * width / w)) for column in range(columns + 1)]
        y_edges = [min(height, round(row * cell * height / h)) for row in range(rows + 1)]
        source = tuple(
            (x_edges[column], y_edges[row], x_edges[column + 1], y_edges[row + 1], *(frames or ()))
            for row in range(rows)
            for column in range(columns)
        )
        chosen = {name: self.settings[name] for name in _KEYED}
        return Span(
            modality="moonvit",
            data=torch.from_numpy(data),
            coords=torch.cat([place, shape], dim=1),
            key=content_key("moonvit", VERSION, chosen, size, len(pixels), limit, content),
            source=source,
        )

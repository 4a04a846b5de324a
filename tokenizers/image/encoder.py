"""Picture to patches. Shapes: n patches, p pixels on a side of a patch, W x H pixels of the picture, w x h scaled."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image

from watersmeet.core.errors import ConfigError, DecodeError
from watersmeet.core.stream import Span, content_key
from watersmeet.tokenizers.image.decode import Limits, load_image
from watersmeet.tokenizers.image.grid import cut_patches, patch_boxes, scaled_size

VERSION = 1
"""Part of every key; raised when equal pixels and settings would give other patches than before."""

DEFAULTS: dict[str, Any] = {
    "scale": 0.5,
    "patch": 32,
    "max_patches": 4096,
    "max_rows": 512,
    "max_columns": 128,
    "channels": 32,
    "both_ways": False,
    "max_pixels": Limits.max_pixels,
    "max_bytes": Limits.max_bytes,
    "background": list(Limits.background),
}
"""Settings and their defaults.

scale        scaled pixels per pixel of the picture; lowered for one picture when it would give too many patches
patch        p, side of a patch in scaled pixels; a multiple of 8
max_patches  most patches of one picture
max_rows, max_columns  size of the position tables; positions beyond share the last entry
channels     width of the embedder's first convolution
both_ways    patches of one picture see each other both ways in full-attention layers
max_pixels, max_bytes, background  see `decode.Limits`
"""


def complete(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with defaults filled in. Raises ConfigError for an unknown name or a value out of range."""
    given = {name: value for name, value in settings.items() if name != "files"}
    if unknown := sorted(set(given) - set(DEFAULTS)):
        raise ConfigError(f"image settings have unknown name {unknown[0]!r}; names are {', '.join(DEFAULTS)}")
    full = DEFAULTS | given
    for name in ("patch", "max_patches", "max_rows", "max_columns", "channels", "max_pixels", "max_bytes"):
        if not isinstance(full[name], int) or full[name] < 1:
            raise ConfigError(f"image setting {name} is {full[name]!r}, expected an integer of at least 1")
    if full["patch"] % 8:
        raise ConfigError(f"image setting patch is {full['patch']}, expected a multiple of 8 (the embedder's stride)")
    if not isinstance(full["scale"], (int, float)) or not 0 < full["scale"] <= 4:
        raise ConfigError(f"image setting scale is {full['scale']!r}, expected a number above 0 and at most 4")
    full["background"] = [int(value) for value in full["background"]]
    return full


class Encoder:
    """Encodes a path, a file's bytes, a Pillow image, or a uint8 array [H, W, 3] or [H, W].

    settings: see `DEFAULTS`; the attribute `settings` is the complete set. There are no files.
    """

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        self.settings = complete(settings or {})
        self.files: dict[str, bytes] = {}
        self.limits = Limits(
            max_pixels=self.settings["max_pixels"],
            max_bytes=self.settings["max_bytes"],
            background=tuple(self.settings["background"]),
        )

    @property
    def max_tokens(self) -> int:
        """Most tokens one picture can give."""
        return int(self.settings["max_patches"])

    def open_image(
        self, source: str | os.PathLike[str] | bytes | Image.Image, limits: Limits | None = None
    ) -> tuple[Image.Image, list[str]]:
        """RGB picture and warnings, see `decode.load_image`; by default within this encoder's own limits."""
        return load_image(source, limits or self.limits)

    def scaled_size(self, width: int, height: int) -> tuple[int, int]:
        """Size (w, h) in scaled pixels at which a picture of this size is read."""
        chosen = self.settings
        return scaled_size(
            width, height, scale=float(chosen["scale"]), patch=chosen["patch"], most=chosen["max_patches"]
        )

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """Rows and columns of patches for a picture of this size in pixels."""
        w, h = self.scaled_size(width, height)
        return math.ceil(h / self.settings["patch"]), math.ceil(w / self.settings["patch"])

    def encode(self, item: str | os.PathLike[str] | bytes | Image.Image | np.ndarray) -> list[Span]:
        """One span, patches row by row.

        data [n, p * p * 3] uint8 (pixel rows from top to bottom, each pixel red, green, blue); patches that stick out
        repeat the last row or column. coords [n, 2] int64 (row, column) of the patch. source: box (left, top, right,
        bottom) of each patch in pixels of the upright picture. Raises DecodeError for bad media.
        """
        if isinstance(item, np.ndarray):
            if item.dtype != np.uint8 or item.ndim not in (2, 3) or 0 in item.shape:
                raise DecodeError(f"image array is {item.shape} {item.dtype}, expected uint8 [H, W, 3] or [H, W]")
            if item.ndim == 3 and item.shape[2] != 3:
                raise DecodeError(f"image array of shape {item.shape} is not [H, W, 3] or [H, W]")
            item = Image.fromarray(item)
        picture, _ = self.open_image(item)
        width, height = picture.size
        p, (w, h) = self.settings["patch"], self.scaled_size(width, height)
        rows, columns = math.ceil(h / p), math.ceil(w / p)
        key = content_key("image", VERSION, self.settings, width, height, picture.tobytes())
        if (w, h) != (width, height):
            # averaging keeps hairlines as paler lines, where sampling would drop some of them
            how = Image.Resampling.BOX if w <= width else Image.Resampling.BICUBIC
            picture = picture.resize((w, h), how)
        pixels_hwc = np.pad(np.asarray(picture), ((0, rows * p - h), (0, columns * p - w), (0, 0)), mode="edge")
        patches = cut_patches(pixels_hwc, p).reshape(rows * columns, p * p * 3)
        coords = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).reshape(-1, 2)
        block = torch.full((rows * columns,), 0 if self.settings["both_ways"] else -1, dtype=torch.int64)
        return [
            Span(
                modality="image",
                data=torch.from_numpy(np.ascontiguousarray(patches)),
                coords=coords,
                block=block,
                key=key,
                source=patch_boxes(width, height, w, h, p),
            )
        ]

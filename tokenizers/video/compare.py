"""Which patches of two pictures differ by more than a codec's noise.

Legend of shapes: h x w scaled pixels (multiples of p), R x C patches of p x p pixels, r x c tiles of 8 x 8 pixels.

A tile differs when a few of its pixels change much (a letter, a caret) or when its mean changes (a pale highlight, a
button that is hovered over). Codecs move single pixels by some steps and hardly move a mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

TILE = 8
KEY_FACTOR = 2.0
"""Key frames are coded anew as a whole, so everything moves a little; thresholds are higher between one and its neighbour."""


def tile_sums(values_hw3: np.ndarray) -> np.ndarray:
    """[r, c, 3] int32, the sums over the tiles of uint8 [h, w, 3]."""
    h, w, _ = values_hw3.shape
    rows = values_hw3.reshape(h // TILE, TILE, w * 3).sum(1, dtype=np.uint16)
    columns = rows.reshape(h // TILE, w // TILE, TILE, 3)
    total = columns[:, :, 0].astype(np.int32)
    for i in range(1, TILE):  # numpy sums a short middle axis four times slower than this
        np.add(total, columns[:, :, i], out=total)
    return total


def by_patch(tiles_rc: np.ndarray, patch: int) -> np.ndarray:
    """[R, C, tiles of a patch] from [r, c]."""
    k = patch // TILE
    rows, columns = tiles_rc.shape[0] // k, tiles_rc.shape[1] // k
    return tiles_rc.reshape(rows, k, columns, k).transpose(0, 2, 1, 3).reshape(rows, columns, k * k)


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A scaled frame with the sums of its tiles. pixels [h, w, 3] uint8, sums [r, c, 3] int32."""

    pixels: np.ndarray
    sums: np.ndarray

    @classmethod
    def of(cls, pixels: np.ndarray) -> Picture:
        """With its sums."""
        return cls(pixels=pixels, sums=tile_sums(pixels))

    def copy(self) -> Picture:
        """With memory of its own."""
        return Picture(pixels=self.pixels.copy(), sums=self.sums.copy())

    def take(self, other: Picture, patches_RC: np.ndarray, patch: int) -> None:
        """Make the patches that are True in [R, C] those of another picture."""
        mine, theirs = self._views(patch), other._views(patch)
        where = np.nonzero(patches_RC)
        for target, source in zip(mine, theirs, strict=True):
            target[where] = source[where]

    def _views(self, patch: int) -> tuple[np.ndarray, np.ndarray]:
        """[R, C, p, p, 3] and [R, C, k, k, 3], views."""
        views = []
        for values, side in ((self.pixels, patch), (self.sums, patch // TILE)):
            rows, columns = values.shape[0] // side, values.shape[1] // side
            views.append(values.reshape(rows, side, columns, side, 3).transpose(0, 2, 1, 3, 4))
        return views[0], views[1]

    def patches(self, patches_RC: np.ndarray, patch: int) -> np.ndarray:
        """[n, p, p, 3] uint8, a copy of the patches that are True, row by row."""
        return self._views(patch)[0][np.nonzero(patches_RC)]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """step, few: so many pixels of a tile that move by more than `step` (of 255, any colour). mean: or a mean that moves by
    more. patch: pixels on a side."""

    step: float
    few: int
    mean: float
    patch: int

    def differing(self, a: Picture, b: Picture, factor: float = 1.0) -> np.ndarray:
        """[R, C] bool: patches of which a tile differs. factor: on the thresholds of single values."""
        moved = cv2.absdiff(a.pixels, b.pixels)
        over = cv2.threshold(moved, self.step * factor, 1, cv2.THRESH_BINARY)[1]
        tiles = (tile_sums(over) >= self.few).any(2)
        tiles |= np.abs(a.sums - b.sums).max(2) > self.mean * factor * TILE * TILE
        return np.asarray(by_patch(tiles, self.patch).any(2))

    def distance(self, a: Picture, b: Picture) -> np.ndarray:
        """[R, C] int64: how far the means of the tiles lie apart, summed over a patch."""
        return by_patch(np.abs(a.sums - b.sums).max(2), self.patch).sum(2)

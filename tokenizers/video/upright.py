"""A decoded frame to upright RGB with square pixels."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

_BT709, _UNKNOWN, _BT601, _BT2020 = 1, 2, 5, 9
_FULL = 2
_HDR = {16: "PQ", 18: "HLG"}
_LARGEST_ASPECT = 16


def square_size(width: int, height: int, aspect: Fraction | None) -> tuple[int, int]:
    """Size with square pixels: the short side of a pixel is stretched, so that nothing is lost. Absurd ratios count as 1."""
    if not aspect or not Fraction(1, _LARGEST_ASPECT) <= aspect <= _LARGEST_ASPECT:
        return width, height
    return (round(width * aspect), height) if aspect >= 1 else (width, round(height / aspect))


def turned(pixels: np.ndarray, matrix: np.ndarray | None) -> np.ndarray:
    """[H, W, 3] as the display matrix (int32 [3, 3], 16.16 fixed point) wants it shown; only right angles and mirrors.

    A point (x, y) goes to (a x + c y, b x + d y) with a, b in the first row and c, d in the second
    (ISO/IEC 14496-12, 6.2.2).
    """
    if matrix is None:
        return pixels
    (a, b), (c, d) = matrix[:2, :2].tolist()
    if abs(a) + abs(d) < abs(b) + abs(c):
        pixels = pixels.transpose(1, 0, 2)
        mirror, upside_down = c < 0, b < 0
    else:
        mirror, upside_down = a < 0, d < 0
    return pixels[:: -1 if upside_down else 1, :: -1 if mirror else 1]


def halved(pixels: np.ndarray) -> np.ndarray:
    """[max(1, H // 2), max(1, W // 2), 3] of [H, W, 3] uint8: means of the pixels."""
    import cv2

    height, width = pixels.shape[:2]
    return cv2.resize(pixels, (max(1, width // 2), max(1, height // 2)), interpolation=cv2.INTER_AREA)


def display_matrix(frame: Any) -> np.ndarray | None:
    """The matrix in a frame's side data, int32 [3, 3], or None."""
    from av.sidedata.sidedata import Type

    data = frame.side_data.get(Type.DISPLAYMATRIX)
    raw = b"" if data is None else bytes(data)
    return np.frombuffer(raw, dtype=np.int32).reshape(3, 3) if len(raw) == 36 else None


def is_askew(matrix: np.ndarray | None) -> bool:
    """Whether a matrix turns by something that is not near a multiple of 90 degrees."""
    if matrix is None:
        return False
    (a, b), (c, d) = np.abs(matrix[:2, :2].astype(np.int64)).tolist()
    return min(a + d, b + c) > 0.1 * max(a + d, b + c)


def is_sideways(matrix: np.ndarray | None) -> bool:
    """Whether width and height change places."""
    return matrix is not None and turned(np.zeros((1, 2, 3), np.uint8), matrix).shape[0] == 2


def hdr_kind(frame: Any) -> str | None:
    """The name of a transfer function whose brightness does not fit into RGB, or None."""
    return _HDR.get(int(frame.color_trc or 0))


class Converter:
    """Reuses the scaler's tables from frame to frame."""

    def __init__(self) -> None:
        from av.video.reformatter import Interpolation, VideoReformatter

        self._reformatter = VideoReformatter()
        # of equal size this is the scaler's short path, twenty times faster than exact interpolation of the colours, which
        # are coarser than the brightness in nearly every file anyway
        self._same, self._other = Interpolation.BILINEAR, Interpolation.BICUBIC

    def rgb(self, frame: Any, size: tuple[int, int]) -> np.ndarray:
        """[h, w, 3] uint8 of `size` (w, h), not yet turned; rows may be padded in memory.

        Colours follow the frame's matrix and range. Where it does not say its matrix, large frames are BT.709 and small
        ones BT.601, as players take them.
        """
        matrix = int(frame.colorspace)
        if matrix not in (_BT709, _BT601, 4, 6, 7, _BT2020, 10):
            matrix = _BT709 if frame.width >= 1280 or frame.height > 576 else _BT601
        full = int(frame.color_range) == _FULL or frame.format.name.startswith("yuvj")
        made = self._reformatter.reformat(
            frame,
            width=size[0],
            height=size[1],
            format="rgb24",
            interpolation=self._same if size == (frame.width, frame.height) else self._other,
            src_colorspace=_BT2020 if matrix == 10 else _BT601 if matrix == 6 else matrix,
            dst_colorspace=_BT709,
            src_color_range=2 if full else 1,
            dst_color_range=2,
        )
        plane: Any = made.planes[0]
        rows = np.frombuffer(plane, dtype=np.uint8).reshape(-1, plane.line_size)
        return rows[: size[1], : size[0] * 3].reshape(size[1], size[0], 3)

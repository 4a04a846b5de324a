"""MXFP4 as defined: a 4-bit float (E2M1) times a power of two (E8M0) that 32 consecutive columns share.

Sources: OCP Microscaling Formats (MX) specification 1.0; the compressed-tensors layout of the Kimi K3 release. float64
throughout, value by value.

Legend of shapes: N columns.
"""

import math

import torch
from torch import Tensor

GRID = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitudes of the codes 0..7; bit 3 is the sign."""

BLOCK = 32
BIAS = 127


def mxfp4_decode_reference(packed: Tensor, scale: Tensor, *, dtype: torch.dtype) -> Tensor:
    values = []
    for byte in packed.reshape(-1).tolist():
        for code in (byte & 15, byte >> 4):  # the even column is the low half
            values.append(math.copysign(GRID[code & 7], -1.0 if code & 8 else 1.0))
    factors = [math.nan if byte == 255 else 2.0 ** (byte - BIAS) for byte in scale.reshape(-1).tolist()]
    out = (
        torch.tensor(values, dtype=torch.float64).view(-1, BLOCK) * torch.tensor(factors, dtype=torch.float64)[:, None]
    )
    return out.view(*packed.shape[:-1], 2 * packed.shape[-1]).to(dtype)


def mxfp4_encode_reference(weight: Tensor, *, rule: str) -> tuple[Tensor, Tensor]:
    blocks = weight.double().reshape(-1, BLOCK).tolist()
    packed, scale = [], []
    for block in blocks:
        byte = _scale(block, rule)
        scale.append(byte)
        codes = [0 if byte == 255 else _code(value / 2.0 ** (byte - BIAS)) for value in block]
        packed += [low | high << 4 for low, high in zip(codes[::2], codes[1::2], strict=True)]
    shape = weight.shape[:-1]
    return (
        torch.tensor(packed, dtype=torch.uint8).view(*shape, -1),
        torch.tensor(scale, dtype=torch.uint8).view(*shape, -1),
    )


def _scale(block: list[float], rule: str) -> int:
    if not all(map(math.isfinite, block)):
        return 255
    largest = max(map(abs, block))
    if largest == 0.0:
        return BIAS
    exponent = math.frexp(largest)[1] - 1
    if rule == "packer" and largest >= 1.75 * 2.0**exponent:
        exponent += 1
    return min(max(exponent - 2 + BIAS, 0), 254)


def _code(value: float) -> int:
    """Nearest magnitude, of two equally near ones the even code; what is beyond 6 becomes 6."""
    nearest = min(range(8), key=lambda code: (abs(GRID[code] - abs(value)), code % 2))
    return nearest | (8 if math.copysign(1.0, value) < 0 else 0)

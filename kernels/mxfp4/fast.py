"""MXFP4 by table and by comparisons, whole tensors at a time.

Legend of shapes: N columns, G = N / 32 blocks.
"""

from functools import cache

import torch
from torch import Tensor

from .reference import BIAS, BLOCK, GRID

MIDDLES = ((0.25, False), (0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True), (5.0, False))
"""Between neighbouring magnitudes, and whether a value exactly there goes up (to the even code)."""


@cache
def _pairs(device: torch.device) -> Tensor:
    """[256, 2] float32: the two values of every byte, even column first."""
    signed = torch.tensor([*GRID, *(-x for x in GRID)])
    byte = torch.arange(256)
    return torch.stack([signed[byte & 15], signed[byte >> 4]], dim=-1).to(device)


def scale_factors(scale: Tensor) -> Tensor:
    """2^(byte - 127) as float32, exact: byte 0 is a subnormal number, byte 255 is not a number."""
    bits = scale.to(torch.int32) << 23
    bits = torch.where(scale == 0, 1 << 22, bits)
    return torch.where(scale == 255, 0x7FC00000, bits).view(torch.float32)


def mxfp4_decode_fast(packed: Tensor, scale: Tensor, *, dtype: torch.dtype) -> Tensor:
    values = _pairs(packed.device).index_select(0, packed.reshape(-1).to(torch.int32)).view(-1, BLOCK)
    values.mul_(scale_factors(scale).view(-1, 1))
    return values.view(*packed.shape[:-1], 2 * packed.shape[-1]).to(dtype)


def mxfp4_encode_fast(weight: Tensor, *, rule: str) -> tuple[Tensor, Tensor]:
    blocks = weight.double().reshape(-1, BLOCK)
    largest = blocks.abs().amax(-1)
    mantissa, exponent = torch.frexp(largest)
    exponent = exponent - 1
    if rule == "packer":
        exponent = exponent + (mantissa >= 0.875).to(exponent.dtype)
    byte = (exponent - 2 + BIAS).clamp(0, 254)
    byte = torch.where(largest == 0, BIAS, byte)
    # a scale is shared, so one value that is no number makes the block so
    finite = blocks.isfinite().all(-1)
    scale = torch.where(finite, byte, 255).to(torch.uint8)
    scaled = blocks * torch.exp2((BIAS - byte).double())[:, None]
    magnitude = scaled.abs()
    code = torch.zeros_like(magnitude, dtype=torch.uint8)
    for middle, up in MIDDLES:
        code += magnitude >= middle if up else magnitude > middle
    code |= scaled.signbit().to(torch.uint8) << 3
    code.masked_fill_(~finite[:, None], 0)
    packed = code[:, ::2] | code[:, 1::2] << 4
    shape = weight.shape[:-1]
    return packed.reshape(*shape, -1), scale.view(*shape, -1)

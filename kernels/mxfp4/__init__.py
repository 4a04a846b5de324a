"""MXFP4: weights of four bits, 32 columns to a scale."""

import torch
from torch import Tensor

from ..dispatch import form
from .fast import mxfp4_decode_fast, mxfp4_encode_fast
from .reference import BLOCK, mxfp4_decode_reference, mxfp4_encode_reference

__all__ = ["mxfp4_decode", "mxfp4_encode"]

RULES = ("packer", "floor")


def mxfp4_decode(packed: Tensor, scale: Tensor, *, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Weights from codes and scales. Exact in float32 and bfloat16.

    Args:
        packed: uint8 [..., N/2], two codes a byte, the even column in the low half. Code: sign bit 3, then one of
            0, 0.5, 1, 1.5, 2, 3, 4, 6. scale: uint8 [..., N/32]; byte b stands for 2^(b - 127), 255 for NaN.
        dtype: of the result.

    Returns:
        [..., N].

    Raises:
        ValueError: the two do not belong together.
    """
    if packed.dtype != torch.uint8 or scale.dtype != torch.uint8:
        raise ValueError(f"mxfp4_decode got {packed.dtype} and {scale.dtype}; codes and scales are uint8")
    if packed.shape[:-1] != scale.shape[:-1] or 2 * packed.shape[-1] != BLOCK * scale.shape[-1]:
        raise ValueError(
            f"mxfp4_decode got codes {list(packed.shape)} and scales {list(scale.shape)}; expected [..., N/2] and "
            f"[..., N/{BLOCK}]"
        )
    if form("mxfp4_decode", packed, triton=False) == "reference":
        return mxfp4_decode_reference(packed, scale, dtype=dtype)
    return mxfp4_decode_fast(packed, scale, dtype=dtype)


def mxfp4_encode(weight: Tensor, *, rule: str = "packer") -> tuple[Tensor, Tensor]:
    """Codes and scales of weights [..., N], N a multiple of 32; rounding to nearest, ties to the even code.

    Args:
        weight: any floating dtype. A block that holds NaN or an infinity becomes NaN as a whole.
        rule: how the scale follows from the largest magnitude m of a block. "floor": 2^(floor(log2 m) - 2), which cuts
            off everything above 6 (MX specification). "packer": one exponent more when m >= 1.75 * 2^floor(log2 m), as
            the packer of the released format does. Weights that were decoded from MXFP4 come back exactly with both.

    Returns:
        packed uint8 [..., N/2], scale uint8 [..., N/32].

    Raises:
        ValueError: unknown rule, or N is no multiple of 32.
    """
    if rule not in RULES:
        raise ValueError(f"mxfp4_encode got rule {rule!r}; rules are {', '.join(RULES)}")
    if weight.shape[-1] % BLOCK:
        raise ValueError(f"mxfp4_encode got {weight.shape[-1]} columns; expected a multiple of {BLOCK}")
    if form("mxfp4_encode", weight, triton=False) == "reference":
        return mxfp4_encode_reference(weight, rule=rule)
    return mxfp4_encode_fast(weight, rule=rule)

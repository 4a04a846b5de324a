"""The definition of the short convolution. Legend: B batch, T tokens, C channels, W taps, N sequences."""

import torch
import torch.nn.functional as F
from torch import Tensor


def short_conv_reference(
    x_BTC: Tensor,
    weight_CW: Tensor,
    *,
    cu_seqlens: list[int] | None = None,
    initial_state_NCW: Tensor | None = None,
    activation: bool = True,
) -> tuple[Tensor, Tensor]:
    """y [B,T,C] and the last W-1 raw inputs [N,C,W-1] of every sequence; tap W-1 multiplies the current token."""
    C, W = weight_CW.shape
    dtype = torch.promote_types(torch.float32, x_BTC.dtype)
    x = x_BTC.to(dtype).transpose(1, 2)
    if cu_seqlens is None:
        sequences = [x]
    else:
        sequences = [x[..., a:b] for a, b in zip(cu_seqlens[:-1], cu_seqlens[1:], strict=True)]
    outputs, finals = [], []
    for index, part in enumerate(sequences):
        if initial_state_NCW is None:
            window = part.new_zeros(part.shape[0], C, W - 1)
        elif cu_seqlens is None:
            window = initial_state_NCW.to(dtype)
        else:
            window = initial_state_NCW[index : index + 1].to(dtype)
        seen = torch.cat([window, part], -1)
        outputs.append(F.conv1d(seen, weight_CW.to(dtype)[:, None], groups=C) if part.shape[-1] else part)
        finals.append(seen[..., seen.shape[-1] - (W - 1) :])
    y = torch.cat(outputs, -1).transpose(1, 2)
    if activation:
        y = F.silu(y)
    return y.to(x_BTC.dtype), torch.cat(finals, 0).to(x_BTC.dtype)

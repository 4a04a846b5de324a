"""The short convolution as W shifted multiply-adds. Legend: B batch, T tokens, C channels, W taps, N sequences."""

import torch
import torch.nn.functional as F
from torch import Tensor


def short_conv_fast(
    x: Tensor,
    weight: Tensor,
    cu_seqlens: Tensor | None,
    initial_state: Tensor | None,
    output_final_state: bool,
    activation: bool,
) -> tuple[Tensor, Tensor | None]:
    """Arguments and results as in ``watersmeet.kernels.short_conv``."""
    B, T, C = x.shape
    W = weight.shape[1]
    dtype = torch.promote_types(torch.float32, x.dtype)
    w = weight.to(dtype)
    xf = x.to(dtype)
    age_T = None  # tokens of the same sequence before this one
    if cu_seqlens is not None:
        bounds = cu_seqlens.to(x.device, torch.int64)
        begin = torch.repeat_interleave(bounds[:-1], bounds.diff(), output_size=T)
        age_T = torch.arange(T, device=x.device) - begin
    y = xf * w[:, -1]
    for shift in range(1, min(W, T)):
        past = F.pad(xf[:, : T - shift], (0, 0, shift, 0))
        if age_T is not None:
            past = past * (age_T >= shift)[:, None]
        y = y + past * w[:, W - 1 - shift]
    final = None
    if initial_state is not None or output_final_state:
        N = B if cu_seqlens is None else cu_seqlens.numel() - 1
        state = x.new_zeros(N, C, W - 1, dtype=dtype) if initial_state is None else initial_state.to(dtype)
        if cu_seqlens is None:
            starts, stops = [0], [T]
        else:
            starts, stops = cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist()
        finals, heads, places = [], [], []
        for n, (a, b) in enumerate(zip(starts, stops, strict=True)):
            own = slice(n, n + 1) if cu_seqlens is not None else slice(None)
            tail = xf[:, max(a, b - W + 1) : b].transpose(1, 2)
            finals.append(torch.cat([state[own], tail], -1)[..., tail.shape[-1] :])
            m = min(W - 1, b - a)
            if initial_state is not None and m:
                seen = F.pad(state[own], (0, m))
                heads.append(F.conv1d(seen, w[:, None], groups=C).transpose(1, 2))
                places.append(torch.arange(a, a + m))
        if heads:  # what the window before the first token adds to the first W-1 tokens
            y = y.index_add(1, torch.cat(places).to(x.device), torch.cat(heads, 1))
        final = torch.cat(finals, 0).to(x.dtype)
    if activation:
        y = F.silu(y)
    return y.to(x.dtype), final if output_final_state else None

"""The pointwise ends of a KDA layer: everything between the projections and the recurrence, and the gated output norm.

Legend of shapes: T tokens, H heads, K head width, C = H * K channels, W taps, P columns of the joint projection.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..conv import short_conv
from ..kda import kda_gate
from .build import full, half, library, pointer, real, size, threads

L2_EPS = 1e-6


def _l2_norm(x: Tensor) -> Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + L2_EPS)).to(x.dtype)


def kda_front_torch(
    proj_TP: Tensor,
    z_TC: Tensor,
    filters_CW: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    cu_seqlens: Tensor,
    *,
    lower_bound: float | None,
    window: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The definition; see `kda_front`."""
    heads, channels = A_log.shape[0], z_TC.shape[1]
    mixed, last = short_conv(
        proj_TP[None, :, : 3 * channels], filters_CW, cu_seqlens=cu_seqlens, initial_state=window,
        output_final_state=window is not None,
    )  # fmt: skip
    if window is not None and last is not None:
        window.copy_(last)
    q, k, v = mixed[0].unflatten(-1, (3, heads, -1)).unbind(-3)
    g = kda_gate(z_TC.unflatten(-1, (heads, -1)), A_log, dt_bias, lower_bound=lower_bound)
    beta = torch.sigmoid(proj_TP[:, 3 * channels : 3 * channels + heads].to(g.dtype))
    return _l2_norm(q), _l2_norm(k), v, g, beta


class _Front(torch.autograd.Function):
    @staticmethod
    def forward(ctx, proj, z, filters, A_log, dt_bias, cu_seqlens, place, bound, window):  # type: ignore[no-untyped-def,override]
        lib = library(proj, z)
        assert lib is not None
        proj, z = proj.contiguous(), z.contiguous()
        rows, columns = proj.shape
        heads, channels, taps = A_log.shape[0], z.shape[1], filters.shape[1]
        by_tap, dt = full(filters.t()), full(dt_bias).view(-1)
        # a finite rate: infinity times a gate of zero would be no number
        rate = full(A_log).exp().clamp(max=torch.finfo(torch.float32).max).view(-1)
        qkv = proj.new_empty(3, rows, heads, channels // heads)
        g = torch.empty(rows, heads, channels // heads)
        beta = torch.empty(rows, heads)
        shape = (size(rows), heads, channels // heads, taps, real(L2_EPS), threads(rows))
        lib.kda_front_forward(
            half(proj), pointer(proj), size(columns), pointer(by_tap), pointer(place), pointer(cu_seqlens),
            len(cu_seqlens) - 1, pointer(window), pointer(z), pointer(rate), pointer(dt), real(bound), pointer(qkv), pointer(g), pointer(beta), *shape,
        )  # fmt: skip
        ctx.save_for_backward(proj, z, by_tap, rate, dt, place, filters, A_log, dt_bias)
        ctx.bound = bound
        return (*qkv.unbind(0), g, beta)

    @staticmethod
    @once_differentiable
    def backward(ctx, d_q, d_k, d_v, d_g, d_beta):  # type: ignore[no-untyped-def,override]
        proj, z, by_tap, rate, dt, place, filters, A_log, dt_bias = ctx.saved_tensors
        lib = library(proj)
        assert lib is not None
        rows, columns = proj.shape
        heads, channels, taps = A_log.shape[0], z.shape[1], filters.shape[1]
        d_q, d_k, d_v = (d.to(proj.dtype).contiguous() for d in (d_q, d_k, d_v))
        d_g, d_beta = d_g.float().contiguous(), d_beta.float().contiguous()
        d_proj = proj.new_empty(rows, columns)
        d_proj[:, 3 * channels + heads :] = 0
        d_z = torch.empty_like(z)
        sums = torch.empty(3 * channels * taps + heads + channels)
        slope = torch.empty(rows, 3 * channels)
        shape = (size(rows), heads, channels // heads, taps, real(L2_EPS), threads(rows))
        lib.kda_front_backward(
            half(proj), pointer(proj), size(columns), pointer(by_tap), pointer(place), pointer(z), pointer(rate),
            pointer(dt), real(ctx.bound), pointer(d_q), pointer(d_k), pointer(d_v), pointer(d_g), pointer(d_beta),
            pointer(d_proj), pointer(d_z), pointer(sums), pointer(slope), *shape,
        )  # fmt: skip
        d_filters, d_rate, d_dt = sums.split([3 * channels * taps, heads, channels])
        return (
            d_proj,
            d_z,
            d_filters.view(taps, -1).t().to(filters.dtype),
            (d_rate * rate).view(A_log.shape).to(A_log.dtype),
            d_dt.view(dt_bias.shape).to(dt_bias.dtype),
            None,
            None,
            None,
            None,
        )


def kda_front(
    proj_TP: Tensor,
    z_TC: Tensor,
    filters_CW: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    cu_seqlens: Tensor,
    place_T: Tensor,
    *,
    lower_bound: float | None,
    window: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """What the KDA recurrence reads.

    Args:
        proj_TP: columns q | k | v (C each), then beta's logits (H), then anything.
        z_TC: logits of the decay. filters_CW: [3C, W], the last tap meets the current token. A_log [H], dt_bias [C].
        cu_seqlens: [N+1] int32. place_T: [T] int32, index of every token in its stream.
        lower_bound: of the log decay; None for the softplus gate.
        window: [N,3C,W-1] raw inputs before the first tokens, oldest first, contiguous, in the dtype of ``proj_TP``; moved
            forward **in place**, without a gradient. None: streams start without a past.

    Returns:
        q, k (unit length per head) and v [T,H,K] in the dtype of ``proj_TP``; g [T,H,K] and beta [T,H] float32.
    """
    learning = torch.is_grad_enabled() and any(t.requires_grad for t in (proj_TP, z_TC, filters_CW, A_log, dt_bias))
    fits = cu_seqlens.dtype == torch.int32 and cu_seqlens.is_contiguous() and not (learning and window is not None)
    if not fits or library(proj_TP, z_TC, window) is None:
        return kda_front_torch(
            proj_TP, z_TC, filters_CW, A_log, dt_bias, cu_seqlens, lower_bound=lower_bound, window=window
        )  # fmt: skip
    assert window is None or window.is_contiguous()
    bound = 0.0 if lower_bound is None else lower_bound
    return _Front.apply(proj_TP, z_TC, filters_CW, A_log, dt_bias, cu_seqlens, place_T, bound, window)  # type: ignore[no-any-return]


def gated_norm_torch(o: Tensor, gate: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """The definition; see `gated_norm`."""
    wide = o.to(torch.promote_types(o.dtype, torch.float32))
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * weight.to(wide.dtype) * torch.sigmoid(gate.to(wide.dtype))).to(gate.dtype)


class _GatedNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, o, gate, weight, eps):  # type: ignore[no-untyped-def,override]
        lib = library(o, gate)
        assert lib is not None
        o, gate, w = o.contiguous(), gate.contiguous(), full(weight)
        y = torch.empty_like(gate)
        vectors, width = o.numel() // o.shape[-1], o.shape[-1]
        lib.gated_norm_forward(
            half(o),
            pointer(o),
            pointer(gate),
            pointer(w),
            pointer(y),
            size(vectors),
            width,
            real(eps),
            threads(vectors),
        )
        ctx.save_for_backward(o, gate, w, weight)
        ctx.eps = eps
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, d_y):  # type: ignore[no-untyped-def,override]
        o, gate, w, weight = ctx.saved_tensors
        lib = library(o)
        assert lib is not None
        d_y = d_y.contiguous()
        d_o, d_gate, d_w = torch.empty_like(o), torch.empty_like(gate), torch.empty_like(w)
        vectors, width = o.numel() // o.shape[-1], o.shape[-1]
        lib.gated_norm_backward_(
            half(o), pointer(o), pointer(gate), pointer(w), pointer(d_y), pointer(d_o), pointer(d_gate), pointer(d_w),
            size(vectors), width, real(ctx.eps), threads(vectors),
        )  # fmt: skip
        return d_o, d_gate, d_w.to(weight.dtype), None


def gated_norm(o: Tensor, gate: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """``RMSNorm(o; weight) * sigmoid(gate)`` per head; o, gate [..., K], weight [K]; float32 inside, gate's dtype out."""
    if library(o, gate) is None:
        return gated_norm_torch(o, gate, weight, eps=eps)
    return _GatedNorm.apply(o, gate, weight, eps)  # type: ignore[no-any-return]

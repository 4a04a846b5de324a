"""Gated activations with their own backward, and the feed-forward of the experts that have rows, in torch.

Legend: M rows, E experts, L width of a row, I inner width.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..mxfp4.fast import mxfp4_decode_fast

Three = tuple[Tensor, Tensor, Tensor]


def glu_value(gate: Tensor, up: Tensor, beta: float | None, linear_beta: float | None) -> Tensor:
    """SiTU-GLU, or SwiGLU where beta is None; float32 inside, gate's dtype outside."""
    dtype = torch.promote_types(torch.float32, gate.dtype)
    g, u = gate.to(dtype), up.to(dtype)
    if beta is None:
        return (torch.nn.functional.silu(g) * u).to(gate.dtype)
    left = torch.tanh(g / beta).mul_(torch.sigmoid(g)).mul_(beta)
    right = u if linear_beta is None else torch.tanh(u / linear_beta).mul_(linear_beta)
    return left.mul_(right).to(gate.dtype)


def glu_grads(dy: Tensor, gate: Tensor, up: Tensor, beta: float | None, linear_beta: float | None) -> Three:
    """Gradients of gate and up, and the value again."""
    dtype = torch.promote_types(torch.float32, gate.dtype)
    g, u, dy = gate.to(dtype), up.to(dtype), dy.to(dtype)
    s = torch.sigmoid(g)
    if beta is None:
        left, right, slope_up = g * s, u, None
        slope = s * (1 + g * (1 - s))
    else:
        t = torch.tanh(g / beta)
        left, slope = beta * t * s, s * ((1 - t * t) + beta * t * (1 - s))
        if linear_beta is None:
            right, slope_up = u, None
        else:
            t_up = torch.tanh(u / linear_beta)
            right, slope_up = linear_beta * t_up, 1 - t_up * t_up
    dgate, dup = dy * right * slope, dy * left
    if slope_up is not None:
        dup *= slope_up
    return dgate.to(gate.dtype), dup.to(up.dtype), (left * right).to(gate.dtype)


class SituGLU(torch.autograd.Function):
    """Keeps the two inputs only; everything else is computed again in the backward, in float32."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, beta: float, linear_beta: float | None) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(gate, up)
        ctx.betas = beta, linear_beta
        return glu_value(gate, up, beta, linear_beta)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        return *glu_grads(dy, *ctx.saved_tensors, *ctx.betas)[:2], None, None


def _groups(offsets: Tensor) -> Iterator[tuple[int, int, int]]:
    """(expert, first row, end) of the experts that have rows."""
    bounds = offsets.tolist()
    return ((e, a, b) for e, (a, b) in enumerate(zip(bounds[:-1], bounds[1:], strict=True)) if b > a)


def _matrix(weights: Three, scales: Three | None, which: int, e: int, dtype: torch.dtype) -> Tensor:
    """One expert's matrix in ``dtype``, decoded if it is packed."""
    if scales is None:
        return weights[which][e].to(dtype)
    return mxfp4_decode_fast(weights[which][e], scales[which][e], dtype=dtype)


def glu_forward(
    x: Tensor,
    offsets: Tensor,
    weights: Three,
    scales: Three | None,
    beta: float | None,
    linear_beta: float | None,
    keep: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """y [M,L], and both products [M,I] when they are to be kept.

    weights: gate and up [E,I,L], down [E,L,I]; with ``scales`` they are packed MXFP4, half and 1/32 as wide.
    """
    gate, up = (x.new_empty(len(x), weights[0].shape[1]) for _ in range(2))
    for e, a, b in _groups(offsets):
        torch.mm(x[a:b], _matrix(weights, scales, 0, e, x.dtype).T, out=gate[a:b])
        torch.mm(x[a:b], _matrix(weights, scales, 1, e, x.dtype).T, out=up[a:b])
    h, y = glu_value(gate, up, beta, linear_beta), torch.empty_like(x)
    for e, a, b in _groups(offsets):
        torch.mm(h[a:b], _matrix(weights, scales, 2, e, x.dtype).T, out=y[a:b])
    return y, gate if keep else None, up if keep else None


def glu_backward(
    dy: Tensor,
    x: Tensor,
    offsets: Tensor,
    weights: Three,
    scales: Three | None,
    beta: float | None,
    linear_beta: float | None,
    gate: Tensor,
    up: Tensor,
    need_weights: bool,
) -> tuple[Tensor, Three | None]:
    """Gradients of x and, if needed, of the three weights in their dtypes (never of packed ones)."""
    dh = torch.empty_like(gate)
    for e, a, b in _groups(offsets):
        torch.mm(dy[a:b], _matrix(weights, scales, 2, e, x.dtype), out=dh[a:b])
    dgate, dup, h = glu_grads(dh, gate, up, beta, linear_beta)
    dx = torch.empty_like(x)
    # experts without rows get a gradient of zero
    grads = [torch.zeros(w.shape, dtype=w.dtype, device=w.device) for w in weights] if need_weights else []
    for e, a, b in _groups(offsets):
        torch.mm(dgate[a:b], _matrix(weights, scales, 0, e, x.dtype), out=dx[a:b])
        dx[a:b].addmm_(dup[a:b], _matrix(weights, scales, 1, e, x.dtype))
        for dw, left, right in zip(grads, (dgate, dup, dy), (x, x, h), strict=False):
            dw[e] = left[a:b].T @ right[a:b]
    return dx, (grads[0], grads[1], grads[2]) if need_weights else None

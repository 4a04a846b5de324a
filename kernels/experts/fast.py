"""SiTU-GLU with its own backward, and the grouped feed-forward over experts that have rows."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class SituGLU(torch.autograd.Function):
    """Keeps the two inputs only; everything else is computed again in the backward, in float32."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, beta: float, linear_beta: float | None) -> Tensor:  # type: ignore[override]
        dtype = torch.promote_types(torch.float32, gate.dtype)
        g, u = gate.to(dtype), up.to(dtype)
        ctx.save_for_backward(gate, up)
        ctx.betas = beta, linear_beta
        left = torch.tanh(g / beta).mul_(torch.sigmoid(g)).mul_(beta)
        right = u if linear_beta is None else torch.tanh(u / linear_beta).mul_(linear_beta)
        return left.mul_(right).to(gate.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        gate, up = ctx.saved_tensors
        beta, linear_beta = ctx.betas
        dtype = torch.promote_types(torch.float32, gate.dtype)
        g, u, dy = gate.to(dtype), up.to(dtype), dy.to(dtype)
        t, s = torch.tanh(g / beta), torch.sigmoid(g)
        if linear_beta is None:
            right, slope = u, None
        else:
            t_up = torch.tanh(u / linear_beta)
            right, slope = linear_beta * t_up, 1 - t_up * t_up
        dgate = dy * right * s * ((1 - t * t) + beta * t * (1 - s))
        dup = dy * (beta * t * s)
        if slope is not None:
            dup = dup * slope
        return dgate.to(gate.dtype), dup.to(up.dtype), None, None


def expert_glu_fast(
    x_ML: Tensor,
    offsets: list[int],
    w_gate_EIL: Tensor,
    w_up_EIL: Tensor,
    w_down_ELI: Tensor,
    act: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """One group of products an expert that has rows; the activation runs once over all rows."""
    groups = [(e, a, b) for e, (a, b) in enumerate(zip(offsets[:-1], offsets[1:], strict=True)) if b > a]
    if not groups:
        return x_ML @ (w_down_ELI[0] @ w_gate_EIL[0])  # no rows; keeps the graph connected to the weights
    w = [x.to(x_ML.dtype) for x in (w_gate_EIL, w_up_EIL, w_down_ELI)]
    rows = x_ML.split([b - a for _, a, b in groups])
    gate = torch.cat([r @ w[0][e].T for r, (e, _, _) in zip(rows, groups, strict=True)])
    up = torch.cat([r @ w[1][e].T for r, (e, _, _) in zip(rows, groups, strict=True)])
    inner = act(gate, up).split([b - a for _, a, b in groups])
    return torch.cat([r @ w[2][e].T for r, (e, _, _) in zip(inner, groups, strict=True)])

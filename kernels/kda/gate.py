"""The decay gates with their backward. Legend: leading dimensions free, H heads, K key channels."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


class Gate(torch.autograd.Function):
    """Inputs: z [..,H,K], A_log [H], dt_bias [H,K], lower bound or None. Output: g [..,H,K] float32."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, A_log: Tensor, dt_bias: Tensor, lower_bound: float | None) -> Tensor:  # type: ignore[override]
        dtype = torch.promote_types(torch.float32, z.dtype)
        # a finite rate: where the sigmoid is saturated its slope is 0, and 0 times infinity would spoil the gradient
        rate_H1 = A_log.to(dtype).exp().clamp(max=torch.finfo(dtype).max)[:, None]
        x = z + dt_bias.to(dtype)
        g = lower_bound * torch.sigmoid(rate_H1 * x) if lower_bound is not None else -rate_H1 * F.softplus(x)
        ctx.save_for_backward(z, A_log, dt_bias, rate_H1, g)
        ctx.lower_bound = lower_bound
        return g

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dg: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        z, A_log, dt_bias, rate_H1, g = ctx.saved_tensors
        bound = ctx.lower_bound
        x = z + dt_bias.to(g.dtype)
        if bound is not None:
            dz = dg * (g * (1 - g / bound)) * rate_H1
            dA = dz * x
        else:
            dz = -dg * rate_H1 * torch.sigmoid(x)
            dA = dg * g
        lead = tuple(range(z.dim() - 2))
        dA_H = dA.sum((*lead, -1))
        return (
            dz.to(z.dtype),
            dA_H.to(A_log.dtype),
            dz.sum(lead).to(dt_bias.dtype) if lead else dz.to(dt_bias.dtype),
            None,
        )

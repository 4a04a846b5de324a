"""The decay gates with their backward. Legend: leading dimensions free, H heads, K key channels."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..dispatch import form


def _rate(A_log: Tensor, dtype: torch.dtype) -> Tensor:
    """exp(A) [H,1], finite: where the sigmoid is saturated its slope is 0, and 0 times infinity would spoil the gradient."""
    return A_log.to(dtype).exp().clamp(max=torch.finfo(dtype).max)[:, None]


def gate_forward(z: Tensor, A_log: Tensor, dt_bias: Tensor, lower_bound: float | None) -> Tensor:
    """g [..,H,K] from z [..,H,K], A_log [H], dt_bias [H,K]; float32, or float64 for logits in float64."""
    dtype = torch.promote_types(torch.float32, z.dtype)
    rate_H1, x = _rate(A_log, dtype), z + dt_bias.to(dtype)
    return (lower_bound * torch.sigmoid(rate_H1 * x)) if lower_bound is not None else (-rate_H1 * F.softplus(x))


def gate_backward(
    dg: Tensor, z: Tensor, A_log: Tensor, dt_bias: Tensor, g: Tensor, lower_bound: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of z, A_log and dt_bias, each in its dtype."""
    rate_H1, x = _rate(A_log, g.dtype), z + dt_bias.to(g.dtype)
    if lower_bound is not None:
        dz = dg * (g * (1 - g / lower_bound)) * rate_H1
        dA = dz * x
    else:
        dz = -dg * rate_H1 * torch.sigmoid(x)
        dA = dg * g
    lead = tuple(range(z.dim() - 2))
    d_dt = dz.sum(lead) if lead else dz
    return dz.to(z.dtype), dA.sum((*lead, -1)).to(A_log.dtype), d_dt.to(dt_bias.dtype)


@torch.library.custom_op("watersmeet::kda_gate", mutates_args=())
def gate_op(z: Tensor, A_log: Tensor, dt_bias: Tensor, lower_bound: float | None) -> Tensor:
    if form("kda_gate", z, A_log, dt_bias) == "triton":
        from . import triton

        return triton.gate_forward(z, A_log, dt_bias, lower_bound)
    return gate_forward(z, A_log, dt_bias, lower_bound).contiguous()


@gate_op.register_fake
def _(z, A_log, dt_bias, lower_bound):  # type: ignore[no-untyped-def]
    return z.new_empty(z.shape, dtype=torch.promote_types(torch.float32, z.dtype))


@torch.library.custom_op("watersmeet::kda_gate_backward", mutates_args=())
def _gate_backward_op(
    dg: Tensor, z: Tensor, A_log: Tensor, dt_bias: Tensor, g: Tensor, lower_bound: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    if form("kda_gate", z, A_log, dt_bias) == "triton":
        from . import triton

        return triton.gate_backward(dg, z, A_log, dt_bias, lower_bound)
    dz, dA, d_dt = gate_backward(dg, z, A_log, dt_bias, g, lower_bound)
    # nothing that an operator returns may share memory with something else
    return dz.contiguous(), dA, d_dt.clone() if z.dim() == 2 else d_dt


@_gate_backward_op.register_fake
def _(dg, z, A_log, dt_bias, g, lower_bound):  # type: ignore[no-untyped-def]
    return tuple(x.new_empty(x.shape) for x in (z, A_log, dt_bias))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    z, A_log, dt_bias, ctx.lower_bound = inputs
    ctx.save_for_backward(z, A_log, dt_bias, output)


def _backward(ctx: Any, dg: Tensor) -> tuple[Any, ...]:
    return *_gate_backward_op(dg, *ctx.saved_tensors, ctx.lower_bound), None


gate_op.register_autograd(_backward, setup_context=_setup)

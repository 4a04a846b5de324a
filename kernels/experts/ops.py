"""The feed-forward of sorted rows and its gradient as operators that the compiler knows.

Legend: M rows, E experts, L width of a row, I inner width.
"""

from typing import Any

import torch
from torch import Tensor

from ..checks import bounds, device_of
from ..dispatch import form
from .fast import glu_backward, glu_forward


def _form(x: Tensor) -> tuple[Any, Any]:
    if form("expert_glu", x) == "triton":
        from . import triton

        return triton.glu_forward, triton.glu_backward
    return glu_forward, glu_backward


def _scales(*scales: Tensor | None) -> tuple[Tensor, ...] | None:
    return None if scales[0] is None else scales  # type: ignore[return-value]


@torch.library.custom_op("watersmeet::expert_glu", mutates_args=())
def expert_glu_op(
    x: Tensor,
    offsets: Tensor,
    w_gate: Tensor,
    w_up: Tensor,
    w_down: Tensor,
    s_gate: Tensor | None,
    s_up: Tensor | None,
    s_down: Tensor | None,
    beta: float | None,
    linear_beta: float | None,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """y [M,L], and both products [M,I] for the backward, empty unless they are to be kept. beta None means SwiGLU."""
    bounds("expert_glu", "expert_offsets", offsets, len(x))
    weights, scales = (w_gate, w_up, w_down), _scales(s_gate, s_up, s_down)
    with device_of(x):
        y, *kept = _form(x)[0](x.contiguous(), offsets, weights, scales, beta, linear_beta, keep)
    gate, up = (x.new_empty(0) if one is None else one for one in kept)
    return y, gate, up


@expert_glu_op.register_fake
def _(x, offsets, w_gate, w_up, w_down, s_gate, s_up, s_down, beta, linear_beta, keep):  # type: ignore[no-untyped-def]
    kept = (x.shape[0], w_gate.shape[1]) if keep else (0,)
    return x.new_empty(x.shape), x.new_empty(kept), x.new_empty(kept)


@torch.library.custom_op("watersmeet::expert_glu_backward", mutates_args=())
def _backward_op(
    dy: Tensor,
    x: Tensor,
    offsets: Tensor,
    w_gate: Tensor,
    w_up: Tensor,
    w_down: Tensor,
    s_gate: Tensor | None,
    s_up: Tensor | None,
    s_down: Tensor | None,
    gate: Tensor,
    up: Tensor,
    beta: float | None,
    linear_beta: float | None,
    need_weights: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    weights, scales = (w_gate, w_up, w_down), _scales(s_gate, s_up, s_down)
    forward, backward = _form(x)
    x, dy = x.contiguous(), dy.contiguous()
    with device_of(x):
        if gate.dim() == 1:  # not kept
            _, gate, up = forward(x, offsets, weights, scales, beta, linear_beta, True)
        dx, grads = backward(dy, x, offsets, weights, scales, beta, linear_beta, gate, up, need_weights)
    return dx, *(grads or (x.new_empty(0) for _ in range(3)))


@_backward_op.register_fake
def _(dy, x, offsets, w_gate, w_up, w_down, s_gate, s_up, s_down, gate, up, beta, linear_beta, need_weights):  # type: ignore[no-untyped-def]
    weights = (w_gate, w_up, w_down)
    return x.new_empty(x.shape), *(w.new_empty(w.shape) if need_weights else x.new_empty(0) for w in weights)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.beta, ctx.linear_beta, _ = inputs
    ctx.save_for_backward(*tensors, *output[1:])


def _backward(ctx: Any, dy: Tensor, _gate: Tensor, _up: Tensor) -> tuple[Any, ...]:
    need_weights = any(ctx.needs_input_grad[2:5])
    dx, *grads = _backward_op(dy, *ctx.saved_tensors, ctx.beta, ctx.linear_beta, need_weights)
    return dx, None, *(grads if need_weights else (None,) * 3), *(None,) * 6


expert_glu_op.register_autograd(_backward, setup_context=_setup)

"""The short convolution and its gradient as operators that the compiler knows."""

from typing import Any

import torch
from torch import Tensor

from ..checks import bounds, device_of
from ..dispatch import form
from .fast import conv_backward, conv_forward


def _check_bounds(x: Tensor, cu_seqlens: Tensor | None) -> None:
    if cu_seqlens is not None:
        bounds("short_conv", "cu_seqlens", cu_seqlens, x.shape[1])


@torch.library.custom_op("watersmeet::short_conv", mutates_args=())
def short_conv_op(
    x: Tensor,
    weight: Tensor,
    cu_seqlens: Tensor | None,
    initial_state: Tensor | None,
    output_final_state: bool,
    activation: bool,
) -> tuple[Tensor, Tensor]:
    """y [B,T,C] and the final window, empty unless it is asked for."""
    _check_bounds(x, cu_seqlens)
    forward: Any = conv_forward
    if form("short_conv", x, weight) == "triton":
        from . import triton

        forward = triton.conv_forward
    with device_of(x):
        y, final = forward(x.contiguous(), weight, cu_seqlens, initial_state, output_final_state, activation)
    return y, x.new_empty(0) if final is None else final


@short_conv_op.register_fake
def _(x, weight, cu_seqlens, initial_state, output_final_state, activation):  # type: ignore[no-untyped-def]
    N = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    C, W = weight.shape
    return x.new_empty(x.shape), x.new_empty((N, C, W - 1) if output_final_state else (0,))


@torch.library.custom_op("watersmeet::short_conv_backward", mutates_args=())
def _backward_op(
    dy: Tensor,
    dfinal: Tensor | None,
    x: Tensor,
    weight: Tensor,
    cu_seqlens: Tensor | None,
    initial_state: Tensor | None,
    activation: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    backward: Any = conv_backward
    if form("short_conv", x, weight) == "triton":
        from . import triton

        backward = triton.conv_backward
    with device_of(x):
        dx, dw, dstate = backward(dy, dfinal, x.contiguous(), weight, cu_seqlens, initial_state, activation)
    return dx, dw, x.new_empty(0) if dstate is None else dstate


@_backward_op.register_fake
def _(dy, dfinal, x, weight, cu_seqlens, initial_state, activation):  # type: ignore[no-untyped-def]
    dstate = x.new_empty(0) if initial_state is None else initial_state.new_empty(initial_state.shape)
    return x.new_empty(x.shape), weight.new_empty(weight.shape), dstate


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, cu_seqlens, initial_state, ctx.need_final, ctx.activation = inputs
    ctx.save_for_backward(x, weight, cu_seqlens, initial_state)


def _backward(ctx: Any, dy: Tensor, dfinal: Tensor) -> tuple[Any, ...]:
    x, weight, cu_seqlens, initial_state = ctx.saved_tensors
    dx, dw, dstate = _backward_op(
        dy, dfinal if ctx.need_final else None, x, weight, cu_seqlens, initial_state, ctx.activation
    )
    return dx, dw, None, None if initial_state is None else dstate, None, None


short_conv_op.register_autograd(_backward, setup_context=_setup)

"""The Attention Residuals mix and its gradient as operators that the compiler knows.

Legend: n sources, T rows, D width.
"""

from typing import Any

import torch
from torch import Tensor

from ..checks import device_of
from ..dispatch import form
from .fast import mix_backward, mix_forward


def _product(query: Tensor, norm_weight: Tensor, dtype: torch.dtype) -> Tensor:
    wide = torch.promote_types(torch.float32, dtype)
    return query.to(wide) * norm_weight.to(wide)


def _pick(sources: Tensor) -> tuple[Any, Any]:
    if form("attnres", sources) == "triton":
        from . import triton

        if sources.shape[-1] <= triton.WIDEST and len(sources) <= triton.MOST_SOURCES:
            return triton.mix_forward, triton.mix_backward
    return mix_forward, mix_backward


@torch.library.custom_op("watersmeet::attnres", mutates_args=())
def attnres_op(sources: Tensor, query: Tensor, norm_weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """[n,T,D] -> y [T,D] and the two rows [n,T] from which the weights are made again."""
    p = _product(query, norm_weight, sources.dtype)
    with device_of(sources):
        return _pick(sources)[0](sources.contiguous(), p, eps)  # type: ignore[no-any-return]


@attnres_op.register_fake
def _(sources, query, norm_weight, eps):  # type: ignore[no-untyped-def]
    n, T, D = sources.shape
    wide = torch.promote_types(torch.float32, sources.dtype)
    return sources.new_empty(T, D), *(sources.new_empty((n, T), dtype=wide) for _ in range(2))


@torch.library.custom_op("watersmeet::attnres_backward", mutates_args=())
def _backward_op(
    dy: Tensor, sources: Tensor, query: Tensor, norm_weight: Tensor, r: Tensor, s: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    p = _product(query, norm_weight, sources.dtype)
    with device_of(sources):
        dsources, dp = _pick(sources)[1](dy.contiguous(), sources.contiguous(), p, r, s)
    dquery = (dp * norm_weight.to(dp.dtype)).to(query.dtype)
    return dsources, dquery, (dp * query.to(dp.dtype)).to(norm_weight.dtype)


@_backward_op.register_fake
def _(dy, sources, query, norm_weight, r, s):  # type: ignore[no-untyped-def]
    return tuple(x.new_empty(x.shape) for x in (sources, query, norm_weight))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:3], *output[1:])


def _backward(ctx: Any, dy: Tensor, _r: Tensor, _s: Tensor) -> tuple[Any, ...]:
    return *_backward_op(dy, *ctx.saved_tensors), None


attnres_op.register_autograd(_backward, setup_context=_setup)

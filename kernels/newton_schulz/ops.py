"""The Newton-Schulz iteration for a batch of matrices, and its gradient, as operators that the compiler knows."""

from typing import Any

import torch
from torch import Tensor

from .reference import COEFFICIENTS

TINY = 1e-7


def _start(x: Tensor) -> tuple[Tensor, Tensor]:
    """Matrices [batch,m,n] with m <= n divided by their norm, and that norm [batch,1,1]."""
    y = x.mT if x.shape[-2] > x.shape[-1] else x
    y = y.reshape(-1, *y.shape[-2:])
    norm = torch.linalg.vector_norm(y, dim=(1, 2), keepdim=True)
    return y / (norm + TINY), norm


def _step(y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The next iterate, ``a y + p y``; p = b g + c g g; g = y y^T."""
    a, b, c = COEFFICIENTS
    gram = torch.bmm(y, y.mT)
    poly = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
    return torch.baddbmm(y, poly, y, beta=a), poly, gram


def _finish(y: Tensor, x: Tensor) -> Tensor:
    """Back to the shape of x, laid out without gaps."""
    tall = x.shape[-2] > x.shape[-1]
    return y.mT.reshape(x.shape) if tall else y.reshape(x.shape)


@torch.library.custom_op("watersmeet::newton_schulz", mutates_args=())
def newton_schulz_op(x: Tensor, steps: int) -> Tensor:
    from ..native.muon import native_newton_schulz  # only here: that package imports this one's neighbours

    found = native_newton_schulz(x, steps)
    if found is not None:
        return found
    y, _ = _start(x)
    for _ in range(steps):
        y, _, _ = _step(y)
    return _finish(y, x).contiguous()


@newton_schulz_op.register_fake
def _(x, steps):  # type: ignore[no-untyped-def]
    return x.new_empty(x.shape)


@torch.library.custom_op("watersmeet::newton_schulz_backward", mutates_args=())
def _backward_op(d: Tensor, x: Tensor, steps: int) -> Tensor:
    """The iterates are made again and gone through from the last to the first."""
    a, b, c = COEFFICIENTS
    y, norm = _start(x)
    kept = []
    for _ in range(steps):
        after, poly, gram = _step(y)
        kept.append((y, poly, gram))
        y = after
    d = (d.mT if x.shape[-2] > x.shape[-1] else d).reshape(y.shape)
    for before, poly, gram in reversed(kept):
        d_poly = torch.bmm(d, before.mT)
        d_gram = b * d_poly + c * (torch.bmm(d_poly, gram) + torch.bmm(gram, d_poly))
        d = a * d + torch.bmm(poly, d) + torch.bmm(d_gram + d_gram.mT, before)
    first, _ = _start(x)
    along = (d * first).sum((1, 2), keepdim=True)
    # first = y / (norm + tiny), and the norm's own gradient is y / norm; a matrix of zeros has none
    d = (d - first * along * ((norm + TINY) / norm.clamp(min=TINY))) / (norm + TINY)
    return _finish(d, x).contiguous()


@_backward_op.register_fake
def _(d, x, steps):  # type: ignore[no-untyped-def]
    return x.new_empty(x.shape)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, ctx.steps = inputs
    ctx.save_for_backward(x)


def _backward(ctx: Any, d: Tensor) -> tuple[Any, ...]:
    return _backward_op(d, *ctx.saved_tensors, ctx.steps), None


newton_schulz_op.register_autograd(_backward, setup_context=_setup)

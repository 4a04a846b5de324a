"""Small pieces that every part of the model shares.

Legend of shapes: T tokens, D hidden width, N streams, k picked experts, E experts, M = T * k routed rows.

The dtype of the activations is the dtype of the hidden state that enters; parameters may be kept in another one
(float32 while training) and are cast where they are used, so one module serves training and inference.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Linear(nn.Linear):
    """Matrix without bias, `[out, in]`, applied in the dtype of its input."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight.to(input.dtype))


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x * rsqrt(mean(x^2) + eps) * weight over the last axis, float32 inside, dtype of `x` outside."""
    x32 = x.float()
    scale = torch.rsqrt(x32.square().mean(-1, keepdim=True) + eps)
    return (x32 * scale * weight.float()).to(x.dtype)


class RMSNorm(nn.Module):
    """Root mean square normalisation with a learned gain, initialised to one."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


def l2_norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x * rsqrt(sum(x^2) + eps) over the last axis; eps is added to the sum (Kimi Linear report, section on KDA)."""
    x32 = x.float()
    return (x32 * torch.rsqrt(x32.square().sum(-1, keepdim=True) + eps)).to(x.dtype)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How the rows of a packed batch fall into streams.

    cu_seqlens [N+1] int32 and the same numbers as a list; block [T] int64 or None when every row is causal;
    first: row of the cache that belongs to the first of these streams.
    """

    cu_seqlens: Tensor
    bounds: list[int]
    block: Tensor | None = None
    first: int = 0

    @classmethod
    def of(cls, cu_seqlens: Tensor, block: Tensor | None) -> Layout:
        """Layout of a whole batch."""
        if block is not None and not bool((block >= 0).any()):
            block = None
        return cls(cu_seqlens=cu_seqlens, bounds=cu_seqlens.tolist(), block=block)

    @property
    def num_streams(self) -> int:
        """N, the number of streams."""
        return len(self.bounds) - 1

    def spans(self) -> list[tuple[int, int, int]]:
        """(row in the cache, first token, end) of every stream."""
        return [(self.first + i, *self.bounds[i : i + 2]) for i in range(self.num_streams)]


class _Gather(torch.autograd.Function):
    """Rows of `x_TL` in routed order; its gradient gathers too, so no order of additions is left to chance."""

    @staticmethod
    def forward(ctx, x_TL: Tensor, order_M: Tensor, inverse_M: Tensor, k: int) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(inverse_M)
        ctx.k = k
        return x_TL.index_select(0, order_M // k)

    @staticmethod
    def backward(ctx, grad_ML: Tensor):  # type: ignore[override]
        (inverse_M,) = ctx.saved_tensors
        grad_TkL = grad_ML.index_select(0, inverse_M).view(-1, ctx.k, grad_ML.shape[1])
        return grad_TkL.sum(1), None, None, None


class _Permute(torch.autograd.Function):
    """`y_ML[inverse]`, a pure permutation of rows whose gradient is the opposite permutation."""

    @staticmethod
    def forward(ctx, y_ML: Tensor, order_M: Tensor, inverse_M: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(order_M)
        return y_ML.index_select(0, inverse_M)

    @staticmethod
    def backward(ctx, grad_ML: Tensor):  # type: ignore[override]
        (order_M,) = ctx.saved_tensors
        return grad_ML.index_select(0, order_M), None, None


def gather_rows(x_TL: Tensor, order_M: Tensor, inverse_M: Tensor, k: int) -> Tensor:
    """Copy every row of `x_TL` to its k places in routed order: `[M, L]`."""
    return _Gather.apply(x_TL, order_M, inverse_M, k)


def restore_rows(y_ML: Tensor, order_M: Tensor, inverse_M: Tensor) -> Tensor:
    """Undo the routed order: row `t * k + j` of the result belongs to choice j of token t."""
    return _Permute.apply(y_ML, order_M, inverse_M)

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

    cu_seqlens [N+1] int32 and the same numbers as a list; place [T] int32, index of each row in its stream;
    block [T] int64 or None when every row is causal; first: row of the cache of the first of these streams.
    """

    cu_seqlens: Tensor
    bounds: list[int]
    place: Tensor
    block: Tensor | None = None
    first: int = 0

    @classmethod
    def of(cls, cu_seqlens: Tensor, block: Tensor | None, first: int = 0) -> Layout:
        """Layout of a packed batch, or of a piece of one."""
        if block is not None and not bool((block >= 0).any()):
            block = None
        starts = cu_seqlens[:-1].repeat_interleave(cu_seqlens.diff())
        place = torch.arange(len(starts), dtype=torch.int32, device=starts.device) - starts
        return cls(cu_seqlens=cu_seqlens, bounds=cu_seqlens.tolist(), place=place, block=block, first=first)

    @property
    def num_streams(self) -> int:
        """N, the number of streams."""
        return len(self.bounds) - 1

    def spans(self) -> list[tuple[int, int, int]]:
        """(row in the cache, first token, end) of every stream."""
        return [(self.first + i, self.bounds[i], self.bounds[i + 1]) for i in range(self.num_streams)]

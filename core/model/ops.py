"""Small pieces that every part of the model shares.

Legend of shapes: T tokens, D hidden width, N streams, k picked experts, E experts, M = T * k routed rows.

The dtype of the activations is the dtype of the hidden state that enters; parameters may be kept in another one
(float32 while training) and are cast where they are used, so one module serves training and inference.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

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
    """x * rsqrt(mean(x^2) + eps) * weight over the last axis, at least float32 inside, dtype of `x` outside."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * weight.to(wide.dtype)).to(x.dtype)


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
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + eps)).to(x.dtype)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How the rows of a packed batch fall into streams.

    cu_seqlens [N+1] int32 and the same numbers as a list; place [T] int32, index of each row in its stream;
    block [T] int64 or None when every row is causal; first: row of the cache of the first of these streams;
    past: per row of the cache the tokens it has read, None without a cache; real: the first rows that are real when the
    rest fills the batch up, None when all are.
    """

    cu_seqlens: Tensor
    bounds: list[int]
    place: Tensor
    block: Tensor | None = None
    first: int = 0
    past: list[int] | None = None
    real: int | None = None

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

    def after(self, past: list[int]) -> Layout:
        """The same rows behind what a cache holds."""
        return replace(self, past=list(past))

    def to(self, device: torch.device | str | int, non_blocking: bool = False) -> Layout:
        """Copy with all tensors on `device`; layers of one model may lie on several."""
        block = None if self.block is None else self.block.to(device, non_blocking=non_blocking)
        return replace(
            self,
            cu_seqlens=self.cu_seqlens.to(device, non_blocking=non_blocking),
            place=self.place.to(device, non_blocking=non_blocking),
            block=block,
        )


@dataclass(frozen=True, kw_only=True)
class Step:
    """One new token for every stream of a cache.

    past_N [N] int64: tokens read before, so the slot that each new one takes; longest: slots in use after it;
    mask_NS [N, longest] float32, 0 where slot s holds a token of stream n (the new one included) and -inf elsewhere,
    None when all streams are equally long.
    """

    past_N: Tensor
    longest: int
    mask_NS: Tensor | None

    @classmethod
    def after(cls, lengths: list[int], device: torch.device) -> Step:
        """The step that follows what a cache holds."""
        longest, past_N, mask_NS = max(lengths) + 1, torch.tensor(lengths, device=device), None
        if min(lengths) + 1 != longest:
            mask_NS = torch.zeros(len(lengths), longest, device=device)
            mask_NS.masked_fill_(torch.arange(longest, device=device) > past_N[:, None], -torch.inf)
        return cls(past_N=past_N, longest=longest, mask_NS=mask_NS)

    def to(self, device: torch.device | str | int, non_blocking: bool = False) -> Step:
        """Copy with all tensors on `device`."""
        mask = None if self.mask_NS is None else self.mask_NS.to(device, non_blocking=non_blocking)
        return replace(self, past_N=self.past_N.to(device, non_blocking=non_blocking), mask_NS=mask)

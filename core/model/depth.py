"""What the residual reads look at: the mean softmax weights of every Attention Residuals read, for the log.

The fused read keeps its weights to itself; while a recorder is active they are computed a second time from the same sources
(Kimi K3 report, arXiv:2607.24653, eq. 8-10) for the first rows of the batch.

Legend of shapes: T tokens, D hidden width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

ROWS = 512
"""Rows that are looked at: a mean over so many tokens is good enough for a curve."""

_ACTIVE: ContextVar[list[list[float]] | None] = ContextVar("depth weights", default=None)


@contextmanager
def recorded_depth() -> Iterator[list[list[float]]]:
    """Inside, every read adds its mean weights, one a source (snapshots from the oldest on, then the running sum)."""
    weights: list[list[float]] = []
    token = _ACTIVE.set(weights)
    try:
        yield weights
    finally:
        _ACTIVE.reset(token)


@torch.no_grad()
def observe(sources: Sequence[Tensor], update: Tensor | None, query_D: Tensor, gain_D: Tensor, eps: float) -> None:
    """Record one read of sources [T, D], the last of them with `update` added; nothing unless a recorder is active."""
    weights = _ACTIVE.get()
    if weights is None:
        return
    rows = [source[:ROWS].float() for source in sources]
    if update is not None:
        rows[-1] = rows[-1] + update[:ROWS].float()
    x = torch.stack(rows)
    normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * gain_D.float()
    weights.append(torch.softmax(normed @ query_D.float(), dim=0).mean(1).tolist())

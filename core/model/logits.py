"""The largest attention logit of every head, which a fused attention keeps to itself.

Legend of shapes: H heads, K key width, L rows of one stream.

What QK-Clip needs (Kimi K2 report, arXiv:2507.20534, section 2.1): per head, the maximum over all pairs (i, j) that may look at
each other of q_i . k_j * scale. The product |q| |k| of the largest norms bounds it at the price of reading q and k once;
only heads whose bound exceeds the threshold are multiplied out, in float32, a few rows at a time. So what is clipped is
exact, and a step with small norms costs next to nothing. With `exact` every head is multiplied out, for the log.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

ROWS = 256
"""Rows multiplied at a time: H * 256 * L float32 logits are the memory of a measurement."""


def logit_bound(q_LHK: Tensor, k_LHK: Tensor, scale: float) -> Tensor:
    """[H] float32 upper bound of all logits of every head, by Cauchy and Schwarz."""
    q, k = (torch.linalg.vector_norm(t, dim=-1, dtype=torch.float32).amax(0) for t in (q_LHK, k_LHK))
    # rounding must not take the bound below what the exact form finds
    return q * k * (scale * (1 + 1e-5))


def logit_maximum(q_LHK: Tensor, k_LHK: Tensor, block_L: Tensor | None, scale: float) -> Tensor:
    """[H] float32 largest logit of every head among the pairs that may look at each other.

    Row i sees j <= i and, both ways, the rows of its own block (`block_L` >= 0).
    """
    q, k = (t.detach().transpose(0, 1).float() for t in (q_LHK, k_LHK))
    length = q.shape[1]
    best_H = q.new_full((len(q),), -torch.inf)
    place = torch.arange(length, device=q.device)
    for start in range(0, length, ROWS):
        rows = slice(start, min(start + ROWS, length))
        reach = rows.stop if block_L is None else length
        logits = q[:, rows] @ k[:, :reach].mT
        seen = place[:reach] <= place[rows, None]
        if block_L is not None:
            seen |= (block_L[rows, None] == block_L[None]) & (block_L[rows, None] >= 0)
        best_H = torch.maximum(best_H, logits.masked_fill_(~seen, -torch.inf).amax((1, 2)))
    return best_H * scale


@dataclass(kw_only=True)
class LogitMeter:
    """Collects maxima of one layer over the streams and micro-batches of one optimizer step.

    threshold  heads whose bound stays at or below it are not multiplied out (unless `exact`)
    exact      multiply every head out in this step
    maxima     [H] float32, -inf where nothing was multiplied out; `reset` every step, or old maxima clip new weights
    """

    threshold: float
    exact: bool = False
    maxima: Tensor | None = None

    def reset(self, *, exact: bool) -> None:
        """Forget the last step."""
        self.exact, self.maxima = exact, None

    @torch.no_grad()
    def see(self, q_LHK: Tensor, k_LHK: Tensor, block_L: Tensor | None, scale: float) -> None:
        """Take in one stream."""
        if self.maxima is None:
            self.maxima = torch.full((q_LHK.shape[1],), -torch.inf, device=q_LHK.device)
        if len(q_LHK) == 0:
            return
        if self.exact:
            heads = torch.arange(len(self.maxima), device=q_LHK.device)
        else:
            heads = (logit_bound(q_LHK, k_LHK, scale) > self.threshold).nonzero().squeeze(1)
            if not len(heads):
                return
        found = logit_maximum(q_LHK[:, heads], k_LHK[:, heads], block_L, scale)
        self.maxima[heads] = torch.maximum(self.maxima[heads], found)

"""A step of its own for every head: how large its gradients are scales how far it moves.

Our own proposal, off by default and measured beside runs without it. Per-head Muon moves every head equally far, whatever its
gradient. With exponent p, head h moves (r_h / g)^p as far, where r_h is the running root mean square of its gradient
and g the geometric mean of r over the heads of the same matrix: heads that the loss depends on move further, idle ones
less, and the mean of the logarithm of the rates stays as it is. Rates stay within [1/2, 2].

Legend of shapes: R rows of a parameter, G groups of rows, P parts of a group (key and value).
"""

from __future__ import annotations

import torch
from torch import Tensor

MEMORY = 0.95
LIMIT = 2.0


def part_squares(row_square_R: Tensor, rows: tuple[int, ...]) -> Tensor:
    """[G, P] float32 mean square of every block, from the mean squares of the rows of a parameter."""
    groups = row_square_R.view(-1, sum(rows)).split(list(rows), dim=1)
    return torch.stack([part.mean(1) for part in groups], dim=1)


def update_running(running_GP: Tensor, square_GP: Tensor) -> None:
    """Move the running mean square, in place. It starts at zero; that every head lacks the same share cancels below."""
    running_GP.mul_(MEMORY).add_(square_GP, alpha=1 - MEMORY)


def head_rates(running_GP: Tensor, exponent: float) -> Tensor:
    """[G, P] factors of the rate; 1 for a head that never had a gradient, which counts for no mean either."""
    seen = running_GP > 0
    log_rms = torch.where(seen, running_GP, 1.0).log() / 2
    mean = log_rms.sum(0) / seen.sum(0).clamp(min=1)
    rates = ((log_rms - mean) * exponent).exp().clamp(1 / LIMIT, LIMIT)
    return torch.where(seen, rates, 1.0)

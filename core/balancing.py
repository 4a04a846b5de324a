"""Quantile Balancing: the router bias that gives every expert its share, without an auxiliary loss.

Source: Kimi K3 report (arXiv:2607.24653), section 2.3.3 and appendices C and D. For every token the (k+1)-th largest
biased score is the cutoff; `cutoff - score` is the bias with which an expert would just be picked. The k/n quantile of
these values over all tokens of an optimizer step is the expert's next bias.

Legend of shapes: m tokens, n experts, k picked experts, B bins.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def bin_range(bias_n: Tensor) -> tuple[float, float]:
    """Interval that holds every required bias: [min(b) - 1, max(b) + 1], since scores lie in (0, 1)."""
    return float(bias_n.min()) - 1.0, float(bias_n.max()) + 1.0


def required_bias_histogram(score_mn: Tensor, cutoff_m: Tensor, bias_n: Tensor, bins: int) -> Tensor:
    """Counts [n, B] int64 of `cutoff_i - score_ij` per expert, in uniform bins over `bin_range(bias)`.

    score_mn raw sigmoid scores float32; cutoff_m the (k+1)-th largest *biased* score; bias_n the bias in force.
    Counts are sums over tokens, so micro-batches and ranks may be added in any order with the same result.
    """
    low, high = bin_range(bias_n)
    n = bias_n.shape[0]
    required_mn = cutoff_m[:, None] - score_mn
    index_mn = ((required_mn - low) * (bins / (high - low))).to(torch.int64).clamp_(0, bins - 1)
    index_mn += torch.arange(0, n * bins, bins, device=index_mn.device)
    return torch.bincount(index_mn.reshape(-1), minlength=n * bins).view(n, bins)


def quantile_bias(counts_nB: Tensor, bias_n: Tensor, target: float) -> Tensor:
    """Next bias [n] float32, centred to mean zero, from the counts of one optimizer step.

    target: q = m * k / n, the load each expert should get. The quantile lies in the first bin whose cumulative count
    reaches ceil(q), linearly interpolated inside that bin.
    """
    low, high = bin_range(bias_n)
    width = (high - low) / counts_nB.shape[1]
    cumulative_nB = counts_nB.cumsum(1)
    bin_n = (cumulative_nB >= math.ceil(target)).to(torch.int8).argmax(1, keepdim=True)
    held_n = counts_nB.gather(1, bin_n).double()
    before_n = cumulative_nB.gather(1, bin_n).double() - held_n
    inside_n = ((target - before_n) / held_n.clamp(min=1)).clamp(0.0, 1.0)
    found_n = (low + (bin_n.double() + inside_n) * width).squeeze(1)
    return (found_n - found_n.mean()).to(torch.float32)


def exact_quantile_bias(score_mn: Tensor, cutoff_m: Tensor, k: int) -> Tensor:
    """The same without a histogram: per expert the ceil(m*k/n)-th smallest required bias, centred. For tests."""
    m, n = score_mn.shape
    required_mn = (cutoff_m[:, None] - score_mn).double()
    found_n = required_mn.sort(dim=0).values[math.ceil(m * k / n) - 1]
    return (found_n - found_n.mean()).to(torch.float32)


def sign_bias(load_n: Tensor, bias_n: Tensor, step: float) -> Tensor:
    """Next bias [n] float32 by the older rule, to compare with: a fixed step towards the mean load, nothing at the mean.

    Source: Moonlight (arXiv:2502.16982) and DeepSeek-V3 (arXiv:2412.19437). load_n: picks of every expert in the step.
    """
    load = load_n.double()
    return bias_n + step * torch.sign(load.mean() - load).to(bias_n.dtype)

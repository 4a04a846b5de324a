"""Next-token loss that never holds all logits at once.

Legend of shapes: n supervised positions, D hidden width, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from watersmeet.kernels.native import cross_entropy_rows

ROWS = 512
"""Positions per piece: their float32 logits should stay in a core's cache."""


class _LinearCrossEntropy(torch.autograd.Function):
    """Sum of weight * cross entropy, with both gradients formed while a piece of logits is at hand."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, hidden_nD: Tensor, head_VD: Tensor, target_n: Tensor, weight_n: Tensor, learn: bool
    ) -> tuple[Tensor, Tensor]:
        matrix = head_VD.to(hidden_nD.dtype)
        nll_n = torch.empty(len(hidden_nD), dtype=torch.float32, device=hidden_nD.device)
        grad_hidden = torch.empty_like(hidden_nD) if learn else None
        # a frozen head would cost a float32 copy of itself for nothing
        learn_head = learn and ctx.needs_input_grad[1]
        grad_head = torch.zeros_like(head_VD, dtype=torch.float32) if learn_head else None
        for start in range(0, len(hidden_nD), ROWS):
            piece = slice(start, start + ROWS)
            hidden = hidden_nD[piece]
            logits = hidden @ matrix.T
            nll_n[piece] = cross_entropy_rows(logits, target_n[piece], weight_n[piece] if learn else None)
            if grad_hidden is not None:
                torch.mm(logits, matrix, out=grad_hidden[piece])  # by now the gradient of the logits
            if grad_head is not None:
                grad_head += logits.T @ hidden
        if grad_hidden is not None:
            ctx.save_for_backward(grad_hidden, None if grad_head is None else grad_head.to(head_VD.dtype))
        ctx.mark_non_differentiable(nll_n)
        return (nll_n * weight_n).sum(), nll_n

    @staticmethod
    def backward(ctx: Any, grad_sum: Tensor, _grad_nll: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        grad_hidden, grad_head = ctx.saved_tensors
        head = None if grad_head is None else grad_head * grad_sum
        return grad_hidden * grad_sum.to(grad_hidden.dtype), head, None, None, None


def linear_cross_entropy(
    hidden_nD: Tensor, head_VD: Tensor, target_n: Tensor, weight_n: Tensor
) -> tuple[Tensor, Tensor]:
    """sum_i weight_i * CE(hidden_i @ head.T, target_i), and the unweighted loss of every position (no gradient).

    Logits are rounded to the dtype of `hidden`, then everything is float32.
    """
    learn = torch.is_grad_enabled() and (hidden_nD.requires_grad or head_VD.requires_grad)
    return _LinearCrossEntropy.apply(hidden_nD, head_VD, target_n, weight_n, learn)

"""Next-token loss that never holds all logits at once, and which modality a target belongs to.

Legend of shapes: n supervised positions, D hidden width, V vocabulary, T tokens of a packed batch, Q modalities.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from watersmeet.core.stream import Packed
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


def subject_ids(packed: Packed, output: str) -> Tensor:
    """[T] int64: the modality that the target of every position belongs to, an index into `packed.modality_names`.

    All targets are of the modality `output`, so what tells them apart is what was read last: the modality of the last token up
    to the position, in its own stream, that is not of `output`; `output` itself where there is none.
    """
    ids_T = packed.modality_ids
    own = packed.modality_names.index(output) if output in packed.modality_names else -1
    position_T = torch.arange(packed.T, device=ids_T.device)
    last_T = torch.where(ids_T == own, -1, position_T).cummax(0).values
    bounds = packed.cu_seqlens.to(torch.int64)
    start_T = torch.repeat_interleave(bounds[:-1], bounds.diff(), output_size=packed.T)
    return torch.where(last_T >= start_T, ids_T[last_T.clamp(min=0)], own)


def weigh_subjects(packed: Packed, output: str, weights: Mapping[str, float]) -> Packed:
    """The same batch, with the weight of every target multiplied by that of its modality in `weights` (1 where not named)."""
    if not weights:
        return packed
    factor_Q = torch.tensor([weights.get(name, 1.0) for name in packed.modality_names], device=packed.weight.device)
    return replace(packed, weight=packed.weight * factor_Q[subject_ids(packed, output)])

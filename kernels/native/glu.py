"""SiTU-GLU and SwiGLU on a joint projection, and cross entropy on a piece of logits.

Legend of shapes: I inner width, n rows, V vocabulary.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..experts import situ_glu, swi_glu
from .build import full, half, library, pointer, real, size, threads

Activation = partial[Tensor]


class _Situ(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate_up, beta, linear_beta):  # type: ignore[no-untyped-def,override]
        gate_up = gate_up.contiguous()
        ctx.save_for_backward(gate_up)
        ctx.betas = beta, linear_beta
        return situ_rows(gate_up, beta, linear_beta)

    @staticmethod
    @once_differentiable
    def backward(ctx, d_y):  # type: ignore[no-untyped-def,override]
        (gate_up,) = ctx.saved_tensors
        return situ_rows_backward(gate_up, d_y.contiguous(), *ctx.betas)[0], None, None


def situ_rows(gate_up: Tensor, beta: float, linear_beta: float) -> Tensor:
    """Native forward, [..., 2I] contiguous -> [..., I]; no graph. beta 0: SwiGLU; linear_beta 0: no bound."""
    lib = library(gate_up)
    assert lib is not None
    inner = gate_up.shape[-1] // 2
    y = gate_up.new_empty(*gate_up.shape[:-1], inner)
    rows = y.numel() // inner
    lib.situ_forward(
        half(y), pointer(gate_up), pointer(y), size(rows), size(inner), real(beta), real(linear_beta), threads(rows)
    )
    return y


def situ_rows_backward(gate_up: Tensor, d_y: Tensor, beta: float, linear_beta: float) -> tuple[Tensor, Tensor]:
    """(gradient of gate_up, the forward value again)."""
    lib = library(gate_up)
    assert lib is not None
    inner = gate_up.shape[-1] // 2
    d_gate_up, y = torch.empty_like(gate_up), torch.empty_like(d_y)
    rows = y.numel() // inner
    lib.situ_backward_(
        half(y), pointer(gate_up), pointer(d_y), pointer(d_gate_up), pointer(y), size(rows), size(inner), real(beta),
        real(linear_beta), threads(rows),
    )  # fmt: skip
    return d_gate_up, y


def _joint(gate_up: Tensor, beta: float, linear_beta: float) -> Tensor:
    if not torch.is_grad_enabled():
        return situ_rows(gate_up.contiguous(), beta, linear_beta)
    return _Situ.apply(gate_up, beta, linear_beta)  # type: ignore[no-any-return]


def situ_glu_joint(gate_up: Tensor, *, beta: float = 4.0, linear_beta: float | None = 25.0) -> Tensor:
    """`situ_glu(gate, up)` of a joint projection [..., 2I], gate half first -> [..., I]."""
    if library(gate_up) is None:
        return situ_glu(*gate_up.chunk(2, dim=-1), beta=beta, linear_beta=linear_beta)
    return _joint(gate_up, beta, linear_beta or 0.0)


def swi_glu_joint(gate_up: Tensor) -> Tensor:
    """`swi_glu(gate, up)` of a joint projection [..., 2I], gate half first -> [..., I]."""
    return swi_glu(*gate_up.chunk(2, dim=-1)) if library(gate_up) is None else _joint(gate_up, 0.0, 0.0)


def cross_entropy_rows(logits_nV: Tensor, target_n: Tensor, weight_n: Tensor | None) -> Tensor:
    """Cross entropy [n] float32 of every row; with weights, `logits_nV` is overwritten by the gradient of the weighted sum.

    logits_nV contiguous, overwritten either way where the torch form runs.
    """
    lib = library(logits_nV)
    if lib is None:
        log_p = F.log_softmax(logits_nV.float(), dim=-1)
        nll_n = -log_p.gather(1, target_n[:, None])[:, 0]
        if weight_n is not None:
            slope = log_p.exp_()
            slope.scatter_add_(1, target_n[:, None], slope.new_full((len(slope), 1), -1.0))
            logits_nV.copy_(slope.mul_(weight_n[:, None]))
        return nll_n
    nll_n = torch.empty(len(logits_nV))
    weight = None if weight_n is None else full(weight_n)
    lib.cross_entropy_(
        half(logits_nV), pointer(logits_nV), pointer(target_n.contiguous()), pointer(weight), pointer(nll_n),
        size(len(logits_nV)), size(logits_nV.shape[1]), threads(len(logits_nV)),
    )  # fmt: skip
    return nll_n

"""The definitions of the grouped expert feed-forward and of SiTU-GLU.

Legend: M rows (a row is one token at one expert), E experts, L width of a row, I inner width of an expert.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def situ_glu_reference(gate: Tensor, up: Tensor, *, beta: float, linear_beta: float | None) -> Tensor:
    """beta tanh(gate/beta) sigmoid(gate) * linear_beta tanh(up/linear_beta) (Kimi K3 report eq. 12)."""
    dtype = torch.promote_types(torch.float32, gate.dtype)
    g, u = gate.to(dtype), up.to(dtype)
    if linear_beta is not None:
        u = linear_beta * torch.tanh(u / linear_beta)
    return (beta * torch.tanh(g / beta) * torch.sigmoid(g) * u).to(gate.dtype)


def expert_glu_reference(
    x_ML: Tensor,
    expert_offsets: list[int],
    w_gate_EIL: Tensor,
    w_up_EIL: Tensor,
    w_down_ELI: Tensor,
    *,
    act: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """Rows ``offsets[e]:offsets[e+1]`` go through expert e: ``w_down act(w_gate x, w_up x)``."""
    y_ML = torch.zeros_like(x_ML)
    for e in range(w_gate_EIL.shape[0]):
        rows = slice(expert_offsets[e], expert_offsets[e + 1])
        x = x_ML[rows]
        y_ML[rows] = act(x @ w_gate_EIL[e].T, x @ w_up_EIL[e].T) @ w_down_ELI[e].T
    return y_ML

"""The definitions of the grouped expert feed-forward and of SiTU-GLU.

Legend: M rows (a row is one token at one expert), E experts, L width of a row, I inner width of an expert.
"""

import torch
from torch import Tensor

from ..mxfp4.reference import mxfp4_decode_reference


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
    weights: tuple[Tensor, Tensor, Tensor],
    scales: tuple[Tensor, Tensor, Tensor] | None,
    *,
    beta: float | None,
    linear_beta: float | None,
) -> Tensor:
    """Rows ``offsets[e]:offsets[e+1]`` go through expert e: ``w_down act(w_gate x, w_up x)``; beta None means SwiGLU."""
    w_gate_EIL, w_up_EIL, w_down_ELI = (
        w.to(x_ML.dtype) if scales is None else mxfp4_decode_reference(w, scales[i], dtype=x_ML.dtype)
        for i, w in enumerate(weights)
    )
    outputs = []
    for e, (start, stop) in enumerate(zip(expert_offsets[:-1], expert_offsets[1:], strict=True)):
        gate, up = x_ML[start:stop] @ w_gate_EIL[e].T, x_ML[start:stop] @ w_up_EIL[e].T
        if beta is None:
            inner = torch.nn.functional.silu(gate) * up
        else:
            inner = situ_glu_reference(gate, up, beta=beta, linear_beta=linear_beta)
        outputs.append(inner @ w_down_ELI[e].T)
    return torch.cat(outputs)

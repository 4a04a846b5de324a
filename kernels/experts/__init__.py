"""The experts' feed-forward over rows sorted by expert, and the gated activations."""

from collections.abc import Callable, Sequence

import torch.nn.functional as F
from torch import Tensor

from ..dispatch import form
from .fast import SituGLU, expert_glu_fast
from .reference import expert_glu_reference, situ_glu_reference

__all__ = ["expert_glu", "situ_glu", "swi_glu"]


def situ_glu(gate: Tensor, up: Tensor, *, beta: float = 4.0, linear_beta: float | None = 25.0) -> Tensor:
    """SiTU-GLU of Kimi K3: ``beta tanh(gate/beta) sigmoid(gate) * linear_beta tanh(up/linear_beta)``.

    Bounded by ``beta * linear_beta``; equals SwiGLU to first order near zero. ``linear_beta=None`` leaves ``up`` linear.
    gate and up have one shape and dtype, which the result keeps; float32 inside.
    """
    if form("situ_glu", gate, triton=False) == "reference":
        return situ_glu_reference(gate, up, beta=beta, linear_beta=linear_beta)
    y: Tensor = SituGLU.apply(gate, up, beta, linear_beta)
    return y


def swi_glu(gate: Tensor, up: Tensor) -> Tensor:
    """SwiGLU: ``silu(gate) * up``."""
    return F.silu(gate) * up


def expert_glu(
    x: Tensor,
    expert_offsets: Sequence[int] | Tensor,
    w_gate: Tensor,
    w_up: Tensor,
    w_down: Tensor,
    *,
    act: Callable[[Tensor, Tensor], Tensor] = situ_glu,
) -> Tensor:
    """Send rows ``offsets[e]:offsets[e+1]`` through expert e: ``w_down act(w_gate x, w_up x)``.

    Args:
        x: [M,L] rows sorted by expert. expert_offsets: [E+1] row bounds, first 0, last M.
        w_gate, w_up: [E,I,L]. w_down: [E,L,I]. act: (gate [.,I], up [.,I]) -> [.,I].

    Returns:
        y [M,L] in x's dtype.
    """
    offsets = [int(o) for o in (expert_offsets.tolist() if isinstance(expert_offsets, Tensor) else expert_offsets)]
    if len(offsets) != w_gate.shape[0] + 1 or offsets[0] != 0 or offsets[-1] != x.shape[0]:
        raise ValueError(
            f"expert_glu got {len(offsets)} offsets from {offsets[0]} to {offsets[-1]} for {w_gate.shape[0]} experts and "
            f"{x.shape[0]} rows; expected one more offset than experts, from 0 to the number of rows"
        )
    if form("expert_glu", x, triton=False) == "reference":
        return expert_glu_reference(x, offsets, w_gate, w_up, w_down, act=act)
    return expert_glu_fast(x, offsets, w_gate, w_up, w_down, act)

"""The experts' feed-forward over rows sorted by expert, and the gated activations."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..checks import int_vector, same_place
from ..dispatch import form
from ..mxfp4.reference import BLOCK
from .fast import SituGLU
from .ops import expert_glu_op
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
    expert_offsets: Tensor,
    w_gate: Tensor,
    w_up: Tensor,
    w_down: Tensor,
    *,
    act: Callable[..., Tensor] = situ_glu,
    beta: float = 4.0,
    linear_beta: float | None = 25.0,
    scales: tuple[Tensor, Tensor, Tensor] | None = None,
) -> Tensor:
    """Send rows ``offsets[e]:offsets[e+1]`` through expert e: ``w_down act(w_gate x, w_up x)``.

    Args:
        x: [M,L] rows sorted by expert. expert_offsets: [E+1] int32 or int64 row bounds, first 0, last M; an expert may
            have no rows.
        w_gate, w_up: [E,I,L]. w_down: [E,L,I]. They may be halves of a joint tensor, and of another floating dtype than x.
        act: ``situ_glu`` with the two betas (Kimi K3 report, eq. 12), or ``swi_glu``.
        scales: of packed MXFP4 weights (gate, up, down), uint8, a 32nd as wide as the weights they stand for; the weights
            then are uint8, two codes a byte, the even column in the low half (see ``mxfp4_decode``), and get no gradient.

    Returns:
        y [M,L] in x's dtype.

    Raises:
        ValueError: shapes, devices, offsets or the activation do not fit. TypeError: a dtype does.
    """
    if x.dim() != 2 or any(w.dim() != 3 for w in (w_gate, w_up, w_down)):
        shapes = [tuple(w.shape) for w in (x, w_gate, w_up, w_down)]
        raise ValueError(
            f"expert_glu got x {shapes[0]}, weights {shapes[1:]}; expected [M,L], [E,I,L], [E,I,L], [E,L,I]"
        )
    (M, L), (E, inner, _) = x.shape, w_gate.shape
    wide = (L, L, inner)
    if scales is not None:
        if L % BLOCK or inner % BLOCK:
            raise ValueError(
                f"expert_glu got packed weights for L={L} and I={inner}; both must be multiples of {BLOCK}"
            )
        if any(w.dtype != torch.uint8 for w in (w_gate, w_up, w_down, *scales)):
            raise TypeError("expert_glu got scales, but weights or scales are not uint8 as packed MXFP4 is")
        wide = (L // 2, L // 2, inner // 2)
    rows = (inner, inner, L)
    for name, w, r, c in zip(("w_gate", "w_up", "w_down"), (w_gate, w_up, w_down), rows, wide, strict=True):
        if w.shape != (E, r, c):
            raise ValueError(f"expert_glu got {name} {tuple(w.shape)}; expected {(E, r, c)} for x {(M, L)}")
    for s, r, c in zip(scales or (), rows, (L, L, inner), strict=False):
        if s.shape != (E, r, c // BLOCK):
            raise ValueError(f"expert_glu got scales {tuple(s.shape)}; expected {(E, r, c // BLOCK)}")
    int_vector("expert_glu", "expert_offsets", expert_offsets)
    if expert_offsets.shape[0] != E + 1:
        raise ValueError(
            f"expert_glu got {expert_offsets.shape[0]} offsets for {E} experts; expected one more than experts"
        )
    if scales is None:
        same_place("expert_glu", x=x, w_gate=w_gate, w_up=w_up, w_down=w_down)
    if act is not situ_glu and act is not swi_glu:
        raise ValueError(
            "expert_glu got another activation; pass situ_glu or swi_glu, and their numbers as beta, linear_beta"
        )
    act_beta, act_linear = (None, None) if act is swi_glu else (float(beta), linear_beta)
    weights = (w_gate, w_up, w_down)
    if form("expert_glu", x) == "reference":
        return expert_glu_reference(x, expert_offsets.tolist(), weights, scales, beta=act_beta, linear_beta=act_linear)
    keep = torch.is_grad_enabled() and any(t.requires_grad for t in (x, *weights))
    y, _, _ = expert_glu_op(x, expert_offsets, *weights, *(scales or (None,) * 3), act_beta, act_linear, keep)
    return y  # type: ignore[no-any-return]

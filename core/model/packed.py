"""Routed experts whose weights stay in MXFP4 and are decoded one expert at a time, when a token has picked it.

Legend of shapes: T tokens, k picked experts, E experts, I expert width, L width the experts read and write, n rows of
one expert.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from watersmeet.core.config import ModelConfig
from watersmeet.core.errors import ConfigError
from watersmeet.core.model.ops import rms_norm
from watersmeet.kernels.dispatch import form
from watersmeet.kernels.experts import expert_glu, situ_glu, swi_glu
from watersmeet.kernels.mxfp4 import mxfp4_decode
from watersmeet.kernels.native import situ_glu_joint

BLOCK = 32


class _PackedLinear(torch.autograd.Function):
    """x @ W.T with W decoded in the forward pass and once more in the backward pass, so that no copy of it is kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, packed: Tensor, scale: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(packed, scale)
        return F.linear(x, mxfp4_decode(packed, scale, dtype=x.dtype))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        packed, scale = ctx.saved_tensors
        return grad @ mxfp4_decode(packed, scale, dtype=grad.dtype), None, None


class PackedExperts(nn.Module):
    """Takes the place of `Experts`: the same call, 4.25 bits a weight. The weights are buffers and are never trained.

    w13_packed [E, 2I, L/2] and w13_scale [E, 2I, L/32] hold gate rows, then up rows; w2_packed [E, L, I/2] and w2_scale
    [E, L, I/32] the down matrices; all uint8.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        e, inner, size = config.num_experts, config.moe_intermediate_size, config.expert_hidden_size
        if inner % BLOCK or size % BLOCK:
            raise ConfigError(
                f"packed experts: widths are {size} and {inner}, expected multiples of {BLOCK}, which share a scale"
            )
        for name, rows, columns in (("w13", 2 * inner, size), ("w2", size, inner)):
            self.register_buffer(f"{name}_packed", torch.zeros(e, rows, columns // 2, dtype=torch.uint8))
            self.register_buffer(f"{name}_scale", torch.zeros(e, rows, columns // BLOCK, dtype=torch.uint8))
        self.w13_packed: Tensor
        self.w13_scale: Tensor
        self.w2_packed: Tensor
        self.w2_scale: Tensor

    def decode(self, expert: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """w13 [2I, L] and w2 [L, I] of one expert."""
        return (
            mxfp4_decode(self.w13_packed[expert], self.w13_scale[expert], dtype=dtype),
            mxfp4_decode(self.w2_packed[expert], self.w2_scale[expert], dtype=dtype),
        )

    def forward(
        self,
        z_TL: Tensor,
        share_Tk: Tensor,
        picked_Tk: Tensor,
        norm: Tensor | None,
        *,
        betas: tuple[float, float | None] | None,
        eps: float,
    ) -> Tensor:
        """`RMSNorm(sum_j share_j E_j(z))` [T, L]; without `norm` the plain sum. `betas` None: SwiGLU."""
        if form("expert_glu", z_TL) == "triton":
            mixed_TL = self._grouped(z_TL, share_Tk, picked_Tk, betas).to(z_TL.dtype)
            return mixed_TL if norm is None else rms_norm(mixed_TL, norm, eps)
        mixed_TL = torch.zeros(z_TL.shape, dtype=torch.float32, device=z_TL.device)
        for expert in picked_Tk.unique().tolist():
            rows_n, column_n = (picked_Tk == expert).nonzero(as_tuple=True)
            both = _PackedLinear.apply(z_TL[rows_n], self.w13_packed[expert], self.w13_scale[expert])
            if betas is None:
                gate, up = both.chunk(2, dim=-1)
                inner = F.silu(gate) * up
            else:
                inner = situ_glu_joint(both, beta=betas[0], linear_beta=betas[1])
            y_nL = _PackedLinear.apply(inner, self.w2_packed[expert], self.w2_scale[expert])
            mixed_TL = mixed_TL.index_add(0, rows_n, y_nL.float() * share_Tk[rows_n, column_n, None].float())
        mixed_TL = mixed_TL.to(z_TL.dtype)
        return mixed_TL if norm is None else rms_norm(mixed_TL, norm, eps)

    def _grouped(
        self, z_TL: Tensor, share_Tk: Tensor, picked_Tk: Tensor, betas: tuple[float, float | None] | None
    ) -> Tensor:
        """The sum in float32, all experts in one product that decodes on the way; nothing waits for the device."""
        experts, order = len(self.w2_packed), picked_Tk.reshape(-1).argsort(stable=True)
        first = torch.arange(experts + 1, device=order.device)
        offsets = torch.searchsorted(picked_Tk.reshape(-1)[order], first)
        (gate, up), (gate_scale, up_scale) = self.w13_packed.chunk(2, dim=1), self.w13_scale.chunk(2, dim=1)
        act, (beta, linear_beta) = (swi_glu, (1.0, None)) if betas is None else (situ_glu, betas)
        y_ML = expert_glu(
            z_TL[order // picked_Tk.shape[1]], offsets, gate, up, self.w2_packed, act=act, beta=beta,
            linear_beta=linear_beta, scales=(gate_scale, up_scale, self.w2_scale),
        )  # fmt: skip
        y_TkL = y_ML[order.argsort()].view(*picked_Tk.shape, -1)
        return (y_TkL.float() * share_Tk[..., None].float()).sum(1)

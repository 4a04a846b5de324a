"""Feed-forward sublayers: the dense GLU, and experts in a latent space behind a sigmoid router.

Sources: Kimi K3 report (arXiv:2607.24653), sections 2.3 and appendices B-D (Stable LatentMoE, SiTU-GLU, Quantile
Balancing). One pool of experts serves every modality; their load is counted per modality.

Legend of shapes: T tokens, D hidden width, L latent width, E experts, k picked experts, I expert width, M = T * k
routed rows, Q modalities, B histogram bins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from watersmeet.core.balancing import quantile_bias, required_bias_histogram
from watersmeet.core.config import ModelConfig
from watersmeet.core.model.ops import Linear, RMSNorm, gather_rows, restore_rows
from watersmeet.kernels.experts import expert_glu, situ_glu

Activation = Callable[[Tensor, Tensor], Tensor]

DENSE_STEP_EXPERTS = 16
"""Up to this many experts, one generated token runs all of them: two products are cheaper than a gather of weights."""


def silu_glu(gate: Tensor, up: Tensor) -> Tensor:
    """SwiGLU, the activation of Kimi Linear."""
    return F.silu(gate) * up


def activation(config: ModelConfig) -> Activation:
    """The GLU activation `act(gate, up)` of a configuration."""
    if config.hidden_act == "silu":
        return silu_glu
    return partial(situ_glu, beta=config.situ_beta, linear_beta=config.situ_linear_beta)


@dataclass(kw_only=True)
class RouterRecord:
    """What the routers of one forward pass saw; filled layer by layer.

    modality_ids [T] and their number; real_tokens: the first tokens that are real (the rest fills the batch up);
    load: per MoE layer the picks [Q, E] int64.
    """

    modality_ids: Tensor
    num_modalities: int
    real_tokens: int
    load: list[Tensor] = field(default_factory=list)


class GLU(nn.Module):
    """down(act(gate(x), up(x))) at full width."""

    def __init__(self, size: int, inner: int, act: Activation) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = Linear(size, inner), Linear(size, inner), Linear(inner, size)
        self.act = act
        self._fused: Tensor | None = None

    def gate_up(self) -> Tensor:
        """Both input matrices as one, [2 * inner, size]."""
        return torch.cat([self.gate_proj.weight, self.up_proj.weight])

    def fuse(self, on: bool) -> None:
        """Keep the merged matrix between calls (generation) or build it anew in each (training)."""
        self._fused = self.gate_up() if on else None

    def forward(self, x: Tensor, record: RouterRecord | None = None) -> Tensor:
        weight = self.gate_up() if self._fused is None else self._fused
        gate, up = F.linear(x, weight.to(x.dtype)).chunk(2, dim=-1)
        return self.down_proj(self.act(gate, up))

    def step(self, x: Tensor) -> Tensor:
        return self(x)


class Router(nn.Module):
    """Sigmoid scores of the full-width hidden state and the bias that balances them; float32 throughout."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.k, self.scaling, self.ema = config.num_experts_per_token, config.routed_scaling_factor, config.balance_ema
        self.weight = nn.Parameter(torch.empty(config.num_experts, config.hidden_size))
        self.register_buffer("e_score_correction_bias", torch.zeros(config.num_experts))
        counts = torch.zeros(config.num_experts, config.balance_bins, dtype=torch.int64)
        self.register_buffer("counts", counts, persistent=False)
        self.e_score_correction_bias: Tensor
        self.counts: Tensor

    def forward(self, x_TD: Tensor, record: RouterRecord | None = None) -> tuple[Tensor, Tensor]:
        """Picked experts [T, k] int64 and their weights [T, k] float32; the bias picks but never weighs."""
        score_TE = torch.sigmoid(F.linear(x_TD.float(), self.weight.float()))
        biased_TE = score_TE.detach() + self.e_score_correction_bias
        # a stable sort, because equal scores must go to the lower index
        best, order = biased_TE.sort(dim=-1, descending=True, stable=True)
        picked_Tk = order[:, : self.k]
        chosen_Tk = score_TE.gather(1, picked_Tk)
        weight_Tk = chosen_Tk / (chosen_Tk.sum(-1, keepdim=True) + 1e-20) * self.scaling
        if record is not None:
            self._observe(score_TE.detach(), best[:, self.k], picked_Tk, record)
        return picked_Tk, weight_Tk

    @torch.no_grad()
    def _observe(self, score_TE: Tensor, cutoff_T: Tensor, picked_Tk: Tensor, record: RouterRecord) -> None:
        n, experts = record.real_tokens, score_TE.shape[1]
        cells = record.modality_ids[:n, None] * experts + picked_Tk[:n]
        load = torch.bincount(cells.reshape(-1), minlength=record.num_modalities * experts)
        record.load.append(load.view(record.num_modalities, experts))
        if self.training:
            self.counts += required_bias_histogram(
                score_TE[:n], cutoff_T[:n], self.e_score_correction_bias, self.counts.shape[1]
            )

    @torch.no_grad()
    def update_bias(self, reduce: Callable[[Tensor], Tensor] | None = None) -> None:
        """Apply Quantile Balancing to everything counted since the last call and start anew.

        `reduce` sums integer counts over data-parallel processes (never over copies that saw the same tokens).
        """
        counts = self.counts if reduce is None else reduce(self.counts)
        tokens = int(counts[0].sum())
        if tokens:
            bias = self.e_score_correction_bias
            found = quantile_bias(counts, bias, tokens * self.k / bias.shape[0])
            bias.copy_(found if self.ema == 0.0 else bias * self.ema + found * (1.0 - self.ema))
        self.counts.zero_()


class Experts(nn.Module):
    """Weights of all routed experts: w1 (gate) and w3 (up) [E, I, L], w2 (down) [E, L, I]."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        e, inner, size = config.num_experts, config.moe_intermediate_size, config.expert_hidden_size
        self.w1, self.w3 = (nn.Parameter(torch.empty(e, inner, size)) for _ in range(2))
        self.w2 = nn.Parameter(torch.empty(e, size, inner))


class LatentMoE(nn.Module):
    """y = up(RMSNorm(sum_j p_j E_j(down x))) + shared(x); without a latent space, the plain sum of experts."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        d, latent = config.hidden_size, config.routed_expert_hidden_size
        self.act = activation(config)
        self.gate = Router(config)
        self.experts = Experts(config)
        self.latent = latent is not None
        if latent is not None:
            self.routed_expert_down_proj = Linear(d, latent)
            self.routed_expert_norm = RMSNorm(latent, config.rms_norm_eps)
            self.routed_expert_up_proj = Linear(latent, d)
        shared = config.shared_intermediate_size
        self.shared_experts = GLU(d, shared, self.act) if shared else None
        self._fused: tuple[Tensor, Tensor] | None = None

    def forward(self, x_TD: Tensor, record: RouterRecord | None = None) -> Tensor:
        picked_Tk, weight_Tk = self.gate(x_TD, record)
        z_TL = self.routed_expert_down_proj(x_TD) if self.latent else x_TD
        k = picked_Tk.shape[1]
        flat_M = picked_Tk.reshape(-1)
        order_M = flat_M.argsort(stable=True)
        inverse_M = torch.empty_like(order_M)
        inverse_M[order_M] = torch.arange(len(order_M), device=order_M.device)
        experts = self.experts
        ends = torch.bincount(flat_M, minlength=experts.w1.shape[0]).cumsum(0).tolist()
        rows_ML = gather_rows(z_TL, order_M, inverse_M, k)
        w1, w3, w2 = (w.to(x_TD.dtype) for w in (experts.w1, experts.w3, experts.w2))
        out_ML = expert_glu(rows_ML, [0, *ends], w1, w3, w2, act=self.act)
        out_TkL = restore_rows(out_ML, order_M, inverse_M).view(-1, k, out_ML.shape[1])
        # the weighted sum runs in float32: it is where the rounding of k outputs would add up
        mixed_TL = (out_TkL.float() * weight_Tk[:, :, None]).sum(1).to(x_TD.dtype)
        return self._finish(mixed_TL, x_TD)

    def _finish(self, mixed_TL: Tensor, x_TD: Tensor) -> Tensor:
        # the norm stands after the sum over experts, so any parallel partial sum must be complete here
        y = self.routed_expert_up_proj(self.routed_expert_norm(mixed_TL)) if self.latent else mixed_TL
        return y if self.shared_experts is None else y + self.shared_experts(x_TD)

    def fuse(self, on: bool) -> None:
        """For generation with few experts: all gate and up matrices as one [2*E*I, L], all down as one [L, E*I]."""
        w1, w3, w2 = self.experts.w1, self.experts.w3, self.experts.w2
        if on and w1.shape[0] <= DENSE_STEP_EXPERTS:
            self._fused = torch.cat([w1, w3]).flatten(0, 1), w2.transpose(0, 1).flatten(1).contiguous()
        else:
            self._fused = None

    def step(self, x_ND: Tensor) -> Tensor:
        """The same for a handful of rows: every expert runs and those not picked weigh zero."""
        if self._fused is None:
            return self(x_ND)
        picked_Nk, weight_Nk = self.gate(x_ND)
        z_NL = self.routed_expert_down_proj(x_ND) if self.latent else x_ND
        gate_up, down = self._fused
        gate, up = F.linear(z_NL, gate_up).chunk(2, dim=-1)
        share_NE = weight_Nk.new_zeros(len(x_ND), self.experts.w1.shape[0]).scatter_(1, picked_Nk, weight_Nk)
        inner = self.act(gate, up).unflatten(-1, (share_NE.shape[1], -1)) * share_NE[:, :, None].to(x_ND.dtype)
        return self._finish(F.linear(inner.flatten(-2), down), x_ND)

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
from watersmeet.core.model.joint import Joint
from watersmeet.core.model.ops import Linear, RMSNorm
from watersmeet.core.model.warmup import allowed_experts, route_within
from watersmeet.kernels.native import route, routed_experts, situ_glu_joint, swi_glu_joint

JointActivation = Callable[[Tensor], Tensor]
"""`act([..., 2I]) -> [..., I]` on a joint projection, gate half first."""


def activation(config: ModelConfig) -> JointActivation:
    """The GLU activation of a configuration."""
    if config.hidden_act == "silu":
        return swi_glu_joint
    return partial(situ_glu_joint, beta=config.situ_beta, linear_beta=config.situ_linear_beta)


@dataclass(kw_only=True)
class RouterRecord:
    """What the routers of one forward pass saw; filled layer by layer.

    modality_ids [T] and their number; real_tokens: the first tokens that are real (the rest fills the batch up);
    load: per MoE layer the picks [Q, E] int64. `closed` once the pass is over: a layer that runs a second time for its
    gradient (recomputation) must not count its tokens a second time.
    """

    modality_ids: Tensor
    num_modalities: int
    real_tokens: int
    load: list[Tensor] = field(default_factory=list)
    closed: bool = False


class GLU(nn.Module):
    """down(act(gate(x), up(x))) at full width."""

    def __init__(self, size: int, inner: int, act: JointActivation) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = Linear(size, inner), Linear(size, inner), Linear(inner, size)
        self.act = act
        self.joint = Joint(self.gate_proj, self.up_proj)

    def forward(self, x: Tensor, record: RouterRecord | None = None) -> Tensor:
        return self.down_proj(self.act(F.linear(x, self.joint(x.dtype))))


class Router(nn.Module):
    """Sigmoid scores of the full-width hidden state and the bias that balances them; float32 throughout."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.k, self.scaling, self.ema = config.num_experts_per_token, config.routed_scaling_factor, config.balance_ema
        self.num_experts = config.num_experts
        self.weight = nn.Parameter(torch.empty(config.num_experts, config.hidden_size))
        self.register_buffer("e_score_correction_bias", torch.zeros(config.num_experts))
        counts = torch.zeros(config.num_experts, config.balance_bins, dtype=torch.int64)
        self.register_buffer("counts", counts, persistent=False)
        self.e_score_correction_bias: Tensor
        self.counts: Tensor
        # (width, seed) of the warm-up mask of this step while training begins with one
        self.warmup: tuple[int, int] | None = None

    def forward(self, x_TD: Tensor, record: RouterRecord | None = None) -> tuple[Tensor, Tensor]:
        """Picked experts [T, k] int64 and their weights [T, k] float32; the bias picks but never weighs."""
        bias = self.e_score_correction_bias
        if self.warmup is None or not self.training:
            picked_Tk, weight_Tk, score_TE, cutoff_T = route(x_TD, self.weight, bias, k=self.k, scaling=self.scaling)
        else:
            width, seed = self.warmup
            order = torch.randperm(self.num_experts, generator=torch.Generator().manual_seed(seed)).to(x_TD.device)
            allowed = allowed_experts(len(x_TD), self.k, width, order)
            picked_Tk, weight_Tk, score_TE, cutoff_T = route_within(
                x_TD, self.weight, bias, allowed, k=self.k, scaling=self.scaling
            )
        if record is not None and not record.closed:
            self._observe(score_TE, cutoff_T, picked_Tk, record)
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
    """Weights of all routed experts: w13 (gate rows, then up rows) [E, 2I, L] and w2 (down) [E, L, I].

    On disk w13 is two tensors, see `stored`. A subclass or another module with this `forward` may hold the weights in
    another form.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        e, inner, size = config.num_experts, config.moe_intermediate_size, config.expert_hidden_size
        self.w13 = nn.Parameter(torch.empty(e, 2 * inner, size))
        self.w2 = nn.Parameter(torch.empty(e, size, inner))

    def weights(self) -> tuple[Tensor, Tensor]:
        """w13 and w2 of all experts."""
        return self.w13, self.w2

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
        w13, w2 = (w.to(z_TL.dtype) for w in self.weights())
        return routed_experts(z_TL, share_Tk, picked_Tk, w13, w2, norm, betas=betas, eps=eps)


class LatentMoE(nn.Module):
    """y = up(RMSNorm(sum_j p_j E_j(down x))) + shared(x); without a latent space, the plain sum of experts."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        d, latent = config.hidden_size, config.routed_expert_hidden_size
        self.act = activation(config)
        self.betas = (config.situ_beta, config.situ_linear_beta) if config.hidden_act == "situ" else None
        self.gate = Router(config)
        self.experts = Experts(config)
        self.latent, self.latent_norm = latent is not None, latent is not None and config.latent_norm
        if latent is not None:
            self.routed_expert_down_proj = Linear(d, latent)
            if self.latent_norm:
                self.routed_expert_norm = RMSNorm(latent, config.rms_norm_eps)
            self.routed_expert_up_proj = Linear(latent, d)
        shared = config.shared_intermediate_size
        self.shared_experts = GLU(d, shared, self.act) if shared else None

    def forward(self, x_TD: Tensor, record: RouterRecord | None = None) -> Tensor:
        picked_Tk, weight_Tk = self.gate(x_TD, record)
        z_TL = self.routed_expert_down_proj(x_TD) if self.latent else x_TD
        # the norm stands after the sum over experts, so any parallel partial sum would have to be complete here
        norm, eps = (self.routed_expert_norm.weight, self.routed_expert_norm.eps) if self.latent_norm else (None, 0.0)
        mixed_TL = self.experts(z_TL, weight_Tk, picked_Tk, norm, betas=self.betas, eps=eps)
        return self._finish(mixed_TL, x_TD)

    def _finish(self, mixed_TL: Tensor, x_TD: Tensor) -> Tensor:
        y = self.routed_expert_up_proj(mixed_TL) if self.latent else mixed_TL
        return y if self.shared_experts is None else y + self.shared_experts(x_TD)

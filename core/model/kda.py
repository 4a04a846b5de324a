"""Kimi Delta Attention: projections, short convolutions, bounded gate, delta rule, gated output.

Sources: Kimi Linear report (arXiv:2510.26692) and Kimi K3 report (arXiv:2607.24653, eq. 1-5).

Legend of shapes: T tokens, N streams, D hidden width, H heads, K head width (keys and values), C = H * K channels,
W taps of the convolution.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from watersmeet.core.cache import KdaState
from watersmeet.core.config import ModelConfig
from watersmeet.core.model.joint import Joint
from watersmeet.core.model.ops import Layout, Linear, Step, l2_norm
from watersmeet.kernels.kda import kda_gate
from watersmeet.kernels.native import delta_rule, gated_norm, kda_front


class ShortConv(nn.Module):
    """Weights `[C, 1, W]` of a causal depthwise convolution; float32 in storage and arithmetic."""

    def __init__(self, channels: int, taps: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, taps))


class GatedNorm(nn.Module):
    """Gain `[K]` shared by all heads, for `RMSNorm(o) * sigmoid(gate)`."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, o: Tensor, gate: Tensor) -> Tensor:
        """o, gate [..., H, K]; the norm comes first, the gate second, both in float32."""
        return gated_norm(o, gate, self.weight, eps=self.eps)


class KimiDeltaAttention(nn.Module):
    """One KDA layer. Reads the normalised hidden state `[T, D]`, returns `[T, D]`."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        d, h, k = config.hidden_size, config.kda_num_heads, config.kda_head_dim
        channels, taps = h * k, config.short_conv_kernel_size
        self.num_heads, self.head_dim, self.lower_bound = h, k, config.gate_lower_bound
        self.q_proj, self.k_proj, self.v_proj = (Linear(d, channels) for _ in range(3))
        self.q_conv1d, self.k_conv1d, self.v_conv1d = (ShortConv(channels, taps) for _ in range(3))
        self.f_a_proj = Linear(d, k)
        self.f_b_proj = Linear(k, channels)
        self.b_proj = Linear(d, h)
        self.A_log = nn.Parameter(torch.empty(h))
        self.dt_bias = nn.Parameter(torch.empty(channels))
        self.gate_rank = config.kda_gate_rank
        if self.gate_rank is None:
            self.g_proj = Linear(d, channels)
        else:
            self.g_a_proj = Linear(d, self.gate_rank)
            self.g_b_proj = Linear(self.gate_rank, channels)
        self.o_norm = GatedNorm(k, config.rms_norm_eps)
        self.o_proj = Linear(channels, d)
        gate = self.g_proj if self.gate_rank is None else self.g_a_proj
        self.joint = Joint(self.q_proj, self.k_proj, self.v_proj, self.b_proj, gate, self.f_a_proj)
        self.filters = Joint(self.q_conv1d, self.k_conv1d, self.v_conv1d)

    def _project(self, x_TD: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q | k | v | logits of beta [T, 3C + H], logits of the decay [T, C], output gate [T, H, K], filters [3C, W]."""
        gate = self.g_proj(x_TD) if self.gate_rank is None else self.g_b_proj(self.g_a_proj(x_TD))
        z = self.f_b_proj(self.f_a_proj(x_TD))
        proj = F.linear(x_TD, self.joint(x_TD.dtype, 4))
        return proj, z, gate.unflatten(-1, (self.num_heads, -1)), self.filters().squeeze(1)

    def forward(self, x_TD: Tensor, layout: Layout | Step, state: KdaState | None = None) -> Tensor:
        """All rows of a batch, from the state of a cache on if there is one, or one more token for each stream of it."""
        if isinstance(layout, Step):
            assert state is not None
            return self.step(x_TD, state)
        proj, z, gate, filters = self._project(x_TD)
        window = initial = None
        if state is not None:
            rows = slice(layout.first, layout.first + layout.num_streams)
            state.conv = state.conv.contiguous()
            window, initial = state.conv[rows], state.recurrent[rows]
        q, k, v, g, beta = kda_front(
            proj, z, filters, self.A_log, self.dt_bias, layout.cu_seqlens, layout.place,
            lower_bound=self.lower_bound, window=window,
        )  # fmt: skip
        o, final = delta_rule(
            q, k, v, g, beta, layout.cu_seqlens, bounded=self.lower_bound is not None,
            initial_state=initial, output_final_state=state is not None,
        )  # fmt: skip
        if state is not None and final is not None:
            state.recurrent[rows] = final
        return self.o_proj(self.o_norm(o, gate).flatten(-2))

    def step(self, x_ND: Tensor, state: KdaState) -> Tensor:
        """One new token for every stream of the cache, [N, D] -> [N, D]."""
        # the recurrence written out
        h, k = self.num_heads, self.head_dim
        proj, z, gate, filters = self._project(x_ND)
        qkv, b = proj.split([3 * h * k, h], dim=-1)
        g = kda_gate(z.unflatten(-1, (h, k)), self.A_log, self.dt_bias.view(h, k), lower_bound=self.lower_bound)
        window = torch.cat([state.conv, qkv[:, :, None].to(state.conv.dtype)], dim=-1)
        state.conv = window[:, :, 1:]
        qkv = F.silu((window.float() * filters.float()).sum(-1)).view(-1, 3, h, k)
        qk = l2_norm(qkv[:, :2])
        q, key, v = qk[:, 0] * k**-0.5, qk[:, 1], qkv[:, 2]
        decayed = state.recurrent * g.exp()[..., None]
        residual = (v - (key[:, :, None] @ decayed)[:, :, 0]) * torch.sigmoid(b.float())[..., None]
        state.recurrent = torch.addcmul(decayed, key[..., None], residual[:, :, None])
        o = (q[:, :, None] @ state.recurrent)[:, :, 0]
        return self.o_proj(self.o_norm(o.to(x_ND.dtype), gate).flatten(-2))

    def reset_parameters(self) -> None:
        """A = 1 for the bounded gate, log A ~ log U(1, 16) otherwise; dt log-uniform in [1e-3, 1e-1] (K3 report)."""
        for conv in (self.q_conv1d, self.k_conv1d, self.v_conv1d):
            bound = conv.weight.shape[-1] ** -0.5
            nn.init.uniform_(conv.weight, -bound, bound)
        if self.lower_bound is None:
            self.A_log.uniform_(1.0, 16.0).log_()
        else:
            self.A_log.zero_()
        dt = torch.empty_like(self.dt_bias).uniform_(math.log(1e-3), math.log(1e-1)).exp_().clamp_(min=1e-4)
        self.dt_bias.copy_(dt + torch.log(-torch.expm1(-dt)))  # inverse of softplus

"""Multi-head latent attention without positions, with K3's output gate.

Sources: Kimi Linear report (arXiv:2510.26692), Kimi K3 report (arXiv:2607.24653, section 2.1). Keys and values come from
one small latent per token. The channels called "rope" form a key shared by all heads; here nothing is ever rotated,
so without a mask the layer does not know the order of its rows.

Legend of shapes: T tokens, N streams, D hidden width, H heads, R latent width, P shared key width, K = nope + P key
width, V value width, L rows of one stream, S slots of the cache.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from watersmeet.core.cache import LatentBuffer
from watersmeet.core.config import ModelConfig
from watersmeet.core.model.joint import Joint
from watersmeet.core.model.logits import LogitMeter
from watersmeet.core.model.ops import Layout, Linear, RMSNorm, Step
from watersmeet.kernels.mla import mla_decode


def attention_mask(length: int, past: int, block_L: Tensor | None, device: torch.device) -> Tensor:
    """[L, past + L] bool, True where a row may look: everything before it, itself, and its own block both ways."""
    mask = torch.ones(length, past + length, dtype=torch.bool, device=device).tril(past)
    if block_L is not None:
        same = (block_L[:, None] == block_L[None, :]) & (block_L[:, None] >= 0)
        mask[:, past:] |= same
    return mask


def attend_behind(q_HLK: Tensor, k_HSK: Tensor, v_HSV: Tensor, past: int, scale: float) -> Tensor:
    """Causal attention of L queries that stand behind `past` keys, [1, H, L, V]; no gradient, CPU only, V = K.

    The past needs no mask and the rest is a causal square, so nothing is computed to be thrown away; the two softmaxes are
    joined by their normalisers.
    """
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    before, norm_before = flash(q_HLK, k_HSK[:, :, :past], v_HSV[:, :, :past], 0.0, False, scale=scale)
    own, norm_own = flash(q_HLK, k_HSK[:, :, past:], v_HSV[:, :, past:], 0.0, True, scale=scale)
    share = torch.sigmoid(norm_before - norm_own)[..., None].to(own.dtype)
    return torch.lerp(own, before, share)


class LatentAttention(nn.Module):
    """One full-attention layer. Reads the normalised hidden state `[T, D]`, returns `[T, D]`."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        d, h = config.hidden_size, config.num_attention_heads
        self.num_heads, self.nope, self.shared = h, config.qk_nope_head_dim, config.qk_rope_head_dim
        self.head_dim, self.v_dim, self.rank = config.qk_head_dim, config.v_head_dim, config.kv_lora_rank
        self.scale = self.head_dim**-0.5
        if config.q_lora_rank is None:
            self.q_proj = Linear(d, h * self.head_dim)
        else:
            self.q_a_proj = Linear(d, config.q_lora_rank)
            self.q_a_layernorm = RMSNorm(config.q_lora_rank, config.mla_norm_eps)
            self.q_b_proj = Linear(config.q_lora_rank, h * self.head_dim)
        self.q_lora = config.q_lora_rank is not None
        self.kv_a_proj_with_mqa = Linear(d, self.rank + self.shared)
        self.kv_a_layernorm = RMSNorm(self.rank, config.mla_norm_eps)
        self.kv_b_proj = Linear(self.rank, h * (self.nope + self.v_dim))
        self.gated = config.mla_output_gate
        if self.gated:
            self.g_proj = Linear(d, h * self.v_dim)
        self.o_proj = Linear(h * self.v_dim, d)
        first = self.q_a_proj if self.q_lora else self.q_proj
        readers = [first, self.kv_a_proj_with_mqa, *([self.g_proj] if self.gated else [])]
        self.joint = Joint(*readers)
        self._sizes = [m.out_features for m in readers]
        self.meter: LogitMeter | None = None

    def _project(self, x_TD: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Queries [T, H, K], normalised latent [T, R], shared key [T, P], output gate [T, H*V] or None."""
        first, kv, *gate = F.linear(x_TD, self.joint(x_TD.dtype)).split(self._sizes, dim=-1)
        q = self.q_b_proj(self.q_a_layernorm(first)) if self.q_lora else first
        latent, shared = kv.split([self.rank, self.shared], dim=-1)
        return (
            q.unflatten(-1, (self.num_heads, self.head_dim)),
            self.kv_a_layernorm(latent),
            shared,
            gate[0] if gate else None,
        )

    def _expand(self, latent_SR: Tensor, shared_SP: Tensor) -> tuple[Tensor, Tensor]:
        """Keys [S, H, K] and values [S, H, V] of every head."""
        kv = self.kv_b_proj(latent_SR).unflatten(-1, (self.num_heads, self.nope + self.v_dim))
        k_own, v = kv.split([self.nope, self.v_dim], dim=-1)
        return torch.cat([k_own, shared_SP[:, None].expand(-1, self.num_heads, -1)], dim=-1), v

    def _attend(self, q_LHK: Tensor, k_SHK: Tensor, v_SHV: Tensor, block_L: Tensor | None) -> Tensor:
        """Softmax attention of one stream whose L queries belong to the last L of S keys."""
        q, k, v = (t.transpose(0, 1)[None] for t in (q_LHK, k_SHK, v_SHV))
        width = max(self.head_dim, self.v_dim)
        if self.head_dim != self.v_dim:
            # the fused kernels want one width; zeros add nothing to scores and the extra values are cut off
            q, k, v = (F.pad(t, (0, width - t.shape[-1])) for t in (q, k, v))
        past = k.shape[2] - q.shape[2]
        if past and block_L is None and q.device.type == "cpu" and not torch.is_grad_enabled():
            o = attend_behind(q, k, v, past, self.scale)
        else:
            causal = block_L is None and past == 0
            mask = None if causal else attention_mask(q.shape[2], past, block_L, q.device)
            o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=self.scale)
        return o[0].transpose(0, 1)[..., : self.v_dim]

    def _output(self, o_THV: Tensor, gate: Tensor | None) -> Tensor:
        o = o_THV.flatten(-2)
        return self.o_proj(o if gate is None else o * torch.sigmoid(gate))

    def forward(self, x_TD: Tensor, layout: Layout | Step, state: LatentBuffer | None = None) -> Tensor:
        """All rows of a batch, behind what a cache holds if there is one, or one more token for each stream of it."""
        if isinstance(layout, Step):
            assert state is not None
            return self.step(x_TD, layout, state)
        q, latent, shared, gate = self._project(x_TD)
        if state is None:
            k, v = self._expand(latent, shared)
        outputs = []
        for row, start, end in layout.spans():
            block = None if layout.block is None else layout.block[start:end]
            if block is not None and not bool((block >= 0).any()):
                block = None
            if state is None:
                before, k_row, v_row = 0, k[start:end], v[start:end]
            else:
                before = 0 if layout.past is None else layout.past[row]
                state.reserve(before + end - start)
                state.rows[row, before : before + end - start] = torch.cat(
                    [latent[start:end], shared[start:end]], dim=-1
                )
                seen = state.rows[row, : before + end - start]
                k_row, v_row = self._expand(*seen.split([self.rank, self.shared], dim=-1))
            if self.meter is not None and self.training and state is None and (layout.real or end) >= end:
                self.meter.see(q[start:end], k_row, block, self.scale)
            outputs.append(self._attend(q[start:end], k_row, v_row, block))
        return self._output(torch.cat(outputs), gate)

    def step(self, x_ND: Tensor, step: Step, state: LatentBuffer) -> Tensor:
        """One new token for every stream, with the key and value matrices absorbed into query and output."""
        q, latent, shared, gate = self._project(x_ND)
        state.reserve(step.longest)
        rows = state.rows
        rows[torch.arange(len(rows), device=rows.device), step.past_N] = torch.cat([latent, shared], dim=-1)
        seen_NSR = rows[:, : step.longest]
        w_key, w_value = self.kv_b_proj.weight.to(x_ND.dtype).view(self.num_heads, -1, self.rank).split(
            [self.nope, self.v_dim], dim=1
        )  # fmt: skip
        o_NHV = mla_decode(q, seen_NSR, w_key, w_value, scale=self.scale, mask=step.mask_NS)
        return self._output(o_NHV, gate)

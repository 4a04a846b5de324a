"""One decoder layer, and the reads that connect layers: Block Attention Residuals or ordinary residuals.

Source of the residual scheme: Attention Residuals report (arXiv:2603.15031), Kimi K3 report (arXiv:2607.24653, eq. 8-10).

Legend of shapes: T tokens, D hidden width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from watersmeet.core.cache import KdaState, LatentBuffer
from watersmeet.core.config import ModelConfig
from watersmeet.core.model.depth import observe
from watersmeet.core.model.kda import KimiDeltaAttention
from watersmeet.core.model.mla import LatentAttention
from watersmeet.core.model.moe import GLU, LatentMoE, RouterRecord, activation
from watersmeet.core.model.ops import Layout, RMSNorm, Step
from watersmeet.kernels.native import mix_norm


class Query(nn.Module):
    """The learned query `[1, D]` of one Attention Residuals read. Zero at first: the read is then the plain mean."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, size))


class Residual(NamedTuple):
    """What is carried through depth: the snapshots of finished blocks and the running sum of the current one.

    At the first layer of a block the running sum becomes a snapshot and a new sum starts; every sublayer reads a
    mix of all snapshots and the running sum. Ordinary residual connections have no snapshots. The last sublayer's
    output waits in `update`, because adding it and reading the result is one pass over memory. A plain tuple of tensors
    that is never changed in place: wrappers of a layer (sharding, offload, recomputation) can see what goes through.
    """

    bank: tuple[Tensor, ...]
    running: Tensor | None
    update: Tensor | None = None

    def add(self, update_TD: Tensor) -> Residual:
        """With a sublayer's output added to the running sum."""
        if self.running is None:
            return self._replace(running=update_TD)
        return self._replace(update=update_TD)

    def snapshot(self) -> Residual:
        """With the running sum closed and put into the bank."""
        assert self.running is not None and self.update is None
        return Residual((*self.bank, self.running), None)

    def read(self, norm: RMSNorm, mix: tuple[RMSNorm, Query] | None) -> tuple[Tensor, Residual]:
        """The normalised mix of everything so far, and the same residual with `update` added in.

        `mix` None: of the running sum alone.
        """
        assert self.running is not None
        sources = [self.running] if mix is None else [*self.bank, self.running]
        query, gain, eps = (None, None, 0.0) if mix is None else (mix[1].weight[0], mix[0].weight, mix[0].eps)
        if query is not None and gain is not None:
            observe(sources, self.update, query, gain, eps)
        h, running = mix_norm(sources, self.update, query, gain, norm.weight, eps=eps, norm_eps=norm.eps)
        return h, Residual(self.bank, running)


class DecoderLayer(nn.Module):
    """Norms, token mixer, feed-forward and the two residual reads of one layer."""

    def __init__(self, config: ModelConfig, index: int) -> None:
        super().__init__()
        d, eps = config.hidden_size, config.rms_norm_eps
        self.full_attention = config.is_full_attention(index)
        self.block = config.attn_res_block_size
        self.begins_block = self.block is not None and index % self.block == 0
        self.input_layernorm = RMSNorm(d, eps)
        self.self_attn: LatentAttention | KimiDeltaAttention = (
            LatentAttention(config) if self.full_attention else KimiDeltaAttention(config)
        )
        self.post_attention_layernorm = RMSNorm(d, eps)
        if config.is_moe(index):
            self.block_sparse_moe = LatentMoE(config)
        else:
            self.mlp = GLU(d, config.intermediate_size, activation(config))
        if self.block is not None:
            self.self_attention_res_norm, self.self_attention_res_proj = RMSNorm(d, eps), Query(d)
            self.mlp_res_norm, self.mlp_res_proj = RMSNorm(d, eps), Query(d)

    @property
    def feed_forward(self) -> GLU | LatentMoE:
        """The experts, or the dense GLU of the first layers."""
        return self.block_sparse_moe if hasattr(self, "block_sparse_moe") else self.mlp

    def read_attention(self, residual: Residual) -> tuple[Tensor, Residual]:
        """What the token mixer reads; takes the snapshot where a block begins."""
        # the very first read has one source, and no parameters that could learn from it
        mixed = self.block is not None and residual.bank
        mix = (self.self_attention_res_norm, self.self_attention_res_proj) if mixed else None
        h, residual = residual.read(self.input_layernorm, mix)
        return h, residual.snapshot() if self.begins_block else residual

    def read_feed_forward(self, residual: Residual) -> tuple[Tensor, Residual]:
        """What the feed-forward reads."""
        mix = None if self.block is None else (self.mlp_res_norm, self.mlp_res_proj)
        return residual.read(self.post_attention_layernorm, mix)

    def forward(
        self,
        residual: Residual,
        layout: Layout | Step,
        state: KdaState | LatentBuffer | None = None,
        record: RouterRecord | None = None,
    ) -> Residual:
        """The whole layer in one call.

        A `Layout` without `state` is a pass over whole streams; with it, the rows continue the streams of a cache, whose
        state of this layer is moved forward; a `Step` is one more token for every stream of the cache.
        """
        h, residual = self.read_attention(residual)
        residual = residual.add(self.self_attn(h, layout, state))
        h, residual = self.read_feed_forward(residual)
        return residual.add(self.feed_forward(h, record))

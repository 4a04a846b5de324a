"""One decoder layer, and the reads that connect layers: Block Attention Residuals or ordinary residuals.

Source of the residual scheme: Attention Residuals report (arXiv:2603.15031), Kimi K3 report (arXiv:2607.24653, eq. 8-10).

Legend of shapes: T tokens, D hidden width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from watersmeet.core.config import ModelConfig
from watersmeet.core.model.kda import KimiDeltaAttention
from watersmeet.core.model.mla import LatentAttention
from watersmeet.core.model.moe import GLU, LatentMoE, activation
from watersmeet.core.model.ops import RMSNorm
from watersmeet.kernels.native import mix_norm


class Query(nn.Module):
    """The learned query `[1, D]` of one Attention Residuals read. Zero at first: the read is then the plain mean."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, size))


class DecoderLayer(nn.Module):
    """Norms, token mixer, feed-forward and the two residual reads of one layer."""

    def __init__(self, config: ModelConfig, index: int) -> None:
        super().__init__()
        d, eps = config.hidden_size, config.rms_norm_eps
        self.full_attention = config.is_full_attention(index)
        self.input_layernorm = RMSNorm(d, eps)
        self.self_attn: LatentAttention | KimiDeltaAttention = (
            LatentAttention(config) if self.full_attention else KimiDeltaAttention(config)
        )
        self.post_attention_layernorm = RMSNorm(d, eps)
        if config.is_moe(index):
            self.block_sparse_moe = LatentMoE(config)
        else:
            self.mlp = GLU(d, config.intermediate_size, activation(config))
        if config.attn_res_block_size is not None:
            self.self_attention_res_norm, self.self_attention_res_proj = RMSNorm(d, eps), Query(d)
            self.mlp_res_norm, self.mlp_res_proj = RMSNorm(d, eps), Query(d)

    @property
    def feed_forward(self) -> GLU | LatentMoE:
        """The experts, or the dense GLU of the first layers."""
        return self.block_sparse_moe if hasattr(self, "block_sparse_moe") else self.mlp


class ResidualStream:
    """What is carried through depth: the snapshots of finished blocks and the running sum of the current one.

    At the first layer of a block the running sum becomes a snapshot and a new sum starts; every sublayer reads a
    mix of all snapshots and the running sum. With `block` None it is the ordinary residual sum. The last sublayer's
    output waits in `update`, because adding it and reading the result is one pass over memory.
    """

    def __init__(self, x_TD: Tensor, block: int | None) -> None:
        self.bank: list[Tensor] = []
        self.running: Tensor | None = x_TD
        self.update: Tensor | None = None
        self.block = block

    def add(self, update_TD: Tensor) -> None:
        """Add a sublayer's output to the running sum."""
        if self.running is None:
            self.running = update_TD
        else:
            self.update = update_TD

    def read(self, norm: RMSNorm, mix: tuple[RMSNorm, Query] | None) -> Tensor:
        """The normalised mix of everything so far; `mix` None: of the running sum alone."""
        assert self.running is not None
        sources = [self.running] if mix is None else [*self.bank, self.running]
        query, gain, eps = (None, None, 0.0) if mix is None else (mix[1].weight[0], mix[0].weight, mix[0].eps)
        h, self.running = mix_norm(sources, self.update, query, gain, norm.weight, eps=eps, norm_eps=norm.eps)
        self.update = None
        return h

    def before_attention(self, layer: DecoderLayer, index: int) -> Tensor:
        """The read of a layer's token mixer; takes the snapshot where a block begins."""
        # the very first read has one source, and no parameters that could learn from it
        plain = self.block is None or not self.bank
        h = self.read(
            layer.input_layernorm, None if plain else (layer.self_attention_res_norm, layer.self_attention_res_proj)
        )
        if self.block is not None and index % self.block == 0:
            assert self.running is not None
            self.bank.append(self.running)
            self.running = None
        return h

    def before_feed_forward(self, layer: DecoderLayer) -> Tensor:
        """The read of a layer's feed-forward."""
        mix = None if self.block is None else (layer.mlp_res_norm, layer.mlp_res_proj)
        return self.read(layer.post_attention_layernorm, mix)

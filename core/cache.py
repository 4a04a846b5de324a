"""What generation remembers: a constant state a KDA layer, one latent row a token and MLA layer.

Legend of shapes: N streams, H heads, K head width, C = 3 * H * K convolution channels, W taps, S slots, R latent width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from watersmeet.core.config import ModelConfig


class KdaState:
    """recurrent [N, H, K, K] float32 (key channel, value channel); conv [N, C, W-1], the last raw inputs, oldest first."""

    def __init__(self, n: int, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        h, k, taps = config.kda_num_heads, config.kda_head_dim, config.short_conv_kernel_size
        self.recurrent = torch.zeros(n, h, k, k, dtype=torch.float32, device=device)
        self.conv = torch.zeros(n, 3 * h * k, taps - 1, dtype=dtype, device=device)

    def select(self, rows: Tensor) -> None:
        self.recurrent, self.conv = self.recurrent[rows], self.conv[rows]


class LatentBuffer:
    """rows [N, S, R]: per token the normalised latent and the shared key, padded to S slots; grows by doubling."""

    def __init__(self, n: int, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        self.rows = torch.zeros(n, 0, config.kv_lora_rank + config.qk_rope_head_dim, dtype=dtype, device=device)

    def reserve(self, slots: int) -> None:
        """Make room for `slots` tokens a stream."""
        n, have, width = self.rows.shape
        if have < slots:
            grown = self.rows.new_zeros(n, max(slots, 2 * have, 64), width)
            grown[:, :have] = self.rows
            self.rows = grown

    def select(self, rows: Tensor) -> None:
        self.rows = self.rows[rows]


class Cache:
    """State of N streams of different lengths. `lengths[i]` tokens of stream i have been read."""

    def __init__(self, n: int, config: ModelConfig, dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        device = torch.device(device)
        self.lengths = [0] * n
        self.layers: list[KdaState | LatentBuffer] = [
            (LatentBuffer if config.is_full_attention(i) else KdaState)(n, config, dtype, device)
            for i in range(config.num_hidden_layers)
        ]
        self._device = device

    @property
    def num_streams(self) -> int:
        """N, the number of streams."""
        return len(self.lengths)

    def select(self, rows: Sequence[int]) -> None:
        """Keep only the given streams, in this order (finished ones leave the batch)."""
        index = torch.tensor(list(rows), dtype=torch.int64, device=self._device)
        self.lengths = [self.lengths[i] for i in rows]
        for layer in self.layers:
            layer.select(index)

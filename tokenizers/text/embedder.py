"""Ids to vectors. Shapes: n tokens, V ids in the vocabulary, D hidden size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import nn

from watersmeet.core.errors import ConfigError


class Embedder(nn.Module):
    """One learned vector per id, weights [V, D] initialised normal with standard deviation 0.02.

    settings: `vocab_size`, as in the encoder's completed settings. Positions are left to the model's recurrent layers.
    `checkpoint_names` maps the prefix of official files to ours.
    """

    checkpoint_names: ClassVar[dict[str, str]] = {"embed_tokens.": "embedding."}

    def __init__(self, hidden_size: int, settings: Mapping[str, Any]) -> None:
        super().__init__()
        size = settings.get("vocab_size")
        if not isinstance(size, int) or size < 1:
            raise ConfigError(
                f"text settings have vocab_size {size!r}, expected a positive integer; use Encoder.settings"
            )
        self.embedding = nn.Embedding(size, hidden_size)
        nn.init.normal_(self.embedding.weight, std=0.02)

    @property
    def weight(self) -> torch.Tensor:
        """[V, D], for a model that shares it with its output."""
        return self.embedding.weight

    def forward(
        self, data: torch.Tensor, coords: torch.Tensor | None = None, time_us: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Ids [...] int64 -> [..., D] in the weights' dtype; coords and time_us are not used."""
        return nn.functional.embedding(data, self.embedding.weight)

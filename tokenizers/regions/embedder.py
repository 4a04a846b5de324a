"""Region tokens to vectors. Shapes: n regions, F feature columns, E inner width, D hidden size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from watersmeet.tokenizers.regions import features
from watersmeet.tokenizers.regions.encoder import complete

_WAVES = 9  # wavelengths 16, 32, ... 4096 px
_BIN = 8  # px a step of the position tables
_STEPS = 256


class Embedder(nn.Module):
    """Sum of small tables for the measured columns and the four box edges, two linear maps, and the reference index.

    The index of a region is what the answer must name, so its vector is added last and unmixed: a copying head can
    read it off directly. Starts with a standard deviation near 0.02, like the text embedding.
    """

    starts: torch.Tensor
    sizes: torch.Tensor
    edge_starts: torch.Tensor
    waves: torch.Tensor

    def __init__(self, hidden_size: int, settings: Mapping[str, Any]) -> None:
        super().__init__()
        full = complete(settings)
        width = full["width"]
        self.limit_t: int = full["max_texts"]
        sizes = list(features.COLUMNS.values())
        starts = torch.tensor([0, *sizes]).cumsum(0)
        # all measured columns share one table; column j reads its rows from starts[j] on
        self.register_buffer("starts", starts[:-1].clone(), persistent=False)
        self.register_buffer("sizes", torch.tensor(sizes), persistent=False)
        self.columns = nn.Parameter(torch.empty(int(starts[-1]), width))
        self.words = nn.Parameter(torch.empty(full["buckets"], width))
        self.edges = nn.Parameter(torch.empty(4 * _STEPS, width))
        self.register_buffer("edge_starts", torch.arange(4) * _STEPS, persistent=False)
        self.register_buffer("waves", 2 * torch.pi / (16.0 * 2 ** torch.arange(_WAVES)), persistent=False)
        self.position = nn.Linear(8 * 2 * _WAVES, width, bias=False)
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, hidden_size, bias=False)
        self.index = nn.Parameter(torch.empty(full["max_texts"] + full["max_shapes"], hidden_size))
        for table in (self.columns, self.words, self.edges):
            nn.init.normal_(table, std=0.3)
        nn.init.normal_(self.down.weight, std=0.03 * (2 * width) ** -0.5)
        nn.init.normal_(self.index, std=0.02)

    def forward(
        self,
        data: torch.Tensor,
        coords: torch.Tensor,
        time_us: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """data [n, F] int64, coords [n, 4] int64 px -> [n, D] in the weights' dtype; n == 0 gives [0, D].

        Values out of range are clamped. time_us is not used.
        """
        count = len(features.COLUMNS)
        dtype = self.down.weight.dtype
        column_nc = torch.minimum(data[:, :count].clamp_min(0), self.sizes - 1) + self.starts
        word_nw = data[:, count : count + features.WORDS].clamp(0, self.words.shape[0] - 1)
        edge_n4 = (coords // _BIN).clamp(0, _STEPS - 1) + self.edge_starts
        x_ne = F.embedding(column_nc, self.columns).sum(1)
        # the hash 0 means "no word" and must add nothing
        x_ne = x_ne + (F.embedding(word_nw, self.words) * (word_nw > 0).unsqueeze(-1)).sum(1)
        x_ne = x_ne + F.embedding(edge_n4, self.edges).sum(1)
        x0, y0, x1, y1 = coords.to(torch.float32).unbind(1)
        places_n8 = torch.stack([x0, y0, x1, y1, (x0 + x1) / 2, (y0 + y1) / 2, x1 - x0, y1 - y0], dim=1)
        angle_n = (places_n8.unsqueeze(-1) * self.waves.float()).flatten(1)
        x_ne = x_ne + self.position(torch.cat([angle_n.sin(), angle_n.cos()], dim=1).to(dtype))
        x_nd = self.down(F.gelu(self.up(self.norm(x_ne)), approximate="tanh"))
        shape = data[:, 0].clamp(0, 1)
        reference = data[:, -1].clamp_min(0) + shape * self.limit_t
        return x_nd + F.embedding(reference.clamp_max(self.index.shape[0] - 1), self.index)

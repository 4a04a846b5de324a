"""Patches to vectors. Shapes: n patches, p pixels on a side, C channels of the stem, D hidden size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from watersmeet.tokenizers.image.encoder import complete


class Embedder(nn.Module):
    """A small convolutional stem for each patch by itself, plus a learned vector per row and per column.

    settings: `patch`, `channels`, `max_rows`, `max_columns` as in the encoder. Two convolutions bring a patch from p
    to p / 8 pixels on a side, one linear map makes a vector of it. Rows and columns beyond the tables share the last
    entry. The output starts with a standard deviation near 0.02, like that of the text embedding.
    """

    def __init__(self, hidden_size: int, settings: Mapping[str, Any]) -> None:
        super().__init__()
        full = complete(settings)
        self.patch: int = full["patch"]
        width = full["channels"]
        self.conv1 = nn.Conv2d(3, width, kernel_size=6, stride=4, padding=1)
        self.conv2 = nn.Conv2d(width, 2 * width, kernel_size=2, stride=2)
        features = 2 * width * (self.patch // 8) ** 2
        self.norm = nn.LayerNorm(features)
        self.project = nn.Linear(features, hidden_size, bias=False)
        self.row = nn.Parameter(torch.empty(full["max_rows"], hidden_size))
        self.column = nn.Parameter(torch.empty(full["max_columns"], hidden_size))
        nn.init.normal_(self.project.weight, std=0.02 * features**-0.5)
        nn.init.normal_(self.row, std=0.01)
        nn.init.normal_(self.column, std=0.01)

    def forward(self, data: torch.Tensor, coords: torch.Tensor, time_us: torch.Tensor | None = None) -> torch.Tensor:
        """data [n, p * p * 3] uint8, coords [n, 2] int64 (row, column) -> [n, D] in the weights' dtype.

        n == 0 gives [0, D] and a zero gradient for every parameter. time_us is not used.
        """
        pixels = data.to(self.project.weight.dtype) / 127.5 - 1.0
        # channels-last order, which is the order the patches are stored in
        x_nchw = pixels.reshape(-1, self.patch, self.patch, 3).permute(0, 3, 1, 2)
        x_nchw = F.gelu(self.conv1(x_nchw), approximate="tanh")
        x_nchw = F.gelu(self.conv2(x_nchw), approximate="tanh")
        x_nd = self.project(self.norm(x_nchw.flatten(1)))
        rows = coords[:, 0].clamp(0, self.row.shape[0] - 1)
        columns = coords[:, 1].clamp(0, self.column.shape[0] - 1)
        place_nd = F.embedding(rows, self.row) + F.embedding(columns, self.column)
        return torch.add(x_nd, place_nd)

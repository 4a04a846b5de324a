"""Changed patches to vectors. Shapes: n patches, W waves, D hidden size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from watersmeet.tokenizers.image.embedder import Embedder as Patches
from watersmeet.tokenizers.video.settings import PATCHES, complete

_SHORTEST, _LONGEST = 0.1, 86_400.0


class Embedder(Patches):
    """The embedder of the image modality, with the same names of weights, plus a linear map of the time.

    The time enters as sines and cosines with periods from 0.1 s to a day, spaced evenly in their logarithms, so that what
    happened 300 ms apart and what happened an hour apart both differ.
    """

    def __init__(self, hidden_size: int, settings: Mapping[str, Any]) -> None:
        full = complete(settings)
        names = [name for name in PATCHES if name != "max_patches"]
        super().__init__(hidden_size, {name: full[name] for name in names})
        self.waves: int = full["waves"]
        self.time = nn.Linear(2 * self.waves, hidden_size, bias=False)
        nn.init.normal_(self.time.weight, std=0.01 * self.waves**-0.5)

    def waves_of(self, time_us: torch.Tensor) -> torch.Tensor:
        """[n] int64 to [n, 2 W] float64: sines, then cosines."""
        steps = torch.arange(self.waves, dtype=torch.float64, device=time_us.device) / max(1, self.waves - 1)
        periods_W = _SHORTEST * torch.exp(steps * math.log(_LONGEST / _SHORTEST))
        angle_nW = (time_us.double() / 1e6).unsqueeze(1) * (2 * math.pi / periods_W)
        return torch.cat([angle_nW.sin(), angle_nW.cos()], dim=1)

    def forward(self, data: torch.Tensor, coords: torch.Tensor, time_us: torch.Tensor | None = None) -> torch.Tensor:
        """data [n, p * p * 3] uint8, coords [n, 2] int64 (row, column), time_us [n] int64 (None: 0) -> [n, D] in the
        weights' dtype. n == 0 gives [0, D] and a zero gradient for every parameter."""
        if time_us is None:
            time_us = torch.zeros(data.shape[0], dtype=torch.int64, device=data.device)
        return super().forward(data, coords) + self.time(self.waves_of(time_us).to(self.time.weight.dtype))

"""A ready-made embedder for tokens that are vectors of numbers. Shapes: n tokens, F numbers a token, k coordinates, D width."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

_WAVES = 16


class VectorEmbedder(nn.Module):
    """Two linear maps of a token's numbers, plus the sines and cosines of where (and when) it is.

    features: F. coords: k, how many coordinates its spans have. timed: whether they carry `time_us`. Coordinates have no upper
    bound: each is read at wavelengths 2, 4, ... 65,536 steps, times at 2 ms to 65 s. Numbers are best near -1 to 1. The output starts
    with a standard deviation near 0.02, like that of the text embedding. A subclass says F from its settings:

        class Embedder(VectorEmbedder):
            def __init__(self, hidden_size, settings):
                super().__init__(hidden_size, features=settings["patch"], coords=1)
    """

    waves: torch.Tensor

    def __init__(self, hidden_size: int, *, features: int, coords: int = 0, timed: bool = False) -> None:
        super().__init__()
        self.coords, self.timed = coords, timed
        self.up = nn.Linear(features, 2 * hidden_size)
        self.down = nn.Linear(2 * hidden_size, hidden_size, bias=False)
        self.place = nn.Linear((coords + timed) * 2 * _WAVES, hidden_size, bias=False) if coords + timed else None
        self.register_buffer("waves", torch.pi / 2.0 ** torch.arange(_WAVES), persistent=False)
        nn.init.normal_(self.up.weight, std=features**-0.5)
        nn.init.normal_(self.down.weight, std=0.03 * (2 * hidden_size) ** -0.5)
        if self.place is not None:
            nn.init.normal_(self.place.weight, std=0.01 * self.place.in_features**-0.5)

    def forward(self, data: torch.Tensor, coords: torch.Tensor, time_us: torch.Tensor | None = None) -> torch.Tensor:
        """data [n, F] of any dtype, coords [n, k] int64, time_us [n] int64 | None -> [n, D] in the weights' dtype.

        n == 0 gives [0, D] and a zero gradient for every parameter.
        """
        dtype = self.down.weight.dtype
        x_nd: torch.Tensor = self.down(F.gelu(self.up(data.to(dtype)), approximate="tanh"))
        if self.place is None:
            return x_nd
        places = [coords.float()]
        if self.timed:
            if time_us is None:
                raise ValueError("this embedder was made for spans with time_us, and got none")
            places.append(time_us.unsqueeze(1) / 1000.0)
        angle_n = (torch.cat(places, dim=1).unsqueeze(-1) * self.waves.float()).flatten(1)
        return x_nd + self.place(torch.cat([angle_n.sin(), angle_n.cos()], dim=1).to(dtype))

"""MoonViT-V2 and its projector, with the parameter names of the released Kimi K3 files below their two prefixes.

Legend of shapes: P patches of all items end to end, W width of the tower, H heads, K width of a head, n tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class MachineNorm(nn.Module):
    """RMSNorm whose eps is the machine epsilon of the activations' dtype: 2^-7 in bfloat16, 2^-23 in float32.

    So the same weights mean different functions in the two; `eps` fixes it instead. It is spelt out because torch's own
    default has differed between its versions and between devices for bfloat16.
    """

    def __init__(self, width: int, eps: float | None = None) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """[..., W] to [..., W]."""
        eps = torch.finfo(x.dtype).eps if self.eps is None else self.eps
        return F.rms_norm(x, self.weight.shape, self.weight, eps)


class PatchEmbed(nn.Module):
    """One linear map a patch, written as the convolution that the files hold, plus a learned grid of positions."""

    def __init__(self, patch: int, width: int, grid: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, width, patch, stride=patch, bias=False)
        self.pos_emb = nn.ParameterDict({"weight": nn.Parameter(torch.empty(grid, grid, width))})

    def forward(self, pixels: Tensor) -> Tensor:
        """[P, 3 * p * p] (channel, row, column) to [P, W]."""
        return F.linear(pixels, self.proj.weight.flatten(1))

    def positions(self, rows: int, columns: int) -> Tensor:
        """The learned grid stretched bilinearly to [rows, columns, W]; itself where the size is the same."""
        weight = self.pos_emb["weight"]
        if (rows, columns) == tuple(weight.shape[:2]):
            return weight
        image = weight.permute(2, 0, 1).unsqueeze(0)
        resized = F.interpolate(image, size=(rows, columns), mode="bilinear", align_corners=False)
        return resized.squeeze(0).permute(1, 2, 0)


def frame_waves(frames: int, width: int, like: Tensor) -> Tensor:
    """[frames, W]: sines of frame * 10000^(-2i/W) in the first half, cosines in the second."""
    half = width // 2
    rate = 10000.0 ** (-torch.arange(half, device=like.device, dtype=torch.float64) / half)
    angle = torch.arange(frames, device=like.device, dtype=torch.float64).unsqueeze(1) * rate
    return torch.cat([angle.sin(), angle.cos()], dim=1).to(like.dtype)


def rotation(rows_P: Tensor, columns_P: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [P, K / 2] of two-dimensional rotary positions, float64.

    Pair 2i turns by column * f_i and pair 2i + 1 by row * f_i, with f_i = 10000^(-4i/K). Nothing is kept between calls:
    a table filled under other conditions (a dry run, another dtype) would be wrong in silence.
    """
    quarter = head_dim // 4
    rate = 10000.0 ** (-torch.arange(quarter, device=rows_P.device, dtype=torch.float64) / quarter)
    place = torch.stack([columns_P, rows_P], dim=1).double()
    angle = (rate[None, :, None] * place[:, None, :]).flatten(1)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """[P, H, K] with each pair of neighbouring channels turned, computed in float32 at least, in the dtype of `x`."""
    wide = torch.promote_types(x.dtype, torch.float32)
    cos, sin = (part.to(wide).unsqueeze(1) for part in turn)
    even, odd = x.to(wide).unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2).to(x.dtype)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of all rows of one item to all of them; [rows, H, K] each."""
    q, k, v = (part.transpose(0, 1).unsqueeze(0) for part in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v).squeeze(0).transpose(0, 1)


class Mlp(nn.Module):
    """Two linear maps around the tanh form of GELU (the projector has the exact form)."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.fc0 = nn.Linear(width, inner, bias=False)
        self.fc1 = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[P, W] to [P, W]."""
        return self.fc1(F.gelu(self.fc0(x), approximate="tanh"))


class Block(nn.Module):
    """Pre-norm attention over all patches and frames of one item, then the MLP."""

    def __init__(self, width: int, heads: int, head_dim: int, inner: int, eps: float | None) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.norm0 = MachineNorm(width, eps)
        self.wqkv = nn.Linear(width, 3 * heads * head_dim, bias=False)
        self.wo = nn.Linear(heads * head_dim, width, bias=False)
        self.norm1 = MachineNorm(width, eps)
        self.mlp = Mlp(width, inner)

    def forward(self, x: Tensor, bounds: list[int], turn: tuple[Tensor, Tensor]) -> Tensor:
        """[P, W] to [P, W]; item i is rows bounds[i] to bounds[i + 1]."""
        q, k, v = self.wqkv(self.norm0(x)).unflatten(-1, (3, self.heads, self.head_dim)).unbind(1)
        q, k = rotate(q, turn), rotate(k, turn)
        seen = [
            attend(q[a:b], k[a:b], v[a:b])  # each item by itself, which is what cumulative lengths mean
            for a, b in zip(bounds, bounds[1:], strict=False)
        ]
        # without any item the values stand in, empty, so that every weight keeps its place in the graph
        mixed = torch.cat(seen) if seen else q + k + v
        x = x + self.wo(mixed.flatten(1))
        return x + self.mlp(self.norm1(x))


class Encoder(nn.Module):
    """The blocks and the norm behind them."""

    def __init__(self, layers: int, width: int, heads: int, head_dim: int, inner: int, eps: float | None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, heads, head_dim, inner, eps) for _ in range(layers))
        self.final_layernorm = MachineNorm(width, eps)

    def forward(self, x: Tensor, bounds: list[int], turn: tuple[Tensor, Tensor]) -> Tensor:
        """[P, W] to [P, W]."""
        for block in self.blocks:
            x = block(x, bounds, turn)
        return self.final_layernorm(x)


class Tower(nn.Module):
    """Everything below the prefix `vision_tower.`"""

    def __init__(
        self, *, patch: int, width: int, layers: int, heads: int, head_dim: int, mlp: int, grid: int, eps: float | None
    ) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.patch_embed = PatchEmbed(patch, width, grid)
        self.encoder = Encoder(layers, width, heads, head_dim, mlp, eps)

    def forward(self, pixels: Tensor, items: list[tuple[int, int, int]], place_P3: Tensor) -> Tensor:
        """pixels [P, 3 * p * p] and place [P, 3] (row, column, frame) of patches to [P, W].

        items: rows, columns and frames of each item, in patches, in the order in which their patches lie.
        """
        x = self.patch_embed(pixels)
        bounds = [0]
        for rows, columns, frames in items:
            bounds.append(bounds[-1] + rows * columns * frames)
        added, grids = [], {}
        for (rows, columns, frames), a, b in zip(items, bounds, bounds[1:], strict=False):
            if (rows, columns) not in grids:
                grids[rows, columns] = self.patch_embed.positions(rows, columns).reshape(rows * columns, -1)
            row, column, frame = place_P3[a:b].unbind(1)
            where = grids[rows, columns].index_select(0, row * columns + column)
            # a single picture has no time at all, not the time of frame 0
            added.append(where if frames == 1 else where + frame_waves(frames, x.shape[1], x).index_select(0, frame))
        nowhere = self.patch_embed.pos_emb["weight"].flatten(0, 1)[:0]
        x = x + (torch.cat(added) if added else nowhere)
        return self.encoder(x, bounds, rotation(place_P3[:, 0], place_P3[:, 1], self.head_dim))


class Projector(nn.Module):
    """`patchmergerv2`, everything below the prefix `mm_projector.`: the four patches of a cell become one token."""

    def __init__(self, width: int, hidden_size: int) -> None:
        super().__init__()
        self.proj = nn.Sequential(
            nn.Linear(width, width, bias=False), nn.GELU(), nn.Linear(width, hidden_size, bias=False)
        )
        self.post_norm = nn.RMSNorm(hidden_size, eps=1e-5)

    def forward(self, x: Tensor) -> Tensor:
        """[n, 4 W] to [n, D]."""
        return self.post_norm(self.proj(x))

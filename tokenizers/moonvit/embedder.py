"""Patches to vectors. Shapes: n tokens, F frames, P patches end to end, W width of the tower, D hidden size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from watersmeet.core.stream import StreamError
from watersmeet.tokenizers.moonvit.published import PROJECTOR, TOWER, published_settings
from watersmeet.tokenizers.moonvit.settings import MERGE, complete
from watersmeet.tokenizers.moonvit.tower import Projector, Tower


class Embedder(nn.Module):
    """The vision tower of Kimi K3 and its projector; 401,214,464 and 46,144,512 parameters with the default settings.

    `checkpoint_names` maps the prefixes of official files to ours; below them the names are the same.
    `published_settings(shapes, config, files)` gives the settings that such files state.

    A new one draws linear maps from a truncated normal of deviation sqrt(2 / fan in), the position grid from N(0, 1),
    and sets the last norm's gain to 0.02: its output starts as large as text embeddings do, not fifty times larger.
    """

    checkpoint_names: ClassVar[dict[str, str]] = {TOWER: "tower.", PROJECTOR: "projector."}
    published_settings = staticmethod(published_settings)

    def __init__(self, hidden_size: int, settings: Mapping[str, Any]) -> None:
        super().__init__()
        full = complete(settings)
        self.patch: int = full["patch"]
        self.frames: int = full["frames"]
        self.mean, self.std = float(full["mean"]), float(full["std"])
        self.tower = Tower(
            patch=self.patch,
            width=full["width"],
            layers=full["layers"],
            heads=full["heads"],
            head_dim=full["head_dim"],
            mlp=full["mlp"],
            grid=full["grid"],
            eps=full["norm_eps"],
        )
        self.projector = Projector(MERGE * MERGE * full["width"], hidden_size)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Conv2d)):
                std = math.sqrt(2 / module.weight[0].numel())
                nn.init.trunc_normal_(module.weight, std=std, a=-3 * std, b=3 * std)
        nn.init.normal_(self.tower.patch_embed.pos_emb["weight"])
        nn.init.constant_(self.projector.post_norm.weight, 0.02)

    def forward(self, data: Tensor, coords: Tensor, time_us: Tensor | None = None) -> Tensor:
        """data [n, F, 4, 3 * p * p] uint8, coords [n, 5] int64, both as the encoder makes them -> [n, D].

        Any number of whole items, end to end. n == 0 gives [0, D] and a zero gradient for every parameter. time_us is
        not used. Raises StreamError when an item is not whole.
        """
        dtype = self.projector.post_norm.weight.dtype
        # the pixel values are rounded once, to the dtype of the weights, after they were scaled
        wide = torch.promote_types(dtype, torch.float32)
        cells = items_of(coords, self.frames)
        used_nF = torch.arange(self.frames, device=data.device) < coords[:, 4:].clamp(min=1)
        pixels = ((data[used_nF].to(wide) / 255 - self.mean) / self.std).to(dtype).flatten(0, 1)
        # patch j of a cell lies at (j // 2, j % 2)
        corner = torch.cartesian_prod(torch.arange(MERGE), torch.arange(MERGE)).to(coords.device)
        place_n4 = coords[:, None, :2] * MERGE + corner
        frame_nF = torch.arange(self.frames, device=coords.device).expand(len(coords), -1)
        place = torch.cat(
            [
                place_n4.unsqueeze(1).expand(-1, self.frames, -1, -1),
                frame_nF[:, :, None, None].expand(-1, -1, MERGE * MERGE, 1),
            ],
            dim=-1,
        )[used_nF].flatten(0, 1)
        patches = [(rows * MERGE, columns * MERGE, frames) for rows, columns, frames in cells]
        x = self.tower(pixels, patches, place).unflatten(0, (-1, MERGE * MERGE))
        if self.frames > 1:
            spread = x.new_zeros(len(coords), self.frames, *x.shape[1:], dtype=wide)
            spread[used_nF] = x.to(wide)
            x = (spread.sum(1) / used_nF.sum(1).to(wide)[:, None, None]).to(dtype)
        return self.projector(x.flatten(1))


def items_of(coords: Tensor, most_frames: int) -> list[tuple[int, int, int]]:
    """(rows, columns, frames) in cells of the items that lie end to end in `coords` [n, 5].

    Rows whose size is zero are filling, each an item by itself. Raises StreamError when an item is cut, because its
    patches have to see each other.
    """
    found: list[tuple[int, int, int]] = []
    places = coords.cpu()
    start = 0
    while start < len(places):
        rows, columns, frames = (max(int(value), 1) for value in places[start, 2:])
        end = start + rows * columns
        expected = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).reshape(-1, 2)
        whole = places[start:end]
        if (
            frames > most_frames
            or len(whole) < rows * columns
            or not torch.equal(whole[:, :2], expected)
            or bool((whole[:, 2:] != places[start, 2:]).any())
        ):
            raise StreamError(
                f"moonvit: the item at token {start} says {rows} x {columns} cells and {frames} frames (at most "
                f"{most_frames}), but the {len(whole)} tokens from there on are not that; pack whole spans only"
            )
        found.append((rows, columns, frames))
        start = end
    return found

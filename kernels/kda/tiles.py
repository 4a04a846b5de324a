"""Products between decayed rows inside a chunk, without ever forming a large exponential.

Blocks of ``base`` rows use their own start as reference; between blocks the writing keys are decayed to the start of the
reading block. Four blocks merge into one until a block is a whole chunk. Every factor between blocks is at most 1, so any
decay is safe, and a row never depends on a later gate, not even by rounding.

Legend: Y merged blocks, s rows of a block before merging, X chunks x heads, C chunk rows, K key channels.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(kw_only=True, eq=False)
class Level:
    """One merge of four blocks of s rows into one, as its products saw it."""

    F_Y42sK: Tensor  # q and k, decayed since the start of their block
    keys: list[Tensor]  # for block I = 1,2,3: [Y, I s, K] writing keys of earlier blocks, decayed to the start of I
    decay_Y4K: Tensor  # over each block
    before_Y4K: Tensor  # from the start of the merged block to the start of each block


def merge_rows(F_Y42sK: Tensor, T_Y4sK: Tensor, decay_Y4K: Tensor) -> tuple[Level, Tensor, Tensor, Tensor]:
    """The level, and for the merged blocks F [Y,2,4s,K], T [Y,4s,K] (keys decayed to the end) and decay [Y,K]."""
    Y, _, _, s, K = F_Y42sK.shape
    keys = [T_Y4sK[:, 0]]
    for block in (1, 2, 3):
        # decay over the block just passed brings the earlier keys from its start to its end
        longer = F_Y42sK.new_empty(Y, (block + 1) * s, K)
        torch.mul(keys[-1], decay_Y4K[:, block, None], out=longer[:, : block * s])
        longer[:, block * s :] = T_Y4sK[:, block]
        keys.append(longer)
    before = torch.ones_like(decay_Y4K)
    torch.cumprod(decay_Y4K[:, :3], 1, out=before[:, 1:])
    F_next = F_Y42sK.new_empty(Y, 2, 4, s, K)
    torch.mul(F_Y42sK.transpose(1, 2), before[:, None, :, None], out=F_next)
    level = Level(F_Y42sK=F_Y42sK, keys=keys[:3], decay_Y4K=decay_Y4K, before_Y4K=before)
    return level, F_next.view(Y, 2, 4 * s, K), keys[3], before[:, 3] * decay_Y4K[:, 3]


def merge_tiles(level: Level, diag_Y42ss: Tensor, tile_Y2SS: Tensor) -> None:
    """Fill the products [Y,2,4s,4s] of merged blocks from those inside each block and the level's operands."""
    Y, _, _, s, K = level.F_Y42sK.shape
    for block in range(4):
        rows = slice(block * s, (block + 1) * s)
        tile_Y2SS[:, :, rows, rows] = diag_Y42ss[:, block]
        if block < 3:
            tile_Y2SS[:, :, rows, (block + 1) * s :] = 0
        if block:
            between = torch.bmm(level.F_Y42sK[:, block].view(Y, 2 * s, K), level.keys[block - 1].mT)
            tile_Y2SS[:, :, rows, : block * s] = between.view(Y, 2, s, block * s)


def merge_backward(level: Level, dtile_Y2SS: Tensor, dF_next: Tensor, dT_next: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of F [Y,4,2,s,K] and T [Y,4,s,K] through both functions above, without the part of ``diag``."""
    F = level.F_Y42sK
    Y, _, _, s, K = F.shape
    dF = torch.empty_like(F)
    torch.mul(dF_next.view(Y, 2, 4, s, K).transpose(1, 2), level.before_Y4K[:, :, None, None], out=dF)
    dT = torch.empty_like(dT_next)
    reach = dT_next  # gradient of the keys as they stand at the end of the current block
    for block in (3, 2, 1):
        rows = slice(block * s, (block + 1) * s)
        dbetween = dtile_Y2SS[:, :, rows, : block * s].reshape(Y, 2 * s, block * s)
        dF[:, block] += torch.bmm(dbetween, level.keys[block - 1]).view(Y, 2, s, K)
        dT[:, rows] = reach[:, rows]
        earlier = reach[:, : block * s] * level.decay_Y4K[:, block, None]
        reach = earlier.baddbmm_(dbetween.mT, F[:, block].view(Y, 2 * s, K))
    dT[:, :s] = reach
    return dF, dT.view(Y, 4, s, K)


def unit_lower_inverse(A_XCC: Tensor, out_XCC: Tensor) -> Tensor:
    """(I + A)^-1 for strictly lower triangular A, by forward substitution over tiles of 16 rows (stable, unlike a series)."""
    C, s = A_XCC.shape[1], 16
    diag = torch.stack([A_XCC[:, i : i + s, i : i + s] for i in range(0, C, s)], 1).view(-1, s, s)
    eye = torch.eye(s, dtype=A_XCC.dtype, device=A_XCC.device).expand_as(diag)
    diag = torch.linalg.solve_triangular(diag, eye, upper=False, unitriangular=True).view(-1, C // s, s, s)
    for i in range(C // s):
        rows = slice(i * s, (i + 1) * s)
        out_XCC[:, rows, rows] = diag[:, i]
        out_XCC[:, rows, (i + 1) * s :] = 0
        if i:
            known = torch.bmm(A_XCC[:, rows, : i * s], out_XCC[:, : i * s, : i * s])
            out_XCC[:, rows, : i * s] = torch.bmm(diag[:, i], known).neg_()
    return out_XCC

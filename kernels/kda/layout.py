"""Where every token of a packed stream sits in the grid of chunks.

Every sequence is cut into chunks of C rows of its own, so no chunk crosses a boundary; the last one is filled with zero
rows, which leave the state as it is. Chunks are ordered by their step (first chunks of all sequences, then second chunks,
...), long sequences first, so that one step of all sequences is one contiguous slice and the loop over steps is short.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Grid:
    """The chunk grid of a set of sequence lengths; rows are token rows of the flattened [B*T] stream."""

    rows: Tensor | None  # [chunks * C] int64: token row of every grid row, 0 for a filler row; None when identity
    fillers: Tensor  # int64: the filler rows of the grid
    tokens: Tensor | None  # [total] int64: grid row of every token row; None when identity
    steps: tuple[tuple[int, int], ...]  # (first chunk, number of chunks) of every step
    order: Tensor | None  # [N] int64: the sequence at each place of a step; None when identity
    counts: tuple[int, ...]  # chunks of the sequence at each place of a step
    chunks: int
    total: int


@lru_cache(maxsize=256)
def grid(lengths: tuple[int, ...], chunk: int, device: torch.device) -> Grid:
    """The grid for sequences of these lengths laid end to end (empty sequences are allowed)."""
    N = len(lengths)
    order = sorted(range(N), key=lambda n: -lengths[n])
    counts = tuple(-(-lengths[n] // chunk) for n in order)
    starts = [0]
    for length in lengths:
        starts.append(starts[-1] + length)
    total = starts[-1]
    steps: list[tuple[int, int]] = []
    first = 0
    for step in range(counts[0] if counts else 0):
        active = sum(count > step for count in counts)
        steps.append((first, active))
        first += active
    rows = torch.full((first, chunk), total, dtype=torch.int64)
    for place, n in enumerate(order):
        for step in range(counts[place]):
            begin = step * chunk
            size = min(chunk, lengths[n] - begin)
            at = starts[n] + begin
            rows[steps[step][0] + place, :size] = torch.arange(at, at + size)
    flat = rows.flatten()
    tokens = torch.empty(total + 1, dtype=torch.int64)
    tokens[flat] = torch.arange(flat.numel())
    identity = flat.numel() == total and bool((flat == torch.arange(total)).all())
    return Grid(
        rows=None if identity else flat.where(flat < total, 0).to(device),
        fillers=(flat == total).nonzero()[:, 0].to(device),
        tokens=None if identity else tokens[:total].to(device),
        steps=tuple(steps),
        order=None if order == list(range(N)) else torch.tensor(order, device=device),
        counts=counts,
        chunks=first,
        total=total,
    )

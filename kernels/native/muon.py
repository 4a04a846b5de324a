"""What an optimizer's step does to many tensors, in one native call each.

The arithmetic of an element depends neither on the tensor it lies in nor on the number of threads: whole, dealt out and
sharded tensors get the same bits. The torch forms are the optimizer's own; here nothing falls back.

Legend of shapes: B blocks; a block is rows x cols inside a tensor, m <= n its sides.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .build import library, pointer, pointers, real, size

LARGEST = 1 << 20
"""Elements of a block. One thread works on one block; larger ones are worth the threads of a library's product."""


def native_update(*tensors: Tensor) -> bool:
    """Whether the functions of this module take these tensors: float32 on the CPU without gaps, and a compiler."""
    plain = all(t.dtype == torch.float32 and t.is_contiguous() for t in tensors)
    return plain and library(*tensors) is not None


def _array(values: NDArray[np.generic] | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if values is None else values.ctypes.data)


def _sizes(tensors: Sequence[Tensor]) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(tensors))(*(t.numel() for t in tensors))


def _addresses(tensors: Sequence[Tensor]) -> NDArray[np.int64]:
    return np.array([t.data_ptr() for t in tensors], dtype=np.int64)


def native_newton_schulz(x: Tensor, steps: int) -> Tensor | None:
    """`newton_schulz` of x [..., rows, cols], or None where another form has to do it."""
    rows, cols = x.shape[-2:]
    x = x.contiguous()
    if not x.numel() or rows * cols > LARGEST or not native_update(x):
        return None
    lib, y = library(x), torch.empty_like(x)
    assert lib is not None
    count = x.numel() // (rows * cols)
    step = np.arange(count, dtype=np.int64) * (rows * cols * 4)
    heights, widths = (np.full(count, side, dtype=np.int64) for side in (rows, cols))
    source, target = step + x.data_ptr(), step + y.data_ptr()
    lib.muon_blocks(
        size(count), _array(heights), _array(widths), _array(widths), _array(source), pointer(None), _array(target),
        pointer(None), pointer(None), pointer(None), real(0), 0, real(1), steps, torch.get_num_threads(),
    )  # fmt: skip
    return y


@dataclass(frozen=True, kw_only=True)
class Block:
    """Rows of tensor number `tensor`, from element `offset` on, `cols` = its last axis."""

    tensor: int
    offset: int
    rows: int
    cols: int


class MuonBlocks:
    """All blocks of all Muon parameters, laid out once and updated in one call a step."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        # the most expensive ones first, so that no thread is left with one at the end
        cost = [min(b.rows, b.cols) ** 2 * (2 * max(b.rows, b.cols) + min(b.rows, b.cols)) for b in blocks]
        self.order = np.argsort(-np.array(cost, dtype=np.int64), kind="stable")
        arranged = [blocks[i] for i in self.order]
        self._tensor, self._offset, self._rows, self._cols = (
            np.array([getattr(b, name) for b in arranged], dtype=np.int64)
            for name in ("tensor", "offset", "rows", "cols")
        )
        self.sides = np.maximum(self._rows, self._cols)
        self.fit = all(b.rows * b.cols <= LARGEST for b in blocks)

    def step(
        self,
        weights: Sequence[Tensor],
        grads: Sequence[Tensor],
        momenta: Sequence[Tensor],
        *,
        rate: float,
        factors: Tensor | None,
        decay: float,
        momentum: float,
        nesterov: bool,
        steps: int,
    ) -> NDArray[np.float32]:
        """``M <- mu M + g; w <- decay w - rate sqrt(n) factor NewtonSchulz(g + mu M)`` for every block.

        Args:
            weights, grads, momenta: float32, contiguous, alike; weights and momenta are changed.
            factors: [B] float32 in the order the blocks were given in, or None for 1.

        Returns:
            [B] sums of squares of the orthogonal factors, in the order of ``sides``.
        """
        lib = library(*weights)
        assert lib is not None
        rates = (-(rate * np.sqrt(self.sides.astype(np.float64)))).astype(np.float32)
        scale = np.ones(len(rates), np.float32) if factors is None else factors.numpy()[self.order].astype(np.float32)
        squares = np.empty(len(rates), np.float32)
        source, held, target = (
            _addresses(tensors)[self._tensor] + 4 * self._offset for tensors in (grads, momenta, weights)
        )
        lib.muon_blocks(
            size(len(rates)), _array(self._rows), _array(self._cols), _array(self._cols), _array(source), _array(held),
            _array(target), _array(rates), _array(scale), _array(squares), real(momentum), int(nesterov), real(decay),
            steps, torch.get_num_threads(),
        )  # fmt: skip
        return squares


def momentum_step(grads: Sequence[Tensor], momenta: Sequence[Tensor], *, momentum: float, nesterov: bool) -> None:
    """``M <- mu M + g``; then g becomes ``g + mu M``, or M without ``nesterov``. In place, as `MuonBlocks.step` does it."""
    lib = library(*grads)
    assert lib is not None
    lib.muon_momentum(
        size(len(grads)), _sizes(grads), pointers(grads), pointers(momenta), real(momentum), int(nesterov),
        torch.get_num_threads(),
    )  # fmt: skip


def add_scaled(weight: Tensor, x: Tensor, rate: float) -> None:
    """``w <- w + rate x`` in place, as `MuonBlocks.step` does it."""
    lib = library(weight, x)
    assert lib is not None
    lib.muon_apply(
        size(1), _sizes([x]), pointers([x]), pointers([weight]), real(rate), real(1), torch.get_num_threads()
    )


def adamw_step(
    weights: Sequence[Tensor],
    grads: Sequence[Tensor],
    first: Sequence[Tensor],
    second: Sequence[Tensor],
    *,
    lr: float,
    decay: float,
    betas: tuple[float, float],
    eps: float,
    updates: int,
) -> None:
    """AdamW (Loshchilov and Hutter, arXiv:1711.05101, algorithm 2) number ``updates`` of all tensors, in place."""
    lib = library(*weights)
    assert lib is not None
    lib.adamw(
        size(len(weights)), _sizes(weights), pointers(grads), pointers(first), pointers(second), pointers(weights),
        real(betas[0]), real(betas[1]), real(decay), real(lr / (1 - betas[0] ** updates)),
        real((1 - betas[1] ** updates) ** 0.5), real(eps), torch.get_num_threads(),
    )  # fmt: skip

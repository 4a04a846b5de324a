"""Matrices that are read together, kept in one block of memory.

A product with three stacked matrices is faster than three products, but checkpoints, optimizers and people know the three
by name. So the named parameters become views of one block: the block is multiplied, the parameters are trained and
saved, and neither is ever copied. Anything that gives a parameter other memory (`.to()`, sharding, offload, a copy of
the module) is noticed by its address; the block is then no longer theirs and the matrices are stacked for each call.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class _Together(torch.autograd.Function):
    """The block in the place of its parts; the gradient of the block is cut into theirs."""

    @staticmethod
    def forward(ctx: Any, block: Tensor, *parts: Tensor) -> Tensor:  # type: ignore[override]
        ctx.sizes = [len(part) for part in parts]
        return block.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return None, *grad.split(ctx.sizes)


class Joint:
    """The weights of several modules stacked along their first axis, in the order given."""

    def __init__(self, *modules: nn.Module) -> None:
        self.modules = modules
        self._block: Tensor | None = None

    def _weights(self, count: int | None) -> list[Tensor]:
        return [getattr(module, "weight") for module in self.modules[:count]]  # noqa: B009  (typed as Tensor | Module)

    def join(self) -> None:
        """Move the parameters into one block, unless they are in it. Transient memory: one copy of these matrices."""
        weights = self._weights(None)
        if not all(isinstance(w, nn.Parameter) for w in weights):
            return  # computed anew at every look, e.g. with an adapter; there is nothing to move
        if self._in_place(weights) or any(w.dtype != weights[0].dtype or w.is_meta for w in weights):
            return
        with torch.inference_mode(False), torch.no_grad():
            # an inference tensor could never be trained again
            block = torch.cat([w.detach() for w in weights])
            start = 0
            for weight in weights:
                weight.data = block[start : start + len(weight)]
                start += len(weight)
        self._block = block

    def _in_place(self, weights: list[Tensor]) -> bool:
        """Whether all of `weights` still lie where `join` put them."""
        block = self._block
        if block is None:
            return False
        at = block.data_ptr()
        for weight in weights:
            if weight.dtype != block.dtype or type(weight.data) is not Tensor or weight.data_ptr() != at:
                return False
            at += weight.numel() * block.element_size()
        return True

    def __call__(self, dtype: torch.dtype | None = None, count: int | None = None) -> Tensor:
        """The first `count` weights (None: all) as one tensor, in `dtype` (None: as it is); differentiable."""
        weights = self._weights(count)
        if not self._in_place(weights):
            stacked = torch.cat(weights)
        else:
            assert self._block is not None
            rows = sum(len(weight) for weight in weights)
            stacked = self._block if rows == len(self._block) else self._block[:rows]
            if torch.is_grad_enabled():
                stacked = _Together.apply(stacked, *weights)
        return stacked if dtype is None else stacked.to(dtype)

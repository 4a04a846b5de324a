"""Gradient clipping expert by expert: each by its own running norm, so that one that diverges harms no other.

Our own proposal, off by default and measured beside global clipping. The gradient of expert e (its gate, up and down matrices
together) is scaled to at most `factor` times the running norm of this expert. Everything else is clipped by its own
global norm, into which no expert enters: otherwise one exploding expert would shrink the steps of the whole model. An
expert whose gradient is not finite gets none in this step.

Legend of shapes: E experts.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from watersmeet.core.training.sharding import Team, local_rows, local_tensor

_MATRICES = (".experts.w13", ".experts.w2")


class ExpertClip:
    """Running norms of all experts of all layers; `factor` 0 would clip everything and is refused by the configuration.

    named_params  (name, parameter) pairs; stacked experts are found by their names
    """

    def __init__(self, named_params: Iterable[tuple[str, Tensor]], *, factor: float, memory: float, team: Team) -> None:
        self.factor, self.memory, self.team = factor, memory, team
        self.layers: dict[str, list[Tensor]] = {}
        for name, param in named_params:
            if param.requires_grad and name.endswith(_MATRICES):
                self.layers.setdefault(name.rpartition(".")[0], []).append(param)
        self.running = {
            name: torch.zeros(len(params[0]), device=params[0].device) for name, params in self.layers.items()
        }
        self.params = {param for params in self.layers.values() for param in params}

    @torch.no_grad()
    def clip(self) -> tuple[int, float]:
        """Clip all experts' gradients in place; returns how many were and the largest norm before (NaN as inf)."""
        clipped, largest = 0, 0.0
        for name, params in self.layers.items():
            norm_E = self._norms(params)
            running_E = self.running[name]
            finite_E = norm_E.isfinite()
            limit_E = self.factor * running_E
            above_E = (running_E > 0) & (norm_E > limit_E)
            scale_E = torch.where(above_E, limit_E / norm_E, 1.0)
            scale_E = torch.where(finite_E, scale_E, 0.0)
            clipped += int((scale_E < 1).sum())
            largest = max(largest, float(norm_E.nan_to_num(nan=torch.inf).max()))
            for param in params if bool((scale_E < 1).any()) else ():
                if param.grad is None:
                    continue
                scale = scale_E[local_rows(param)].view(-1, 1, 1)
                grad = local_tensor(param.grad)
                grad.copy_(torch.where(scale == 1, grad, torch.where(scale == 0, 0.0, grad * scale)))
            taken_E = torch.where(above_E, limit_E, norm_E)
            moved_E = torch.where(running_E > 0, running_E * self.memory + taken_E * (1 - self.memory), taken_E)
            # an expert without tokens has learnt nothing about its norm
            running_E.copy_(torch.where(finite_E & (norm_E > 0), moved_E, running_E))
        return clipped, largest

    def _norms(self, params: list[Tensor]) -> Tensor:
        square_E = torch.zeros(len(params[0]), device=local_tensor(params[0]).device)
        sharded = any(local_tensor(param) is not param for param in params)
        for param in params:
            rows = local_rows(param)
            if param.grad is not None and rows.stop > rows.start:
                square_E[rows] += local_tensor(param.grad).float().square().sum((1, 2))
        return (self.team.sum(square_E) if sharded else square_E).sqrt()

    def state_tensors(self) -> dict[str, Tensor]:
        """Running norms by "<layer's experts>/running_norm"; references."""
        return {f"{name}/running_norm": running for name, running in self.running.items()}

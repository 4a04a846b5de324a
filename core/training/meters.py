"""What a step measured: loss and expert load, for all tokens and per modality.

Legend of shapes: Q modalities, E experts, M layers with experts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from watersmeet.core.model.model import LossOutput


class Meters:
    """Sums `LossOutput`s of the micro-batches of one step (or of a whole evaluation)."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._names: tuple[str, ...] = ()
        self._sums: tuple[Tensor, ...] = ()

    @torch.no_grad()
    def add(self, out: LossOutput) -> None:
        """Add one micro-batch."""
        parts = (out.modality_loss.double(), out.modality_weight.double(), out.expert_load)
        self._names = out.modality_names
        self._sums = tuple(a + b for a, b in zip(self._sums, parts, strict=True)) if self._sums else parts

    def result(self, reduce: Callable[[Tensor], Tensor] = lambda value: value) -> dict[str, Any]:
        """Plain numbers for the log; `reduce` sums a tensor over processes.

        loss              mean over all weighted targets (nats)
        loss_by_modality  the same for targets at positions of each modality
        load_max, load_min  load of the busiest and the idlest expert of any layer, as a multiple of the mean load
        load              per layer and expert, as a multiple of the mean
        load_max_by_modality  busiest expert of any layer among the tokens of each modality
        """
        if not self._sums:
            return {"loss": float("nan")}
        loss_Q, weight_Q, load_MQE = (reduce(part) for part in self._sums)
        total = float(weight_Q.sum())
        result: dict[str, Any] = {
            "loss": float(loss_Q.sum()) / total if total else 0.0,
            "loss_by_modality": {
                name: float(loss) / float(weight)
                for name, loss, weight in zip(self._names, loss_Q, weight_Q, strict=True)
                if float(weight) > 0
            },
        }
        if load_MQE.shape[0]:
            load_ME = load_MQE.sum(1).double()
            relative_ME = load_ME / load_ME.mean(1, keepdim=True).clamp(min=1e-9)
            result |= {
                "load_max": float(relative_ME.max()),
                "load_min": float(relative_ME.min()),
                "load": [[round(value, 3) for value in layer] for layer in relative_ME.tolist()],
            }
            by_modality = {}
            for index, name in enumerate(self._names):
                mine_ME = load_MQE[:, index].double()
                if float(mine_ME.sum()) > 0:
                    by_modality[name] = float((mine_ME / mine_ME.mean(1, keepdim=True).clamp(min=1e-9)).max())
            result["load_max_by_modality"] = by_modality
        return result

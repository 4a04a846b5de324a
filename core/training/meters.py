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
    def add(self, out: LossOutput, *, counts: bool = True) -> None:
        """Add one micro-batch; with `counts` False only its shapes, for a process that has nothing to add."""
        parts: tuple[Tensor, ...] = (out.modality_loss.double(), out.modality_weight.double(), out.expert_load)
        if not counts:
            parts = tuple(torch.zeros_like(part) for part in parts)
        self._names = out.modality_names
        self._sums = tuple(a + b for a, b in zip(self._sums, parts, strict=True)) if self._sums else parts

    @property
    def load(self) -> Tensor | None:
        """[M, Q, E] picks of this process so far, None before the first micro-batch."""
        return self._sums[2] if self._sums else None

    def result(
        self, reduce: Callable[[Tensor], Tensor] = lambda value: value, *, by_modality: bool = False
    ) -> dict[str, Any]:
        """Plain numbers for the log; `reduce` sums a tensor over processes.

        loss              mean over all weighted targets (nats)
        loss_by_modality  the same for the targets of each modality, which are those after it, see `model.loss.subject_ids`
        load_max, load_min  load of the busiest and the idlest expert of any layer, as a multiple of the mean load
        load              per layer and expert, as a multiple of the mean
        used              fraction of experts whose load is above a tenth of the mean
        load_max_by_modality  busiest expert of any layer among the tokens of each modality
        load_by_modality  (with `by_modality`) per layer and expert, as a multiple of the mean, for the tokens of each
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
                "used": float((relative_ME > 0.1).double().mean()),
                "load": [[round(value, 3) for value in layer] for layer in relative_ME.tolist()],
            }
            largest, loads = {}, {}
            for index, name in enumerate(self._names):
                mine_ME = load_MQE[:, index].double()
                if float(mine_ME.sum()) > 0:
                    share_ME = mine_ME / mine_ME.mean(1, keepdim=True).clamp(min=1e-9)
                    largest[name] = float(share_ME.max())
                    loads[name] = [[round(value, 3) for value in layer] for layer in share_ME.tolist()]
            result["load_max_by_modality"] = largest
            if by_modality:
                result["load_by_modality"] = loads
        return result

"""What happens to gradients between the backward pass and the optimizer: norms are taken, and they are clipped."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from watersmeet.core.training.expert_clip import ExpertClip
from watersmeet.core.training.groups import ParamPlan
from watersmeet.core.training.sharding import Team, local_tensor


class Gradients:
    """Clips by the global norm `clip_norm` (0: never), and experts by their own norms where `experts` is given."""

    def __init__(
        self,
        model: nn.Module,
        plans: Mapping[str, ParamPlan],
        team: Team,
        experts: ExpertClip | None = None,
        *,
        clip_norm: float = 1.0,
    ) -> None:
        self.team, self.experts, self.clip_norm = team, experts, clip_norm
        apart = experts.params if experts is not None else set()
        trained = [(name, param) for name, param in model.named_parameters() if param.requires_grad]
        self.sharded = any(local_tensor(param) is not param for _, param in trained)
        self.params = [(plans[name].rule, param) for name, param in trained if param not in apart]

    @torch.no_grad()
    def clip(self, *, by_group: bool = False) -> dict[str, Any]:
        """Clip in place; returns `grad_norm` before it (not finite: nothing was clipped), and norms by group if asked for."""
        record: dict[str, Any] = {}
        if self.experts is not None:
            record["experts_clipped"], record["expert_norm"] = self.experts.clip()
        present = [(rule, local_tensor(param.grad)) for rule, param in self.params if param.grad is not None]
        grads = [grad for _, grad in present]
        norms = torch.stack(torch._foreach_norm(grads)) if grads else torch.zeros(1)
        if self.sharded:
            norms = self.team.sum(norms.square()).sqrt()
        norm = float(torch.linalg.vector_norm(norms))
        if self.clip_norm and math.isfinite(norm) and norm > self.clip_norm:
            torch._foreach_mul_(grads, self.clip_norm / (norm + 1e-6))
        if by_group:
            squares: dict[str, float] = {}
            for (rule, _), one in zip(present, norms.tolist(), strict=True):
                squares[rule] = squares.get(rule, 0.0) + one**2
            record["grad_norms"] = {rule: math.sqrt(square) for rule, square in squares.items()}
        return {"grad_norm": norm, **record}

    def state_tensors(self) -> dict[str, Tensor]:
        """What has to be in a checkpoint; references."""
        return {} if self.experts is None else self.experts.state_tensors()

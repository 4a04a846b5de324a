"""What keeps routed experts in use while training: the rule that moves the routers' biases, and the warm-up mask.

Legend of shapes: M layers with experts, Q modalities, E experts.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from watersmeet.core.balancing import sign_bias
from watersmeet.core.model.moe import Router
from watersmeet.core.model.warmup import warmup_width
from watersmeet.core.training.config import ExpertSection


class ExpertBalance:
    """Balancing of all routers of `model` by the rule of the configuration; `steps` is the length of the run.

    A router whose weights are frozen keeps its bias, which belongs to them.
    """

    def __init__(self, model: nn.Module, section: ExpertSection, steps: int, seed: int) -> None:
        self.section, self.seed = section, seed
        self.warm_steps = round(section.warmup * steps)
        self.routers = [module for module in model.modules() if isinstance(module, Router)]

    def begin(self, step: int) -> None:
        """Set the warm-up mask of step number `step` (from 0); a function of seed and step alone, so a resume finds it again."""
        for layer, router in enumerate(self.routers):
            width = warmup_width(step, self.warm_steps, router.k, router.num_experts)
            seed = int(np.random.default_rng([self.seed, step, layer]).integers(2**62))
            router.warmup = None if width >= router.num_experts else (width, seed)

    def update(self, load_MQE: Tensor | None, reduce: Callable[[Tensor], Tensor]) -> None:
        """Move the biases after a step; `load_MQE` holds the picks of this process, `reduce` sums over processes."""
        if not self.routers:
            return
        if self.section.balance == "quantile":
            # one sum over processes for all layers; frozen routers take part and forget
            counts = [router.counts for router in self.routers]
            whole = reduce(torch.cat([count.flatten() for count in counts]))
            for router, count in zip(self.routers, whole.split([count.numel() for count in counts]), strict=True):
                if router.weight.requires_grad:
                    router.update_bias(lambda own, count=count: count.view_as(own))  # type: ignore[misc]
        elif self.section.balance == "sign" and load_MQE is not None:
            for router, load in zip(self.routers, reduce(load_MQE).sum(1), strict=True):
                if router.weight.requires_grad:
                    bias = router.e_score_correction_bias
                    bias.copy_(sign_bias(load, bias, self.section.sign_step))
        self.discard()

    def discard(self) -> None:
        """Forget what was counted since the last update."""
        for router in self.routers:
            router.counts.zero_()

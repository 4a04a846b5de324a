"""Training a part of a model: what is left out gets no gradient, no optimizer state and no place in checkpoints."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from watersmeet.core.errors import ConfigError
from watersmeet.core.model.moe import Router


def train_only(model: nn.Module, trainable: Sequence[str]) -> None:
    """Freeze every parameter whose name does not begin with one of `trainable`; an empty list freezes nothing.

    An entry is the beginning of a parameter's name up to a dot: "embedders.sensor", "layers.3", "lm_head". Raises
    ConfigError naming an entry that no parameter begins with, and what the names begin with.
    """
    if not trainable:
        return
    names = [name for name, _ in model.named_parameters()]
    for entry in trainable:
        if not any(_begins(name, entry) for name in names):
            known = sorted(
                {".".join(name.split(".")[: 2 if name.startswith(("embedders", "layers")) else 1]) for name in names}
            )
            raise ConfigError(
                f"trainable: no parameter's name begins with {entry!r}; names begin with {', '.join(known[:12])}"
                + (f" and {len(known) - 12} more" if len(known) > 12 else "")
            )
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(any(_begins(name, entry) for entry in trainable))


def _begins(name: str, entry: str) -> bool:
    return name == entry or name.startswith(entry.rstrip(".") + ".")


def forget_frozen_balancing(model: nn.Module) -> None:
    """Drop what routers counted whose weights are frozen: their bias belongs to the weights and must not move either."""
    for module in model.modules():
        if isinstance(module, Router) and not module.weight.requires_grad:
            module.counts.zero_()

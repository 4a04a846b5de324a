"""Names and shapes of tensors on disk where they differ from those in memory.

In memory the gate and up matrices of all experts are one tensor `experts.w13 [E, 2I, L]`, because they are multiplied
together. On disk they are `experts.w1` (gate) and `experts.w3` (up), `[E, I, L]` each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

IN_MEMORY, ON_DISK = "experts.w13", ("experts.w1", "experts.w3")


def stored_views(named: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Tensors by their names on disk; those that are cut are views, so writing into them writes into the model.

    A name may have an ending behind a slash ("...experts.w13/momentum"), which both halves keep.
    """
    out: dict[str, Tensor] = {}
    for name, tensor in named:
        own, slash, ending = name.partition("/")
        if own.endswith(IN_MEMORY):
            stem = own.removesuffix(IN_MEMORY)
            for half, part in zip(ON_DISK, tensor.detach().chunk(2, dim=1), strict=True):
                out[f"{stem}{half}{slash}{ending}"] = part
        else:
            out[name] = tensor
    return out


def from_stored(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse for whole tensors: what was read from disk, by the names in memory."""
    out: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name.endswith(ON_DISK[0]):
            stem = name.removesuffix(ON_DISK[0])
            out[stem + IN_MEMORY] = torch.cat([tensor, tensors[stem + ON_DISK[1]]], dim=1)
        elif not name.endswith(ON_DISK[1]):
            out[name] = tensor
    return out

"""Parameters that may be sharded: their local rows, and the whole tensor.

FSDP2 keeps every parameter as a DTensor cut along its first axis like `torch.chunk` cuts it. Code that goes through this
module works on plain and on sharded parameters alike.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from watersmeet.core.errors import WatersmeetError


def local_tensor(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor; writing into it writes into the tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def local_rows(tensor: Tensor) -> slice:
    """Rows (first axis) of the whole tensor that this process holds."""
    if not isinstance(tensor, DTensor):
        return slice(0, len(tensor))
    mesh, placements = tensor.device_mesh, tensor.placements
    if mesh.ndim != 1 or placements != (Shard(0),):
        raise WatersmeetError(f"sharding: a tensor is placed as {placements}, expected rows over one axis of processes")
    size = -(-len(tensor) // mesh.size())
    start = min(size * mesh.get_local_rank(), len(tensor))
    return slice(start, min(start + size, len(tensor)))


def whole_tensor(tensor: Tensor) -> Tensor:
    """The whole tensor; every process has to call it when the tensor is sharded."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def whole_tensors(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same for tensors by name, in the order of the mapping, which must be the same everywhere."""
    return {name: whole_tensor(tensor.detach()) for name, tensor in named.items()}


@torch.no_grad()
def put_back(named: Mapping[str, Tensor], whole: Mapping[str, Tensor]) -> None:
    """Write whole tensors into sharded ones of the same names; plain ones are left out where they are the same tensor."""
    for name, tensor in named.items():
        if isinstance(tensor, DTensor):
            tensor.to_local().copy_(whole[name][local_rows(tensor)])


def shard_layers(module: nn.Module, layers: nn.ModuleList, world: int, device: torch.device) -> None:
    """Shard every layer and then what is left of `module`, over all processes (torch's FSDP2).

    accelerate switches FSDP on for accelerators only and wraps a model on CPUs in DDP without a word, so the same
    two lines are written out here for both.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (world,))
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)

"""Parameters that may be sharded: their local rows, and the whole tensor.

FSDP2 keeps every parameter as a DTensor cut along its first axis like `torch.chunk` cuts it. Code that goes through this
module works on plain and on sharded parameters alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from watersmeet.core.errors import WatersmeetError


@dataclass(frozen=True, kw_only=True)
class Team:
    """The processes of a run, and the few collectives that the optimizer needs; alone they are no-ops."""

    rank: int = 0
    world: int = 1

    def share(self, count: int, rank: int | None = None) -> slice:
        """Which of `count` things belong to a process: consecutive ones, as equally many as can be."""
        at = self.rank if rank is None else rank
        return slice(count * at // self.world, count * (at + 1) // self.world)

    def gather(self, part: Tensor, sizes: list[int]) -> Tensor:
        """Parts of all processes one behind the other along the first axis; process r gives sizes[r] rows."""
        if self.world == 1:
            return part
        # bytes, because not every backend moves every dtype; equal sizes, because not every backend moves others
        row = part.new_zeros(max(sizes), *part.shape[1:])
        row[: len(part)] = part
        parts = [torch.empty_like(row) for _ in sizes]
        dist.all_gather([p.view(torch.uint8) for p in parts], row.view(torch.uint8))
        return torch.cat([p[:size] for p, size in zip(parts, sizes, strict=True)])

    def gather_rows(self, local: Tensor, rows: int) -> Tensor:
        """The whole of a tensor with that many rows, cut like `torch.chunk` cuts."""
        size = -(-rows // self.world)
        return self.gather(local, [max(min(size, rows - size * rank), 0) for rank in range(self.world)])

    def sum(self, value: Tensor) -> Tensor:
        """Sum over processes, in a new tensor."""
        return self._reduce(value, dist.ReduceOp.SUM)

    def max(self, value: Tensor) -> Tensor:
        """Largest over processes, in a new tensor."""
        return self._reduce(value, dist.ReduceOp.MAX)

    def _reduce(self, value: Tensor, kind: dist.ReduceOp.RedOpType) -> Tensor:
        if self.world == 1:
            return value
        value = value.clone()
        dist.all_reduce(value, op=kind)
        return value


def on_cpu(device: str | None) -> bool:
    """Whether a run keeps off accelerators: because it shall, or because there is none."""
    return device == "cpu" or not torch.cuda.is_available()


def in_first_process(work: Callable[[], None], *, device: str | None) -> None:
    """Run `work` in the first process of a run while the others wait for its end; all fail when it does.

    `device` as for the trainer. It may be called before anything else is distributed.
    """
    from accelerate import PartialState

    state = PartialState(cpu=on_cpu(device))
    failure: Exception | None = None
    if state.is_main_process:
        try:
            work()
        except Exception as error:  # whatever it is, the others wait to be told; raised again below
            failure = error
    failed = Team(rank=state.process_index, world=state.num_processes).max(
        torch.tensor(int(failure is not None), device=state.device)
    )
    if int(failed):
        raise failure or WatersmeetError("another process could not prepare the run; it says why")


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

"""Wrappers of whole layers see all that goes through them: torch's fully sharded training, one and two processes."""

import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

pytestmark = [
    pytest.mark.skipif(not dist.is_available(), reason="torch without torch.distributed"),
    pytest.mark.filterwarnings("ignore:FSDP2-wrapped module:UserWarning"),
]


class Loss(nn.Module):
    """Sharding works on `forward`, so the loss has to be one."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, packed):
        return self.model.loss(packed)


def sharded_gradients(kit, world):
    """Loss and whole gradients by name of a sharded model, after it was joined."""
    mesh = init_device_mesh("cpu", (world,))
    model = kit.model().join()
    module = Loss(model)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)
    out = module(kit.pack(kit.stream(40, 0), kit.stream(9, 1)))
    out.loss_sum.backward()
    grads = {name: p.grad.full_tensor() for name, p in model.named_parameters() if p.grad is not None}
    return out.loss_sum.detach(), grads


def check(kit, world):
    loss, grads = sharded_gradients(kit, world)
    model = kit.model()
    plain = model.loss(kit.pack(kit.stream(40, 0), kit.stream(9, 1)))
    plain.loss_sum.backward()
    torch.testing.assert_close(loss, plain.loss_sum.detach(), rtol=1e-5, atol=1e-5)
    wanted = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert grads.keys() == wanted.keys()
    for name, grad in wanted.items():
        # every process has the same batch here, and gradients are averaged
        torch.testing.assert_close(grads[name], grad, rtol=1e-4, atol=1e-5, msg=name)


def test_sharded_layers_train_as_plain_ones_do(kit):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        check(kit, 1)
    finally:
        dist.destroy_process_group()


def _one_of_two(rank, folder, kit_path):
    import importlib.util

    torch.set_num_threads(1)
    spec = importlib.util.spec_from_file_location("core_conftest", kit_path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", 2), rank=rank, world_size=2)
    try:
        check(module.kit.__wrapped__(), 2)
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_train_as_one_does(tmp_path):
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).parent))
    import test_model_sharding as here  # by a name that the other processes can import

    path = str(Path(__file__).with_name("conftest.py"))
    torch.multiprocessing.spawn(here._one_of_two, args=(str(tmp_path), path), nprocs=2)

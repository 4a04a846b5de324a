"""Parameters that share one block of memory: same names, values, gradients and files; noticed when they are moved."""

import copy

import pytest
import torch
from safetensors.torch import load_file

from watersmeet.core.checkpoint import save_checkpoint
from watersmeet.core.generate import generate
from watersmeet.core.model.joint import Joint
from watersmeet.core.model.stored import from_stored, stored_views
from watersmeet.core.training.groups import plan_parameters
from watersmeet.core.training.muon import MuonAdamW


def joints(model):
    return [part for module in model.modules() for part in vars(module).values() if isinstance(part, Joint)]


def test_joining_changes_no_value_no_name_and_no_gradient(kit):
    apart, together = kit.model(), kit.model().join()
    assert all(torch.equal(a, b) for a, b in zip(apart.parameters(), together.parameters(), strict=True))
    assert apart.state_dict().keys() == together.state_dict().keys()
    packed = kit.pack(kit.stream(40, 0), kit.stream(9, 1))
    for model in (apart, together):
        model.loss(packed).loss_sum.backward()
    for (name, a), b in zip(apart.named_parameters(), together.parameters(), strict=True):
        assert (a.grad is None and b.grad is None) or torch.equal(a.grad, b.grad), name


def test_a_joined_block_is_the_parameters_and_not_a_copy(kit):
    model = kit.model().join()
    for joint in joints(model):
        with torch.no_grad():
            block = joint()
            assert joint().data_ptr() == block.data_ptr() == joint.modules[0].weight.data_ptr()
            joint.modules[-1].weight.fill_(7.0)
            assert (joint()[-len(joint.modules[-1].weight) :] == 7).all()
            assert torch.equal(joint(count=1), joint.modules[0].weight)


def test_moved_parameters_are_noticed(kit):
    model = kit.model().join()
    twin = copy.deepcopy(model)
    wide = kit.model().join().double()
    for joint, other, third in zip(joints(model), joints(twin), joints(wide), strict=True):
        with torch.no_grad():
            other.modules[0].weight.add_(1.0)
            third.modules[0].weight.add_(1.0)
            assert torch.equal(other(), torch.cat([m.weight for m in other.modules]))
            assert third().dtype == torch.float64 and torch.equal(third(), torch.cat([m.weight for m in third.modules]))
            assert torch.equal(joint(), torch.cat([m.weight for m in joint.modules]))
            assert not torch.equal(joint(), other())


def test_frozen_parts_stay_without_a_gradient(kit):
    model = kit.model().join()
    frozen = [name for name, p in model.named_parameters() if "q_proj" in name or "gate_proj" in name]
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    model.loss(kit.pack(kit.stream(20, 0))).loss_sum.backward()
    assert frozen and all(model.get_parameter(name).grad is None for name in frozen)
    assert model.get_parameter("layers.0.self_attn.k_proj.weight").grad.abs().sum() > 0


def test_a_model_that_has_generated_can_be_trained(kit):
    model = kit.model()
    generate(model, [kit.stream(5, 0)], max_new_tokens=2, eos_id=None)
    model.loss(kit.pack(kit.stream(20, 0))).loss_sum.backward()
    assert model.layers[0].self_attn.q_proj.weight.grad is not None


def test_files_hold_gate_and_up_of_the_experts_apart(kit, tmp_path):
    model = kit.model().join()
    save_checkpoint(tmp_path / "m", model, kit.micro, {})
    stored = load_file(tmp_path / "m" / "model.safetensors")
    experts, stem = model.layers[1].block_sparse_moe.experts, "layers.1.block_sparse_moe.experts"
    assert not any("w13" in name for name in stored)
    assert torch.equal(stored[f"{stem}.w1"], experts.w13[:, :32])
    assert torch.equal(stored[f"{stem}.w3"], experts.w13[:, 32:])
    back = from_stored(stored)
    assert back.keys() == model.state_dict().keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in model.state_dict().items())
    views = stored_views(model.state_dict().items())
    views[f"{stem}.w3"].zero_()
    assert not experts.w13[:, 32:].any() and experts.w13[:, :32].any()


@pytest.mark.parametrize("join", [False, True])
def test_pitfall_42_muon_sees_gate_and_up_as_matrices_of_their_own(kit, join):
    """One update of the joint tensor equals updates of gate and up kept apart, and the state has their names."""
    model = kit.model()
    if join:
        model.join()
    name = "layers.1.block_sparse_moe.experts.w13"
    weight = model.get_parameter(name)
    plans = plan_parameters(model.named_parameters(), model.config)
    optimizer = MuonAdamW([(name, weight)], plans, lr=0.3, adamw_lr=0.1)
    halves = {half: torch.nn.Parameter(part.clone()) for half, part in stored_views([(name, weight)]).items()}
    apart = MuonAdamW(halves.items(), plan_parameters(halves.items(), model.config), lr=0.3, adamw_lr=0.1)
    weight.grad = torch.randn(weight.shape, generator=torch.Generator().manual_seed(2))
    for half, part in stored_views([(name, weight.grad.clone())]).items():
        halves[half].grad = part.contiguous()
    optimizer.step()
    apart.step()
    for half, part in stored_views([(name, weight)]).items():
        torch.testing.assert_close(part, halves[half].detach(), rtol=1e-4, atol=1e-6)
    ours, theirs = optimizer.state_tensors(), apart.state_tensors()
    assert ours.keys() == theirs.keys() == {f"{name[:-3]}{half}/momentum" for half in ("w1", "w3")}
    for key in ours:
        torch.testing.assert_close(ours[key], theirs[key])

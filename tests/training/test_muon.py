"""Muon and AdamW against float64 definitions and the peer in torch."""

import math
from types import SimpleNamespace

import pytest
import torch

from watersmeet.core.errors import WatersmeetError
from watersmeet.core.training.groups import ParamPlan, plan_parameters
from watersmeet.core.training.muon import MuonAdamW


def plan(name, shape, rows):
    return ParamPlan(
        name=name, kind="muon" if rows else "adamw", rule="test", shape=tuple(shape), rows=rows, decay=bool(rows)
    )


def build(shapes, **options):
    """(optimizer, parameters): `shapes` maps a name to (shape, rows of its blocks or None for AdamW)."""
    generator = torch.Generator().manual_seed(3)
    params = {name: torch.nn.Parameter(torch.randn(shape, generator=generator)) for name, (shape, _) in shapes.items()}
    plans = {name: plan(name, shape, rows or ()) for name, (shape, rows) in shapes.items()}
    return MuonAdamW(params.items(), plans, **{"lr": 1.0, "adamw_lr": 1.0, "weight_decay": 0.0, **options}), params


def orthogonal_float64(x, steps=5):
    """The quintic iteration as written in the paper, one matrix, float64."""
    x = x.double()
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.T if tall else x


BLOCKS = {
    "square": ((64, 64), (64,)),
    "tall": ((192, 48), (192,)),
    "wide": ((48, 192), (48,)),
    "heads": ((4 * 32, 96), (32,)),
    "key_value": ((4 * (24 + 40), 64), (24, 40)),
    "experts": ((6, 32, 48), (32,)),
}


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 2e-4), (torch.bfloat16, 0.08)])
def test_update_equals_the_definition_block_by_block(dtype, tolerance):
    optimizer, params = build(BLOCKS, ns_dtype=dtype, lr=0.5, weight_decay=0.1)
    momentum = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in params.items()}
    expected = {name: p.detach().double().clone() for name, p in params.items()}
    for step in range(3):
        for name, param in params.items():
            param.grad = torch.randn(param.shape, generator=torch.Generator().manual_seed(10 * step + len(name)))
            momentum[name] = 0.95 * momentum[name] + param.grad.double()
            update = param.grad.double() + 0.95 * momentum[name]
            rows, columns = BLOCKS[name][1], param.shape[-1]
            expected[name] *= 1 - 0.5 * 0.1
            flat, target = update.reshape(-1, columns), expected[name].view(-1, columns)
            row = 0
            while row < flat.shape[0]:
                for height in rows:
                    block = orthogonal_float64(flat[row : row + height])
                    target[row : row + height] -= 0.5 * 0.2 * math.sqrt(max(height, columns)) * block
                    row += height
        optimizer.step()
    for name, param in params.items():
        # 0.2 sqrt(max) * lr is the size of the update; the tolerance is relative to one update element's bound
        assert torch.allclose(param.detach().double(), expected[name], atol=tolerance * 3 * 0.5 * 0.2 * 14, rtol=0), (
            name
        )


def test_update_rms_of_full_and_per_head_blocks():
    optimizer, params = build(BLOCKS)
    before = {name: p.detach().clone() for name, p in params.items()}
    for param in params.values():
        param.grad = torch.randn_like(param) * 1e-4
    optimizer.step()
    for name, param in params.items():
        update = (param.detach() - before[name]).view(-1, param.shape[-1])
        row, rows = 0, BLOCKS[name][1]
        while row < update.shape[0]:
            for height in rows:
                rms = update[row : row + height].square().mean().sqrt().item()
                assert 0.13 < rms < 0.22, (name, row, rms)
                row += height


def test_heads_with_small_gradients_move_as_much_as_loud_ones():
    optimizer, params = build({"heads": ((4 * 16, 64), (16,)), "whole": ((4 * 16, 64), (64,))})
    before = {name: p.detach().clone() for name, p in params.items()}
    for param in params.values():
        param.grad = torch.randn(4, 16, 64).mul_(torch.tensor([1.0, 1e-3, 1e-3, 1e-3]).view(4, 1, 1)).view(64, 64)
    optimizer.step()
    rms = {n: (p.detach() - before[n]).view(4, -1).square().mean(1).sqrt() for n, p in params.items()}
    assert rms["heads"].min() > 0.13
    assert rms["whole"][1:].max() < 0.06  # one matrix for all heads: the quiet ones are drowned


def test_singular_values_of_many_shapes():
    for shape in [(8, 8), (5, 40), (40, 5), (64, 100), (128, 32)]:
        optimizer, params = build({"w": (shape, (shape[0],))}, lr=1.0)
        before = params["w"].detach().clone()
        params["w"].grad = torch.randn(shape, generator=torch.Generator().manual_seed(1))
        optimizer.step()
        values = torch.linalg.svdvals((before - params["w"].detach()).double()) / (0.2 * math.sqrt(max(shape)))
        assert values.max() < 1.16, (shape, values)
        floor = 0.65 if shape[0] != shape[1] else 0.0  # a random square matrix has directions too small to lift
        assert values.min() > floor and values.median() > 0.65, (shape, values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ill_conditioned_gradients_give_bounded_updates(dtype):
    """Singular values from 1 to 1e-6, a rank of two, and rows of zeros: nothing blows up, strong directions keep their size."""
    left, _ = torch.linalg.qr(torch.randn(48, 48, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
    right, _ = torch.linalg.qr(torch.randn(96, 48, generator=torch.Generator().manual_seed(2), dtype=torch.float64))
    falling = torch.logspace(0, -6, 48, dtype=torch.float64)
    low_rank = torch.zeros(48, dtype=torch.float64)
    low_rank[:2] = 1.0
    gradients = {name: (left * values) @ right.T for name, values in (("falling", falling), ("low", low_rank))}
    gradients["rows"] = gradients["falling"].clone()
    gradients["rows"][10:] = 0
    optimizer, params = build({name: ((48, 96), (48,)) for name in gradients}, ns_dtype=dtype)
    before = {name: param.detach().clone() for name, param in params.items()}
    for name, param in params.items():
        param.grad = gradients[name].float() * 1e-3
    optimizer.step()
    scale = 0.2 * math.sqrt(96)
    for name, param in params.items():
        update = (before[name] - param.detach()).double() / scale
        assert update.isfinite().all() and torch.linalg.svdvals(update).max() < 1.25, name
        along = torch.einsum("ri,rc,ci->i", left, update, right)
        if name == "falling":
            assert along[:16].min() > 0.6  # down to a hundredth of the largest
        if name == "low":
            # five steps lift small directions by up to 3.4445^5, the rounding of bfloat16 too
            noise = 0.1 if dtype == torch.float32 else 0.6
            assert along[:2].min() > 0.6 and torch.linalg.svdvals(update)[2:].max() < noise
        if name == "rows":
            assert not update[10:].any()


def test_zero_gradient_moves_weights_only_by_decay():
    optimizer, params = build({"w": ((16, 32), (16,)), "n": ((32,), None)}, lr=0.1, weight_decay=0.1)
    before = {name: p.detach().clone() for name, p in params.items()}
    optimizer.step()  # grad None counts as zero
    assert torch.allclose(params["w"].detach(), before["w"] * (1 - 0.01), atol=1e-7)
    assert torch.equal(params["n"].detach(), before["n"])


def test_adamw_equals_torch():
    optimizer, params = build({"e": ((20, 8), None), "n": ((8,), None)}, adamw_lr=3e-2)
    peers = [torch.nn.Parameter(p.detach().clone()) for p in params.values()]
    peer = torch.optim.AdamW(peers, lr=3e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    for _ in range(6):
        for mine, other in zip(params.values(), peers, strict=True):
            mine.grad = torch.randn_like(mine)
            other.grad = mine.grad.clone()
        optimizer.step()
        peer.step()
    for mine, other in zip(params.values(), peers, strict=True):
        assert torch.allclose(mine, other, atol=1e-5)


def test_muon_agrees_with_torch_muon_direction():
    optimizer, params = build({"w": ((32, 48), (32,))}, lr=0.1)
    peer_param = torch.nn.Parameter(params["w"].detach().clone())
    peer = torch.optim.Muon([peer_param], lr=0.1, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    before = peer_param.detach().clone()
    for param in (params["w"], peer_param):
        param.grad = torch.randn(32, 48, generator=torch.Generator().manual_seed(5))
    optimizer.step()
    peer.step()
    mine, other = params["w"].detach() - before, peer_param.detach() - before
    cosine = (mine * other).sum() / mine.norm() / other.norm()
    assert cosine > 0.99
    assert abs(mine.norm() / other.norm() - 1) < 0.05


def test_rates_are_scheduled_apart():
    optimizer, _ = build({"w": ((16, 32), (16,)), "n": ((32,), None)}, lr=0.1, adamw_lr=0.02)
    optimizer.set_lr(0.5)
    rates = {group["label"]: group["lr"] for group in optimizer.param_groups}
    assert rates == {"muon": 0.05, "adamw-vector": 0.01}


def test_parameter_without_plan_is_an_error():
    with pytest.raises(WatersmeetError, match="stray"):
        MuonAdamW([("stray", torch.nn.Parameter(torch.ones(2, 2)))], {}, lr=1.0, adamw_lr=1.0)


CONFIG = SimpleNamespace(
    num_hidden_layers=2,
    kda_num_heads=2,
    kda_head_dim=8,
    num_attention_heads=2,
    qk_head_dim=12,
    qk_nope_head_dim=8,
    v_head_dim=6,
    is_full_attention=lambda layer: layer == 1,
)


def test_unknown_and_indivisible_names_are_errors():
    with pytest.raises(WatersmeetError, match="mystery"):
        plan_parameters([("layers.0.mystery", torch.nn.Parameter(torch.ones(4, 4)))], CONFIG)
    with pytest.raises(WatersmeetError, match="do not divide"):
        plan_parameters([("layers.0.self_attn.q_proj.weight", torch.nn.Parameter(torch.ones(12, 4)))], CONFIG)


def test_degenerate_matrices_go_to_adamw():
    plans = plan_parameters([("layers.0.self_attn.b_proj.weight", torch.nn.Parameter(torch.ones(1, 8)))], CONFIG)
    assert plans["layers.0.self_attn.b_proj.weight"].kind == "adamw"


def test_key_and_value_parts_are_a_switch():
    named = [("layers.1.self_attn.kv_b_proj.weight", torch.nn.Parameter(torch.ones(28, 4)))]
    assert plan_parameters(named, CONFIG)[named[0][0]].rows == (8, 6)
    assert plan_parameters(named, CONFIG, split_kv=False)[named[0][0]].rows == (14,)
    assert plan_parameters(named, CONFIG, per_head=False)[named[0][0]].rows == (28,)

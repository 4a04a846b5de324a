"""Options that are off by default: warm-up mask, rates per head, clipping per expert, other rules of balancing."""

import math
import sys
from pathlib import Path

import pytest
import torch

from watersmeet.core.balancing import sign_bias
from watersmeet.core.errors import ConfigError
from watersmeet.core.model.moe import Router
from watersmeet.core.model.warmup import allowed_experts, route_within, warmup_width
from watersmeet.core.training.config import ExpertSection, OptimizerSection
from watersmeet.core.training.expert_clip import ExpertClip
from watersmeet.core.training.groups import ParamPlan
from watersmeet.core.training.head_rate import head_rates, part_squares, update_running
from watersmeet.core.training.muon import MuonAdamW
from watersmeet.core.training.packing import Packer
from watersmeet.core.training.sharding import Team

sys.path.insert(0, str(Path(__file__).parent))
from test_trainer import trainer


def test_all_options_are_off_by_default():
    assert OptimizerSection().head_rate == 0 and ExpertSection().warmup == 0 and ExpertSection().clip == 0
    assert ExpertSection().balance == "quantile" and OptimizerSection().qk_clip == 100


@pytest.mark.parametrize("values", [{"balance": "x"}, {"warmup": 1.5}, {"clip": 0.5}, {"clip_memory": 1.0}])
def test_wrong_values_are_named(values):
    with pytest.raises(ConfigError, match=f"experts.{next(iter(values))} is"):
        ExpertSection(**values)


# ---- warm-up mask -----------------------------------------------------------------------------------------------


def test_width_grows_from_k_to_all_over_the_warm_steps():
    widths = [warmup_width(step, 20, 2, 12) for step in range(25)]
    assert widths[0] == 2 and widths == sorted(widths) and widths[19] < 12 and set(widths[20:]) == {12}
    assert warmup_width(0, 0, 2, 12) == 12


@pytest.mark.parametrize("experts, k, tokens", [(896, 16, 560), (6, 2, 33), (7, 3, 50)])
def test_narrow_mask_forces_uniform_use(experts, k, tokens):
    generator = torch.Generator().manual_seed(1)
    x, weight = torch.randn(tokens, 8, generator=generator), torch.randn(experts, 8, generator=generator)
    allowed = allowed_experts(tokens, k, k, torch.randperm(experts, generator=generator))
    picked, share, _, _ = route_within(x, weight, torch.zeros(experts), allowed, k=k, scaling=1.0)
    load = torch.bincount(picked.flatten(), minlength=experts)
    assert int(load.max() - load.min()) <= 1 and int(load.sum()) == tokens * k
    assert torch.allclose(share.sum(1), torch.ones(tokens))


def test_full_mask_changes_nothing_and_picks_stay_inside_a_wide_one():
    x, weight, bias = torch.randn(40, 8), torch.randn(12, 8), torch.randn(12) * 0.1
    order = torch.randperm(12)
    from watersmeet.kernels.native import route

    for ours, theirs in zip(
        route_within(x, weight, bias, allowed_experts(40, 3, 12, order), k=3, scaling=2.0),
        route(x, weight, bias, k=3, scaling=2.0),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)
    allowed = allowed_experts(40, 3, 5, order)
    picked, _, _, cutoff = route_within(x, weight, bias, allowed, k=3, scaling=2.0)
    assert bool(allowed.gather(1, picked).all()) and bool((allowed.sum(1) == 5).all())
    assert torch.equal(cutoff, route(x, weight, bias, k=3, scaling=2.0)[3])  # balancing sees no mask


def test_training_with_the_mask_begins_uniform_and_ends_without_it(tmp_path):
    run = trainer(tmp_path, **{"experts.warmup": 0.5, "schedule.steps": 6})
    packer = Packer(run.train_set, seed=1, **run._packing())
    spread, widths = [], []
    for _ in range(5):
        record = run._step([packer.next_batch()])
        spread.append(record["load_max"] - record["load_min"])
        widths.append([router.warmup and router.warmup[0] for router in run.balance.routers])
    assert spread[0] < 0.1 < max(spread[3:])
    assert widths[0] == [2] * 3 and widths[3] == [None] * 3
    run.module.eval()
    router = run.balance.routers[0]
    router.warmup = (2, 0)  # a mask that is in force does not act on evaluation
    x = torch.randn(9, run.model.config.hidden_size)
    masked = router(x)[0]
    router.warmup = None
    assert torch.equal(masked, router(x)[0])


# ---- rates per head ---------------------------------------------------------------------------------------------


def test_rates_of_heads_have_the_mean_one_and_follow_their_gradients():
    rows = torch.tensor([1.0, 1.0, 4.0, 4.0, 16.0, 16.0])  # mean squares of the rows of three heads
    running = torch.zeros(3, 1)
    update_running(running, part_squares(rows, (2,)))
    rates = head_rates(running, 0.5)[:, 0]
    torch.testing.assert_close(rates, torch.tensor([1, 2, 4]).div(2).sqrt())  # root mean squares 1, 2, 4; mean 2
    assert float(rates.log().mean()) == pytest.approx(0, abs=1e-6)
    assert head_rates(torch.tensor([[1.0], [1e12]]), 1.0).flatten().tolist() == [0.5, 2.0]
    assert head_rates(torch.zeros(3, 2), 1.0).tolist() == [[1, 1]] * 3
    assert torch.equal(part_squares(torch.arange(6.0), (1, 2)), torch.tensor([[0.0, 1.5], [3.0, 4.5]]))


@pytest.mark.parametrize("exponent", [0.0, 0.5])
def test_loud_heads_move_further_only_when_asked(exponent):
    torch.manual_seed(0)
    param = torch.nn.Parameter(torch.randn(4 * 16, 64))
    plan = ParamPlan(name="w", kind="muon", rule="KDA q/k/v per head", shape=(64, 64), rows=(16,))
    optimizer = MuonAdamW([("w", param)], {"w": plan}, lr=1.0, adamw_lr=1.0, weight_decay=0.0, head_rate=exponent)
    before = param.detach().clone()
    grad = torch.randn(4, 16, 64)
    param.grad = (grad * torch.tensor([1.0, 1.0, 1.0, 4.0]).view(4, 1, 1)).view(64, 64)
    optimizer.step()
    rms = (param.detach() - before).view(4, -1).square().mean(1).sqrt()
    # the geometric mean is 4^(1/4): the loud head gets 4^(3/8), the others 4^(-1/8)
    ratio = float(rms[3] / rms[:3].mean())
    assert ratio == pytest.approx(4**exponent if exponent else 1.0, rel=0.06)
    names = {name.partition("/")[2] for name in optimizer.state_tensors()}
    assert names == ({"momentum", "head_square"} if exponent else {"momentum"})


# ---- clipping per expert ----------------------------------------------------------------------------------------


def expert_params(experts=5):
    torch.manual_seed(0)
    shapes = {"layers.1.moe.experts.w13": (experts, 6, 4), "layers.1.moe.experts.w2": (experts, 4, 3)}
    return {name: torch.nn.Parameter(torch.randn(shape)) for name, shape in shapes.items()}


def test_each_expert_is_clipped_by_its_own_running_norm():
    params = expert_params()
    clip = ExpertClip(params.items(), factor=2.0, memory=0.5, team=Team())
    running = clip.running["layers.1.moe.experts"]

    def gradients(sizes):
        for param in params.values():
            param.grad = torch.ones_like(param) * torch.tensor(sizes).view(-1, 1, 1)

    unit = math.sqrt(6 * 4 + 4 * 3)  # norm of an expert whose gradients are all 1
    gradients([1.0, 10.0, 0.0, 1.0, 1.0])
    assert clip.clip()[0] == 0  # nothing is known of anybody yet
    torch.testing.assert_close(running, torch.tensor([1.0, 10.0, 0.0, 1.0, 1.0]) * unit)
    gradients([100.0, 10.0, 3.0, float("nan"), 1.5])
    count, largest = clip.clip()
    assert count == 2 and math.isinf(largest)
    for param in params.values():
        sizes = param.grad.flatten(1).mean(1)
        # 2x its own norm; as before; first seen; not finite: none; below the limit
        torch.testing.assert_close(sizes, torch.tensor([2.0, 10.0, 3.0, 0.0, 1.5]))
    torch.testing.assert_close(running, torch.tensor([1.5, 10.0, 3.0, 1.0, 1.25]) * unit)


@pytest.mark.parametrize("blow_up", [1e6, float("inf"), float("nan")])
def test_a_diverging_expert_leaves_the_updates_of_all_others_untouched(tmp_path, blow_up):
    """Two equal runs, in one of which an expert's gradient explodes: everything but this expert stays equal to the bit."""

    def weights(explode):
        run = trainer(tmp_path / str(explode), **{"experts.clip": 4.0, "optimizer.clip_norm": 0.5})
        packer = Packer(run.train_set, seed=1, **run._packing())
        name, target = next((n, p) for n, p in run.model.named_parameters() if n.endswith("experts.w2"))
        for step in range(3):
            factor = torch.ones(len(target), 1, 1)
            factor[3] = blow_up if explode and step == 2 else 1.0
            hook = target.register_hook(lambda grad, factor=factor: grad * factor)
            record = run._step([packer.next_batch()])
            hook.remove()
        assert record["experts_clipped"] >= explode and math.isfinite(record["grad_norm"])
        return name, {n: p.detach().clone() for n, p in run.model.named_parameters()}

    name, calm = weights(0)
    _, wild = weights(1)
    own = (name, name.replace("w2", "w13"))
    for key, value in calm.items():
        assert wild[key].isfinite().all(), key
        rows = [row for row in range(len(value)) if row != 3] if key in own else slice(None)
        assert torch.equal(value[rows], wild[key][rows]), key


def test_global_clipping_lets_one_expert_shrink_the_gradients_of_all(tmp_path):
    """What per-expert clipping is against: the same explosion under the global norm takes everybody's gradient away."""
    run = trainer(tmp_path)
    packer = Packer(run.train_set, seed=1, **run._packing())
    target = next(p for n, p in run.model.named_parameters() if n.endswith("experts.w2"))
    run.optimizer.step = lambda: None
    seen = {}
    for factor in (1.0, 1e6):
        hook = target.register_hook(lambda grad, factor=factor: grad * factor)
        run.optimizer.zero_grad = lambda factor=factor, **_: seen.update({factor: run.model.lm_head.weight.grad.norm()})
        run._step([packer.next_batch()])
        hook.remove()
        for param in run.model.parameters():
            param.grad = None
    assert seen[1e6] < 1e-2 * seen[1.0]


def test_running_norms_are_in_the_checkpoint(tmp_path):
    changes = {"experts.clip": 3.0, "optimizer.head_rate": 0.3, "experts.warmup": 0.4, "schedule.steps": 4}
    run = trainer(tmp_path, **changes, **{"run.save_every": 2, "run.keep": 5})
    run.run()
    norms = {name: value.clone() for name, value in run.gradients.state_tensors().items()}
    again = trainer(tmp_path, **changes)
    assert again.resume(tmp_path / "checkpoints" / "step-00000002")
    assert any(not torch.equal(value, norms[name]) for name, value in again.gradients.state_tensors().items())
    again.run()
    for name, value in again.gradients.state_tensors().items():
        assert torch.equal(value, norms[name]) and bool((value > 0).any()), name
    for (name, ours), theirs in zip(run.model.named_parameters(), again.model.parameters(), strict=True):
        assert torch.equal(ours, theirs), name


# ---- other rules of balancing -----------------------------------------------------------------------------------


def test_sign_rule_moves_towards_the_mean_by_a_fixed_step():
    moved = sign_bias(torch.tensor([0, 10, 20, 10]), torch.zeros(4), 0.25)
    assert moved.tolist() == [0.25, 0.0, -0.25, 0.0]


@pytest.mark.parametrize("rule", ["quantile", "sign", "none"])
def test_rules_of_balancing_move_the_bias_as_they_say(tmp_path, rule):
    run = trainer(tmp_path, **{"experts.balance": rule, "experts.sign_step": 0.5, "batch.accumulate": 2})
    packer = Packer(run.train_set, seed=1, **run._packing())
    record = run._step([packer.next_batch(), packer.next_batch()])
    for router, load in zip(run.balance.routers, record["load"], strict=True):
        bias = router.e_score_correction_bias
        assert int(router.counts.sum()) == 0
        if rule == "none":
            assert not bias.any()
        elif rule == "sign":
            assert bias.tolist() == [0.5 * ((one < 1) - (one > 1)) for one in load]
        else:
            assert bias.any() and abs(float(bias.mean())) < 1e-6
    assert isinstance(router, Router)

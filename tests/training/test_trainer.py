"""The loop on the real micro model: groups, accumulation, balancing, exact resume, signals, evaluation."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from watersmeet.core.errors import CheckpointError
from watersmeet.core.model.moe import Router
from watersmeet.core.training import state
from watersmeet.core.training.config import config_from_dict
from watersmeet.core.training.groups import check_layers, group_table, plan_parameters
from watersmeet.core.training.log import read_log
from watersmeet.core.training.packing import Packer
from watersmeet.core.training.trainer import Trainer, seed_everything

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from tiny_data import Echo, micro_model  # noqa: E402  # a helper beside the tests, also used by started processes


def recipe(out, **changes):
    config = config_from_dict(
        {
            "dataset": "tiny_data:Echo",
            "batch": {"tokens": 128, "pool": 8},
            "optimizer": {"lr": 0.01, "adamw_lr": 0.01},
            "schedule": {"steps": 6, "warmup": 2, "decay": 2},
            "run": {"out": str(out), "save_every": 0, "save_minutes": 0, "eval_every": 0, "eval_batches": 2},
        }
    )
    return config.with_values(**changes)


def trainer(out, *, val=False, **changes):
    config = recipe(out, **changes)
    seed_everything(config.seed)
    return Trainer(micro_model(), config, Echo(), Echo("val") if val else None, device="cpu", report=lambda line: None)


def test_pitfall_41_every_parameter_of_the_real_model_is_in_one_group():
    model = micro_model()
    plans = plan_parameters(model.named_parameters(), model.config)
    assert set(plans) == {name for name, _ in model.named_parameters()}
    check_layers(plans, model.config)
    kinds = Counter((plan.kind, plan.rule) for plan in plans.values())
    config = model.config
    mla = len(config.full_attention)
    kda = config.num_hidden_layers - mla
    moe = config.num_hidden_layers - config.first_k_dense_replace
    assert kinds["muon", "KDA q/k/v per head"] == 3 * kda
    assert kinds["muon", "MLA q per head"] == kinds["muon", "MLA k, v per head"] == mla
    assert kinds["muon", "router"] == moe
    # gate, up and down of every expert are matrices of their own, though two of them are kept as one tensor
    experts = [plan for plan in plans.values() if plan.rule == "routed experts"]
    assert len(experts) == 2 * moe and sum(plan.blocks for plan in experts) == 3 * moe * config.num_experts
    assert kinds["adamw", "short convolution"] == 3 * kda and kinds["adamw", "decay gate"] == 2 * kda
    assert kinds["adamw", "output head"] == 1 and kinds["adamw", "embedder"] == 3
    for name, plan in plans.items():
        assert plan.decay == (
            plan.kind == "muon" or (plan.rule in ("embedder", "output head") and len(plan.shape) > 1)
        ), name
    blocks = {plan.rule: plan.blocks for plan in plans.values()}
    assert blocks["routed experts"] == config.num_experts and blocks["KDA q/k/v per head"] == config.kda_num_heads
    assert blocks["MLA k, v per head"] == 2 * config.num_attention_heads
    assert f"{sum(p.numel() for p in model.parameters()):,}" in group_table(plans)


def test_q_without_latent_is_cut_by_head_too():
    model = micro_model(q_lora_rank=None)
    plans = plan_parameters(model.named_parameters(), model.config)
    check_layers(plans, model.config)
    assert sum(plan.rule == "MLA q per head" for plan in plans.values()) == len(model.config.full_attention)


def test_learns_and_logs_loss_and_load_by_modality(tmp_path):
    run = trainer(tmp_path, val=True, **{"schedule.steps": 20, "run.eval_every": 10})
    summary = run.run()
    train = [r for r in read_log(tmp_path / "log.jsonl") if r["kind"] == "train"]
    held_out = [r for r in read_log(tmp_path / "log.jsonl") if r["kind"] == "eval"]
    assert summary.stopped == "done" and summary.step == 20 and [r["step"] for r in train] == list(range(1, 21))
    assert train[-1]["loss"] < 0.75 * train[0]["loss"]
    assert [r["step"] for r in held_out] == [10, 20] and held_out[1]["loss"] < train[0]["loss"]
    assert set(train[0]["loss_by_modality"]) == {"dots"}  # all answers come after dots
    assert set(train[0]["load_max_by_modality"]) == {"dots", "ids"}
    assert 1 <= train[0]["load_max"] <= run.model.config.num_experts
    assert train[1]["lr"] == pytest.approx(0.01) and train[-1]["lr"] < 0.001
    assert state.latest_checkpoint(tmp_path / "checkpoints") == summary.checkpoint


def test_accumulated_micro_batches_are_one_big_batch(tmp_path):
    """The gradient of 3 batches in one step is the token-weighted mean of the batches' own mean gradients."""
    run = trainer(tmp_path, **{"batch.accumulate": 3, "optimizer.clip_norm": 0.0, "run.precision": "fp32"})
    packer = Packer(run.train_set, seed=run.config.seed, **run._packing())
    batches = [packer.next_batch() for _ in range(3)]
    means, weights = [], []
    for batch in batches:
        out = run.model.loss(batch.packed, real_tokens=batch.real_tokens)
        names, params = zip(*[(n, p) for n, p in run.model.named_parameters()], strict=True)
        means.append(torch.autograd.grad(out.loss, params, allow_unused=True))
        weights.append(float(out.weight_sum))
    assert len(set(weights)) > 1, "batches with equal weights would prove nothing"
    captured = {}
    run.optimizer.step = lambda: captured.update(  # type: ignore[method-assign]
        {name: param.grad.clone() for name, param in run.model.named_parameters() if param.grad is not None}
    )
    run._step(batches)
    for index, name in enumerate(names):
        parts = [mean[index] for mean in means]
        if name not in captured or parts[0] is None:
            continue
        expected = sum(w * part for w, part in zip(weights, parts, strict=True)) / sum(weights)
        assert torch.allclose(captured[name], expected, atol=1e-5, rtol=1e-3), name


def test_pitfall_28_balancing_once_a_step_and_never_in_evaluation(tmp_path, monkeypatch):
    calls = []
    real = Router.update_bias

    def counting(self, *arguments):
        calls.append(int(self.counts[0].sum()))
        real(self, *arguments)

    monkeypatch.setattr(Router, "update_bias", counting)
    run = trainer(tmp_path, val=True, **{"batch.accumulate": 2, "schedule.steps": 3})
    routers = [module for module in run.model.modules() if isinstance(module, Router)]
    run.run()
    assert len(calls) == 3 * len(routers)
    real_tokens = run.counters.tokens
    assert sum(calls) == real_tokens * len(routers)  # both micro-batches, filling left out, nothing counted twice
    bias = [router.e_score_correction_bias.clone() for router in routers]
    run.evaluate()
    assert len(calls) == 3 * len(routers)
    for router, before in zip(routers, bias, strict=True):
        assert torch.equal(router.e_score_correction_bias, before) and int(router.counts.sum()) == 0
        assert bool((before != 0).any()) and abs(float(before.mean())) < 1e-5


def test_batch_without_targets_changes_nothing_but_is_counted(tmp_path):
    run = trainer(tmp_path, **{"optimizer.weight_decay": 0.0})
    batch = Packer(run.train_set, seed=1, **run._packing()).next_batch()
    packed = batch.packed
    packed.weight.zero_()
    packed.targets.fill_(-100)
    before = {name: param.detach().clone() for name, param in run.model.named_parameters()}
    record = run._step([batch])
    assert record["loss"] == 0.0 and record["targets"] == 0 and record["grad_norm"] == 0.0
    for name, param in run.model.named_parameters():
        assert torch.equal(param, before[name]), name


def test_gradient_that_is_not_finite_is_skipped(tmp_path):
    run = trainer(tmp_path)
    batch = Packer(run.train_set, seed=1, **run._packing()).next_batch()
    before = {name: param.detach().clone() for name, param in run.model.named_parameters()}
    hook = run.model.lm_head.weight.register_hook(lambda grad: grad * float("nan"))
    run._step([batch])
    hook.remove()
    assert run.counters.skipped == 1
    for name, param in run.model.named_parameters():
        assert torch.equal(param, before[name]), name
    assert all(float(m.e_score_correction_bias.abs().max()) == 0 for m in run.model.modules() if isinstance(m, Router))


PROCESS = """
import sys
sys.path.insert(0, {here!r})
import torch
torch.set_num_threads(1)
from test_trainer import trainer
run = trainer({out!r}, **{changes!r})
print("resumed", run.resume())
run.run()
"""


def in_new_process(out, **changes):
    code = PROCESS.format(here=str(HERE), out=str(out), changes=changes)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_resume_in_a_new_process_is_exact_to_the_bit(tmp_path):
    """Six steps straight, and the checkpoint of step 3 carried into another process for three more."""
    straight, halves = tmp_path / "straight", tmp_path / "halves"
    in_new_process(straight, **{"run.save_every": 3, "run.keep": 9})
    (halves / "checkpoints").mkdir(parents=True)
    shutil.copytree(straight / "checkpoints" / "step-00000003", halves / "checkpoints" / "step-00000003")
    shutil.copy(straight / "log.jsonl", halves / "log.jsonl")  # with lines of steps 4 to 6, which a resume cuts
    assert "resumed True" in in_new_process(halves)
    ours, theirs = (root / "checkpoints" / "step-00000006" for root in (straight, halves))
    for name in ("model", "optimizer", "rng"):
        a, b = (load_file(root / f"{name}.safetensors") for root in (ours, theirs))
        assert set(a) == set(b)
        for key in a:
            assert torch.equal(a[key], b[key]), (name, key)
    a, b = (json.loads((root / "state.json").read_text()) for root in (ours, theirs))
    assert a["cursors"] == b["cursors"] and a["updates"] == b["updates"] == 6 and a["rng"] == b["rng"]
    losses = [[(r["step"], r["loss"]) for r in read_log(root / "log.jsonl")] for root in (straight, halves)]
    assert losses[0] == losses[1] and len(losses[0]) == 6


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_writes_a_checkpoint_and_ends(tmp_path, number):
    before = signal.getsignal(number)
    run = trainer(tmp_path, **{"schedule.steps": 1000})
    run.report = lambda line: os.kill(os.getpid(), number)  # the first line comes after the first step
    summary = run.run()
    assert summary.stopped == "signal" and 1 <= summary.step < 1000
    assert signal.getsignal(number) is before
    _, values = state.load_state(summary.checkpoint)
    assert values["step"] == summary.step == read_log(tmp_path / "log.jsonl")[-1]["step"]


def test_time_limit_stops_with_a_checkpoint_and_the_next_call_goes_on(tmp_path):
    summary = trainer(tmp_path).run(max_minutes=1e-9)
    assert summary.stopped == "time" and summary.step == 1
    again = trainer(tmp_path)
    assert again.resume() and again.counters.step == 1
    assert again.run().step == 6


def test_finished_run_is_extended_and_needs_no_step_when_not(tmp_path):
    trainer(tmp_path).run()
    again = trainer(tmp_path)
    assert again.resume()
    assert again.run().step == 6
    longer = trainer(tmp_path, **{"schedule.steps": 8})
    longer.resume()
    assert longer.run().step == 8


@pytest.mark.parametrize("changes, word", [({"seed": 2}, "seed"), ({"batch.tokens": 256}, "batch.tokens")])
def test_another_recipe_does_not_resume(tmp_path, changes, word):
    trainer(tmp_path, **{"schedule.steps": 4}).run()
    with pytest.raises(CheckpointError, match=word):
        trainer(tmp_path, **changes).resume()


def test_threads_end_with_the_run(tmp_path):
    before = threading.active_count()
    trainer(tmp_path, **{"schedule.steps": 4}).run()
    assert threading.active_count() == before

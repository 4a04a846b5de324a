"""Packed = one by one; micro-batches = one big batch; resumed twice = unbroken. Two processes = one: test_two_processes.py."""

import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from watersmeet.core.model.moe import Router
from watersmeet.core.stream import pack
from watersmeet.core.training.log import read_log
from watersmeet.core.training.packing import Batch, Packer

sys.path.insert(0, str(Path(__file__).parent))
from test_trainer import trainer

NAMES = ("dots", "ids")


def step_gradients(run, batches):
    """Gradients of one step before clipping, what was logged, and the balancing counts."""
    seen, counts = {}, []
    run.optimizer.step = lambda: None
    run.optimizer.zero_grad = lambda **_: seen.update(
        {name: param.grad.clone() for name, param in run.model.named_parameters() if param.grad is not None}
    )
    run.balance.update = lambda *_: counts.extend(router.counts.clone() for router in run.balance.routers)
    record = run._step(batches)
    for param in run.model.parameters():
        param.grad = None
    run.balance.discard()
    return seen, record, counts


def as_batch(streams):
    packed = pack(streams, NAMES)
    return Batch(packed=packed, real_tokens=packed.T, samples=(), cursor={"epoch": 0, "counts": {}})


@pytest.fixture
def run(tmp_path):
    return trainer(tmp_path, **{"run.precision": "fp32", "optimizer.clip_norm": 0.0, "run.measure_every": 1})


@pytest.mark.parametrize("sizes", [[8], [3, 5], [1] * 8], ids=["one pack", "two packs", "one by one"])
def test_packed_samples_are_samples_one_by_one_and_micro_batches_one_big_batch(run, sizes):
    """Gradients, losses, loads, largest logits and balancing counts of one step, however its samples are put together."""
    packer = Packer(run.train_set, seed=run.config.seed, **run._packing())
    streams = [packer._read(0, index) for index in range(8)]
    wanted, record, counts = step_gradients(run, [as_batch(streams)])
    batches, start = [], 0
    for size in sizes:
        batches.append(as_batch(streams[start : start + size]))
        start += size
    got, other, again = step_gradients(run, batches)
    assert set(got) == set(wanted)
    for name, grad in wanted.items():
        torch.testing.assert_close(got[name], grad, rtol=1e-4, atol=2e-6, msg=lambda text, name=name: f"{name}: {text}")
    assert record["loss"] == pytest.approx(other["loss"], rel=1e-6) and record["targets"] == other["targets"]
    assert record["loss_by_modality"] == pytest.approx(other["loss_by_modality"], rel=1e-6)
    assert record["load"] == other["load"] and record["load_by_modality"] == other["load_by_modality"]
    assert record["max_logit"] == pytest.approx(other["max_logit"], rel=1e-5)
    assert len(counts) == sum(isinstance(module, Router) for module in run.model.modules())
    for a, b in zip(counts, again, strict=True):
        assert int(a.sum()) == int(b.sum()) and int((a - b).abs().sum()) <= 4  # rounding at the edge of a bin


def test_a_filled_up_batch_is_the_batch_without_its_filling(run):
    packer = Packer(run.train_set, seed=run.config.seed, **run._packing())
    batch = packer.next_batch()
    assert batch.real_tokens < batch.packed.T
    streams = [packer._read(epoch, index) for epoch, index in batch.samples]
    wanted, record, _ = step_gradients(run, [as_batch(streams)])
    got, other, _ = step_gradients(run, [batch])
    for name, grad in wanted.items():
        torch.testing.assert_close(got[name], grad, rtol=1e-4, atol=2e-6, msg=lambda text, name=name: f"{name}: {text}")
    for key in ("loss", "load", "max_logit", "load_by_modality"):
        assert (
            record[key] == pytest.approx(other[key], rel=1e-5)
            if key in ("loss", "max_logit")
            else record[key] == other[key]
        )


def test_interrupted_and_resumed_twice_is_the_unbroken_run_to_the_bit(tmp_path):
    """Weights, moments, generators, losses and the order of the data."""
    options = {
        "schedule.steps": 9,
        "batch.accumulate": 2,
        "experts.clip": 3.0,
        "experts.warmup": 0.5,
        "optimizer.head_rate": 0.5,
    }
    order = {"straight": [], "parts": []}

    def follow(run, name):
        real = run._step
        run._step = lambda batches: order[name].append([batch.samples for batch in batches]) or real(batches)
        return run

    follow(trainer(tmp_path / "straight", **options), "straight").run()
    for end in (4, 7, 9):
        part = follow(trainer(tmp_path / "parts", **options), "parts")
        assert part.resume() == (end > 4)
        part.on_step = lambda step, record, part=part, end=end: setattr(
            part, "_stop", "signal" if step == end else None
        )
        assert part.run().step == end
    ends = [tmp_path / name / "checkpoints" / "step-00000009" for name in ("straight", "parts")]
    for name in ("model", "optimizer", "rng"):
        a, b = (load_file(end / f"{name}.safetensors") for end in ends)
        assert set(a) == set(b) and all(torch.equal(a[key], b[key]) for key in a)
    assert order["straight"] == order["parts"] and len(order["parts"]) == 9
    losses = [
        [(r["step"], r["loss"]) for r in read_log(tmp_path / name / "log.jsonl")] for name in ("straight", "parts")
    ]
    assert losses[0] == losses[1]


@pytest.mark.slow
def test_kill_9_at_any_moment_of_a_run_and_start_again_until_it_is_done(tmp_path):
    """A run that is killed over and over ends with the weights of one that never was."""
    import os
    import random
    import subprocess
    import time

    from test_trainer import HERE, PROCESS, in_new_process

    changes = {"run.save_every": 1, "run.keep": 2, "schedule.steps": 8}
    in_new_process(tmp_path / "straight", **changes)
    code = PROCESS.format(here=str(HERE), out=str(tmp_path / "killed"), changes=changes)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    chance = random.Random(1)
    log = tmp_path / "killed" / "log.jsonl"
    for _ in range(3):
        size = log.stat().st_size if log.exists() else 0
        process = subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.DEVNULL)
        end = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < end:
            if log.exists() and log.stat().st_size != size:  # the first step of this process is done
                break
            time.sleep(0.002)
        time.sleep(chance.random() * 0.15)
        process.kill()
        process.wait()
    in_new_process(tmp_path / "killed", **changes)
    ends = [tmp_path / name / "checkpoints" / "step-00000008" for name in ("straight", "killed")]
    for name in ("model", "optimizer"):
        a, b = (load_file(end / f"{name}.safetensors") for end in ends)
        assert all(torch.equal(a[key], b[key]) for key in a)
    steps = [r["step"] for r in read_log(log) if r["kind"] == "train"]
    assert steps == list(range(1, 9))
    shutil.rmtree(tmp_path / "killed")

"""Every way a run can end badly: killed while saving, disk full, another recipe, a loss that is not finite, rotten data."""

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest
import torch

from watersmeet.core.errors import CheckpointError, WatersmeetError
from watersmeet.core.training import state
from watersmeet.core.training.config import config_from_dict
from watersmeet.core.training.resume import differences

sys.path.insert(0, str(Path(__file__).parent))
from test_trainer import recipe, trainer
from tiny_data import Echo


def write(root, step, value):
    tensors = {"model": {"w": torch.full((64, 64), float(value))}, "optimizer": {"m": torch.full((8,), float(value))}}
    return state.save_state(root, step, tensors, {"value": value})


CALLS = ("rename", "fsync", "mkdir", "rmdir", "unlink")


def killed_at(root, number, work):
    """Run `work` in a child that kills itself with signal 9 at its `number`-th call that changes the disk; True if it got there."""
    child = os.fork()
    if child == 0:
        left = [number]
        for name in CALLS:
            real = getattr(os, name)

            def dying(*arguments, real=real, **options):
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*arguments, **options)

            setattr(os, name, dying)
        try:
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("again", [False, True], ids=["new step", "same step again"])
def test_kill_9_before_any_call_that_changes_the_disk_leaves_a_whole_checkpoint(tmp_path, again):
    """Both while a new step is written and while a step replaces itself, and while old ones are cleaned away."""
    number, survived = 0, 0
    while True:
        number += 1
        root = tmp_path / str(number)
        write(root, 1, 1.0)
        write(root, 2, 2.0)
        new = 2 if again else 3

        def work(root=root, new=new):
            write(root, new, 30.0)
            state.clean(root, keep=1)

        died = killed_at(root, number, work)
        latest = state.latest_checkpoint(root)
        assert latest is not None, number
        tensors, values = state.load_state(latest)
        assert values["value"] in (2.0, 30.0) and bool((tensors["model"]["w"] == values["value"]).all()), number
        for path in state.checkpoint_steps(root).values():
            state.load_state(path)  # whatever goes by the name of a checkpoint is whole
        # and the next process cleans up behind it
        write(root, 9, 9.0)
        state.clean(root, keep=1)
        assert [item.name for item in root.iterdir()] == ["step-00000009"], number
        survived += 1
        if not died:
            break
    assert survived > 8


def test_a_full_disk_leaves_the_last_checkpoint_and_nothing_half_written(tmp_path):
    """The kernel refuses to let a file grow, as it does when the disk is full; the run ends with one sentence."""
    resource = pytest.importorskip("resource")
    run = trainer(tmp_path, **{"schedule.steps": 6, "run.save_every": 2, "run.keep": 5, "run.tensorboard": False})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill_up(step, record):
        if step == 4:
            resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, before[1]))

    run.on_step = fill_up
    try:
        with pytest.raises(CheckpointError, match=r"step-00000004 could not be written: File too large"):
            run.run()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [item.name for item in (tmp_path / "checkpoints").iterdir()] == ["step-00000002"]
    again = trainer(tmp_path, **{"schedule.steps": 6})
    assert again.resume() and again.counters.step == 2 and again.run().step == 6


def test_another_recipe_is_refused_with_the_list_of_all_differences(tmp_path):
    trainer(tmp_path, **{"schedule.steps": 2}).run()
    changed = trainer(
        tmp_path, **{"seed": 4, "optimizer.lr": 0.5, "batch.tokens": 256, "run.save_every": 7, "schedule.steps": 9}
    )
    with pytest.raises(CheckpointError) as refused:
        changed.resume()
    told = str(refused.value)
    for what in (
        "config.seed was 1, is 4",
        "config.optimizer.lr was 0.01, is 0.5",
        "config.batch.tokens was 128, is 256",
        "--fresh",
    ):
        assert what in told
    assert "save_every" not in told and "steps" not in told  # these may change
    assert changed.counters.step == 0


def test_a_checkpoint_older_than_a_setting_had_its_default(tmp_path):
    now = {"config": recipe(tmp_path).to_dict(), "model": {"a": 1}, "samples": 3}
    then = json.loads(json.dumps(now))
    del then["config"]["experts"], then["config"]["optimizer"]["qk_clip"], then["config"]["run"]["sharding"]
    assert differences(then, now) == []
    other = {
        **now,
        "config": recipe(tmp_path, **{"optimizer.qk_clip": 50.0}).to_dict(),
        "samples": 4,
        "model": {"a": 2},
    }
    assert differences(then, other) == [
        "config.optimizer.qk_clip was 100.0, is 50.0",
        "model.a was 1, is 2",
        "number of training samples was 3, is 4",
    ]
    assert config_from_dict(now["config"]).experts.balance == "quantile"


class Poisoned(Echo):
    """Row 9 makes the loss NaN, as a picture full of NaN would."""

    def sample(self, index, rng):
        stream = super().sample(index, rng)
        if index == 9:
            stream.spans[0].data.fill_(float("nan"))
        return stream

    def row_name(self, index):
        return f"rows.jsonl:{index + 1}"


def test_a_loss_that_is_not_finite_stops_with_the_last_good_step_and_names_the_rows(tmp_path):
    run = trainer(tmp_path, **{"schedule.steps": 60, "batch.accumulate": 2})
    run.train_set = Poisoned()
    weights = {}

    def remember(step, record):
        weights.update({name: param.detach().clone() for name, param in run.model.named_parameters()})

    run.on_step = remember
    with pytest.raises(WatersmeetError, match="the loss is not finite") as refused:
        run.run()
    told = str(refused.value)
    rows = re.findall(r"rows\.jsonl:(\d+)", told)
    assert "10" in rows and len(rows) < 20, told
    step = run.counters.step
    assert f"step {step + 1}:" in told and step > 0 and str(run.checkpoints) in told
    latest = state.latest_checkpoint(tmp_path / "checkpoints")
    tensors, values = state.load_state(latest)
    assert values["step"] == step and values["updates"] == step
    for name, value in weights.items():
        assert value.isfinite().all() and torch.equal(run.model.get_parameter(name), value)
    bias = [value for name, value in tensors["model"].items() if name.endswith("e_score_correction_bias")]
    assert all(value.isfinite().all() for value in bias)
    # with the row mended the run goes on from there
    again = trainer(tmp_path, **{"schedule.steps": step + 2, "batch.accumulate": 2})
    assert again.resume() and again.run().step == step + 2


def test_data_that_fails_in_the_middle_saves_what_was_learnt(tmp_path):
    run = trainer(tmp_path, **{"schedule.steps": 50})
    real = run.train_set.sample
    run.train_set.sample = lambda index, rng: real(index, rng) if index != 13 else 1 / 0
    with pytest.raises(ZeroDivisionError):
        run.run()
    latest = state.latest_checkpoint(tmp_path / "checkpoints")
    assert state.load_state(latest)[1]["step"] == run.counters.step > 0

"""Held-out rows decide: the best checkpoint stays and can be had again, and a run that gets no better ends."""

import math
import sys
from pathlib import Path

import pytest
import torch

from watersmeet.core.errors import CheckpointError, ConfigError
from watersmeet.core.training import state
from watersmeet.core.training.config import config_from_dict
from watersmeet.core.training.log import read_log
from watersmeet.core.training.trainer import Trainer, seed_everything

sys.path.insert(0, str(Path(__file__).parent))
from tiny_data import Echo, micro_model  # a helper beside the tests


def trainer(out, losses=None, **changes):
    """A run whose held-out losses by step are given; None: really evaluated."""
    values = {
        "dataset": "tiny_data:Echo",
        "batch": {"tokens": 128, "pool": 8},
        "optimizer": {"lr": 0.01, "adamw_lr": 0.01},
        "schedule": {"steps": 6, "warmup": 2, "kind": "constant"},
        "run": {"out": str(out), "save_every": 0, "save_minutes": 0, "eval_every": 1, "keep": 1, "tensorboard": False}
        | {"keep_best": True, "measure_every": 0},
    }
    config = config_from_dict(values).with_values(**changes)
    seed_everything(config.seed)
    made = Trainer(micro_model(), config, Echo(), Echo("val"), device="cpu", report=lambda line: None)
    if losses is not None:
        made.evaluate = lambda: {"loss": losses[made.counters.step]}
    return made


def weights(made):
    return {name: value.clone() for name, value in made.model.state_dict().items()}


def same(one, other):
    return all(torch.equal(value, other[name]) for name, value in one.items())


def test_the_step_of_the_lowest_loss_stays_and_comes_back(tmp_path):
    short = trainer(tmp_path / "short", **{"schedule.steps": 3, "run.keep_best": False})
    short.run()
    run = trainer(tmp_path / "run", [9.0, 5.0, 4.0, 1.0, 2.0, 2.5, 3.0])
    run.run()
    assert (run.counters.best_step, run.counters.best_loss, run.counters.no_better) == (3, 1.0, 3)
    # keep = 1 would leave the last alone
    assert list(state.checkpoint_steps(tmp_path / "run" / "checkpoints")) == [3, 6]
    assert not same(weights(short), weights(run))
    assert run.restore_best() == 3
    assert same(weights(short), weights(run))


def test_no_step_was_better_than_the_model_as_it_was(tmp_path):
    before = weights(trainer(tmp_path / "fresh"))
    run = trainer(tmp_path / "run", [1.0, 2.0, 3.0, 4.0], **{"schedule.steps": 3})
    run.run()
    assert run.restore_best() == 0 and same(before, weights(run))


def test_patience_ends_a_run_and_the_next_call_ends_at_once(tmp_path):
    losses = [9.0, 5.0, 6.0, 7.0, 1.0, 1.0, 1.0]
    run = trainer(tmp_path / "run", losses, **{"run.patience": 2})
    summary = run.run()
    assert (summary.stopped, summary.step) == ("patience", 3)
    again = trainer(tmp_path / "run", losses, **{"run.patience": 2})
    assert again.resume()
    assert (again.run().step, again.restore_best()) == (3, 1)
    longer = trainer(tmp_path / "run", losses, **{"run.patience": 4})
    assert longer.resume()
    summary = longer.run()
    assert (summary.stopped, summary.step, longer.counters.best_step) == ("done", 6, 4)


def test_interrupted_and_resumed_it_judges_as_the_unbroken_run(tmp_path):
    whole = trainer(tmp_path / "whole")
    whole.run()
    for steps in (2, 3, 6):
        part = trainer(tmp_path / "parts", **{"schedule.steps": steps})
        part.resume()
        part.run()
    logs = [
        [(r["step"], r["loss"]) for r in read_log(tmp_path / name / "log.jsonl") if r["kind"] == "eval"]
        for name in ("whole", "parts")
    ]
    assert logs[0] == logs[1] and [step for step, _ in logs[0]] == list(range(7))
    assert vars(part.counters) | {"seconds": 0} == vars(whole.counters) | {"seconds": 0}
    assert whole.counters.best_loss == pytest.approx(min(loss for _, loss in logs[0]), rel=1e-6)
    assert part.restore_best() == whole.restore_best() and same(weights(part), weights(whole))


def test_other_held_out_rows_begin_anew(tmp_path):
    run = trainer(tmp_path / "run", [9.0, 1.0, 2.0], **{"schedule.steps": 2})
    run.run()
    # what the old rows called 1.0 says nothing about the new ones
    other = trainer(tmp_path / "run", [9.0, 1.0, 2.0, 7.0, 8.0], **{"schedule.steps": 4, "val_options": {"a": 1}})
    assert other.resume()
    other.run()
    assert (other.counters.best_step, other.counters.best_loss, other.counters.no_better) == (3, 7.0, 1)


def test_a_loss_that_is_no_number_is_never_the_best(tmp_path):
    run = trainer(tmp_path / "run", [math.nan, 3.0, math.nan, 4.0], **{"schedule.steps": 3})
    run.run()
    assert (run.counters.best_step, run.counters.best_loss) == (1, 3.0)


def test_a_best_checkpoint_that_is_gone_is_said(tmp_path):
    run = trainer(tmp_path / "run", [9.0, 1.0, 2.0], **{"schedule.steps": 2})
    run.run()
    state.clean(tmp_path / "run" / "checkpoints", keep=1)
    with pytest.raises(CheckpointError, match="step 1, which had the lowest held-out loss, is gone"):
        run.restore_best()


def test_judging_needs_judgements():
    for name in ("keep_best", "patience"):
        with pytest.raises(ConfigError, match=f"run.{name} is set but run.eval_every is 0"):
            config_from_dict({"dataset": "a:b", "run": {"eval_every": 0, name: True if name == "keep_best" else 2}})

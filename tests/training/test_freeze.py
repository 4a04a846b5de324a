"""Training a part of a model: the rest stays as it is to the bit and costs nothing."""

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from watersmeet.core.errors import CheckpointError, ConfigError
from watersmeet.core.model.loss import linear_cross_entropy
from watersmeet.core.training import state
from watersmeet.core.training.config import config_from_dict
from watersmeet.core.training.freeze import train_only
from watersmeet.core.training.log import read_log
from watersmeet.core.training.trainer import Trainer, seed_everything

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from tiny_data import Echo, micro_model  # noqa: E402


def trainer(out, *, dtype=torch.float32, **changes):
    config = config_from_dict(
        {
            "dataset": "tiny_data:Echo",
            "trainable": ["embedders.dots"],
            "batch": {"tokens": 128, "pool": 8},
            "optimizer": {"lr": 0.01, "adamw_lr": 0.05, "weight_decay": 0.5, "adamw_weight_decay": 0.1},
            "schedule": {"steps": 60, "warmup": 2, "decay": 2},
            "run": {"out": str(out), "save_every": 0, "save_minutes": 0, "eval_every": 0, "precision": "fp32"},
        }
    ).with_values(**changes)
    seed_everything(config.seed)
    model = micro_model()
    for name, parameter in model.named_parameters():
        if not name.startswith("embedders"):
            # a trunk with a voice of its own: one that whispers teaches an embedder little
            parameter.data = (parameter.data * (1 if "norm" in name or "A_log" in name else 4)).to(dtype)
    return Trainer(model, config, Echo(), None, device="cpu", report=lambda line: None)


def values(model):
    return {name: value.detach().clone() for name, value in model.state_dict().items() if "counts" not in name}


@pytest.mark.parametrize(("dtype", "precision"), [(torch.float32, "fp32"), (torch.bfloat16, "bf16")])
def test_only_what_is_named_learns(tmp_path, dtype, precision):
    run = trainer(tmp_path, dtype=dtype, **{"run.precision": precision})
    before = values(run.model)
    run.run()
    losses = [r["loss"] for r in read_log(tmp_path / "log.jsonl") if r["kind"] == "train"]
    assert sum(losses[-5:]) < 0.93 * sum(losses[:5])
    after = values(run.model)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {"embedders.dots.project.weight", "embedders.dots.project.bias"}
    assert all(value.dtype == before[name].dtype for name, value in after.items())


def test_what_is_frozen_has_no_state_and_is_in_no_checkpoint(tmp_path):
    run = trainer(tmp_path, **{"schedule.steps": 3})
    assert set(run.plans) == {"embedders.dots.project.weight", "embedders.dots.project.bias"}
    assert {name.partition("/")[0] for name in run.optimizer.state_tensors()} == set(run.plans)
    summary = run.run()
    assert all(p.grad is None for n, p in run.model.named_parameters() if n not in run.plans)
    stored = set(load_file(summary.checkpoint / "model.safetensors"))
    assert {name for name in stored if "e_score_correction_bias" not in name} == set(run.plans)


def test_resume_goes_on_to_the_bit_and_not_with_another_choice(tmp_path):
    straight = trainer(tmp_path / "a", **{"schedule.steps": 6})
    straight.run()
    trainer(tmp_path / "b", **{"schedule.steps": 3}).run()
    again = trainer(tmp_path / "b", **{"schedule.steps": 6})
    # the learning rate of a shorter run decays earlier, so only the kind of state is compared here
    assert again.resume() and again.counters.step == 3
    assert again.run().step == 6
    with pytest.raises(CheckpointError, match="trainable"):
        trainer(tmp_path / "b", trainable=("embedders",)).resume()
    _, found = state.load_state(state.latest_checkpoint(tmp_path / "a" / "checkpoints"))
    assert found["config"]["trainable"] == ["embedders.dots"]


def test_resume_is_exact(tmp_path):
    whole = trainer(tmp_path / "a", **{"schedule.steps": 6, "run.save_every": 3, "run.keep": 9})
    whole.run()
    half = trainer(tmp_path / "c", **{"schedule.steps": 6})
    assert half.resume(tmp_path / "a" / "checkpoints" / "step-00000003")
    half.run()
    a, b = values(whole.model), values(half.model)
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_layers_can_be_named_and_a_name_that_fits_nothing_is_refused():
    model = micro_model()
    train_only(model, ["layers.1", "lm_head.weight"])
    free = {name for name, p in model.named_parameters() if p.requires_grad}
    assert free == {n for n, _ in model.named_parameters() if n.startswith("layers.1.") or n == "lm_head.weight"}
    with pytest.raises(ConfigError, match=r"'embedders\.dot'; names begin with embedders\.dots, embedders\.ids"):
        train_only(model, ["embedders.dots", "embedders.dot"])
    everything = micro_model()
    train_only(everything, [])
    assert all(p.requires_grad for p in everything.parameters())


def test_a_frozen_head_is_only_read():
    generator = torch.Generator().manual_seed(0)
    hidden, head = (torch.randn(n, 8, generator=generator) for n in (700, 12))
    target, weight = torch.randint(0, 12, (700,), generator=generator), torch.rand(700, generator=generator)
    grads = []
    for learns in (True, False):
        x, w = hidden.clone().requires_grad_(), head.clone().requires_grad_(learns)
        linear_cross_entropy(x, w, target, weight)[0].backward()
        assert (w.grad is not None) == learns
        grads.append(x.grad)
    x = hidden.clone().requires_grad_()
    (torch.nn.functional.cross_entropy(x @ head.T, target, reduction="none") * weight).sum().backward()
    assert torch.equal(grads[0], grads[1]) and torch.allclose(grads[0], x.grad, atol=1e-5)

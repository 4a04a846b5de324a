"""Low-rank adapters: on every kind of matrix, experts as well; merged, stored, and read by peft."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from watersmeet.core.errors import CheckpointError, ConfigError
from watersmeet.core.stream import pack
from watersmeet.core.training.groups import plan_parameters
from watersmeet.core.training.lora import adapted, add_lora, load_adapter, merge_lora, save_adapter

sys.path.insert(0, str(Path(__file__).parent))
from tiny_data import Echo, micro_model


def batch(model):
    return pack([Echo().sample(i, np.random.default_rng(0)) for i in range(3)], model.modality_names)


def adapted_model(r=2, targets=("all-linear",), noisy=True):
    model = micro_model()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and "conv" not in name:
                parameter.mul_(4)
    torch.manual_seed(5)
    found = add_lora(model, r=r, alpha=4.0, targets=targets)
    if noisy:
        with torch.no_grad():
            for item in found:
                item.low_rank.lora_B.normal_(std=0.2)
    return model, found


def logits(model):
    with torch.no_grad():
        return model.logits(model(batch(model)))


def test_a_new_adapter_changes_nothing_and_a_trained_one_merges_into_the_same_logits():
    model, found = adapted_model(noisy=False)
    plain = micro_model()
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            if parameter.ndim > 1 and "conv" not in name:
                parameter.mul_(4)
    assert torch.equal(logits(model), logits(plain))
    model, found = adapted_model()
    before = logits(model)
    assert not torch.allclose(before, logits(plain), atol=1e-2)
    names = [name for name, _ in plain.named_parameters()]
    assert merge_lora(model) == len(found) and not list(adapted(model))
    assert sorted(name for name, _ in model.named_parameters()) == sorted(names)
    assert torch.equal(logits(model), before)
    assert torch.allclose(logits(model.join()), before, atol=1e-5)


def test_fault_25_every_named_matrix_experts_too_has_a_gradient_and_an_effect():
    model, found = adapted_model()
    kinds = {item.name.partition(".self_attn.")[2] or item.name.partition(".mlp.")[2] or item.name for item in found}
    assert any(name.endswith("experts.w13") for name in kinds) and any(name.endswith("experts.w2") for name in kinds)
    model.train()
    model.loss(batch(model)).loss.backward()
    for item in found:
        for part in (item.low_rank.lora_A, item.low_rank.lora_B):
            assert part.grad is not None and bool(part.grad.abs().sum() > 0), item.name
    assert all(p.grad is None for n, p in model.named_parameters() if "lora" not in n)
    plans = plan_parameters(model.named_parameters(), model.config)
    assert len(plans) == 2 * len(found) and {plan.rule for plan in plans.values()} == {"adapter"}
    base = logits(model)
    for item in found:
        with torch.no_grad():
            kept = item.low_rank.lora_B.clone()
            item.low_rank.lora_B.zero_()
            assert not torch.equal(logits(model), base), f"{item.name} is read past its adapter"
            item.low_rank.lora_B.copy_(kept)


def test_a_target_that_names_nothing_is_an_error():
    with pytest.raises(ConfigError, match="'q_prj' names no matrix.*q_proj"):
        add_lora(micro_model(), r=2, alpha=4, targets=["o_proj", "q_prj"])
    with pytest.raises(ConfigError, match="conv1d"):
        add_lora(micro_model(), r=2, alpha=4, targets=["q_conv1d"])
    with pytest.raises(ConfigError, match="lora.r is 500"):
        add_lora(micro_model(), r=500, alpha=4, targets=["o_proj"])
    with pytest.raises(ConfigError, match="larger than rank 500"):
        add_lora(micro_model(), r=500, alpha=4, targets=["all-linear"])


def test_named_targets_and_nothing_else():
    model, found = adapted_model(targets=("self_attn.o_proj", "experts.w2", "embedders.ids.table"))
    ends = {item.name.rpartition(".")[2] for item in found}
    assert ends == {"o_proj", "w2", "table"}
    assert {n for n, p in model.named_parameters() if p.requires_grad} == {
        f"{item.module_name}.parametrizations.{item.parameter}.0.lora_{x}" for item in found for x in "AB"
    }


def test_an_adapter_on_disk_comes_back_and_what_does_not_fit_is_told(tmp_path):
    model, _ = adapted_model()
    save_adapter(model, tmp_path / "adapter", r=2, alpha=4.0, base="x")
    save_adapter(model, tmp_path / "adapter", r=2, alpha=4.0, base="x")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["adapter"]
    assert sorted(p.name for p in (tmp_path / "adapter").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    other = adapted_model(noisy=False)[0]
    merge_lora(other)
    load_adapter(other, tmp_path / "adapter")
    assert torch.equal(logits(other), logits(model))
    with pytest.raises(CheckpointError, match="not an adapter"):
        load_adapter(micro_model(), tmp_path)
    with pytest.raises((CheckpointError, ConfigError)):
        load_adapter(micro_model(hidden_size=32), tmp_path / "adapter")


@pytest.mark.filterwarnings("ignore")
def test_peft_reads_it_and_makes_the_same_weights(tmp_path):
    peft = pytest.importorskip("peft")
    model, found = adapted_model()
    save_adapter(model, tmp_path / "adapter", r=2, alpha=4.0, base="x")
    base = adapted_model(noisy=False)[0]
    merge_lora(base)
    merged = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").merge_and_unload()
    theirs = dict(merged.named_parameters())
    names = [f"{item.module_name}.{item.parameter}" for item in found]
    merge_lora(model)
    ours = dict(model.named_parameters())
    for name in names:
        assert torch.allclose(theirs[name], ours[name], atol=1e-6), name

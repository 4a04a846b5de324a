"""The configuration: patterns of the official models, round trip, and errors that name the field."""

import pytest
import torch

from watersmeet.core.config import ModelConfig, preset
from watersmeet.core.errors import ConfigError
from watersmeet.core.model import Model
from watersmeet.core.model.layer import Residual


def test_full_attention_pattern_of_the_official_models():
    k3, linear = preset("k3"), preset("kimi-linear-48b")
    assert k3.full_attention_layers == (*range(3, 92, 4), 92) and len(k3.full_attention_layers) == 24
    assert linear.full_attention_layers == (3, 7, 11, 15, 19, 23, 26)
    assert not k3.is_moe(0) and k3.is_moe(1)
    assert k3.shared_intermediate_size == 6144 and k3.qk_head_dim == 192


def test_changing_the_depth_derives_the_pattern_anew():
    assert preset("k3").replace(num_hidden_layers=6).full_attention_layers == (3, 5)


@pytest.mark.parametrize("name", ["micro", "nano", "kimi-linear-48b", "k3"])
def test_json_round_trip(name):
    config = preset(name)
    assert ModelConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_size": 0}, "hidden_size"),
        ({"full_attention_layers": (9,)}, "names layer 9"),
        ({"gate_lower_bound": -6.0}, "gate_lower_bound"),
        ({"num_experts_per_token": 6}, "num_experts"),
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"colour": 1}, "colour"),
        ({"hidden_size": 10**30}, "hidden_size is 10+, expected at most"),
        ({"num_hidden_layers": 10**9, "full_attention_layers": None}, "num_hidden_layers is 10+, expected at most"),
        ({"num_hidden_layers": "5", "full_attention_layers": None}, "num_hidden_layers is '5'"),
        ({"rms_norm_eps": -1e-5}, "rms_norm_eps is -1e-05, expected a number above 0"),
        ({"rms_norm_eps": "1e-5"}, "rms_norm_eps is '1e-5', expected a finite number"),
        ({"routed_scaling_factor": float("nan")}, "routed_scaling_factor is nan, expected a finite number"),
        ({"routed_scaling_factor": 0}, "routed_scaling_factor"),
        ({"gate_lower_bound": "-5"}, "gate_lower_bound is '-5', expected a finite number"),
        ({"situ_beta": float("inf")}, "situ_beta"),
    ],
)
def test_errors_name_the_field(change, words):
    with pytest.raises(ConfigError, match=words):
        preset("micro").replace(**change)


@pytest.mark.parametrize("text", ["[" * 100000, b"\xff\xfe\x00", "{"])
def test_texts_that_are_no_json(text):
    with pytest.raises(ConfigError, match="not JSON"):
        ModelConfig.from_json(text)


def test_unknown_and_missing_fields_of_a_file():
    values = preset("micro").to_dict()
    with pytest.raises(ConfigError, match="zeal"):
        ModelConfig.from_dict({**values, "zeal": 1})
    with pytest.raises(ConfigError, match="vocab_size"):
        ModelConfig.from_dict({k: v for k, v in values.items() if k != "vocab_size"})
    with pytest.raises(ConfigError, match="watersmeet_format"):
        ModelConfig.from_dict({**values, "watersmeet_format": 99})


def test_nano_fits_its_budget(kit):
    config = preset("nano")
    parameters = dict(kit.model(config, lively=False).named_parameters())
    total = sum(p.numel() for p in parameters.values())
    idle = sum(p.numel() for name, p in parameters.items() if ".experts." in name)
    active = total - idle * (1 - config.num_experts_per_token / config.num_experts)
    embedding = parameters["embedders.text.table.weight"].numel()
    assert total <= 9_500_000
    assert 5_500_000 < active - embedding < 6_800_000


def test_pitfall_19_snapshots_of_93_layers_in_blocks_of_12(kit, monkeypatch):
    """K3: snapshots before layers 0, 12, ..., 84, and nine sources at the end (not 24 sublayers a block)."""
    seen = []

    def read(self, norm, mix):
        seen.append(len(self.bank) + (self.running is not None) if mix is not None else 1)
        return "read", self._replace(running=f"sum {len(seen)}", update=None)

    monkeypatch.setattr(Residual, "read", read)
    layer = kit.model(kit.micro, lively=False).layers[0]
    residual, taken = Residual((), "embedding"), []
    for index in range(93):
        layer.begins_block = index % preset("k3").attn_res_block_size == 0
        held = len(residual.bank)
        _, residual = layer.read_attention(residual)
        taken += [index] * (len(residual.bank) - held)
        assert (residual.running is None) == (index % 12 == 0)
        residual = residual.add(f"attention {index}")
        _, residual = layer.read_feed_forward(residual)
        residual = residual.add(f"feed-forward {index}")
    assert taken == list(range(0, 93, 12)) and len(taken) == 8
    residual.read(None, ())
    assert seen[:3] == [1, 2, 2] and seen[-1] == 9
    with torch.device("meta"):
        layers = Model(preset("k3").replace(vocab_size=8, output_modality="text"), {"text": torch.nn.Identity()}).layers
    assert [i for i, layer in enumerate(layers) if layer.begins_block] == taken

"""Going back: what is exported says what was loaded, to us and to transformers."""

import json

import pytest
import torch

from watersmeet.cli.app import run_command_line
from watersmeet.core.config import preset
from watersmeet.core.errors import CheckpointError, ConfigError
from watersmeet.core.model import Model
from watersmeet.core.official.config import OfficialConfig, describe, read_config, write_config
from watersmeet.core.official.export import compare_export, export_official, tensors
from watersmeet.core.official.random import random_k3, random_kimi_linear
from watersmeet.kernels import mxfp4_decode, mxfp4_encode
from watersmeet.tokenizers.text.embedder import Embedder


def official_of(loaded):
    return OfficialConfig.from_dict(loaded.processor["official"], loaded.config.replace(output_modality=""))


def bits(tensor):
    return tensor.contiguous().view(torch.uint8)


def same_files(a, b, tools):
    first, second = tools.tensors(a), tools.tensors(b)
    assert sorted(first) == sorted(second)
    for name, tensor in first.items():
        other = second[name]
        assert tensor.dtype == other.dtype and tensor.shape == other.shape and torch.equal(bits(tensor), bits(other)), (
            name
        )


@pytest.mark.parametrize("kind", ["linear", "k3", "k3_packed"])
def test_load_export_load_is_exact_in_every_bit_of_the_files(kind, shapes, tools, tmp_path):
    source = getattr(shapes, kind)
    packed = kind == "k3_packed"
    dtype = torch.bfloat16 if packed else torch.float32
    loaded = tools.load(source, dtype=dtype, packed_experts=packed)
    export_official(loaded.model, official_of(loaded), tmp_path / "out", dtype=dtype, mxfp4=packed, shard_size=100_000)
    same_files(source, tmp_path / "out", tools)
    assert len(list((tmp_path / "out").glob("*.safetensors"))) > 3
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert sorted(index["weight_map"]) == sorted(tools.tensors(source))
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in tools.tensors(source).values())
    ids = tools.ids(25)
    again = tools.load(tmp_path / "out", dtype=dtype, packed_experts=packed)
    assert torch.equal(tools.logits(again.model, ids)[0], tools.logits(loaded.model, ids)[0])
    before, after = (json.loads((d / "config.json").read_text()) for d in (source, tmp_path / "out"))
    assert before == after


def test_decoded_experts_come_back_as_the_same_values(shapes, tools, tmp_path):
    """Decoded on loading and encoded again: other bytes may say the same, the weights are equal."""
    loaded = tools.load(shapes.k3_packed, dtype=torch.bfloat16)
    export_official(loaded.model, official_of(loaded), tmp_path / "out", mxfp4=True)
    ids = tools.ids(15)
    again = tools.load(tmp_path / "out", dtype=torch.bfloat16)
    assert torch.equal(tools.logits(again.model, ids)[0], tools.logits(loaded.model, ids)[0])
    for (name, a), (_, b) in zip(again.model.named_parameters(), loaded.model.named_parameters(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize("rule", ["packer", "floor"])
def test_mxfp4_of_plain_experts(rule, shapes, tools, tmp_path):
    loaded = tools.load(shapes.k3)
    official = official_of(loaded)
    export_official(loaded.model, official, tmp_path / "out", dtype=torch.float32, mxfp4=True, rule=rule)
    raw = json.loads((tmp_path / "out" / "config.json").read_text())
    quantised = raw["text_config"]["quantization_config"]
    assert quantised["format"] == quantised["config_groups"]["group_0"]["format"] == "mxfp4-pack-quantized"
    files = tools.tensors(tmp_path / "out")
    name = "language_model.model.layers.4.block_sparse_moe.experts.6.w2."
    codes, scale = mxfp4_encode(loaded.model.layers[4].block_sparse_moe.experts.w2[6], rule=rule)
    assert torch.equal(files[name + "weight_packed"], codes) and torch.equal(files[name + "weight_scale"], scale)
    assert files[name + "weight_packed"].shape == (64, 16) and files[name + "weight_scale"].shape == (64, 1)
    again = tools.load(tmp_path / "out")
    assert torch.equal(
        again.model.layers[4].block_sparse_moe.experts.w2[6], mxfp4_decode(codes, scale, dtype=torch.float32)
    )
    compare_export(loaded.model, official, tmp_path / "out", dtype=torch.float32, mxfp4=True, rule=rule)
    other = "floor" if rule == "packer" else "packer"
    with pytest.raises(CheckpointError, match="read back differently"):
        compare_export(loaded.model, official, tmp_path / "out", dtype=torch.float32, mxfp4=True, rule=other)


def test_bfloat16_keeps_float32_where_the_releases_do(shapes, tools, tmp_path):
    loaded = tools.load(shapes.k3)
    export_official(loaded.model, official_of(loaded), tmp_path / "out")
    for name, tensor in tools.tensors(tmp_path / "out").items():
        always = name.endswith(("conv1d.weight", "A_log", "dt_bias", "o_norm.weight", "e_score_correction_bias"))
        assert tensor.dtype == (torch.float32 if always else torch.bfloat16), name
    assert json.loads((tmp_path / "out" / "config.json").read_text())["text_config"]["dtype"] == "bfloat16"


@pytest.mark.parametrize("made", ["by us", "by transformers"])
def test_transformers_loads_an_export_and_gives_the_same_logits(made, tools, tmp_path):
    transformers = pytest.importorskip("transformers")
    if made == "by us":
        random_kimi_linear(tmp_path / "source", seed=11, q_lora_rank=20, first_k_dense_replace=2)
    else:
        torch.manual_seed(3)
        config = transformers.KimiLinearConfig(
            vocab_size=128, hidden_size=64, intermediate_size=96, moe_intermediate_size=32, num_hidden_layers=4,
            num_attention_heads=4, num_key_value_heads=4, kv_lora_rank=16, q_lora_rank=None, qk_rope_head_dim=8,
            v_head_dim=16, qk_nope_head_dim=16, num_experts_per_tok=2, num_local_experts=8, linear_head_dim=16,
            linear_num_heads=4, layer_types=["linear_attention"] * 3 + ["full_attention"], bos_token_id=1, eos_token_id=2,
            pad_token_id=0,
        )  # fmt: skip
        transformers.KimiLinearForCausalLM(config).save_pretrained(tmp_path / "source")
    code = run_command_line(
        ["export", "--model", str(tmp_path / "source"), "--out", str(tmp_path / "out"), "--dtype", "float32"]
    )
    assert code == 0
    ids = tools.ids(50)
    peer = transformers.KimiLinearForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    original = transformers.KimiLinearForCausalLM.from_pretrained(tmp_path / "source", dtype=torch.float32).eval()
    with torch.no_grad():
        got, want = (model(torch.tensor([ids])).logits[0] for model in (peer, original))
    assert torch.equal(got, want)
    torch.testing.assert_close(tools.logits(tools.load(tmp_path / "out").model, ids)[0], got, atol=1e-4, rtol=1e-4)


def test_the_command_says_done_only_after_comparing(shapes, tools, tmp_path, capsys, monkeypatch):
    words = ["export", "--model", str(shapes.k3), "--out", str(tmp_path / "out")]
    assert run_command_line(words) == 0
    out = capsys.readouterr().out
    assert "read back and compared" in out and "426 tensors in float32" in out
    same_files(shapes.k3, tmp_path / "out", tools)
    assert run_command_line(words) == 2 and "is there already" in capsys.readouterr().err
    import watersmeet.core.official.export as module

    real = module.save_file

    def damage(shard, path, **options):
        name = sorted(shard)[0]
        real({**shard, name: shard[name] + 1}, path, **options)

    monkeypatch.setattr(module, "save_file", damage)
    assert run_command_line([*words[:-1], str(tmp_path / "bad")]) == 1
    assert "read back differently" in capsys.readouterr().err and not (tmp_path / "bad").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out"]


def test_files_beside_the_weights_are_carried_over(shapes, copy, tmp_path):
    source = copy(shapes.linear)
    (source / "LICENSE").write_text("terms")
    (source / "tokenizer_config.json").write_text('{"a": 1}')
    (source / "generation_config.json").write_text('{"eos_token_id": [2, 9]}')
    (source / "pytorch_model.bin").write_bytes(b"\x80\x02")
    assert run_command_line(["export", "--model", str(source), "--out", str(tmp_path / "out")]) == 0
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"LICENSE", "tokenizer_config.json", "generation_config.json"} <= names and "pytorch_model.bin" not in names


def test_the_built_in_model_goes_into_k3s_layout_and_back(tmp_path, capsys):
    from watersmeet.pipelines.models.local import load_local

    assert run_command_line(["export", "--model", "nano", "--out", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert "no place for the embedders of image, regions" in out and "kimi_k3" in out
    native, again = load_local("nano"), load_local(str(tmp_path / "out"))
    assert set(again.encoders) == set(native.encoders) and again.stop_ids == native.stop_ids
    assert again.encoders["text"].encode_ids("<page> ok") == native.encoders["text"].encode_ids("<page> ok")
    states = [dict(local.model.named_parameters()) for local in (native, again)]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name].float(), states[1][name].float()) for name in states[0])


def test_what_the_layout_cannot_say_is_refused(shapes, tools, tmp_path):
    config = preset("micro").replace(output_modality="text")
    for change, says in (
        ({"mla_norm_eps": 1e-5}, "mla_norm_eps"),
        ({"kda_gate_rank": 7}, "kda_gate_rank"),
    ):
        odd = config.replace(**change)
        model = Model(odd, {"text": Embedder(odd.hidden_size, {"vocab_size": odd.vocab_size})})
        with pytest.raises(ConfigError, match=says):
            export_official(model, describe(odd.replace(output_modality="")), tmp_path / "out")
    wide = config.replace(moe_intermediate_size=40)
    model = Model(wide, {"text": Embedder(wide.hidden_size, {"vocab_size": wide.vocab_size})})
    with pytest.raises(ConfigError, match="multiples of 32"):
        export_official(model, describe(wide.replace(output_modality="")), tmp_path / "out", mxfp4=True)
    with pytest.raises(ConfigError, match="another graph"):
        export_official(model, describe(config.replace(output_modality="")), tmp_path / "out")
    model = Model(config, {"text": torch.nn.Embedding(64, 48)})
    with pytest.raises(ConfigError, match="checkpoint_names"):
        export_official(model, describe(config.replace(output_modality="")), tmp_path / "out")
    assert not (tmp_path / "out").exists() and not list(tmp_path.iterdir())


def test_configs_of_every_preset_come_back(tools):
    for name in ("micro", "nano", "kimi-linear-48b", "k3"):
        config = preset(name)
        official = describe(config, bos_id=1, eos_ids=(2, 3), pad_id=0)
        again = read_config(write_config(official))
        assert again.model == config and again.eos_ids == (2, 3)
        assert again.family == ("kimi_linear" if "linear" in name else "kimi_k3")


def test_names_are_written_in_one_order_and_once(shapes, tools):
    loaded = tools.load(shapes.k3)
    names = [name for name, _ in tensors(loaded.model, official_of(loaded), dtype=torch.float32)]
    assert len(names) == len(set(names)) == 426
    assert random_k3.__doc__


def test_packed_experts_can_be_exported_plain(shapes, tools, tmp_path):
    loaded = tools.load(shapes.k3_packed, dtype=torch.bfloat16, packed_experts=True)
    export_official(loaded.model, official_of(loaded), tmp_path / "out")
    compare_export(loaded.model, official_of(loaded), tmp_path / "out", dtype=torch.bfloat16)
    plain = tools.load(shapes.k3_packed, dtype=torch.bfloat16).model
    again = tools.load(tmp_path / "out", dtype=torch.bfloat16).model
    for (name, a), (_, b) in zip(again.named_parameters(), plain.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    assert "quantization_config" not in json.loads((tmp_path / "out" / "config.json").read_text())["text_config"]

"""Published config.json files: what the fields mean, which are refused and with which words."""

import json
from copy import deepcopy

import pytest
import torch

from watersmeet.core.config import preset
from watersmeet.core.errors import ConfigError
from watersmeet.core.official.config import read_config, write_config
from watersmeet.core.official.random import random_k3, random_kimi_linear

# the fields of the released files, as they stand there (generation leftovers included)
LINEAR = {
    "architectures": ["KimiLinearForCausalLM"], "auto_map": {"AutoConfig": "configuration_kimi.KimiLinearConfig"},
    "bos_token_id": 163584, "dtype": "bfloat16", "eos_token_id": 163586, "first_k_dense_replace": 1, "head_dim": 72,
    "hidden_act": "silu", "hidden_size": 2304, "initializer_range": 0.02, "intermediate_size": 9216, "kv_lora_rank": 512,
    "linear_attn_config": {
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "head_dim": 128, "num_heads": 32, "short_conv_kernel_size": 4,
        "kda_layers": [1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15, 17, 18, 19, 21, 22, 23, 25, 26],
    },
    "mla_use_nope": True, "model_max_length": 1048576, "model_type": "kimi_linear", "moe_intermediate_size": 1024,
    "moe_layer_freq": 1, "moe_renormalize": True, "moe_router_activation_func": "sigmoid", "num_attention_heads": 32,
    "num_expert_group": 1, "num_experts": 256, "num_experts_per_token": 8, "num_hidden_layers": 27,
    "num_key_value_heads": 32, "num_nextn_predict_layers": 0, "num_shared_experts": 1, "pad_token_id": 163839,
    "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05, "rope_scaling": None,
    "rope_theta": 10000.0, "routed_scaling_factor": 2.446, "tie_word_embeddings": False, "topk_group": 1,
    "transformers_version": "4.57.1", "use_cache": True, "use_grouped_topk": True, "v_head_dim": 128, "vocab_size": 163840,
}  # fmt: skip
LEFTOVERS = {
    "_name_or_path": "", "add_cross_attention": False, "bad_words_ids": None, "chunk_size_feed_forward": 0,
    "diversity_penalty": 0.0, "do_sample": False, "early_stopping": False, "id2label": {"0": "LABEL_0"},
    "is_decoder": False, "is_encoder_decoder": False, "length_penalty": 1.0, "max_length": 20, "min_length": 0,
    "num_beam_groups": 1, "num_beams": 1, "output_attentions": False, "pruned_heads": {}, "repetition_penalty": 1.0,
    "return_dict": True, "temperature": 1.0, "tie_encoder_decoder": False, "top_k": 50, "top_p": 1.0,
    "torchscript": False, "typical_p": 1.0, "use_bfloat16": False, "topk_method": "noaux_tc",
}  # fmt: skip
K3 = {
    "architectures": ["KimiK3ForConditionalGeneration"], "bos_token_id": 163584, "dtype": "bfloat16",
    "eos_token_id": 163586, "ignore_index": -100, "image_placeholder": "<|kimi_image_placeholder|>",
    "media_placeholder_token_id": 163605, "model_type": "kimi_k3", "pad_token_id": 163839, "tie_word_embeddings": False,
    "vision_config": {"vt_hidden_size": 1024},
    "text_config": {
        **{k: v for k, v in LINEAR.items() if k not in ("head_dim", "model_max_length", "rope_theta", "rope_scaling")},
        **LEFTOVERS, "activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0, "attn_res_block_size": 12,
        "hidden_act": "situ", "hidden_size": 7168, "intermediate_size": 33792, "latent_moe_use_norm": True,
        "max_position_embeddings": 1048576, "mla_use_output_gate": True, "moe_intermediate_size": 3072,
        "num_attention_heads": 96, "num_experts": 896, "num_experts_per_token": 16, "num_hidden_layers": 93,
        "num_key_value_heads": 96, "num_shared_experts": 2, "q_lora_rank": 1536, "routed_expert_hidden_size": 3584,
        "routed_scaling_factor": 1.0,
        "linear_attn_config": {
            "full_attn_layers": [*range(4, 93, 4), 93], "gate_lower_bound": -5.0, "head_dim": 128, "num_heads": 96,
            "kda_layers": [i for i in range(1, 93) if i % 4], "short_conv_kernel_size": 4, "use_full_rank_gate": True,
        },
        "quantization_config": {
            "config_groups": {"group_0": {"format": "mxfp4-pack-quantized", "weights": {"num_bits": 4, "group_size": 32}}},
            "format": "mxfp4-pack-quantized", "quant_method": "compressed-tensors",
        },
    },
}  # fmt: skip


def test_the_released_files_are_the_presets():
    linear, k3 = read_config(LINEAR), read_config(K3)
    assert linear.model == preset("kimi-linear-48b") and k3.model == preset("k3")
    assert (linear.family, linear.prefix) == ("kimi_linear", "model.")
    assert (k3.family, k3.prefix) == ("kimi_k3", "language_model.model.")
    for official in (linear, k3):
        assert (official.bos_id, official.eos_ids, official.pad_id) == (163584, (163586,), 163839)
        assert official.max_positions == 1048576
    assert read_config(K3, generation={"eos_token_id": [163586, 163585]}).eos_ids == (163586, 163585)
    assert read_config(LINEAR | {"eos_token_id": [5, 6]}).eos_ids == (5, 6)


def test_pitfall_2_the_gate_follows_from_the_lower_bound():
    bounded = deepcopy(LINEAR)
    bounded["linear_attn_config"]["gate_lower_bound"] = -4.0
    assert read_config(LINEAR).model.gate_lower_bound is None
    assert read_config(bounded).model.gate_lower_bound == -4.0
    k3 = deepcopy(K3)
    del k3["text_config"]["linear_attn_config"]["gate_lower_bound"]
    assert read_config(k3).model.gate_lower_bound is None
    for wrong in (-5.5, 0.0):
        bounded["linear_attn_config"]["gate_lower_bound"] = wrong
        with pytest.raises(ConfigError, match="gate_lower_bound"):
            read_config(bounded)


def test_pitfall_33_lists_count_from_one_and_nothing_is_derived():
    assert read_config(LINEAR).model.full_attention_layers == (3, 7, 11, 15, 19, 23, 26)
    assert read_config(K3).model.full_attention_layers == (*range(3, 92, 4), 92)
    without = deepcopy(LINEAR)
    del without["linear_attn_config"]["kda_layers"], without["linear_attn_config"]["full_attn_layers"]
    with pytest.raises(ConfigError, match="kda_layers is missing"):
        read_config(without)
    types = ["full_attention" if i in (0, 26) else "linear_attention" for i in range(27)]
    assert read_config(without | {"layer_types": types}).model.full_attention_layers == (0, 26)


def test_pitfall_34_the_fields_decide_not_the_model_type():
    flat = deepcopy(K3["text_config"])
    assert (
        flat["model_type"] == "kimi_linear" == LINEAR["model_type"] and flat["architectures"] == LINEAR["architectures"]
    )
    official = read_config(flat)
    assert official.family == "kimi_k3" and official.model == preset("k3") and official.prefix == "model."
    assert read_config({k: v for k, v in LINEAR.items() if k != "model_type"}).family == "kimi_linear"


def test_pitfall_35_head_dim_is_ignored():
    for value in (74, 72, None, 1):
        assert read_config(LINEAR | {"head_dim": value}).model.kda_head_dim == 128
        odd = deepcopy(K3)
        odd["text_config"]["head_dim"] = value
        assert read_config(odd).model == preset("k3")


def test_pitfall_58_checkpoints_are_untied():
    for raw in (LINEAR, K3):
        without = {k: v for k, v in raw.items() if k != "tie_word_embeddings"}
        assert read_config(without).model == read_config(raw).model
        with pytest.raises(ConfigError, match="tie_word_embeddings is True"):
            read_config(raw | {"tie_word_embeddings": True})
    nested = deepcopy(K3)
    nested["text_config"]["tie_word_embeddings"] = True
    with pytest.raises(ConfigError, match=r"text_config\.tie_word_embeddings"):
        read_config(nested)


@pytest.mark.parametrize(
    "field,value",
    [
        ("mla_use_nope", False),
        ("moe_renormalize", False),
        ("num_expert_group", 8),
        ("topk_group", 4),
        ("moe_layer_freq", 2),
        ("num_nextn_predict_layers", 1),
        ("moe_router_activation_func", "softmax"),
        ("topk_method", "greedy"),
        ("attention_bias", True),
        ("num_key_value_heads", 8),
        ("qk_head_dim", 128),
        ("hidden_act", "gelu"),
        ("first_k_dense_replace", -1),
        ("num_hidden_layers", 0),
        ("hidden_size", "2304"),
        ("eos_token_id", -5),
        ("eos_token_id", "end"),
        ("layer_types", ["full_attention"]),
        ("mlp_layer_types", ["dense"] * 2 + ["sparse"] * 25),
        ("mlp_layer_types", ["sparse"] + ["dense"] * 26),
        ("num_experts_per_tok", 4),
        ("n_shared_experts", 2),
        ("linear_num_heads", 16),
        ("linear_head_dim", 64),
        ("linear_conv_kernel_dim", 3),
        ("routed_scaling", 1.0),
        ("sliding_window", 4096),
        ("linear_attn_config", []),
        ("linear_attn_config", {**LINEAR["linear_attn_config"], "expand_v": 2}),
        ("quantization_config", {"quant_method": "fp8"}),
        ("quantization_config", {"format": "pack-quantized"}),
    ],
)
def test_a_contradictory_unknown_or_unsupported_field_is_named(field, value):
    last = field if field != "linear_attn_config" or not isinstance(value, dict) else "expand_v"
    with pytest.raises(ConfigError) as caught:
        read_config(LINEAR | {field: value})
    assert last in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "kda,full,says",
    [
        ([1, 2, 3], [4, 5], "layer 6"),
        ([1, 2, 3, 4], [4, 5, 6], "layer 4"),
        ([0, 1, 2, 3], [4, 5], "layer 0"),
        ([1, 2, 3, 7], [4, 5, 6], "layer 7"),
        ([1, 2, "3"], [4, 5, 6], "kda_layers"),
        ([1, 2, 3], None, "full_attn_layers"),
    ],
)
def test_lists_that_are_no_partition(kda, full, says):
    raw = deepcopy(LINEAR) | {"num_hidden_layers": 6}
    raw["linear_attn_config"] |= {"kda_layers": kda, "full_attn_layers": full}
    with pytest.raises(ConfigError, match=says):
        read_config(raw)


def test_lists_and_types_must_agree():
    types = ["full_attention" if i in (3, 7, 11, 15, 19, 23, 26) else "linear_attention" for i in range(27)]
    assert read_config(LINEAR | {"layer_types": types}).model == preset("kimi-linear-48b")
    types[5], types[3] = types[3], types[5]
    with pytest.raises(ConfigError, match=r"layer_types contradict each other about layer 4"):
        read_config(LINEAR | {"layer_types": types})


@pytest.mark.parametrize("name", ["hidden_size", "kv_lora_rank", "rms_norm_eps", "num_experts_per_token", "hidden_act"])
def test_a_missing_field_is_named(name):
    with pytest.raises(ConfigError, match=rf"{name} is missing"):
        read_config({k: v for k, v in LINEAR.items() if k != name})


@pytest.mark.parametrize("kind", ["llama", "kimi_k2", "kimi_k25", "deepseek_v3"])
def test_another_family(kind):
    with pytest.raises(ConfigError, match="another family"):
        read_config({"model_type": kind, "hidden_size": 64})
    with pytest.raises(ConfigError, match="another family"):
        read_config({"hidden_size": 64, "num_attention_heads": 4})


def test_names_decide_what_the_fields_leave_open(tmp_path, tools):
    random_k3(tmp_path / "k3")
    names = tools.tensors(tmp_path / "k3")
    raw = json.loads((tmp_path / "k3" / "config.json").read_text())
    want = read_config(raw).model
    text = raw["text_config"]
    for name in ("mla_use_output_gate", "latent_moe_use_norm", "first_k_dense_replace"):
        del text[name]
    del text["linear_attn_config"]["use_full_rank_gate"]
    assert read_config(raw, names).model == want
    with pytest.raises(ConfigError, match="first_k_dense_replace is missing"):
        read_config(raw)
    text["linear_attn_config"]["use_full_rank_gate"] = False
    with pytest.raises(ConfigError, match="use_full_rank_gate is false, but the names"):
        read_config(raw, names)
    text["linear_attn_config"]["use_full_rank_gate"] = True
    for field in ("mla_use_output_gate", "latent_moe_use_norm"):
        with pytest.raises(ConfigError, match=f"{field} is false, but the names"):
            read_config({**raw, "text_config": {**text, field: False}}, names)


@pytest.mark.parametrize(
    "sizes",
    [
        {"first_k_dense_replace": 0},
        {"first_k_dense_replace": 2, "num_experts": 16, "num_experts_per_token": 1},
        {"q_lora_rank": 12, "kda_num_heads": 5, "kda_head_dim": 32, "num_attention_heads": 3},
        {"num_shared_experts": 0, "short_conv_kernel_size": 3},
        {"full_attention_layers": (0, 1, 4), "rms_norm_eps": 1e-6},
    ],
)
@pytest.mark.parametrize("family", ["linear", "k3"])
def test_strange_sizes_load(family, sizes, tmp_path, tools):
    make = random_kimi_linear if family == "linear" else random_k3
    official = make(tmp_path, **sizes)
    loaded = tools.load(tmp_path)
    assert loaded.config == official.model.replace(output_modality="text")
    ids = tools.ids(9)
    whole, steps = tools.logits(loaded.model, ids)[0], tools.steps(loaded.model, ids)
    assert whole.isfinite().all()
    torch.testing.assert_close(steps, whole, atol=1e-3, rtol=1e-3)


def test_pitfall_22_the_activation_is_the_one_that_is_named(tmp_path, tools):
    """SiTU in a Kimi Linear file and SiLU in a K3 file: each graph takes either."""
    situ = {"hidden_act": "situ", "activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0}
    ids, found = tools.ids(9), {}
    for name, make, changes in (
        ("linear", random_kimi_linear, {}),
        ("linear situ", random_kimi_linear, situ),
        ("k3", random_k3, {}),
        ("k3 silu", random_k3, {"hidden_act": "silu"}),
    ):
        make(tmp_path / name, changes=changes)
        loaded = tools.load(tmp_path / name)
        assert loaded.config.hidden_act == ("situ" if name in ("k3", "linear situ") else "silu")
        found[name] = tools.logits(loaded.model, ids)[0]
    assert (found["linear"] - found["linear situ"]).abs().max() > 1e-3
    assert (found["k3"] - found["k3 silu"]).abs().max() > 1e-3


def test_a_model_without_experts(tmp_path, tools):
    """Only dense layers: fields about experts are absent."""
    random_kimi_linear(tmp_path, first_k_dense_replace=5)
    raw = json.loads((tmp_path / "config.json").read_text())
    kept = {
        k: v for k, v in raw.items() if "expert" not in k and not k.startswith("moe_") and k != "first_k_dense_replace"
    }
    (tmp_path / "config.json").write_text(json.dumps(kept))
    loaded = tools.load(tmp_path)
    assert not any(loaded.config.is_moe(i) for i in range(5)) and tools.logits(loaded.model, [1, 2])[0].isfinite().all()


def test_writing_keeps_the_file_and_brings_storage_up_to_date():
    raw = deepcopy(K3)
    raw["text_config"]["torch_dtype"] = "bfloat16"
    plain = write_config(read_config(raw), dtype="float32")
    assert plain["dtype"] == plain["text_config"]["dtype"] == "float32"
    assert "quantization_config" not in plain["text_config"] and "torch_dtype" not in plain["text_config"]
    packed = write_config(read_config(raw), mxfp4=True)
    assert packed["text_config"]["quantization_config"] == K3["text_config"]["quantization_config"]
    assert {k: v for k, v in packed.items() if k != "text_config"} == {
        k: v for k, v in K3.items() if k != "text_config"
    }
    assert raw["text_config"]["torch_dtype"] == "bfloat16"  # the argument is not changed

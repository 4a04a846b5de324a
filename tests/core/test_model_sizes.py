"""The published models on the meta device: every tensor's shape and count, and the totals, without allocating one."""

import re
from collections import Counter

import torch
from torch import nn

from watersmeet.core.config import preset
from watersmeet.core.model import Model
from watersmeet.core.model.model import keeps_float32

D, C = 7168, 96 * 128
K3 = {
    "lm_head.weight": ((163840, D), 1),
    "embedders.text.weight": ((163840, D), 1),
    "norm.weight": ((D,), 1),
    "output_attn_res_norm.weight": ((D,), 1),
    "output_attn_res_proj.weight": ((1, D), 1),
    "layers.N.input_layernorm.weight": ((D,), 93),
    "layers.N.post_attention_layernorm.weight": ((D,), 93),
    "layers.N.self_attention_res_norm.weight": ((D,), 93),
    "layers.N.mlp_res_norm.weight": ((D,), 93),
    "layers.N.self_attention_res_proj.weight": ((1, D), 93),
    "layers.N.mlp_res_proj.weight": ((1, D), 93),
    "layers.N.self_attn.g_proj.weight": ((C, D), 93),
    "layers.N.self_attn.o_proj.weight": ((D, C), 93),
    **{f"layers.N.self_attn.{x}_proj.weight": ((C, D), 69) for x in "qkv"},
    **{f"layers.N.self_attn.{x}_conv1d.weight": ((C, 1, 4), 69) for x in "qkv"},
    "layers.N.self_attn.f_a_proj.weight": ((128, D), 69),
    "layers.N.self_attn.f_b_proj.weight": ((C, 128), 69),
    "layers.N.self_attn.b_proj.weight": ((96, D), 69),
    "layers.N.self_attn.A_log": ((96,), 69),
    "layers.N.self_attn.dt_bias": ((C,), 69),
    "layers.N.self_attn.o_norm.weight": ((128,), 69),
    "layers.N.self_attn.q_a_proj.weight": ((1536, D), 24),
    "layers.N.self_attn.q_a_layernorm.weight": ((1536,), 24),
    "layers.N.self_attn.q_b_proj.weight": ((18432, 1536), 24),
    "layers.N.self_attn.kv_a_proj_with_mqa.weight": ((576, D), 24),
    "layers.N.self_attn.kv_a_layernorm.weight": ((512,), 24),
    "layers.N.self_attn.kv_b_proj.weight": ((24576, 512), 24),
    "layers.N.mlp.gate_proj.weight": ((33792, D), 1),
    "layers.N.mlp.up_proj.weight": ((33792, D), 1),
    "layers.N.mlp.down_proj.weight": ((D, 33792), 1),
    "layers.N.block_sparse_moe.gate.weight": ((896, D), 92),
    "layers.N.block_sparse_moe.gate.e_score_correction_bias": ((896,), 92),
    "layers.N.block_sparse_moe.routed_expert_down_proj.weight": ((3584, D), 92),
    "layers.N.block_sparse_moe.routed_expert_up_proj.weight": ((D, 3584), 92),
    "layers.N.block_sparse_moe.routed_expert_norm.weight": ((3584,), 92),
    "layers.N.block_sparse_moe.shared_experts.gate_proj.weight": ((6144, D), 92),
    "layers.N.block_sparse_moe.shared_experts.up_proj.weight": ((6144, D), 92),
    "layers.N.block_sparse_moe.shared_experts.down_proj.weight": ((D, 6144), 92),
    # kept together here, 896 matrices each in the files
    "layers.N.block_sparse_moe.experts.w13": ((896, 2 * 3072, 3584), 92),
    "layers.N.block_sparse_moe.experts.w2": ((896, 3584, 3072), 92),
}


def tensors_of(name):
    config = preset(name).replace(output_modality="text")
    with torch.device("meta"):
        return Model(config, {"text": nn.Embedding(config.vocab_size, config.hidden_size)}).state_dict()


def test_tensors_of_k3_are_the_published_ones():
    tensors = tensors_of("k3")
    assert all(tensor.is_meta for tensor in tensors.values())
    named = [(re.sub(r"layers\.\d+\.", "layers.N.", name), tuple(t.shape)) for name, t in tensors.items()]
    found = {(name, shape, count) for (name, shape), count in Counter(named).items()}
    assert found == {(name, shape, count) for name, (shape, count) in K3.items()}
    wide = sum(keeps_float32(name) for name in tensors if not name.startswith("embedders"))
    assert wide == 506  # 6 a KDA layer and one bias a router


def test_parameter_counts_are_the_published_ones():
    total = sum(tensor.numel() for tensor in tensors_of("k3").values())
    # the published total holds the vision tower, its projector, and 32 unused zeros behind every A_log
    assert total + 401_214_464 + 46_144_512 + 69 * 32 == 2_779_931_837_184
    assert sum(tensor.numel() for tensor in tensors_of("kimi-linear-48b").values()) == 49_122_681_728

"""The trunk as one native call a token: where it can stand in for the layers, and what it reads of them.

Legend of shapes: N streams, D hidden width, C channels of KDA, W taps.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from watersmeet.core.cache import Cache, KdaState
from watersmeet.core.model.kda import KimiDeltaAttention
from watersmeet.core.model.layer import DecoderLayer, Query
from watersmeet.core.model.mla import LatentAttention
from watersmeet.core.model.moe import GLU, Experts, LatentMoE
from watersmeet.core.model.ops import RMSNorm
from watersmeet.kernels.native import MANY, Trunk, library

Values = dict[str, Any]


def _query(norm: RMSNorm, query: Query) -> Tensor:
    return query.weight[0].float() * norm.weight.float()


def _kda(mixer: KimiDeltaAttention) -> Values:
    low = mixer.gate_rank is not None
    return {
        "q": mixer.q_proj.weight, "k": mixer.k_proj.weight, "v": mixer.v_proj.weight, "beta": mixer.b_proj.weight,
        "decay_a": mixer.f_a_proj.weight, "decay_b": mixer.f_b_proj.weight,
        "gate_a": mixer.g_a_proj.weight if low else None, "gate_b": (mixer.g_b_proj if low else mixer.g_proj).weight,
        "gate_rank": mixer.gate_rank or 0, "out": mixer.o_proj.weight,
        "filter": mixer.filters().squeeze(1).t(), "dt": mixer.dt_bias.view(-1),
        # a finite rate: infinity times a gate of zero would be no number
        "rate": mixer.A_log.float().exp().clamp(max=torch.finfo(torch.float32).max).view(-1),
        "head_norm": mixer.o_norm.weight, "head_eps": mixer.o_norm.eps, "bound": mixer.lower_bound or 0.0,
        "heads": mixer.num_heads, "width": mixer.head_dim, "taps": mixer.q_conv1d.weight.shape[-1],
    }  # fmt: skip


def _mla(mixer: LatentAttention) -> Values:
    lora = mixer.q_lora
    return {
        "full_attention": 1, "q": (mixer.q_a_proj if lora else mixer.q_proj).weight,
        "q_b": mixer.q_b_proj.weight if lora else None, "q_norm": mixer.q_a_layernorm.weight if lora else None,
        "q_rank": mixer.q_a_proj.out_features if lora else 0, "kv_a": mixer.kv_a_proj_with_mqa.weight,
        "kv_b": mixer.kv_b_proj.weight, "kv_norm": mixer.kv_a_layernorm.weight, "latent_eps": mixer.kv_a_layernorm.eps,
        "gate": mixer.g_proj.weight if mixer.gated else None, "out": mixer.o_proj.weight, "scale": mixer.scale,
        "heads": mixer.num_heads, "nope": mixer.nope, "shared": mixer.shared, "value": mixer.v_dim, "rank": mixer.rank,
    }  # fmt: skip


def _dense(glu: GLU | None) -> Values:
    if glu is None:
        return {}
    gate, up, down = glu.gate_proj, glu.up_proj, glu.down_proj
    return {"dense_gate": gate.weight, "dense_up": up.weight, "dense_down": down.weight, "dense": gate.out_features}


def _experts(moe: LatentMoE) -> Values:
    w13, w2 = moe.experts.weights()
    values = {
        "router": moe.gate.weight, "bias": moe.gate.e_score_correction_bias, "w13": w13, "w2": w2, "inner": w2.shape[2],
        "experts": moe.gate.num_experts, "picks": moe.gate.k, "scaling": moe.gate.scaling,
    }  # fmt: skip
    if moe.latent:
        down, up = moe.routed_expert_down_proj, moe.routed_expert_up_proj
        values |= {"down": down.weight, "up": up.weight, "latent": down.out_features}
    if moe.latent_norm:
        values |= {"latent_norm": moe.routed_expert_norm.weight, "inner_eps": moe.routed_expert_norm.eps}
    return values | _dense(moe.shared_experts)


def _layer(layer: DecoderLayer, first: bool, activation: Values) -> Values:
    values: Values = {"mixer_norm": layer.input_layernorm.weight, "ffn_norm": layer.post_attention_layernorm.weight}
    if layer.block is not None:
        values["ffn_query"] = _query(layer.mlp_res_norm, layer.mlp_res_proj)
        if not first:
            values["mixer_query"] = _query(layer.self_attention_res_norm, layer.self_attention_res_proj)
    mixer, ffn = layer.self_attn, layer.feed_forward
    values |= _kda(mixer) if isinstance(mixer, KimiDeltaAttention) else _mla(mixer)
    values |= _experts(ffn) if isinstance(ffn, LatentMoE) else _dense(ffn)
    return values | activation | {"snapshot": int(layer.begins_block)}


def trunk_of(model: Any) -> Trunk | None:
    """What the native step reads of a `Model`, or None where its layers must be called one by one.

    They must be where they are not on the CPU, or a layer is wrapped (sharding, offload), or its experts are kept in
    another form than plain matrices.
    """
    head, dtype = model.lm_head.weight, model.compute_dtype
    if head.device.type != "cpu" or library(torch.empty(0, dtype=dtype)) is None:
        return None
    for module in model.modules():
        hooked = hasattr(module, "_hf_hook") or module._forward_hooks or module._forward_pre_hooks
        if hooked or (isinstance(module, LatentMoE) and type(module.experts) is not Experts):
            return None
    if any(type(p.data) is not Tensor or p.device.type != "cpu" for p in model.layers.parameters()):
        return None
    config = model.config
    activation = {
        "situ": int(config.hidden_act == "situ"),
        "curve": config.situ_beta,
        "linear": config.situ_linear_beta or 0.0,
    }
    plain = config.attn_res_block_size is None
    with torch.no_grad():
        return Trunk(
            [_layer(layer, index == 0, activation) for index, layer in enumerate(model.layers)],
            model.norm.weight,
            None if plain else _query(model.output_attn_res_norm, model.output_attn_res_proj),
            eps=config.rms_norm_eps,
            dtype=dtype,
        )


def fused_step(trunk: Trunk, x_ND: Tensor, cache: Cache) -> Tensor | None:
    """Final hidden state [N, D] after one more token for every stream, or None for more streams than it is made for.

    The states of the cache are moved forward, its lengths are not.
    """
    if len(x_ND) > MANY or x_ND.dtype != trunk.dtype or library(x_ND) is None:
        return None
    states: list[tuple[Tensor, Tensor | None]] = []
    for layer in cache.layers:
        if isinstance(layer, KdaState):
            layer.recurrent, layer.conv = layer.recurrent.contiguous(), layer.conv.contiguous()
            states.append((layer.recurrent, layer.conv))
        else:
            layer.reserve(max(cache.lengths) + 1)
            states.append((layer.rows, None))
    return trunk.step(x_ND, states, cache.lengths)

"""Which fields of a published config.json mean what: harmless ones, ones with one supported value, and aliases."""

from __future__ import annotations

from typing import Any

HARMLESS = frozenset(
    """
    _attn_implementation _attn_implementation_autoset _attn_implementation_internal _commit_hash _name_or_path
    architectures attention_dropout attn_implementation auto_map aux_loss_alpha bad_words_ids begin_suppress_tokens
    chunk_size_feed_forward cross_attention_hidden_size decoder_start_token_id diversity_penalty do_sample dtype
    early_stopping encoder_no_repeat_ngram_size ep_size exponential_decay_length_penalty finetuning_task
    forced_bos_token_id forced_eos_token_id head_dim id2label ignore_index is_decoder label2id length_penalty
    max_length max_new_tokens min_length model_type no_repeat_ngram_size num_beam_groups num_beams
    num_return_sequences output_attentions output_hidden_states output_router_logits output_scores prefix
    problem_type pruned_heads remove_invalid_values repetition_penalty return_dict return_dict_in_generate
    rope_interleave rope_parameters rope_scaling rope_theta router_aux_loss_coef sep_token_id seq_aux
    suppress_tokens task_specific_params temperature tf_legacy_loss tokenizer_class top_k top_p torch_dtype
    torchscript transformers_version typical_p unk_token_id use_bfloat16 use_cache use_grouped_topk
    """.split()
)
"""Fields that change nothing here. `head_dim` is among them on purpose: generic code fills it with hidden / heads, which
is the width of no head of this family. The rotary fields are left over too, since nothing is rotated."""

FIXED: dict[str, tuple[Any, ...]] = {
    "add_cross_attention": (False,),
    "attention_bias": (False,),
    "is_encoder_decoder": (False,),
    "mla_use_nope": (True,),
    "mlp_bias": (False,),
    "moe_layer_freq": (1,),
    "moe_router_activation_func": ("sigmoid",),
    "n_group": (1, None),
    "norm_topk_prob": (True,),
    "moe_renormalize": (True,),
    "num_expert_group": (1, None),
    "num_nextn_predict_layers": (0, None),
    "pretraining_tp": (1, None),
    "scoring_func": ("sigmoid",),
    "tie_encoder_decoder": (False,),
    "tie_word_embeddings": (False,),
    "topk_group": (1, None),
    "topk_method": ("noaux_tc",),
}
"""Fields that name a choice of the graph of which one value is built here; any other is an error that says so."""

ALIASES: dict[str, tuple[str, ...]] = {
    "num_experts": ("num_experts", "num_local_experts", "n_routed_experts"),
    "num_experts_per_token": ("num_experts_per_token", "num_experts_per_tok"),
    "num_shared_experts": ("num_shared_experts", "n_shared_experts"),
    "max_positions": ("max_position_embeddings", "model_max_length"),
}
"""One meaning under the names that different writers use."""

MEANT = frozenset(
    """
    activation_situ_beta activation_situ_linear_beta attn_res_block_size bos_token_id eos_token_id
    first_k_dense_replace hidden_act hidden_size initializer_range intermediate_size kv_lora_rank latent_moe_use_norm
    layer_types linear_attn_config linear_conv_kernel_dim linear_head_dim linear_num_heads mla_use_output_gate
    mlp_layer_types moe_intermediate_size num_attention_heads num_hidden_layers num_key_value_heads pad_token_id
    q_lora_rank qk_head_dim qk_nope_head_dim qk_rope_head_dim quantization_config rms_norm_eps
    routed_expert_hidden_size routed_scaling_factor v_head_dim vocab_size
    """.split()
)
"""Fields that shape the model."""

LINEAR = frozenset("full_attn_layers gate_lower_bound head_dim kda_layers num_heads short_conv_kernel_size use_full_rank_gate".split())  # fmt: skip
"""Fields of `linear_attn_config`."""

KNOWN = HARMLESS | MEANT | frozenset(FIXED) | {name for names in ALIASES.values() for name in names}


MXFP4: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "mxfp4-pack-quantized",
    "quantization_status": "compressed",
    "global_compression_ratio": None,
    "kv_cache_scheme": None,
    "ignore": [
        "re:.*self_attn.*",
        "re:.*shared_experts.*",
        "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
        "re:.*routed_expert_(down|up)_proj.*",
        "re:.*lm_head.*",
        "re:.*vision_tower.*",
        "re:.*mm_projector.*",
    ],
    "config_groups": {
        "group_0": {
            "format": "mxfp4-pack-quantized",
            "targets": ["Linear"],
            "input_activations": None,
            "output_activations": None,
            "weights": {
                "num_bits": 4,
                "type": "float",
                "strategy": "group",
                "group_size": 32,
                "symmetric": True,
                "dynamic": False,
                "scale_dtype": "torch.uint8",
                "zp_dtype": None,
                "observer": "minmax",
                "observer_kwargs": {},
                "actorder": None,
                "block_structure": None,
            },
        }
    },
}
"""How MXFP4 experts are declared: 4-bit floats, 32 columns a scale; everything but the routed experts is left alone."""


def known_outside(name: str) -> bool:
    """Whether a field beside a nested `text_config` is known: what the nest may hold, parts of other inputs, their ids."""
    return (
        name in KNOWN
        or name in ("text_config", "vision_config", "use_unified_vision_chunk")
        or name.endswith(("_placeholder", "_token_id", "_token_index"))
    )

"""A published config.json as a `ModelConfig`, and back.

Read by fields, not by `model_type`, which the two generations share. Layer lists count from 1. What the fields leave
open, the names of the tensors decide. An unknown field, or two that contradict each other, is an error with its name.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from watersmeet.core.config import ModelConfig
from watersmeet.core.errors import ConfigError
from watersmeet.core.official.fields import MXFP4, known_outside
from watersmeet.core.official.reader import Reader, refuse_fixed, refuse_unknown

LINEAR_FAMILY, K3_FAMILY = "kimi_linear", "kimi_k3"
FAMILY_FIELDS = ("attn_res_block_size", "routed_expert_hidden_size", "activation_situ_beta")
PREFIXES = ("language_model.model.", "model.")
_MODEL_TYPES = (None, "", "kimi_linear", "kimi_k3", "kimi_k3_text", "kimi_k3_linear")


@dataclass(frozen=True, kw_only=True)
class OfficialConfig:
    """What a published config.json says.

    family: "kimi_linear" or "kimi_k3", by fields. model: its graph; `output_modality` is still open. eos_ids: every id
    that ends an output. prefix: what stands before the names of the trunk's tensors. decay_shape: how `A_log` is stored,
    where that is known. raw: the file as it was, {} for a model that never had one.
    """

    family: str
    model: ModelConfig
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    pad_id: int | None = None
    max_positions: int | None = None
    prefix: str = "model."
    decay_shape: tuple[int, ...] | None = None
    raw: dict[str, Any] = field(default_factory=dict)

    @property
    def outer(self) -> str:
        """What stands before the names of `lm_head.weight` and its like: the prefix without its last part."""
        return self.prefix[: -len("model.")]

    @property
    def nested(self) -> bool:
        """Whether the model's fields stand in a `text_config`."""
        return "text_config" in self.raw if self.raw else self.family == K3_FAMILY

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; the graph is left to `raw` or to the model's own configuration."""
        names = ("family", "bos_id", "pad_id", "max_positions", "prefix", "raw")
        listed = {
            "eos_ids": list(self.eos_ids),
            "decay_shape": None if self.decay_shape is None else list(self.decay_shape),
        }
        return {**{name: getattr(self, name) for name in names}, **listed}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], model: ModelConfig) -> OfficialConfig:
        """The inverse of `to_dict` for a model of this graph."""
        decay = values.get("decay_shape")
        fixed = {"eos_ids": tuple(values["eos_ids"]), "decay_shape": None if decay is None else tuple(decay)}
        return cls(model=model, **{**values, **fixed})


def read_config(
    source: str | os.PathLike[str] | Mapping[str, Any],
    names: Mapping[str, Any] | Iterable[str] | None = None,
    generation: Mapping[str, Any] | None = None,
) -> OfficialConfig:
    """Read a published configuration.

    source: the path of a config.json or of its directory, or the parsed object. names: names of the tensors beside it,
    which decide what the fields leave open. generation: a parsed generation_config.json, for further ending ids.
    Raises ConfigError naming the field that is unknown, missing, contradictory or not supported.
    """
    raw = dict(source) if isinstance(source, Mapping) else _parse(Path(source))
    _check_family(raw)
    text = raw.get("text_config", raw)
    if not isinstance(text, Mapping):
        raise ConfigError(f"config.json: text_config is {text!r}, expected an object")
    nested = text is not raw
    if nested:
        refuse_unknown(raw, known_outside, "")
        refuse_fixed(raw, "")
        _check_family(text)
    reader = Reader(text, "text_config." if nested else "", None if names is None else list(names))
    model = reader.model()
    _check_quantisation(raw, text)
    ids = [*_ids(text, "eos_token_id"), *_ids(raw, "eos_token_id"), *_ids(generation or {}, "eos_token_id")]
    prefix = PREFIXES[0] if nested else PREFIXES[1]
    if reader.names:
        prefix = next((p for p in PREFIXES if any(name.startswith(p) for name in reader.names)), prefix)
    k3 = nested or any(text.get(name) is not None for name in FAMILY_FIELDS) or model.gate_lower_bound is not None
    return OfficialConfig(
        family=K3_FAMILY if k3 else LINEAR_FAMILY,
        model=model,
        bos_id=_one_id(text, raw, "bos_token_id"),
        eos_ids=tuple(dict.fromkeys(ids)),
        pad_id=_one_id(text, raw, "pad_token_id"),
        max_positions=reader.positions(),
        prefix=prefix,
        decay_shape=_decay_shape(names),
        raw=deepcopy(raw),
    )


def _decay_shape(names: Mapping[str, Any] | Iterable[str] | None) -> tuple[int, ...] | None:
    """The shape in which the first decay is stored, where shapes are known."""
    if not isinstance(names, Mapping):
        return None
    return next((tuple(shape) for name, shape in names.items() if name.endswith(".self_attn.A_log")), None)


def write_config(official: OfficialConfig, *, mxfp4: bool = False, dtype: str = "bfloat16") -> dict[str, Any]:
    """The object of a config.json: the one that was read with its dtype and quantisation brought up to date, or a new
    one for a model that never had one. Raises ConfigError for a choice that the published fields cannot say."""
    raw = deepcopy(official.raw) if official.raw else _new(official)
    text: dict[str, Any] = raw.get("text_config", raw)
    stated = text.get("quantization_config") or raw.get("quantization_config")
    for holder in (raw, text):
        holder.pop("quantization_config", None)
        holder.pop("torch_dtype", None)
    raw["dtype"] = text["dtype"] = dtype
    if mxfp4:
        text["quantization_config"] = stated or deepcopy(MXFP4)
    return raw


def _parse(path: Path) -> dict[str, Any]:
    path = path / "config.json" if path.is_dir() else path
    try:
        raw = json.loads(path.read_bytes(), object_pairs_hook=_once)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); expected a config.json") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not JSON ({error})") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: holds a {type(raw).__name__}, expected an object")
    return raw


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose fields each stand there once; of two, every reader would choose its own."""
    if len(out := dict(pairs)) != len(pairs):
        twice = next(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        raise ConfigError(f"config.json: {twice} stands there more than once; keep the one that is meant")
    return out


def _check_family(raw: Mapping[str, Any]) -> None:
    found = raw.get("model_type")
    if found not in _MODEL_TYPES:
        raise ConfigError(
            f"config.json: model_type is {found!r}, a model of another family; expected kimi_linear or kimi_k3"
        )
    if "text_config" not in raw and "linear_attn_config" not in raw and "linear_num_heads" not in raw:
        raise ConfigError(
            "config.json: linear_attn_config is missing, so this is a model of another family; expected a Kimi Linear "
            "or Kimi K3 model"
        )


def _check_quantisation(raw: Mapping[str, Any], text: Mapping[str, Any]) -> None:
    """Weights are decoded by what the files hold; a declared format that is not MXFP4 would be decoded wrongly."""
    for where, holder in (("", raw), ("text_config.", text)):
        found = holder.get("quantization_config")
        if found is None:
            continue
        if not isinstance(found, Mapping):
            raise ConfigError(f"config.json: {where}quantization_config is {found!r}, expected an object")
        kind = found.get("format", found.get("quant_method"))
        if kind != MXFP4["format"]:
            raise ConfigError(
                f"config.json: {where}quantization_config.format is {kind!r}, but only {MXFP4['format']!r} can be decoded"
            )
        groups = found.get("config_groups") or {}
        for group in groups.values() if isinstance(groups, Mapping) else [groups]:
            weights = (group.get("weights") or {}) if isinstance(group, Mapping) else group
            if not isinstance(weights, Mapping):
                raise ConfigError(
                    f"config.json: {where}quantization_config.config_groups holds {weights!r}, expected objects with weights"
                )
            for name in ("num_bits", "group_size"):
                wanted = MXFP4["config_groups"]["group_0"]["weights"][name]
                if weights.get(name, wanted) != wanted:
                    raise ConfigError(
                        f"config.json: {where}quantization_config has {name} {weights[name]!r}, but MXFP4 has {wanted}"
                    )


def _ids(values: Mapping[str, Any], name: str) -> list[int]:
    found = values.get(name)
    listed = found if isinstance(found, (list, tuple)) else [] if found is None else [found]
    for index in listed:
        if not isinstance(index, int) or isinstance(index, bool) or index < 0:
            raise ConfigError(f"config.json: {name} is {found!r}, expected an id or a list of ids")
    return list(listed)


def _one_id(text: Mapping[str, Any], raw: Mapping[str, Any], name: str) -> int | None:
    found = _ids(text, name) or _ids(raw, name)
    return found[0] if found else None


def _new(official: OfficialConfig) -> dict[str, Any]:
    """A config.json from the graph alone."""
    m = official.model
    if m.mla_norm_eps != 1e-6:
        raise ConfigError(
            f"model config: mla_norm_eps is {m.mla_norm_eps}, which published fields cannot say; expected 1e-6"
        )
    if m.kda_gate_rank not in (None, m.kda_head_dim):
        raise ConfigError(
            f"model config: kda_gate_rank is {m.kda_gate_rank}, which published fields cannot say; expected null or "
            f"kda_head_dim ({m.kda_head_dim})"
        )
    full = m.full_attention
    linear: dict[str, Any] = {
        "kda_layers": [i + 1 for i in range(m.num_hidden_layers) if i not in full],
        "full_attn_layers": [i + 1 for i in sorted(full)],
        "num_heads": m.kda_num_heads,
        "head_dim": m.kda_head_dim,
        "short_conv_kernel_size": m.short_conv_kernel_size,
    }
    text: dict[str, Any] = {
        "architectures": ["KimiLinearForCausalLM"],
        "model_type": "kimi_linear",
        "vocab_size": m.vocab_size,
        "hidden_size": m.hidden_size,
        "num_hidden_layers": m.num_hidden_layers,
        "num_attention_heads": m.num_attention_heads,
        "num_key_value_heads": m.num_attention_heads,
        "intermediate_size": m.intermediate_size,
        "rms_norm_eps": m.rms_norm_eps,
        "initializer_range": m.initializer_range,
        "linear_attn_config": linear,
        "q_lora_rank": m.q_lora_rank,
        "kv_lora_rank": m.kv_lora_rank,
        "qk_nope_head_dim": m.qk_nope_head_dim,
        "qk_rope_head_dim": m.qk_rope_head_dim,
        "v_head_dim": m.v_head_dim,
        "mla_use_nope": True,
        "first_k_dense_replace": m.first_k_dense_replace,
        "moe_layer_freq": 1,
        "num_experts": m.num_experts,
        "num_experts_per_token": m.num_experts_per_token,
        "num_shared_experts": m.num_shared_experts,
        "moe_intermediate_size": m.moe_intermediate_size,
        "moe_renormalize": True,
        "moe_router_activation_func": "sigmoid",
        "routed_scaling_factor": m.routed_scaling_factor,
        "use_grouped_topk": True,
        "num_expert_group": 1,
        "topk_group": 1,
        "num_nextn_predict_layers": 0,
        "hidden_act": m.hidden_act,
        "tie_word_embeddings": False,
        "use_cache": True,
    }
    ids = {"bos_token_id": official.bos_id, "pad_token_id": official.pad_id}
    ids["eos_token_id"] = list(official.eos_ids) if len(official.eos_ids) > 1 else next(iter(official.eos_ids), None)  # type: ignore[assignment]
    text |= {name: value for name, value in ids.items() if value is not None}
    if official.family == LINEAR_FAMILY:
        return text | {"model_max_length": official.max_positions or 1048576}
    linear["use_full_rank_gate"] = m.kda_gate_rank is None
    if m.gate_lower_bound is not None:
        linear["gate_lower_bound"] = m.gate_lower_bound
    text |= {
        "mla_use_output_gate": m.mla_output_gate,
        "attn_res_block_size": m.attn_res_block_size,
        "routed_expert_hidden_size": m.routed_expert_hidden_size,
        "topk_method": "noaux_tc",
        "max_position_embeddings": official.max_positions or 1048576,
    }
    if m.routed_expert_hidden_size is not None:
        text["latent_moe_use_norm"] = m.latent_norm
    if m.hidden_act == "situ":
        text |= {"activation_situ_beta": m.situ_beta, "activation_situ_linear_beta": m.situ_linear_beta}
    if official.prefix == PREFIXES[1]:
        return text
    outer = {name: text[name] for name in ids if name in text}
    return {
        "architectures": ["KimiK3ForConditionalGeneration"],
        "model_type": "kimi_k3",
        "text_config": text,
        "tie_word_embeddings": False,
        **outer,
    }


def describe(model: ModelConfig, **ids: Any) -> OfficialConfig:
    """The published description of a graph that never had one: Kimi Linear's where its fields suffice, else K3's."""
    plain = (
        model.attn_res_block_size is None
        and model.gate_lower_bound is None
        and model.kda_gate_rank is not None
        and not model.mla_output_gate
        and model.routed_expert_hidden_size is None
        and model.hidden_act == "silu"
    )
    family, prefix = (LINEAR_FAMILY, PREFIXES[1]) if plain else (K3_FAMILY, PREFIXES[0])
    return OfficialConfig(family=family, prefix=prefix, model=model, **ids)

"""Takes a published configuration apart, field by field."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from watersmeet.core.config import ModelConfig
from watersmeet.core.errors import ConfigError
from watersmeet.core.official.fields import ALIASES, FIXED, KNOWN, LINEAR

_MISSING = object()


def refuse_unknown(values: Mapping[str, Any], known: Any, where: str) -> None:
    if unknown := sorted(name for name in values if not known(name)):
        more = f" (and {len(unknown) - 1} more: {', '.join(unknown[1:10])})" if len(unknown) > 1 else ""
        raise ConfigError(
            f"config.json: unknown field {where}{unknown[0]}{more}; remove it if it changes nothing, since a field that "
            "is not understood may change every result"
        )


def refuse_fixed(values: Mapping[str, Any], where: str) -> None:
    for name, allowed in FIXED.items():
        if name in values and not any(values[name] is a or (values[name] == a and a is not None) for a in allowed):
            raise ConfigError(f"config.json: {where}{name} is {values[name]!r}, but only {allowed[0]!r} is supported")


class Reader:
    """Takes the fields of one object apart; every error names the field."""

    def __init__(self, text: Mapping[str, Any], where: str, names: list[str] | None) -> None:
        self.text, self.where, self.names = text, where, names
        refuse_unknown(text, KNOWN.__contains__, where)
        refuse_fixed(text, where)
        linear = text.get("linear_attn_config")
        if linear is not None and not isinstance(linear, Mapping):
            raise ConfigError(f"config.json: {where}linear_attn_config is {linear!r}, expected an object")
        self.linear: Mapping[str, Any] = linear or {}
        refuse_unknown(self.linear, LINEAR.__contains__, f"{where}linear_attn_config.")

    def get(self, name: str) -> Any:
        """The value of a field or `_MISSING`; of aliases, the one that is there."""
        aliases = ALIASES.get(name, (name,))
        found = {alias: self.text[alias] for alias in aliases if self.text.get(alias) is not None}
        if name != "max_positions" and len(set(map(repr, found.values()))) > 1:
            raise ConfigError(
                "config.json: "
                + " but ".join(f"{self.where}{a} is {v!r}" for a, v in found.items())
                + "; they must agree"
            )
        return next(iter(found.values()), _MISSING)

    def need(self, name: str) -> Any:
        value = self.get(name)
        if value is _MISSING:
            raise ConfigError(f"config.json: {self.where}{ALIASES.get(name, (name,))[0]} is missing")
        return value

    def maybe(self, name: str, default: Any = None) -> Any:
        value = self.get(name)
        return default if value is _MISSING else value

    def positions(self) -> int | None:
        return None if self.maybe("max_positions") is None else self.count("max_positions")

    def both(self, inner: str, outer: str) -> Any:
        """A number that stands in `linear_attn_config` or beside it under another name."""
        a, b = self.linear.get(inner), self.text.get(outer)
        if a is not None and b is not None and a != b:
            raise ConfigError(
                f"config.json: {self.where}linear_attn_config.{inner} is {a!r} but {self.where}{outer} is {b!r}; "
                "they must agree"
            )
        if a is None and b is None:
            raise ConfigError(f"config.json: {self.where}linear_attn_config.{inner} is missing")
        return b if a is None else a

    # ---- the parts ------------------------------------------------------------------------------------------------

    def model(self) -> ModelConfig:
        layers = self.count("num_hidden_layers")
        full = self.full_layers(layers)
        kda_dim, heads = self.both("head_dim", "linear_head_dim"), self.count("num_attention_heads")
        if (kv := self.maybe("num_key_value_heads", heads)) != heads:
            raise ConfigError(
                f"config.json: {self.where}num_key_value_heads is {kv!r} but {self.where}num_attention_heads is {heads}; "
                "latent attention has one key and value head for each query head"
            )
        nope, rope = self.need("qk_nope_head_dim"), self.need("qk_rope_head_dim")
        whole = type(nope) is int and type(rope) is int  # else ModelConfig says which one is no number
        if whole and (width := self.maybe("qk_head_dim")) is not None and width != nope + rope:
            raise ConfigError(
                f"config.json: {self.where}qk_head_dim is {width!r} but qk_nope_head_dim + qk_rope_head_dim is {nope + rope}"
            )
        return ModelConfig(
            hidden_size=self.need("hidden_size"),
            num_hidden_layers=layers,
            vocab_size=self.need("vocab_size"),
            rms_norm_eps=self.need("rms_norm_eps"),
            initializer_range=self.maybe("initializer_range", 0.02),
            full_attention_layers=full,
            attn_res_block_size=self.maybe("attn_res_block_size"),
            kda_num_heads=self.both("num_heads", "linear_num_heads"),
            kda_head_dim=kda_dim,
            short_conv_kernel_size=self.both("short_conv_kernel_size", "linear_conv_kernel_dim"),
            gate_lower_bound=self.linear.get("gate_lower_bound"),
            kda_gate_rank=None if self.full_rank_gate(full, layers) else kda_dim,
            num_attention_heads=heads,
            q_lora_rank=self.maybe("q_lora_rank"),
            kv_lora_rank=self.need("kv_lora_rank"),
            qk_nope_head_dim=nope,
            qk_rope_head_dim=rope,
            v_head_dim=self.need("v_head_dim"),
            mla_output_gate=self.mla_gate(full),
            **self.feed_forward(layers),
            **self.activation(),
        )

    def count(self, name: str) -> int:
        value = self.need(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            found = next((alias for alias in ALIASES.get(name, (name,)) if self.text.get(alias) is not None), name)
            raise ConfigError(f"config.json: {self.where}{found} is {value!r}, expected a positive integer")
        return value

    def full_layers(self, layers: int) -> tuple[int, ...]:
        """0-based layers of full attention, from two lists that count from 1, from `layer_types`, or from both."""
        found: dict[str, tuple[int, ...]] = {}
        lists = {name: self.linear.get(name) for name in ("kda_layers", "full_attn_layers")}
        if any(value is not None for value in lists.values()):
            for name, value in lists.items():
                label = f"{self.where}linear_attn_config.{name}"
                if not isinstance(value, (list, tuple)) or not all(type(i) is int for i in value):
                    raise ConfigError(f"config.json: {label} is {value!r}, expected a list of layers counted from 1")
                if outside := [i for i in value if not 1 <= i <= layers]:
                    raise ConfigError(
                        f"config.json: {label} names layer {outside[0]}, expected 1..{layers} (counted from 1)"
                    )
            kda, full = lists["kda_layers"] or (), lists["full_attn_layers"] or ()
            times = Counter([*kda, *full])
            # stops at the first gap, so a number of layers that is damage costs nothing
            if (wrong := next((i for i in range(1, layers + 1) if times[i] != 1), None)) is not None:
                raise ConfigError(
                    f"config.json: {self.where}linear_attn_config.kda_layers and full_attn_layers name layer {wrong} "
                    f"{times[wrong]} times, expected every layer of 1..{layers} exactly once"
                )
            found["linear_attn_config.full_attn_layers"] = tuple(i - 1 for i in sorted(full))
        if (types := self.text.get("layer_types")) is not None:
            kinds = ("full_attention", "linear_attention")
            if not isinstance(types, (list, tuple)) or len(types) != layers or not all(t in kinds for t in types):
                raise ConfigError(
                    f"config.json: {self.where}layer_types is {types!r}, expected {layers} times "
                    "'full_attention' or 'linear_attention'"
                )
            found["layer_types"] = tuple(i for i, kind in enumerate(types) if kind == "full_attention")
        if not found:
            raise ConfigError(f"config.json: {self.where}linear_attn_config.kda_layers is missing, and layer_types too")
        if len(set(found.values())) > 1:
            (a, x), (b, y) = found.items()
            layer = sorted(set(x) ^ set(y))[0]
            raise ConfigError(
                f"config.json: {self.where}{a} and {self.where}{b} contradict each other about layer {layer + 1} "
                "(counted from 1)"
            )
        return next(iter(found.values()))

    def _named(self, pattern: str, layers: Iterable[int]) -> bool:
        """Whether a tensor of one of these 0-based layers has a name like this."""
        wanted = set(layers)
        matches = (re.search(r"\blayers\.(\d+)\." + pattern, name) for name in self.names or ())
        return any(match is not None and int(match[1]) in wanted for match in matches)

    def _by_names(self, label: str, value: Any, named: bool | None, default: bool | None) -> bool:
        """A choice that a field may state and that the names of tensors show."""
        if value is None:
            if named is None and default is None:
                raise ConfigError(f"config.json: {self.where}{label} is missing")
            return bool(default if named is None else named)
        if not isinstance(value, bool):
            raise ConfigError(f"config.json: {self.where}{label} is {value!r}, expected true or false")
        if named is not None and named != value:
            raise ConfigError(
                f"config.json: {self.where}{label} is {str(value).lower()}, but the names of the tensors say otherwise"
            )
        return value

    def full_rank_gate(self, full: tuple[int, ...], layers: int) -> bool:
        kda = [i for i in range(layers) if i not in full]
        named = None
        if self.names is not None and kda:
            whole, ranked = self._named(r"self_attn\.g_proj\.", kda), self._named(r"self_attn\.g_a_proj\.", kda)
            named = whole if whole != ranked else None
        return self._by_names(
            "linear_attn_config.use_full_rank_gate", self.linear.get("use_full_rank_gate"), named, False
        )

    def mla_gate(self, full: tuple[int, ...]) -> bool:
        named = self._named(r"self_attn\.g_proj\.", full) if self.names is not None and full else None
        return self._by_names("mla_use_output_gate", self.text.get("mla_use_output_gate"), named, False)

    def dense_layers(self, layers: int) -> int:
        """How many of the first layers have a dense feed-forward."""
        stated = self.text.get("first_k_dense_replace")
        if stated is not None and (not isinstance(stated, int) or isinstance(stated, bool) or stated < 0):
            raise ConfigError(f"config.json: {self.where}first_k_dense_replace is {stated!r}, expected an integer >= 0")
        types = self.text.get("mlp_layer_types")
        if types is not None:
            kinds = ("dense", "sparse")
            if not isinstance(types, (list, tuple)) or len(types) != layers or not all(t in kinds for t in types):
                raise ConfigError(
                    f"config.json: {self.where}mlp_layer_types is {types!r}, expected {layers} times 'dense' or 'sparse'"
                )
            first = list(types).index("sparse") if "sparse" in types else layers
            if "dense" in types[first:]:
                raise ConfigError(f"config.json: {self.where}mlp_layer_types has a dense layer behind a sparse one, which is not supported")  # fmt: skip
            if stated is not None and min(stated, layers) != first:
                raise ConfigError(
                    f"config.json: {self.where}first_k_dense_replace is {stated!r} but mlp_layer_types begins with "
                    f"{first} dense layers; they must agree"
                )
            return first
        if stated is None:
            if self.names is None:
                raise ConfigError(f"config.json: {self.where}first_k_dense_replace is missing")
            return next((i for i in range(layers) if self._named(r"(block_sparse_moe|mlp)\.gate\.", [i])), layers)
        return min(stated, layers)

    def feed_forward(self, layers: int) -> dict[str, Any]:
        experts = self.maybe("num_experts")
        if not experts:
            # every layer is dense; the fields about experts are then never looked at
            stated = self.text.get("mlp_layer_types") or ()
            if "sparse" in stated:
                raise ConfigError(
                    f"config.json: {self.where}num_experts is missing but mlp_layer_types has sparse layers"
                )
            none: dict[str, Any] = {"num_experts": 2, "num_experts_per_token": 1, "num_shared_experts": 0}
            none |= {"moe_intermediate_size": 1, "first_k_dense_replace": layers}
            return none | {"intermediate_size": self.need("intermediate_size")}
        self.check_experts(experts)
        dense = self.dense_layers(layers)
        latent = self.maybe("routed_expert_hidden_size")
        norm = True
        if latent is not None:
            named = None
            if self.names is not None and dense < layers:
                named = self._named(r"block_sparse_moe\.routed_expert_norm\.", range(dense, layers))
            norm = self._by_names("latent_moe_use_norm", self.text.get("latent_moe_use_norm"), named, None)
        return {
            "intermediate_size": self.need("intermediate_size") if dense else self.maybe("intermediate_size", 1),
            "first_k_dense_replace": dense,
            "num_experts": experts,
            "num_experts_per_token": self.need("num_experts_per_token"),
            "num_shared_experts": self.maybe("num_shared_experts", 0),
            "moe_intermediate_size": self.need("moe_intermediate_size"),
            "routed_expert_hidden_size": latent,
            "latent_norm": norm,
            "routed_scaling_factor": self.need("routed_scaling_factor"),
        }

    def check_experts(self, experts: Any) -> None:
        """The number of experts against the names of the tensors, before a name is made for each."""
        # a few experts that are not there are listed by their tensors later
        named = [int(match[1]) for name in self.names or () if (match := re.search(r"\.experts\.(\d+)\.", name))]
        if named and isinstance(experts, int) and experts > 2 * (max(named) + 1):
            raise ConfigError(
                f"config.json: {self.where}num_experts is {experts}, but the tensors name {max(named) + 1} experts in a layer"
            )

    def activation(self) -> dict[str, Any]:
        name = self.need("hidden_act")
        if name not in ("silu", "situ"):
            raise ConfigError(f"config.json: {self.where}hidden_act is {name!r}, expected 'silu' or 'situ'")
        if name == "silu":
            return {"hidden_act": name}
        if "activation_situ_linear_beta" not in self.text:
            raise ConfigError(
                f"config.json: {self.where}activation_situ_linear_beta is missing (null means a linear branch)"
            )
        linear = self.text["activation_situ_linear_beta"]
        return {"hidden_act": name, "situ_beta": self.need("activation_situ_beta"), "situ_linear_beta": linear}

"""Shape and choices of a model: one frozen value, saved as `config.json` beside the weights."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from typing import Any

from watersmeet.core.errors import ConfigError

FORMAT = 1
"""Version of config.json. Raised when a field changes its meaning."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Every choice of the Kimi K3 / Kimi Linear family that changes weights or results.

    Defaults are K3's choices; sizes have no defaults. `full_attention_layers` is 0-based; None derives K3's pattern:
    every fourth layer and the last one use full attention, the rest KDA. Raises ConfigError on values that cannot work.
    """

    # the trunk
    hidden_size: int
    num_hidden_layers: int
    vocab_size: int
    rms_norm_eps: float = 1e-5
    initializer_range: float = 0.02
    full_attention_layers: tuple[int, ...] | None = None
    attn_res_block_size: int | None = 12
    """Decoder layers (not sublayers) a block of Attention Residuals; None: ordinary residual connections."""

    # Kimi Delta Attention
    kda_num_heads: int
    kda_head_dim: int
    short_conv_kernel_size: int = 4
    gate_lower_bound: float | None = -5.0
    """Lower bound of the log decay (K3); None: Kimi Linear's unbounded softplus gate."""
    kda_gate_rank: int | None = None
    """Rank of KDA's output gate; None: full rank (K3). Kimi Linear: equal to `kda_head_dim`."""

    # multi-head latent attention without positions
    num_attention_heads: int
    q_lora_rank: int | None = None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    """Width of the key shared by all heads. The name is historical: nothing is rotated."""
    v_head_dim: int
    mla_output_gate: bool = True
    mla_norm_eps: float = 1e-6
    """eps of q_a_layernorm and kv_a_layernorm, which differs from `rms_norm_eps` in the official checkpoints."""

    # feed-forward
    intermediate_size: int
    first_k_dense_replace: int = 1
    num_experts: int
    num_experts_per_token: int
    num_shared_experts: int
    moe_intermediate_size: int
    routed_expert_hidden_size: int | None = None
    """Width of the latent space in which routed experts work (K3); None: experts see the full width."""
    latent_norm: bool = True
    """Whether the sum of the experts is normalised before it leaves the latent space (K3); no meaning without one."""
    routed_scaling_factor: float = 1.0
    hidden_act: str = "situ"
    situ_beta: float = 4.0
    situ_linear_beta: float | None = 25.0

    # expert balancing (training only)
    balance_bins: int = 1000
    balance_ema: float = 0.0

    # what comes out
    output_modality: str = ""
    """The modality whose embedder reads generated ids back. Presets leave it open: a model cannot be built without it."""

    full_attention: frozenset[int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._check_numbers()
        if self.full_attention_layers is None:
            last = self.num_hidden_layers - 1
            derived = tuple(i for i in range(self.num_hidden_layers) if i % 4 == 3 or i == last)
            object.__setattr__(self, "full_attention_layers", derived)
        object.__setattr__(self, "full_attention_layers", tuple(sorted(self.full_attention_layers or ())))
        object.__setattr__(self, "full_attention", frozenset(self.full_attention_layers or ()))
        self._check()

    def _check_numbers(self) -> None:
        """Types and ranges of single fields, before anything is derived from them."""
        optional = {"attn_res_block_size", "kda_gate_rank", "q_lora_rank", "routed_expert_hidden_size"}
        may_be_zero = {"num_shared_experts", "first_k_dense_replace", "qk_rope_head_dim", "qk_nope_head_dim"}
        for item in fields(self):
            value = getattr(self, item.name, None)
            if item.type not in ("int", "int | None") or (value is None and item.name in optional):
                continue
            low = 0 if item.name in may_be_zero else 1
            if not isinstance(value, int) or isinstance(value, bool) or value < low:
                raise ConfigError(f"model config: {item.name} is {value!r}, expected an integer of at least {low}")
            if value > _MAX_SIZE:
                raise ConfigError(f"model config: {item.name} is {value}, expected at most {_MAX_SIZE}")
        for item in fields(self):
            value = getattr(self, item.name, None)
            if item.type not in ("float", "float | None") or (value is None and item.type == "float | None"):
                continue
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
                raise ConfigError(f"model config: {item.name} is {value!r}, expected a finite number")
            if item.name in _POSITIVE and value <= 0:
                raise ConfigError(f"model config: {item.name} is {value!r}, expected a number above 0")

    def _check(self) -> None:
        outside = [i for i in self.full_attention if not 0 <= i < self.num_hidden_layers]
        if outside:
            raise ConfigError(
                f"model config: full_attention_layers names layer {outside[0]}, "
                f"expected 0..{self.num_hidden_layers - 1} (counted from 0)"
            )
        if self.gate_lower_bound is not None and not -5.0 <= self.gate_lower_bound < 0.0:
            raise ConfigError(
                f"model config: gate_lower_bound is {self.gate_lower_bound}, expected -5 <= value < 0 "
                "(below -5 the decay of a 16-token tile leaves the float32 range) or null"
            )
        if self.num_experts_per_token >= self.num_experts:
            raise ConfigError(
                f"model config: num_experts_per_token is {self.num_experts_per_token} but num_experts is "
                f"{self.num_experts}; balancing needs at least one expert that is not picked"
            )
        if self.hidden_act not in ("situ", "silu"):
            raise ConfigError(f"model config: hidden_act is {self.hidden_act!r}, expected 'situ' or 'silu'")
        if self.qk_nope_head_dim + self.qk_rope_head_dim == 0:
            raise ConfigError("model config: qk_nope_head_dim + qk_rope_head_dim is 0, expected at least 1")
        if not 0.0 <= self.balance_ema < 1.0:
            raise ConfigError(f"model config: balance_ema is {self.balance_ema}, expected 0 <= value < 1")

    @property
    def qk_head_dim(self) -> int:
        """Width of one query or key head of full attention."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def expert_hidden_size(self) -> int:
        """Width that routed experts read and write."""
        return self.routed_expert_hidden_size or self.hidden_size

    @property
    def shared_intermediate_size(self) -> int:
        """Width of the shared experts, fused into one GLU."""
        return self.num_shared_experts * self.moe_intermediate_size

    def is_full_attention(self, layer: int) -> bool:
        """Whether 0-based `layer` is MLA (True) or KDA (False)."""
        return layer in self.full_attention

    def is_moe(self, layer: int) -> bool:
        """Whether 0-based `layer` has experts (True) or one dense GLU (False)."""
        return layer >= self.first_k_dense_replace

    def replace(self, **changes: Any) -> ModelConfig:
        """Copy with some fields changed; a changed number of layers derives the attention pattern anew."""
        if "num_hidden_layers" in changes:
            changes.setdefault("full_attention_layers", None)
        if unknown := sorted(set(changes) - _NAMES):
            raise ConfigError(f"model config: unknown field {unknown[0]!r}; fields are {', '.join(sorted(_NAMES))}")
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        values = {name: value for name, value in asdict(self).items() if name in _NAMES}
        return {"watersmeet_format": FORMAT, **values, "full_attention_layers": list(self.full_attention_layers or ())}

    def to_json(self) -> str:
        """Text of config.json."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ModelConfig:
        """The inverse of `to_dict`; unknown or missing fields are errors that name them."""
        values = dict(values)
        found = values.pop("watersmeet_format", None)
        if found != FORMAT:
            raise ConfigError(f"model config: watersmeet_format is {found!r}, expected {FORMAT}")
        if unknown := sorted(set(values) - _NAMES):
            raise ConfigError(f"model config: unknown field {unknown[0]!r}; written by a newer version?")
        if missing := sorted(_REQUIRED - set(values)):
            raise ConfigError(f"model config: field {missing[0]!r} is missing")
        layers = values.get("full_attention_layers")
        return cls(**{**values, "full_attention_layers": None if layers is None else tuple(layers)})

    @classmethod
    def from_json(cls, text: str | bytes) -> ModelConfig:
        """Read the text of a config.json."""
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"model config: config.json is not JSON ({error})") from error
        if not isinstance(values, dict):
            raise ConfigError(f"model config: config.json holds a {type(values).__name__}, expected an object")
        return cls.from_dict(values)


_POSITIVE = {"rms_norm_eps", "mla_norm_eps", "routed_scaling_factor", "situ_beta", "situ_linear_beta"}
_MAX_SIZE = 1 << 24
"""Far above every size of the family; what is larger is damage and would be computed with for ever."""
_NAMES = {item.name for item in fields(ModelConfig) if item.init}
_REQUIRED = {item.name for item in fields(ModelConfig) if item.init and item.default is MISSING}

PRESETS: dict[str, ModelConfig] = {
    # four layers of every kind there is, for tests
    "micro": ModelConfig(
        hidden_size=48,
        num_hidden_layers=4,
        vocab_size=64,
        attn_res_block_size=2,
        kda_num_heads=2,
        kda_head_dim=16,
        num_attention_heads=2,
        kv_lora_rank=24,
        qk_nope_head_dim=12,
        qk_rope_head_dim=4,
        v_head_dim=16,
        q_lora_rank=20,
        intermediate_size=96,
        num_experts=6,
        num_experts_per_token=2,
        num_shared_experts=2,
        moe_intermediate_size=32,
        routed_expert_hidden_size=32,
    ),
    # the model that ships with its weights; sized so that they fit 20 MB in bf16
    "nano": ModelConfig(
        hidden_size=256,
        num_hidden_layers=8,
        vocab_size=2048,
        attn_res_block_size=2,
        kda_num_heads=4,
        kda_head_dim=64,
        num_attention_heads=4,
        kv_lora_rank=128,
        qk_nope_head_dim=48,
        qk_rope_head_dim=16,
        v_head_dim=64,
        intermediate_size=768,
        num_experts=8,
        num_experts_per_token=2,
        num_shared_experts=2,
        moe_intermediate_size=128,
        routed_expert_hidden_size=128,
    ),
    "kimi-linear-48b": ModelConfig(
        hidden_size=2304,
        num_hidden_layers=27,
        vocab_size=163840,
        attn_res_block_size=None,
        kda_num_heads=32,
        kda_head_dim=128,
        gate_lower_bound=None,
        kda_gate_rank=128,
        num_attention_heads=32,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        mla_output_gate=False,
        intermediate_size=9216,
        num_experts=256,
        num_experts_per_token=8,
        num_shared_experts=1,
        moe_intermediate_size=1024,
        routed_scaling_factor=2.446,
        hidden_act="silu",
    ),
    "k3": ModelConfig(
        hidden_size=7168,
        num_hidden_layers=93,
        vocab_size=163840,
        attn_res_block_size=12,
        kda_num_heads=96,
        kda_head_dim=128,
        num_attention_heads=96,
        q_lora_rank=1536,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        intermediate_size=33792,
        num_experts=896,
        num_experts_per_token=16,
        num_shared_experts=2,
        moe_intermediate_size=3072,
        routed_expert_hidden_size=3584,
    ),
}


def preset(name: str) -> ModelConfig:
    """A named configuration: `micro` (tests), `nano` (ships with weights), `kimi-linear-48b` and `k3` (official shapes)."""
    if name not in PRESETS:
        raise ConfigError(f"unknown model preset {name!r}; presets are {', '.join(PRESETS)}")
    return PRESETS[name]

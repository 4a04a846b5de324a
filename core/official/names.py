"""The tensors of a published checkpoint: names, shapes, and which of our parameters each one fills.

Names are without the prefix of the trunk; the head stands outside it. `KIND` says what is special about one:

    ""        copied as it is
    "decay"   `A_log`: one value per head in any shape of that many elements, or longer with a tail of zeros
    "filter"  short convolutions: [C, 1, W] or [C, W]
    "expert"  one matrix of one expert, a slice of ours; may be stored as MXFP4 under two names
    "bias"    the router's balancing bias, a buffer of ours

Legend of shapes: D hidden width, H heads, K head width, C = H * K channels, W taps, E experts, I expert width, L latent
width, V vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from watersmeet.core.config import ModelConfig

HEAD, TABLE = "lm_head.weight", "embed_tokens.weight"
PACKED, SCALE = ".weight_packed", ".weight_scale"

FLOAT32 = ("conv1d.weight", "A_log", "dt_bias", "o_norm.weight", "e_score_correction_bias")
"""Kept in float32 whatever the rest is stored in."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One tensor of the files. part: gate rows, up rows ("w1", "w3") or down matrix ("w2") of `expert`."""

    name: str
    shape: tuple[int, ...]
    kind: str = ""
    expert: int = -1
    part: str = ""

    @property
    def layer(self) -> int:
        """0-based layer, -1 outside the layers."""
        return int(self.name.split(".")[1]) if self.name.startswith("layers.") else -1

    @property
    def numel(self) -> int:
        """Number of values."""
        n = 1
        for size in self.shape:
            n *= size
        return n

    @property
    def module(self) -> str:
        """For an expert's matrix: the name of the module that holds all experts of the layer."""
        return self.name.split(".experts.")[0] + ".experts"


def entries(config: ModelConfig, *, first_experts: int | None = None) -> Iterator[Entry]:
    """Every tensor of a checkpoint of this shape, layer by layer; `embed_tokens` first, the head last.

    first_experts: of every layer's experts only so many, which are all alike.
    """
    c, d = config, config.hidden_size
    yield Entry(name=TABLE, shape=(c.vocab_size, d))
    for i in range(c.num_hidden_layers):
        at = f"layers.{i}."
        yield Entry(name=at + "input_layernorm.weight", shape=(d,))
        yield Entry(name=at + "post_attention_layernorm.weight", shape=(d,))
        if c.attn_res_block_size is not None:
            for read in ("self_attention_res", "mlp_res"):
                yield Entry(name=f"{at}{read}_norm.weight", shape=(d,))
                yield Entry(name=f"{at}{read}_proj.weight", shape=(1, d))
        yield from _full_attention(c, at) if c.is_full_attention(i) else _delta_attention(c, at)
        yield from _experts(c, at, first_experts) if c.is_moe(i) else _glu(at + "mlp.", d, c.intermediate_size)
    yield Entry(name="norm.weight", shape=(d,))
    if c.attn_res_block_size is not None:
        yield Entry(name="output_attn_res_norm.weight", shape=(d,))
        yield Entry(name="output_attn_res_proj.weight", shape=(1, d))
    yield Entry(name=HEAD, shape=(c.vocab_size, d))


def _delta_attention(c: ModelConfig, at: str) -> Iterator[Entry]:
    d, h, k, at = c.hidden_size, c.kda_num_heads, c.kda_head_dim, at + "self_attn."
    channels = h * k
    for x in "qkv":
        yield Entry(name=f"{at}{x}_proj.weight", shape=(channels, d))
    for x in "qkv":
        yield Entry(name=f"{at}{x}_conv1d.weight", shape=(channels, 1, c.short_conv_kernel_size), kind="filter")
    yield Entry(name=at + "f_a_proj.weight", shape=(k, d))
    yield Entry(name=at + "f_b_proj.weight", shape=(channels, k))
    yield Entry(name=at + "b_proj.weight", shape=(h, d))
    yield Entry(name=at + "A_log", shape=(h,), kind="decay")
    yield Entry(name=at + "dt_bias", shape=(channels,))
    if c.kda_gate_rank is None:
        yield Entry(name=at + "g_proj.weight", shape=(channels, d))
    else:
        yield Entry(name=at + "g_a_proj.weight", shape=(c.kda_gate_rank, d))
        yield Entry(name=at + "g_b_proj.weight", shape=(channels, c.kda_gate_rank))
    yield Entry(name=at + "o_norm.weight", shape=(k,))
    yield Entry(name=at + "o_proj.weight", shape=(d, channels))


def _full_attention(c: ModelConfig, at: str) -> Iterator[Entry]:
    d, h, at = c.hidden_size, c.num_attention_heads, at + "self_attn."
    if c.q_lora_rank is None:
        yield Entry(name=at + "q_proj.weight", shape=(h * c.qk_head_dim, d))
    else:
        yield Entry(name=at + "q_a_proj.weight", shape=(c.q_lora_rank, d))
        yield Entry(name=at + "q_a_layernorm.weight", shape=(c.q_lora_rank,))
        yield Entry(name=at + "q_b_proj.weight", shape=(h * c.qk_head_dim, c.q_lora_rank))
    yield Entry(name=at + "kv_a_proj_with_mqa.weight", shape=(c.kv_lora_rank + c.qk_rope_head_dim, d))
    yield Entry(name=at + "kv_a_layernorm.weight", shape=(c.kv_lora_rank,))
    yield Entry(name=at + "kv_b_proj.weight", shape=(h * (c.qk_nope_head_dim + c.v_head_dim), c.kv_lora_rank))
    if c.mla_output_gate:
        yield Entry(name=at + "g_proj.weight", shape=(h * c.v_head_dim, d))
    yield Entry(name=at + "o_proj.weight", shape=(d, h * c.v_head_dim))


def _glu(at: str, size: int, inner: int) -> Iterator[Entry]:
    yield Entry(name=at + "gate_proj.weight", shape=(inner, size))
    yield Entry(name=at + "up_proj.weight", shape=(inner, size))
    yield Entry(name=at + "down_proj.weight", shape=(size, inner))


def _experts(c: ModelConfig, at: str, first: int | None) -> Iterator[Entry]:
    at, d, width, inner = at + "block_sparse_moe.", c.hidden_size, c.expert_hidden_size, c.moe_intermediate_size
    yield Entry(name=at + "gate.weight", shape=(c.num_experts, d))
    yield Entry(name=at + "gate.e_score_correction_bias", shape=(c.num_experts,), kind="bias")
    if c.routed_expert_hidden_size is not None:
        yield Entry(name=at + "routed_expert_down_proj.weight", shape=(width, d))
        if c.latent_norm:
            yield Entry(name=at + "routed_expert_norm.weight", shape=(width,))
        yield Entry(name=at + "routed_expert_up_proj.weight", shape=(d, width))
    if c.num_shared_experts:
        yield from _glu(at + "shared_experts.", d, c.shared_intermediate_size)
    shapes = {"w1": (inner, width), "w2": (width, inner), "w3": (inner, width)}
    for e in range(c.num_experts if first is None else min(first, c.num_experts)):
        for part, shape in shapes.items():
            yield Entry(name=f"{at}experts.{e}.{part}.weight", shape=shape, kind="expert", expert=e, part=part)


_DENSE_AS_SPARSE = re.compile(r"^layers\.(\d+)\.block_sparse_moe\.(gate_proj|up_proj|down_proj)\.weight$")
_SPARSE_AS_MLP = re.compile(r"^layers\.(\d+)\.mlp\.(gate|experts|shared_experts|routed_expert_\w+)\.")


def canonical(name: str) -> str:
    """The published name of a tensor for the spellings that other writers use, without the prefix.

    transformers writes the dense layers under `block_sparse_moe` as well; some ports write the sparse ones under `mlp`
    and the balancing bias beside the router.
    """
    if match := _DENSE_AS_SPARSE.match(name):
        return f"layers.{match[1]}.mlp.{match[2]}.weight"
    name = _SPARSE_AS_MLP.sub(r"layers.\1.block_sparse_moe.\2.", name)
    return name.replace("block_sparse_moe.e_score_correction_bias", "block_sparse_moe.gate.e_score_correction_bias")


def keeps_float32(name: str) -> bool:
    """Whether a published tensor of this name is kept in float32."""
    return name.endswith(FLOAT32)


def shown(names: Iterable[str], limit: int = 10) -> str:
    """The first names and how many more there are, for an error."""
    names = list(names)
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")

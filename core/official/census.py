"""Parameters, state and cache of a configuration, counted without allocating anything."""

from __future__ import annotations

from dataclasses import dataclass

from watersmeet.core.config import ModelConfig
from watersmeet.core.official.names import HEAD, TABLE, Entry, entries

PARTS = (
    "embedding table",
    "delta attention",
    "latent attention",
    "dense feed-forward",
    "routed experts",
    "shared experts",
    "latent projections",
    "routers",
    "norms and residual queries",
    "output head",
)


@dataclass(frozen=True, kw_only=True)
class Census:
    """Counts of a model without its embedders of other inputs.

    parts: parameters by the names of `PARTS`, zeros included. active: parameters that one token uses, by the published
    convention, which counts the output head and not the embedding table. The router's bias counts as a parameter, the
    zeros behind a decay in the files do not.
    """

    parts: dict[str, int]
    active: int

    @property
    def total(self) -> int:
        """All parameters."""
        return sum(self.parts.values())


def census(config: ModelConfig) -> Census:
    """Count the parameters of a configuration."""
    parts = dict.fromkeys(PARTS, 0)
    idle = 0
    for entry in entries(config, first_experts=1):
        part = part_of(config, entry)
        count = entry.numel * (config.num_experts if entry.kind == "expert" else 1)
        parts[part] += count
        if entry.kind == "expert":
            idle += entry.numel * (config.num_experts - config.num_experts_per_token)
    total = sum(parts.values())
    return Census(parts=parts, active=total - idle - parts[PARTS[0]])


def part_of(config: ModelConfig, entry: Entry) -> str:
    """The part that a tensor belongs to."""
    name = entry.name
    if name in (TABLE, HEAD):
        return PARTS[0] if name == TABLE else PARTS[9]
    if entry.kind == "expert":
        return PARTS[4]
    if ".shared_experts." in name:
        return PARTS[5]
    if ".block_sparse_moe.gate." in name:
        return PARTS[7]
    if ".routed_expert_" in name:
        return PARTS[6]
    if ".mlp." in name:
        return PARTS[3]
    if ".self_attn." in name:
        return PARTS[2] if config.is_full_attention(entry.layer) else PARTS[1]
    return PARTS[8]


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes that generation needs for one stream: a constant state, and a cache that grows with every token."""

    recurrent: int
    conv: int
    per_token: int

    @property
    def state(self) -> int:
        """Bytes that do not depend on the length."""
        return self.recurrent + self.conv

    def at(self, tokens: int) -> int:
        """Bytes after so many tokens."""
        return self.state + tokens * self.per_token


def stream_memory(config: ModelConfig, *, item: int = 2, recurrent_item: int = 4) -> Memory:
    """State and cache of one stream.

    item: bytes a value of the cache and of the convolutions' windows. recurrent_item: of the recurrent state, which is
    float32 here.
    """
    full = len(config.full_attention)
    delta = config.num_hidden_layers - full
    heads, width = config.kda_num_heads, config.kda_head_dim
    return Memory(
        recurrent=delta * heads * width * width * recurrent_item,
        conv=delta * 3 * (config.short_conv_kernel_size - 1) * heads * width * item,
        per_token=full * (config.kv_lora_rank + config.qk_rope_head_dim) * item,
    )

"""Complete checkpoints of random weights in the published layouts, for tests and benchmarks.

Every tensor is random and none is near its initial value, so that no term of the graph hides behind a zero or a one.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from watersmeet.core.config import ModelConfig
from watersmeet.core.errors import ConfigError
from watersmeet.core.official.config import K3_FAMILY, OfficialConfig, describe, write_config
from watersmeet.core.official.names import HEAD, PACKED, SCALE, Entry, entries, keeps_float32

INDEX = "model.safetensors.index.json"

LINEAR_SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 5,
    "vocab_size": 160,
    "attn_res_block_size": None,
    "kda_num_heads": 3,
    "kda_head_dim": 16,
    "gate_lower_bound": None,
    "num_attention_heads": 2,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 20,
    "mla_output_gate": False,
    "intermediate_size": 96,
    "num_experts": 8,
    "num_experts_per_token": 2,
    "num_shared_experts": 1,
    "moe_intermediate_size": 32,
    "routed_scaling_factor": 2.446,
    "hidden_act": "silu",
}
K3_SIZES: dict[str, Any] = {
    "hidden_size": 96,
    "num_hidden_layers": 9,
    "vocab_size": 192,
    "full_attention_layers": (3, 7, 8),
    "attn_res_block_size": 4,
    "kda_num_heads": 3,
    "kda_head_dim": 16,
    "num_attention_heads": 2,
    "q_lora_rank": 40,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "intermediate_size": 128,
    "num_experts": 8,
    "num_experts_per_token": 3,
    "num_shared_experts": 2,
    "moe_intermediate_size": 32,
    "routed_expert_hidden_size": 64,
}


def random_kimi_linear(
    directory: str | os.PathLike[str],
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    shards: int = 3,
    changes: Mapping[str, Any] | None = None,
    **sizes: Any,
) -> OfficialConfig:
    """Write a Kimi-Linear-shaped checkpoint: config.json, shards, index.

    dtype: of the matrices; what is always float32 stays so. shards: 0 writes one file without an index. changes: fields
    of config.json to set (None as value removes one). sizes: fields of `ModelConfig`.
    """
    values = {**LINEAR_SIZES, **sizes}
    values.setdefault("kda_gate_rank", values["kda_head_dim"])
    official = describe(ModelConfig(**values), bos_id=1, eos_ids=(2,), pad_id=0)
    return _write(Path(directory), official, seed, dtype, shards, changes, mxfp4=False, extra={})


def random_k3(
    directory: str | os.PathLike[str],
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    mxfp4: bool = False,
    shards: int = 3,
    changes: Mapping[str, Any] | None = None,
    outer_changes: Mapping[str, Any] | None = None,
    extra: Mapping[str, Tensor] | None = None,
    **sizes: Any,
) -> OfficialConfig:
    """Write a K3-shaped checkpoint with a nested `text_config`; arguments as in `random_kimi_linear`.

    mxfp4: store the routed experts packed. `A_log` is longer than the heads, with a tail of zeros. outer_changes: fields
    beside `text_config`. extra: further tensors by their full names, e.g. of an embedder.
    """
    official = describe(ModelConfig(**{**K3_SIZES, **sizes}), bos_id=1, eos_ids=(2,), pad_id=0)
    if official.family != K3_FAMILY:
        raise ConfigError("random_k3: these sizes describe a Kimi Linear graph; use random_kimi_linear")
    return _write(Path(directory), official, seed, dtype, shards, changes, mxfp4, extra or {}, outer_changes)


def random_tensors(
    official: OfficialConfig, *, seed: int = 0, dtype: torch.dtype = torch.float32, mxfp4: bool = False
) -> Iterator[tuple[str, Tensor]]:
    """The tensors of such a checkpoint by their full names, one after the other; equal seeds give equal tensors."""
    generator = torch.Generator().manual_seed(seed)
    k3 = official.family == K3_FAMILY
    for entry in entries(official.model):
        name = (official.outer if entry.name == HEAD else official.prefix) + entry.name
        if entry.kind == "expert" and mxfp4:
            packed, scale = _packed(entry, generator)
            stem = name.removesuffix(".weight")
            yield stem + PACKED, packed
            yield stem + SCALE, scale
            continue
        tensor = _values(entry, generator, official.model.gate_lower_bound is not None)
        if entry.kind == "decay":
            heads = len(tensor)
            longer = torch.zeros(heads + max(1, heads // 3) if k3 else heads)
            longer[:heads] = tensor
            tensor = longer if k3 else longer.view(1, 1, heads, 1)
        yield name, tensor if keeps_float32(name) else tensor.to(dtype)


def _values(entry: Entry, generator: torch.Generator, bounded: bool) -> Tensor:
    """float32 values in the range that trained weights have."""
    out = torch.empty(entry.shape)
    name = entry.name
    if entry.kind == "decay":
        return out.uniform_(-0.5, 0.5, generator=generator) if bounded else out.uniform_(0.0, 1.5, generator=generator)
    if name.endswith("dt_bias"):
        return out.uniform_(-3.0, 1.0, generator=generator)
    if entry.kind == "filter":
        return out.uniform_(-0.6, 0.6, generator=generator)
    if entry.kind == "bias":
        return out.normal_(std=0.1, generator=generator)
    if name.endswith("norm.weight"):
        return out.uniform_(0.5, 1.5, generator=generator)
    if name.endswith("res_proj.weight"):
        # scores of about one: sharper mixtures would be chaotic, and rounding alone would change the logits
        return out.normal_(std=1.0 / math.sqrt(entry.shape[-1]), generator=generator)
    gain = 1.0 if name.endswith("embed_tokens.weight") else 1.2 / math.sqrt(entry.shape[-1])
    return out.normal_(std=gain, generator=generator)


def _packed(entry: Entry, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random codes and scales [out, in / 2] and [out, in / 32] uint8 of about the size of a normal weight."""
    rows, columns = entry.shape
    if columns % 32:
        raise ConfigError(f"random MXFP4 experts: {entry.name} has {columns} columns, expected a multiple of 32")
    codes = torch.randint(0, 256, (rows, columns // 2), dtype=torch.uint8, generator=generator)
    middle = 127 + round(math.log2(1.0 / (2.6 * math.sqrt(columns))))
    scale = torch.randint(middle - 1, middle + 2, (rows, columns // 32), dtype=torch.uint8, generator=generator)
    return codes, scale


def _write(
    directory: Path,
    official: OfficialConfig,
    seed: int,
    dtype: torch.dtype,
    shards: int,
    changes: Mapping[str, Any] | None,
    mxfp4: bool,
    extra: Mapping[str, Tensor],
    outer_changes: Mapping[str, Any] | None = None,
) -> OfficialConfig:
    directory.mkdir(parents=True, exist_ok=True)
    raw = write_config(official, mxfp4=mxfp4, dtype=str(dtype).removeprefix("torch."))
    for holder, wanted in ((raw.get("text_config", raw), changes), (raw, outer_changes)):
        for name, value in (wanted or {}).items():
            if value is None:
                holder.pop(name, None)
            else:
                holder[name] = value
    (directory / "config.json").write_text(json.dumps(raw, indent=2) + "\n")
    bits = {True: 4.25 if mxfp4 else torch.finfo(dtype).bits, False: torch.finfo(dtype).bits}
    room = sum(e.numel * bits[e.kind == "expert"] / 8 for e in entries(official.model)) / max(shards, 1)
    parts: list[list[str]] = []
    shard: dict[str, Tensor] = {}
    total = size = 0

    def flush() -> None:
        nonlocal shard, size
        save_file(shard, directory / f"part-{len(parts)}.safetensors", metadata={"format": "pt"})
        parts.append(list(shard))
        shard, size = {}, 0

    for name, tensor in random_tensors(official, seed=seed, dtype=dtype, mxfp4=mxfp4):
        shard[name] = tensor.contiguous()
        size += tensor.nbytes
        total += tensor.nbytes
        if size >= room and len(parts) + 1 < shards:
            flush()
    shard.update({name: tensor.contiguous() for name, tensor in extra.items()})
    flush()
    placed: dict[str, str] = {}
    for i, names in enumerate(parts):
        last = f"model-{i + 1:05d}-of-{len(parts):06d}.safetensors" if shards else "model.safetensors"
        (directory / f"part-{i}.safetensors").rename(directory / last)
        placed.update(dict.fromkeys(names, last))
    if shards:
        index = {"metadata": {"total_size": total}, "weight_map": placed}
        (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n")
    return official

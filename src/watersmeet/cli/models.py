"""`watersmeet models show`, `watersmeet models widen` and `watersmeet models logits`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from watersmeet.cli.lists import table
from watersmeet.core.config import PRESETS, ModelConfig
from watersmeet.core.errors import CheckpointError, UsageError

DTYPES = ("float32", "bfloat16")
LENGTHS = (("4k", 4096), ("128k", 131072), ("1M", 1048576))


def show_lines(spec: str) -> list[str]:
    """Layer map, parameters by part, state and cache bytes of a model directory, of nano, or of a preset.

    Only headers are read. Raises CheckpointError and ConfigError for what is not a model.
    """
    from watersmeet.pipelines.models.local import BUILT_IN

    if spec in PRESETS and spec != BUILT_IN and not Path(spec).is_dir():
        return [f"preset {spec}", *_graph(PRESETS[spec], _beside(spec, PRESETS[spec]))]
    return _folder(spec)


def widen_model(
    base: str, modality: Iterable[str], out: Path, vocabulary: Path | None, assignments: Sequence[str]
) -> list[str]:
    """Write the wider model; one line about it. modality: NAME or NAME=LIKE. assignments: MODALITY.KEY=VALUE.

    Raises UsageError for what names no modality, or a file that cannot be read.
    """
    from watersmeet.cli.graft import check_names, modality_settings
    from watersmeet.pipelines.models.widen import widen
    from watersmeet.plugins.registry import get_registry

    pairs = dict(one.partition("=")[::2] for one in modality)
    names = check_names(get_registry(), ",".join(pairs))
    try:
        words = None if vocabulary is None else vocabulary.read_bytes()
    except OSError as error:
        raise UsageError(f"--vocabulary {vocabulary} cannot be read ({error.strerror or error})") from error
    model = widen(
        base,
        out,
        vocabulary=words,
        modalities=modality_settings(names, assignments),
        like={name: other for name, other in pairs.items() if other},
    )
    count = sum(parameter.numel() for parameter in model.parameters())
    return [f"{out}  {count:,} parameters, {model.config.vocab_size:,} ids, {', '.join(model.modality_names)}"]


def _beside(name: str, config: ModelConfig) -> dict[str, int]:
    """What the published files of a preset hold besides its trunk."""
    if name != "k3":
        return {}
    import torch

    from watersmeet.plugins.registry import get_registry

    with torch.device("meta"):
        embedder = get_registry().embedder("moonvit", config.hidden_size, {})
    vision = sum(parameter.numel() for parameter in embedder.parameters())
    delta = config.num_hidden_layers - len(config.full_attention)
    return {
        "vision tower and projector": vision,
        "zeros behind the decays (128 stored for 96 heads)": delta * (128 - 96),
    }


def _folder(spec: str) -> list[str]:
    from watersmeet.core.official.load import is_official, read_official_config
    from watersmeet.core.official.shards import Shards, read_header
    from watersmeet.pipelines.models.local import find_local

    folder = find_local(spec)
    if is_official(folder):
        shards = Shards(folder)
        official = read_official_config(folder, shards)
        config, stored, name = official.model, shards.tensors, official.family
        trunk = (official.prefix, official.outer + "lm_head.")
        other = {n: s.shape for n, s in stored.items() if not n.startswith(trunk)}
        ends = ", ".join(map(str, official.eos_ids)) or "none"
        about = f"ids: begins with {official.bos_id}, ends with {ends}, fills with {official.pad_id}"
    else:
        from watersmeet.core.checkpoint import CONFIG, WEIGHTS

        config = ModelConfig.from_json((folder / CONFIG).read_text(encoding="utf-8"))
        stored = read_header(folder / WEIGHTS)
        own = f"embedders.{config.output_modality}."
        other = {n: s.shape for n, s in stored.items() if n.startswith("embedders.") and not n.startswith(own)}
        name, about = "our own layout", f"writes {config.output_modality}"
    kinds: dict[str, int] = {}
    for entry in stored.values():
        kinds[entry.dtype] = kinds.get(entry.dtype, 0) + entry.nbytes
    sizes = ", ".join(f"{dtype} {_bytes(size)}" for dtype, size in sorted(kinds.items()))
    files = len({entry.file for entry in stored.values()})
    head = [f"{spec}: {name}, {len(stored):,} tensors in {files} file{'s' if files > 1 else ''} ({sizes})", about]
    return [*head, *_graph(config, _by_embedder(other))]


def _by_embedder(shapes: dict[str, tuple[int, ...]]) -> dict[str, int]:
    """Values of tensors that are not the trunk's, by the first parts of their names."""
    found: dict[str, int] = {}
    for name, shape in shapes.items():
        parts = name.split(".")
        key = ".".join(parts[:2]) if parts[0] == "embedders" else parts[0]
        count = 1
        for size in shape:
            count *= size
        found[key] = found.get(key, 0) + count
    return found


def _graph(config: ModelConfig, other: dict[str, int] | None = None) -> list[str]:
    from watersmeet.core.official.census import census, stream_memory

    found, memory = census(config), stream_memory(config)
    lines = ["", "layers", *_layer_map(config), "", "parameters"]
    rows = [(f"  {part}", f"{count:,}") for part, count in found.parts.items() if count]
    rows += [(f"  {name}", f"{count:,}") for name, count in (other or {}).items()]
    total = found.total + sum((other or {}).values())
    rows += [
        ("  total", f"{total:,}"),
        ("  used for one token (without the table, with the head)", f"{found.active:,}"),
    ]
    lines += _right(rows)
    lines += ["", "memory of one stream, cache and windows in bfloat16"]
    rows = [
        ("  recurrent state, float32", f"{memory.recurrent:,} B"),
        ("  convolution windows", f"{memory.conv:,} B"),
        ("  cache for each token", f"{memory.per_token:,} B"),
    ]
    rows += [(f"  everything at {word} tokens", f"{memory.at(tokens):,} B") for word, tokens in LENGTHS]
    return [*lines, *_right(rows)]


def _right(rows: Iterable[tuple[str, str]]) -> list[str]:
    """Two columns, the second set to the right."""
    rows = list(rows)
    width = max(len(value) for _, value in rows)
    return table([(name, value.rjust(width)) for name, value in rows])


def _layer_map(config: ModelConfig) -> list[str]:
    """One letter a layer, a line a block of Attention Residuals, and what the letters mean."""
    layers = range(config.num_hidden_layers)
    letters = [
        letter if config.is_moe(i) else letter.lower()
        for i, letter in ((i, "M" if config.is_full_attention(i) else "K") for i in layers)
    ]
    block = config.attn_res_block_size or 12
    rows = []
    for _, group in groupby(layers, key=lambda i: i // block):
        members = list(group)
        word = " ".join("".join(letters[i] for i in members[at : at + 4]) for at in range(0, len(members), 4))
        rows.append((f"  {members[0]}-{members[-1]}" if len(members) > 1 else f"  {members[0]}", word))
    gate = "softplus" if config.gate_lower_bound is None else f"bounded by {config.gate_lower_bound:g}"
    rank = "full rank" if config.kda_gate_rank is None else f"rank {config.kda_gate_rank}"
    query = "direct" if config.q_lora_rank is None else f"rank {config.q_lora_rank}"
    gated = "gated" if config.mla_output_gate else "no gate"
    full = len(config.full_attention)
    lines = table(rows)
    lines.append(
        f"  K delta attention ({config.num_hidden_layers - full}): {config.kda_num_heads} heads of {config.kda_head_dim}, "
        f"decay {gate}, output gate of {rank}, filters of {config.short_conv_kernel_size}"
    )
    lines.append(
        f"  M latent attention ({full}): {config.num_attention_heads} heads of {config.qk_nope_head_dim} + "
        f"{config.qk_rope_head_dim}, values of {config.v_head_dim}, latent {config.kv_lora_rank}, queries {query}, {gated}"
    )
    moe = sum(config.is_moe(i) for i in layers)
    if moe:
        latent = config.routed_expert_hidden_size
        where = "" if latent is None else f" in a latent space of {latent}"
        lines.append(
            f"  capital: {config.num_experts} experts of {config.moe_intermediate_size}{where}, {config.num_experts_per_token} "
            f"for a token, {config.num_shared_experts} shared ({moe} layers); {config.hidden_act}"
        )
    if moe < len(letters):
        lines.append(
            f"  small: one feed-forward of {config.intermediate_size} ({len(letters) - moe} layers); {config.hidden_act}"
        )
    lines.append(
        "  ordinary residuals"
        if config.attn_res_block_size is None
        else f"  Attention Residuals over blocks of {config.attn_res_block_size} layers, one line each"
    )
    return lines


def _bytes(count: int) -> str:
    value, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def read_ids(path: Path, vocab: int | None = None) -> list[list[int]]:
    """The lists of a JSON file. Raises UsageError for anything but a list of lists of ids below `vocab`."""
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not JSON ({error}); expected a list of lists of ids, e.g. [[1, 2, 3]]") from error
    if not isinstance(found, list) or not found or not all(isinstance(ids, list) for ids in found):
        raise UsageError(f"{path}: expected a list of lists of ids with at least one list, e.g. [[1, 2, 3]]")
    for i, ids in enumerate(found):
        if not ids:
            raise UsageError(f"{path}: list {i} is empty; expected at least one id in each")
        for place, index in enumerate(ids):
            if type(index) is not int:
                raise UsageError(f"{path}: list {i} holds {index!r} at place {place}, expected an integer id")
            if index < 0 or (vocab is not None and index >= vocab):
                high = "" if vocab is None else f", expected 0..{vocab - 1}"
                raise UsageError(f"{path}: list {i} holds id {index} at place {place}{high}")
    return found


def logits_command(spec: str, ids_file: Path, out: Path, *, dtype: str, cache: bool, packed: bool) -> str:
    """Write `logits.0`, `logits.1`, ... [T, V] float32, one for each list of ids; returns the closing line.

    cache: one token at a time through the cache, the way generation goes, instead of one pass over each list.
    """
    if dtype not in DTYPES:
        raise UsageError(f"--dtype {dtype} is not one of {', '.join(DTYPES)}")
    many = read_ids(ids_file)
    import torch
    from safetensors.torch import save_file

    from watersmeet.pipelines.models.local import find_local, load_local

    # before the weights are read, because that takes long
    vocab = vocabulary_size(find_local(spec))
    many = read_ids(ids_file, vocab)
    model = load_local(spec, dtype=getattr(torch, dtype), packed_experts=packed).model
    read = _step_by_step if cache else _at_once
    found = {f"logits.{i}": read(model, ids).float().contiguous() for i, ids in enumerate(many)}
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        save_file(found, beside, metadata={"dtype": dtype, "cache": str(cache).lower()})
        beside.replace(out)
    finally:
        beside.unlink(missing_ok=True)
    tokens = sum(map(len, many))
    return f"{out}: logits of {tokens} tokens in {len(many)} list{'s' if len(many) > 1 else ''}, {vocab} ids each"


def vocabulary_size(folder: Path) -> int:
    """Number of ids of the model in a folder of either layout, by its configuration."""
    from watersmeet.core.official.load import is_official, read_official_config

    if is_official(folder):
        return read_official_config(folder).model.vocab_size
    try:
        return ModelConfig.from_json((folder / "config.json").read_text(encoding="utf-8")).vocab_size
    except OSError as error:
        raise CheckpointError(f"{folder / 'config.json'}: cannot be read ({error.strerror})") from error


def _at_once(model: Any, ids: list[int]) -> Any:
    import torch

    from watersmeet.core.stream import Span, Stream, content_key, pack

    data = torch.tensor(ids, dtype=torch.int64)
    span = Span(modality=model.config.output_modality, data=data, key=content_key("ids", ids))
    device = model.lm_head.weight.device
    with torch.inference_mode():
        return model.logits(model(pack([Stream(spans=(span,))], model.modality_names).to(device))).cpu()


def _step_by_step(model: Any, ids: list[int]) -> Any:
    import torch

    rows = []
    device = model.lm_head.weight.device
    with torch.inference_mode(), model.fused():
        cache = model.new_cache(1)
        for index in ids:
            hidden_ND = model.step(model.embed_ids(torch.tensor([index], device=device)), cache)
            rows.append(model.logits(hidden_ND)[0].cpu())
    return torch.stack(rows)

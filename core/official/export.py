"""A model as a directory in the published layout, and the proof that it says what the model says.

Names, shapes and dtypes are those of the releases, so what reads them reads these. One shard is held in memory at a time.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from watersmeet.core.errors import CheckpointError, ConfigError
from watersmeet.core.files import written_beside
from watersmeet.core.model import Model
from watersmeet.core.model.packed import PackedExperts
from watersmeet.core.official.config import LINEAR_FAMILY, OfficialConfig, read_config, write_config
from watersmeet.core.official.load import Weights
from watersmeet.core.official.names import HEAD, PACKED, SCALE, TABLE, Entry, entries, keeps_float32, shown
from watersmeet.core.official.offload import module_tensor
from watersmeet.core.official.plan import BLOCK, Fill, make_plan
from watersmeet.core.official.shards import INDEX, Shards
from watersmeet.kernels.mxfp4 import mxfp4_decode, mxfp4_encode

SHARD = 5_000_000_000
_OF_TEXT = ("text_config", "quantization_config", "linear_attn_config")


def export_official(
    model: Model,
    official: OfficialConfig,
    out_dir: str | os.PathLike[str],
    *,
    dtype: torch.dtype = torch.bfloat16,
    mxfp4: bool = False,
    rule: str = "packer",
    shard_size: int = SHARD,
    files: Mapping[str, bytes] | None = None,
) -> tuple[str, ...]:
    """Write the directory `out_dir`, which must not exist; it appears when it is complete.

    Args:
        official: as it was loaded, or `describe(model.config)` for a model that never had one.
        dtype: of the matrices; what the releases keep in float32 stays float32.
        mxfp4: encode routed experts (packed ones are written as they are); rule: of its scales, see `mxfp4_encode`.
        files: what goes beside the weights, by plain name.

    Returns:
        Modalities whose embedders have no place in the published layout and were left out.

    Raises:
        CheckpointError, ConfigError: the target exists, or the layout cannot hold this model.
    """
    out = Path(out_dir)
    if out.exists():
        raise CheckpointError(f"{out}: is there already; remove it or write to another place")
    raw = write_config(official, mxfp4=mxfp4, dtype=str(dtype).removeprefix("torch."))
    check_fits(model, official, mxfp4)
    with written_beside(out) as partial:
        for name, data in (files or {}).items():
            if Path(name).name == name and name not in ("config.json", INDEX) and not name.endswith(".safetensors"):
                (partial / name).write_bytes(data)
        (partial / "config.json").write_text(json.dumps(raw, indent=2) + "\n")
        _write_shards(partial, tensors(model, official, dtype=dtype, mxfp4=mxfp4, rule=rule), shard_size)
    return left_out(model, official)


def left_out(model: Model, official: OfficialConfig) -> tuple[str, ...]:
    """Modalities whose embedders have no place in the published layout.

    The output modality's table always has one. Another embedder has one when it knows published names and the
    configuration that was read describes a part besides the text; else it came from elsewhere, and no reader of the text
    model's configuration would expect its tensors.
    """
    described = [key for key in official.raw if key.endswith("_config") and key not in _OF_TEXT]
    return tuple(
        name
        for name, embedder in model.embedders.items()
        if not getattr(embedder, "checkpoint_names", {}) or (name != model.config.output_modality and not described)
    )


def check_fits(model: Model, official: OfficialConfig, mxfp4: bool) -> None:
    """Raise ConfigError where the published layout cannot say what the model is."""
    config = model.config
    same = official.model.replace(output_modality=config.output_modality)
    same = same.replace(balance_bins=config.balance_bins, balance_ema=config.balance_ema)
    if same != config:
        raise ConfigError("export: the published configuration describes another graph than the model has")
    if mxfp4 and (config.moe_intermediate_size % BLOCK or config.expert_hidden_size % BLOCK):
        raise ConfigError(
            f"export: experts are {config.expert_hidden_size} wide with {config.moe_intermediate_size} inside, but MXFP4 "
            f"needs multiples of {BLOCK}; export them plain"
        )
    _table(model)


def _table(model: Model) -> tuple[nn.Module, str]:
    """The output modality's embedder and the name of its table."""
    embedder = model.embedders[model.config.output_modality]
    for published, own in getattr(embedder, "checkpoint_names", {}).items():
        if TABLE.startswith(published):
            return embedder, own + TABLE.removeprefix(published)
    raise ConfigError(
        f"export: the embedder of {model.config.output_modality!r} names no {TABLE} in checkpoint_names, so there is no "
        "table to write"
    )


def tensors(
    model: Model, official: OfficialConfig, *, dtype: torch.dtype, mxfp4: bool = False, rule: str = "packer"
) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of the published layout with its full name, made one after the other, on the CPU."""

    def ready(name: str, tensor: Tensor) -> Tensor:
        target = torch.float32 if keeps_float32(name) else dtype
        return tensor.detach().to("cpu", target).contiguous()

    for entry in entries(model.config):
        name = (official.outer if entry.name == HEAD else official.prefix) + entry.name
        if entry.name == TABLE:
            yield name, ready(name, module_tensor(*_table(model)))
        elif entry.kind == "expert":
            yield from ((n, t.cpu().contiguous()) for n, t in _expert(model, entry, name, dtype, mxfp4, rule))
        elif entry.kind == "decay":
            yield name, _decay(ready(name, module_tensor(model, entry.name)), official)
        else:
            yield name, ready(name, module_tensor(model, entry.name))
    others = left_out(model, official)
    for name, embedder in model.embedders.items():
        if name in others:
            continue
        state = embedder.state_dict()
        for published, own in getattr(embedder, "checkpoint_names", {}).items():
            if TABLE.startswith(published):
                continue
            for key, tensor in state.items():
                if key.startswith(own):
                    # beside the language model, not within it
                    yield published + key.removeprefix(own), ready("", tensor)


def _decay(decay: Tensor, official: OfficialConfig) -> Tensor:
    """`A_log` in the shape it came in, or in the family's."""
    shape = official.decay_shape
    if shape is None:
        shape = (1, 1, len(decay), 1) if official.family == LINEAR_FAMILY else (len(decay),)
    out = torch.zeros(max(max(shape), len(decay)))
    out[: len(decay)] = decay
    return out.view(shape) if out.numel() == max(shape) else decay


def _expert(
    model: Model, entry: Entry, name: str, dtype: torch.dtype, mxfp4: bool, rule: str
) -> Iterator[tuple[str, Tensor]]:
    experts = model.get_submodule(entry.module)
    stem = name.removesuffix(".weight")
    own = "w2" if entry.part == "w2" else "w13"
    rows = entry.shape[0]
    piece = slice(rows, 2 * rows) if entry.part == "w3" else slice(0, rows)
    if isinstance(experts, PackedExperts):
        codes, scale = (module_tensor(experts, own + end)[entry.expert, piece] for end in ("_packed", "_scale"))
        if mxfp4:
            yield from ((stem + PACKED, codes), (stem + SCALE, scale))
            return
        yield name, mxfp4_decode(codes, scale, dtype=dtype)
        return
    weight = module_tensor(experts, own)[entry.expert, piece].detach()
    if not mxfp4:
        # a view of all experts would be written with all of them
        yield name, weight.to(dtype, copy=True)
        return
    codes, scale = mxfp4_encode(weight, rule=rule)
    yield from ((stem + PACKED, codes), (stem + SCALE, scale))


def _write_shards(directory: Path, named: Iterator[tuple[str, Tensor]], shard_size: int) -> None:
    parts: list[list[str]] = []
    shard: dict[str, Tensor] = {}
    size = total = 0

    def flush() -> None:
        nonlocal shard, size
        save_file(shard, directory / f"part-{len(parts)}", metadata={"format": "pt"})
        parts.append(list(shard))
        shard, size = {}, 0

    for name, tensor in named:
        if shard and size + tensor.nbytes > shard_size:
            flush()
        shard[name] = tensor
        size += tensor.nbytes
        total += tensor.nbytes
    flush()
    placed = {}
    for i, names in enumerate(parts):
        file = f"model-{i + 1:05d}-of-{len(parts):05d}.safetensors"
        (directory / f"part-{i}").rename(directory / file)
        placed.update(dict.fromkeys(names, file))
    index = {"metadata": {"total_size": total}, "weight_map": placed}
    (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def compare_export(
    model: Model,
    official: OfficialConfig,
    directory: str | os.PathLike[str],
    *,
    dtype: torch.dtype,
    mxfp4: bool = False,
    rule: str = "packer",
) -> int:
    """Read an export back the way any directory is read and compare configuration and every bit; how many tensors.

    Packed or rounded weights are compared with what rounding gives. Raises CheckpointError naming what differs.
    """
    path = Path(directory)
    shards = Shards(path)
    again = read_config(path, shards.shapes)
    if again.model != official.model:
        raise CheckpointError(f"{path}: reads back as another graph than was written")
    keep = any(isinstance(module, PackedExperts) for module in model.modules()) and mxfp4
    written = {name: module for name, module in model.embedders.items() if name not in left_out(model, official)}
    plan = make_plan(shards, again, written, packed=keep)
    owners: dict[str, list[Fill]] = defaultdict(list)
    for fill in plan:
        owners[fill.own].append(fill)
    source = Weights(shards, owners, dtype, model.config.output_modality)
    experts = {name for name, module in model.named_modules() if isinstance(module, PackedExperts)}
    wrong = []
    for own in owners:
        want = _expected(model, own, experts, dtype)
        source.shapes[own] = want.shape
        if mxfp4 and ".experts." in own and want.dtype != torch.uint8:
            want = torch.stack([mxfp4_decode(*mxfp4_encode(w, rule=rule), dtype=dtype) for w in want])
        if own.startswith("embedders."):
            want = want.to(dtype).to(source.dtype_of(own))
        got, want = source[own], want.to(source.dtype_of(own)).cpu()
        if not torch.equal(_bits(got), _bits(want)):
            wrong.append(own)
    shards.close()
    if wrong:
        raise CheckpointError(
            f"{path}: {len(wrong)} tensors read back differently from what was written ({shown(wrong)})"
        )
    return len(shards.tensors)


def _expected(model: Model, own: str, packed: set[str], dtype: torch.dtype) -> Tensor:
    """Our parameter of this name, decoded where the model keeps it packed but the files do not."""
    parent, _, leaf = own.rpartition(".")
    if parent in packed and leaf in ("w13", "w2"):
        experts = model.get_submodule(parent)
        codes, scale = module_tensor(experts, leaf + "_packed"), module_tensor(experts, leaf + "_scale")
        return mxfp4_decode(codes, scale, dtype=dtype)
    return module_tensor(model, own).detach()


def _bits(tensor: Tensor) -> Tensor:
    """The bytes of a tensor, because a number that is none equals nothing."""
    return tensor.contiguous().view(torch.uint8)

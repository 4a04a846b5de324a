"""A published checkpoint as a model: shard by shard, each tensor straight to its place, device and dtype.

Host memory never holds more than the weights in use and what is mapped of one shard. Every tensor of the files is used
and every parameter filled, or it is an error before any weight is read.
"""

from __future__ import annotations

import json
import logging
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from watersmeet.core.checkpoint import PROCESSOR, Loaded
from watersmeet.core.errors import CheckpointError
from watersmeet.core.model import Model
from watersmeet.core.model.moe import LatentMoE, Router
from watersmeet.core.model.packed import PackedExperts
from watersmeet.core.official.config import OfficialConfig, read_config
from watersmeet.core.official.names import keeps_float32, shown
from watersmeet.core.official.offload import DeviceMap, attach, put, split_map
from watersmeet.core.official.plan import Fill, make_plan
from watersmeet.core.official.shards import INDEX, PICKLES, Shards
from watersmeet.kernels.mxfp4 import mxfp4_decode

logger = logging.getLogger("watersmeet.official")

_PIECE = 1 << 18
"""Values copied at once; few enough to stay in a core's cache."""

_CARRIED = 64 << 20
"""Files beside the weights up to this size are kept with the model, so that an export has them too."""


def is_official(directory: str | os.PathLike[str]) -> bool:
    """Whether a model directory is in the published layout: its config.json does not carry our own format number."""
    try:
        raw = json.loads((Path(directory) / "config.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(raw, dict) and "watersmeet_format" not in raw


def read_official_config(directory: str | os.PathLike[str], shards: Shards | None = None) -> OfficialConfig:
    """The configuration of a directory, completed by the names of its tensors and by generation_config.json."""
    path = Path(directory)
    shapes = (shards or Shards(path)).shapes
    generation = None
    if (path / "generation_config.json").exists():
        try:
            generation = json.loads((path / "generation_config.json").read_bytes())
        except OSError as error:
            raise CheckpointError(f"{path / 'generation_config.json'}: cannot be read ({error.strerror})") from error
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{path / 'generation_config.json'}: not JSON ({error})") from error
        if not isinstance(generation, dict):
            raise CheckpointError(
                f"{path / 'generation_config.json'}: holds a {type(generation).__name__}, expected an object"
            )
    return read_config(path, shapes, generation)


def load_official(
    directory: str | os.PathLike[str],
    *,
    embedders: Mapping[str, nn.Module],
    output_modality: str,
    modalities: Mapping[str, Any] | None = None,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    packed_experts: bool = False,
    device_map: DeviceMap | None = None,
    max_memory: Mapping[Any, int | str] | None = None,
    skip: Iterable[str] = (),
    official: OfficialConfig | None = None,
    embedders_alone: bool = False,
) -> Loaded:
    """Load a directory of config.json and safetensors in the published layout.

    Args:
        embedders: by modality; may stand on the meta device. One that reads tensors of the files names their prefixes in
            `checkpoint_names` {published: own}; one with buffers that are in no file computes them in
            `rebuild_buffers(device)`.
        output_modality: whose embedder reads generated ids back.
        modalities: settings of the encoders, for `Loaded.processor`.
        dtype: of the trunk's matrices, the table of the output modality and the computation; short convolutions, decay,
            `o_norm` and the router's bias are float32 always, other embedders too.
        packed_experts: keep MXFP4 experts packed and decode each one when it is used.
        device_map: {"layers.3": "disk", ...}, names as in accelerate: layers on "disk" are read from the files each time
            they run; "auto" decides by `max_memory` {device or "cpu": bytes}.
        skip: prefixes of tensors that are left out on purpose.
        embedders_alone: read the embedders and nothing else; the model can then only `embed`.

    Raises:
        CheckpointError, ConfigError: what is wrong with the files, before any weight is read.
    """
    path = Path(directory)
    refuse_pickled(path)
    shards = Shards(path)
    official = official or read_official_config(path, shards)
    config = official.model.replace(output_modality=output_modality)
    plan = make_plan(shards, official, embedders, packed=packed_experts, skip=skip)
    with torch.device("meta"):
        model = Model(config, embedders)
        if packed_experts:
            pack(model)
    by_owner: dict[str, list[Fill]] = defaultdict(list)
    for fill in plan:
        by_owner[fill.own].append(fill)
    source = Weights(shards, by_owner, dtype, output_modality)
    main, away = split_map(model, device_map, max_memory, torch.device(device), source)
    here = [fill for fill in plan if not fill.own.startswith(away or ("\0",))]
    if embedders_alone:
        here, away = [fill for fill in here if fill.own.startswith("embedders.")], ()
        # what tells `embed` the device: a head of no rows
        put(model, "lm_head.weight", torch.empty(0, config.hidden_size, dtype=dtype, device=main))
    fill_model(model, shards, here, source, main)
    rest = tuple(f"{name}." for name, _ in model.named_children() if name != "embedders")
    _finish(model, main, rest if embedders_alone else away)
    attach(model, away, main, source)
    if source.strange:
        logger.warning("%s: %d tensors hold NaN or infinity: %s", path, len(source.strange), shown(source.strange))
    if not away:
        shards.close()
    if not away and not embedders_alone:
        model.join()
    model.compute_dtype = dtype
    described = {"modalities": dict(modalities or {name: {} for name in embedders}), "official": official.to_dict()}
    return Loaded(model=model.eval(), config=config, processor=described, files=carried_files(path))


def refuse_pickled(path: Path) -> None:
    """Say why a path that is a file cannot be loaded."""
    if path.is_file() and path.suffix in PICKLES:
        raise CheckpointError(f"{path}: pickle files are never opened because they can run code; use safetensors")


def carried_files(path: Path) -> dict[str, bytes]:
    """Files beside the weights: tokenizer, templates, settings, licence."""
    out = {}
    for entry in sorted(path.iterdir()):
        # processor.json tells of embedders that were added to this directory, and only to this one
        own = entry.name in ("config.json", INDEX, PROCESSOR) or entry.name.startswith(".")
        weights = entry.name.endswith((".safetensors", ".gguf", ".index.json", *PICKLES))
        if entry.is_file() and not own and not weights and entry.stat().st_size <= _CARRIED:
            out[entry.name] = entry.read_bytes()
    return out


def pack(model: Model) -> None:
    """Put packed experts in the place of plain ones, on the meta device."""
    for module in model.modules():
        if isinstance(module, LatentMoE):
            module.add_module("experts", PackedExperts(model.config))


class Weights(Mapping[str, Tensor]):
    """The tensors of a model by our names, each assembled from the files when it is asked for."""

    def __init__(
        self, shards: Shards, owners: Mapping[str, list[Fill]], dtype: torch.dtype, output_modality: str
    ) -> None:
        self.shards, self.owners, self.dtype, self.output_modality = shards, owners, dtype, output_modality
        self.strange: list[str] = []
        self.direct: frozenset[str] = frozenset()
        self._sums: list[tuple[str, Tensor]] = []
        self.shapes: dict[str, torch.Size] = {}

    def dtype_of(self, own: str) -> torch.dtype:
        """What a parameter or buffer of this name is kept in."""
        if own.endswith(("_packed", "_scale")):
            return torch.uint8
        if own.startswith("embedders."):
            return self.dtype if own.startswith(f"embedders.{self.output_modality}.") else torch.float32
        return torch.float32 if keeps_float32(own) else self.dtype

    def copy(self, fill: Fill, target: Tensor) -> None:
        """Copy one tensor of the files to its place in `target`."""
        if fill.expert >= 0:
            target = target[fill.expert]
            half = target.shape[0] // 2
            target = {"w1": target[:half], "w3": target[half:], "w2": target}[fill.part]
        if fill.kind == "mxfp4":
            codes, scale = (self.shards.read(name) for name in fill.sources)
            if bool((scale == 255).any()):
                self.strange.append(fill.source)
            target.copy_(mxfp4_decode(codes.to(target.device), scale.to(target.device), dtype=self.dtype))
            return
        tensor = self.shards.read(fill.source)
        if fill.kind == "bytes":
            if fill.own.endswith("_scale") and bool((tensor == 255).any()):
                self.strange.append(fill.source)
            target.copy_(tensor)
            return
        if fill.kind == "decay":
            tensor = tensor.reshape(-1)
            heads = target.shape[0]
            if bool(tensor[heads:].any()):
                raise CheckpointError(
                    f"{self.shards.directory}: {fill.source} has {len(tensor)} values for {heads} heads and what follows "
                    "them is not zero, so they are not padding"
                )
            tensor = tensor[:heads]
        elif fill.kind == "filter" and tensor.ndim == 2:
            tensor = tensor[:, None]
        self._copy(fill.source, tensor, target)

    def _copy(self, name: str, tensor: Tensor, target: Tensor) -> None:
        """Copy, and add up what was copied while it is still in the processor's cache: a value that is none shows."""
        if target.device.type != "cpu" or not (tensor.is_contiguous() and target.is_contiguous()):
            target.copy_(tensor)
            self._sums.append((name, tensor.sum().float().cpu()))
            return
        if tensor.dtype == target.dtype and name in self.direct:
            self._sums += [(name, into.sum()) for into in self.shards.read_into(name, target.view(-1), _PIECE)]
            return
        for source, into in zip(tensor.view(-1).split(_PIECE), target.view(-1).split(_PIECE), strict=True):
            into.copy_(source)
            self._sums.append((name, into.sum()))

    def look(self) -> None:
        """Note the tensors copied so far that hold values which are no numbers."""
        if not self._sums:
            return
        names, sums = zip(*self._sums, strict=True)
        finite = torch.stack([value.float() for value in sums]).isfinite().tolist()
        for name in dict.fromkeys(name for name, sound in zip(names, finite, strict=True) if not sound):
            # a sum can leave the range though no value does
            if not bool(self.shards.read(name).isfinite().all()):
                self.strange.append(name)
        self._sums.clear()

    def __getitem__(self, own: str) -> Tensor:
        target = torch.empty(self.shapes[own], dtype=self.dtype_of(own))
        for fill in self.owners[own]:
            self.copy(fill, target)
        self._sums.clear()
        return target

    def __iter__(self) -> Any:
        return iter(self.owners)

    def __len__(self) -> int:
        return len(self.owners)


def fill_model(model: Model, shards: Shards, fills: list[Fill], source: Weights, device: torch.device) -> None:
    """Allocate and fill everything that `fills` name, one file after the other in the order of its bytes."""
    owners = {name: tensor for name, tensor in [*model.named_parameters(), *model.named_buffers()]}
    source.shapes.update({name: tensor.shape for name, tensor in owners.items()})
    placed: dict[str, Tensor] = {}
    by_file: dict[str, list[Fill]] = defaultdict(list)
    for fill in fills:
        by_file[shards.tensors[fill.source].file].append(fill)
    threads = torch.get_num_threads()
    workers = max(1, min(4, os.cpu_count() or 1))
    # several tensors at once on one thread each: reading and looking at what was read then overlap
    with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for file in sorted(by_file):
            ordered = sorted(by_file[file], key=lambda fill: shards.tensors[fill.source].start)
            for own in {fill.own for fill in ordered} - placed.keys():
                placed[own] = torch.empty(owners[own].shape, dtype=source.dtype_of(own), device=device)
            shards.open(file)
            # all but decays, which may be longer than their place
            source.direct = frozenset(fill.source for fill in ordered if fill.kind in ("", "expert", "bias", "filter"))
            list(pool.map(lambda fill: source.copy(fill, placed[fill.own]), ordered))
            source.look()
            shards.close(file)
    source.direct = frozenset()
    torch.set_num_threads(threads)
    for name, tensor in placed.items():
        put(model, name, tensor)


def _finish(model: Model, device: torch.device, away: tuple[str, ...]) -> None:
    """Buffers that are in no file; then nothing may be left without memory."""
    for module in model.modules():
        if isinstance(module, Router) and module.counts.is_meta:
            module.counts = torch.zeros(module.counts.shape, dtype=torch.int64, device=device)
        rebuild = getattr(module, "rebuild_buffers", None)
        if callable(rebuild):
            rebuild(device)
    for embedder in model.embedders.values():
        if not any(tensor.is_meta for tensor in [*embedder.parameters(), *embedder.buffers()]):
            embedder.to(device)
    empty = [
        name
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]
        if tensor.is_meta and not name.startswith(away or ("\0",))
    ]
    if empty:
        raise CheckpointError(
            f"{len(empty)} tensors of the embedders are in no file and have no values ({shown(empty)}); build those "
            "embedders with their weights, or name their published prefixes in checkpoint_names"
        )

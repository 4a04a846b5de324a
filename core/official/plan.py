"""Which tensor of the files fills which part of which parameter. Made from names and shapes alone, and strict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from torch import nn

from watersmeet.core.errors import CheckpointError
from watersmeet.core.official.config import OfficialConfig
from watersmeet.core.official.names import HEAD, PACKED, SCALE, TABLE, Entry, canonical, entries, shown
from watersmeet.core.official.shards import TORCH_DTYPES, Shards, Stored

BLOCK = 32


@dataclass(frozen=True, kw_only=True)
class Fill:
    """Copy `source` into `own`, or into a slice of it.

    kind: as in `Entry`, besides "mxfp4" (`source` holds codes, `scale` their scales) and "bytes" (codes or scales kept
    as they are). expert, part: the slice of a parameter that holds all experts of a layer.
    """

    own: str
    source: str
    scale: str = ""
    kind: str = ""
    expert: int = -1
    part: str = ""

    @property
    def sources(self) -> tuple[str, ...]:
        """The tensors of the files that are read."""
        return (self.source, self.scale) if self.scale else (self.source,)


@dataclass
class _Problems:
    """Everything that is wrong, by kind, so that one error can say it."""

    found: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, what: str) -> None:
        self.found.setdefault(kind, []).append(what)

    def raise_if_any(self, directory: object) -> None:
        if self.found:
            text = "; ".join(f"{len(names)} tensors {kind} ({shown(names)})" for kind, names in self.found.items())
            raise CheckpointError(f"{directory}: the files do not fit the model of config.json: {text}")


def make_plan(
    shards: Shards,
    official: OfficialConfig,
    embedders: Mapping[str, nn.Module],
    *,
    packed: bool = False,
    skip: Iterable[str] = (),
) -> list[Fill]:
    """Every copy that loading has to make, in no particular order.

    packed: keep MXFP4 experts as codes and scales. skip: prefixes of tensors to leave out on purpose. Raises
    CheckpointError that lists missing, unknown and misshaped tensors and those of a dtype that is no weight's.
    """
    skip = tuple(skip)
    left = {_local(name, official): name for name in shards.tensors if not name.startswith(skip or ("\0",))}
    problems, plan = _Problems(), []
    for entry in entries(official.model):
        if entry.name == TABLE:
            continue  # an embedder's
        fills = _entry(entry, left, shards, packed, problems, official)
        plan += fills
        for fill in fills:
            for source in fill.sources:
                left.pop(_local(source, official), None)
    for fill in list(_embedders(embedders, left, shards, problems, official)):
        plan.append(fill)
        left.pop(_local(fill.source, official), None)
    for name in left.values():
        problems.add("unknown", name)
    problems.raise_if_any(shards.directory)
    if packed and not any(fill.kind == "bytes" for fill in plan):
        raise CheckpointError(
            f"{shards.directory}: no expert is stored as MXFP4 ({PACKED[1:]}), so there is nothing to keep packed"
        )
    return plan


def _local(name: str, official: OfficialConfig) -> str:
    """A name without the prefix of the trunk, in its published spelling; others as they are, behind a mark."""
    if name == official.outer + HEAD:
        return HEAD
    if name.startswith(official.prefix):
        return canonical(name.removeprefix(official.prefix))
    return "/" + name


def _full(entry: Entry, official: OfficialConfig) -> str:
    return (official.outer if entry.name == HEAD else official.prefix) + entry.name


def _entry(
    entry: Entry, left: Mapping[str, str], shards: Shards, packed: bool, problems: _Problems, official: OfficialConfig
) -> list[Fill]:
    if entry.kind == "expert":
        return _expert(entry, left, shards, packed, problems, official)
    source = left.get(entry.name)
    if source is None:
        problems.add("missing", _full(entry, official))
        return []
    stored = shards.tensors[source]
    if not _fits(entry, stored.shape):
        problems.add("of another shape", f"{source} {list(stored.shape)} instead of {list(entry.shape)}")
    _check_dtype(source, stored, problems)
    return [Fill(own=entry.name, source=source, kind=entry.kind)]


def _fits(entry: Entry, shape: tuple[int, ...]) -> bool:
    if entry.kind == "decay":
        # one value a head behind axes of one, or a flat list that may be longer
        size = max(shape, default=1)
        count = 1
        for n in shape:
            count *= n
        return count == size and (size == entry.shape[0] or (len(shape) == 1 and size >= entry.shape[0]))
    if entry.kind == "filter":
        return shape in (entry.shape, (entry.shape[0], entry.shape[2]))
    return shape == entry.shape


def _check_dtype(name: str, stored: Stored, problems: _Problems) -> None:
    if stored.dtype not in TORCH_DTYPES:
        problems.add("of a dtype that is no weight's", f"{name} {stored.dtype}")


def _expert(
    entry: Entry, left: Mapping[str, str], shards: Shards, packed: bool, problems: _Problems, official: OfficialConfig
) -> list[Fill]:
    """The matrix of one expert: plain, or codes with scales; which of the two the names say."""
    own = f"{entry.module}.{'w2' if entry.part == 'w2' else 'w13'}"
    stem = entry.name.removesuffix(".weight")
    plain, codes, scale = (left.get(stem + ending) for ending in (".weight", PACKED, SCALE))
    if codes is None and scale is None:
        if plain is None:
            problems.add("missing", _full(entry, official))
            return []
        stored = shards.tensors[plain]
        if stored.shape != entry.shape:
            problems.add("of another shape", f"{plain} {list(stored.shape)} instead of {list(entry.shape)}")
        _check_dtype(plain, stored, problems)
        return [Fill(own=own, source=plain, kind="expert", expert=entry.expert, part=entry.part)]
    if codes is None or scale is None:
        problems.add("missing", official.prefix + stem + (PACKED if codes is None else SCALE))
        return []
    if plain is not None:
        problems.add("stored both plain and packed", plain)
        return []
    rows, columns = entry.shape
    for name, width in ((codes, columns // 2), (scale, columns // BLOCK)):
        stored = shards.tensors[name]
        if stored.dtype != "U8":
            problems.add("of another dtype than U8", f"{name} {stored.dtype}")
        if stored.shape != (rows, width) or columns % BLOCK:
            problems.add("of another shape", f"{name} {list(stored.shape)} instead of {[rows, width]}")
    if packed:
        both = {"expert": entry.expert, "part": entry.part, "kind": "bytes"}
        return [Fill(own=own + "_packed", source=codes, **both), Fill(own=own + "_scale", source=scale, **both)]  # type: ignore[arg-type]
    return [Fill(own=own, source=codes, scale=scale, kind="mxfp4", expert=entry.expert, part=entry.part)]


def _embedders(
    embedders: Mapping[str, nn.Module],
    left: Mapping[str, str],
    shards: Shards,
    problems: _Problems,
    official: OfficialConfig,
) -> Iterator[Fill]:
    """What the embedders take: they name prefixes of published names themselves, in `checkpoint_names`."""
    for name, embedder in embedders.items():
        wanted = {key: tuple(tensor.shape) for key, tensor in embedder.state_dict().items()}
        for published, own in getattr(embedder, "checkpoint_names", {}).items():
            for local, full in left.items():
                bare = local.removeprefix("/")
                if not bare.startswith(published):
                    continue
                key = own + bare.removeprefix(published)
                if key not in wanted:
                    problems.add("unknown", full)
                    continue
                shape = shards.tensors[full].shape
                if shape != wanted.pop(key):
                    problems.add("of another shape", f"{full} {list(shape)}, which {name} reads differently")
                _check_dtype(full, shards.tensors[full], problems)
                yield Fill(own=f"embedders.{name}.{key}", source=full)
            for key in [key for key in wanted if key.startswith(own)]:
                place = official.prefix if published + key.removeprefix(own) == TABLE else ""
                problems.add("missing", place + published + key.removeprefix(own))

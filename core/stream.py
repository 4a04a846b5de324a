"""The one data structure: typed spans, streams of spans, and many streams packed end to end.

Legend of shapes: n tokens of one span or segment; k coordinates per token; T tokens of a packed batch; N streams.

A span's `n` is the only count there is. Every column must agree with it or construction fails, so a prompt and its
media cannot fall out of step. Nothing is padded: `Packed.cu_seqlens` alone says where one stream ends.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch

from watersmeet.core.errors import WatersmeetError

NO_TARGET = -100
"""Target id that means "no loss here", the value `torch.nn.functional.cross_entropy` ignores."""

KEY_BYTES = 32


class StreamError(WatersmeetError, ValueError):
    """Columns of a span, or spans of a batch, do not fit together."""


def _feed(digest: Any, part: Any) -> None:
    """Add one value to the digest with a type tag and a length, so that no two different values collide."""
    if part is None:
        tag, raw = b"N", b""
    elif isinstance(part, bool):
        tag, raw = b"B", bytes([part])
    elif isinstance(part, int):
        tag, raw = b"I", str(part).encode()
    elif isinstance(part, float):
        tag, raw = b"F", struct.pack(">d", part)
    elif isinstance(part, str):
        tag, raw = b"S", part.encode("utf-8", "surrogatepass")
    elif isinstance(part, (bytes, bytearray, memoryview)):
        tag, raw = b"Y", bytes(part)
    elif isinstance(part, torch.Tensor):
        flat = part.detach().cpu().contiguous()
        head = f"{flat.dtype}{tuple(flat.shape)}".encode()
        tag, raw = b"T", head + b"\0" + flat.reshape(-1).view(torch.uint8).numpy().tobytes()
    elif isinstance(part, Mapping):
        pairs = sorted(part.items(), key=lambda pair: str(pair[0]))
        digest.update(b"D" + struct.pack(">Q", len(pairs)))
        for name, value in pairs:
            _feed(digest, str(name))
            _feed(digest, value)
        return
    elif isinstance(part, (list, tuple)):
        digest.update(b"L" + struct.pack(">Q", len(part)))
        for value in part:
            _feed(digest, value)
        return
    elif hasattr(part, "__array_interface__"):
        _feed(digest, torch.as_tensor(part))
        return
    else:
        raise TypeError(
            f"content_key cannot hash a {type(part).__name__}; pass bytes, text, numbers or containers of them"
        )
    digest.update(tag + struct.pack(">Q", len(raw)) + raw)


def content_key(*parts: Any) -> bytes:
    """32-byte SHA-256 of nested plain values, arrays and tensors; the cache key of a span.

    Equal values give equal keys in every process. Dict order does not matter, types and lengths do. Encoders pass
    canonical content, plugin name, plugin version and settings.
    """
    digest = hashlib.sha256()
    _feed(digest, list(parts))
    return digest.digest()


def _check_column(span: str, name: str, value: Any, n: int, dtype: torch.dtype, dims: int) -> None:
    if not isinstance(value, torch.Tensor):
        raise StreamError(f"{span}: column {name} is a {type(value).__name__}, expected a torch.Tensor")
    if value.dtype != dtype:
        raise StreamError(f"{span}: column {name} has dtype {value.dtype}, expected {dtype}")
    if value.ndim != dims:
        raise StreamError(f"{span}: column {name} has shape {tuple(value.shape)}, expected {dims} dimension(s)")
    if value.shape[0] != n:
        raise StreamError(f"{span}: column {name} has {value.shape[0]} rows but column data has {n}")


@dataclass(frozen=True, kw_only=True, eq=False)
class Span:
    """Tokens of one modality that stand next to each other in a stream.

    data      [n, ...] any dtype; what the modality's embedder reads. Its first dimension is the length of the span.
    coords    [n, k] int64 position of each token inside its item (k may be 0); default [n, 0]
    time_us   [n] int64 microseconds on the media's own clock, or None where time has no meaning
    block     [n] int64; -1 is causal; tokens of *this span* with one value >= 0 see each other both ways in
              full-attention layers. Values are local to the span: `pack` keeps those of different spans apart.
    targets   [n] int64 id that the position must predict (the NEXT token's id), -100 for no loss; None: no loss at all
    weight    [n] float32 weight of each position's loss, default 1
    key       32 bytes, see `content_key`
    source    () or one entry a token: where it came from (byte range, box, time range), plain values

    Raises StreamError naming the columns and the numbers that disagree.
    """

    modality: str
    data: torch.Tensor
    coords: torch.Tensor = None  # type: ignore[assignment]  # filled in below; never None afterwards
    time_us: torch.Tensor | None = None
    block: torch.Tensor = None  # type: ignore[assignment]
    targets: torch.Tensor | None = None
    weight: torch.Tensor = None  # type: ignore[assignment]
    key: bytes
    source: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.modality, str) or not self.modality:
            raise StreamError(f"span: modality is {self.modality!r}, expected a non-empty string")
        name = f"span of modality {self.modality!r}"
        if not isinstance(self.data, torch.Tensor) or self.data.ndim < 1:
            shape = tuple(self.data.shape) if isinstance(self.data, torch.Tensor) else type(self.data).__name__
            raise StreamError(f"{name}: column data is {shape}, expected a tensor [n, ...] with at least one dimension")
        n = self.data.shape[0]
        if self.coords is None:
            object.__setattr__(self, "coords", torch.zeros(n, 0, dtype=torch.int64))
        if self.block is None:
            object.__setattr__(self, "block", torch.full((n,), -1, dtype=torch.int64))
        if self.weight is None:
            object.__setattr__(self, "weight", torch.ones(n, dtype=torch.float32))
        _check_column(name, "coords", self.coords, n, torch.int64, 2)
        _check_column(name, "block", self.block, n, torch.int64, 1)
        _check_column(name, "weight", self.weight, n, torch.float32, 1)
        if self.time_us is not None:
            _check_column(name, "time_us", self.time_us, n, torch.int64, 1)
        if self.targets is not None:
            _check_column(name, "targets", self.targets, n, torch.int64, 1)
        if not isinstance(self.key, bytes) or len(self.key) != KEY_BYTES:
            found = f"{len(self.key)} bytes" if isinstance(self.key, bytes) else type(self.key).__name__
            raise StreamError(f"{name}: key is {found}, expected {KEY_BYTES} bytes from content_key(...)")
        if len(self.source) not in (0, n):
            raise StreamError(f"{name}: column source has {len(self.source)} entries but column data has {n}")

    @property
    def n(self) -> int:
        """Number of tokens."""
        return self.data.shape[0]


@dataclass(frozen=True, kw_only=True, eq=False)
class Stream:
    """The spans of one sample, in order."""

    spans: tuple[Span, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "spans", tuple(self.spans))
        for index, span in enumerate(self.spans):
            if not isinstance(span, Span):
                raise StreamError(f"stream: spans[{index}] is a {type(span).__name__}, expected a Span")

    @property
    def n(self) -> int:
        """Number of tokens over all spans."""
        return sum(span.n for span in self.spans)

    @property
    def key(self) -> bytes:
        """Key of the whole stream: the spans' keys and lengths chained in order."""
        return content_key([(span.modality, span.n, span.key) for span in self.spans])


@dataclass(frozen=True, kw_only=True, eq=False)
class Segment:
    """All tokens of one modality in a packed batch: what its embedder reads, and where the results go.

    data [n, ...], coords [n, k] int64, time_us [n] int64 | None, positions [n] int64 indices into 0..T-1 (rising).
    """

    modality: str
    data: torch.Tensor
    coords: torch.Tensor
    time_us: torch.Tensor | None
    positions: torch.Tensor

    @property
    def n(self) -> int:
        """Number of tokens."""
        return self.data.shape[0]


@dataclass(frozen=True, kw_only=True, eq=False)
class Packed:
    """Many streams laid end to end; what the model reads. Never padded.

    segments        one per modality that occurs, in the order of `modality_names`
    cu_seqlens      [N+1] int32 cumulative lengths; the only source of stream boundaries
    T               total number of tokens
    targets         [T] int64, -100 where nothing is to be predicted
    weight          [T] float32, 0 wherever targets is -100
    block           [T] int64, -1 causal, values >= 0 unique over the whole batch
    modality_ids    [T] int64 index into `modality_names`
    """

    segments: tuple[Segment, ...]
    cu_seqlens: torch.Tensor
    T: int
    targets: torch.Tensor
    weight: torch.Tensor
    block: torch.Tensor
    modality_ids: torch.Tensor
    modality_names: tuple[str, ...] = field(default=())

    @property
    def num_streams(self) -> int:
        """N, the number of streams."""
        return self.cu_seqlens.shape[0] - 1

    def segment(self, modality: str) -> Segment | None:
        """The segment of one modality, or None when no token of it is present."""
        return next((segment for segment in self.segments if segment.modality == modality), None)

    def to(self, device: torch.device | str) -> Packed:
        """The same batch with every tensor on `device`."""

        def move(value: Any) -> Any:
            return value.to(device, non_blocking=True) if isinstance(value, torch.Tensor) else value

        segments = tuple(
            Segment(**{item.name: move(getattr(segment, item.name)) for item in fields(Segment)})
            for segment in self.segments
        )
        moved = {item.name: move(getattr(self, item.name)) for item in fields(Packed) if item.name != "segments"}
        return Packed(segments=segments, **moved)


def _segment(modality: str, placed: list[tuple[int, int, int, Span]]) -> Segment:
    """Join the spans of one modality; `placed` holds (stream index, span index, first position, span)."""
    stream0, span0, _, first = placed[0]
    for stream, index, _, span in placed[1:]:
        where = f"modality {modality!r}: stream {stream} span {index}"
        other = f"stream {stream0} span {span0}"
        if span.data.shape[1:] != first.data.shape[1:] or span.data.dtype != first.data.dtype:
            raise StreamError(
                f"{where} has data {tuple(span.data.shape[1:])} {span.data.dtype} a token but {other} has "
                f"{tuple(first.data.shape[1:])} {first.data.dtype}; encode both with the same settings"
            )
        if span.coords.shape[1] != first.coords.shape[1]:
            raise StreamError(
                f"{where} has {span.coords.shape[1]} coordinates a token but {other} has {first.coords.shape[1]}"
            )
        if (span.time_us is None) != (first.time_us is None):
            lacking, having = (where, other) if span.time_us is None else (other, where)
            raise StreamError(
                f"modality {modality!r}: column time_us is None in {lacking.removeprefix(f'modality {modality!r}: ')} "
                f"but given in {having.removeprefix(f'modality {modality!r}: ')}; give every span a time or none"
            )
    times = [span.time_us for *_, span in placed if span.time_us is not None]
    return Segment(
        modality=modality,
        data=torch.cat([span.data for *_, span in placed]),
        coords=torch.cat([span.coords for *_, span in placed]),
        time_us=torch.cat(times) if times else None,
        positions=torch.cat([torch.arange(start, start + span.n) for _, _, start, span in placed]),
    )


def _pack_block(block: torch.Tensor, base: int) -> tuple[torch.Tensor, int]:
    """Give the span's blocks ids that start at `base`, so that no two spans share one; returns the next base."""
    both_ways = block >= 0
    if not bool(both_ways.any()):
        return block, base
    values, dense = torch.unique(block[both_ways], return_inverse=True)
    packed = torch.full_like(block, -1)
    packed[both_ways] = dense + base
    return packed, base + len(values)


def pack(streams: Iterable[Stream], modality_names: Sequence[str] | None = None) -> Packed:
    """Lay streams end to end into one batch.

    `modality_names` fixes the numbering of `modality_ids`; by default the names that occur, sorted. Raises
    StreamError for no streams, an empty stream, a modality outside `modality_names`, or spans of one modality that
    disagree in shape, dtype, number of coordinates, or in whether they carry time.
    """
    streams = list(streams)
    if not streams:
        raise StreamError("pack got 0 streams, expected at least 1")
    for index, stream in enumerate(streams):
        if stream.n == 0:
            raise StreamError(f"pack: stream {index} has 0 tokens; leave empty streams out")
    present = {span.modality for stream in streams for span in stream.spans}
    names = tuple(sorted(present)) if modality_names is None else tuple(modality_names)
    if len(set(names)) != len(names):
        raise StreamError(f"pack: modality_names {names} names one modality twice")
    if unknown := sorted(present - set(names)):
        raise StreamError(
            f"pack: modality {unknown[0]!r} is not among the modalities of this model: {', '.join(names)}"
        )

    placed: dict[str, list[tuple[int, int, int, Span]]] = {}
    columns: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]] = []
    lengths, position, next_block = [0], 0, 0
    for stream_index, stream in enumerate(streams):
        for span_index, span in enumerate(stream.spans):
            if span.n == 0:
                continue
            placed.setdefault(span.modality, []).append((stream_index, span_index, position, span))
            targets = torch.full((span.n,), NO_TARGET) if span.targets is None else span.targets
            weight = torch.where(targets == NO_TARGET, 0.0, span.weight)
            block, next_block = _pack_block(span.block, next_block)
            columns.append((targets, weight, block, torch.full((span.n,), names.index(span.modality))))
            position += span.n
        lengths.append(position)
    targets_T, weight_T, block_T, ids_T = (torch.cat(column) for column in zip(*columns, strict=True))
    return Packed(
        segments=tuple(_segment(name, placed[name]) for name in names if name in placed),
        cu_seqlens=torch.tensor(lengths, dtype=torch.int32),
        T=position,
        targets=targets_T,
        weight=weight_T,
        block=block_T,
        modality_ids=ids_T,
        modality_names=names,
    )


def pick(packed: Packed, keep_N: torch.Tensor, modality_names: Sequence[str]) -> tuple[Packed, torch.Tensor]:
    """(the batch of those streams of `packed` that `keep_N` [N] bool names, [t] int64: where its tokens were).

    `modality_names` numbers the modalities anew. Raises StreamError for no stream, or a modality outside of the names.
    """
    if not bool(keep_N.any()):
        raise StreamError("pick got 0 streams, expected at least 1")
    lengths_N = packed.cu_seqlens.diff().to(torch.int64)
    kept_T = torch.repeat_interleave(keep_N, lengths_N, output_size=packed.T)
    where_t = kept_T.nonzero().squeeze(1)
    place_T = kept_T.to(torch.int64).cumsum(0) - 1
    names = tuple(modality_names)
    segments = {}
    for segment in packed.segments:
        mine = kept_T[segment.positions]
        if not bool(mine.any()):
            continue
        if segment.modality not in names:
            raise StreamError(f"pick: modality {segment.modality!r} is not among {', '.join(names)}")
        segments[segment.modality] = Segment(
            modality=segment.modality,
            data=segment.data[mine],
            coords=segment.coords[mine],
            time_us=None if segment.time_us is None else segment.time_us[mine],
            positions=place_T[segment.positions[mine]],
        )
    number = torch.tensor([names.index(name) if name in names else -1 for name in packed.modality_names])
    bounds = torch.cat([lengths_N.new_zeros(1), lengths_N[keep_N].cumsum(0)])
    out = Packed(
        segments=tuple(segments[name] for name in names if name in segments),
        cu_seqlens=bounds.to(packed.cu_seqlens.dtype),
        T=len(where_t),
        targets=packed.targets[where_t],
        weight=packed.weight[where_t],
        block=packed.block[where_t],
        modality_ids=number.to(where_t.device)[packed.modality_ids[where_t]],
        modality_names=names,
    )
    return out, where_t


def supervise(spans: Sequence[Span], learn: Sequence[bool]) -> Stream:
    """Stream in which every token of the spans marked True in `learn` must be predicted by the position before it.

    Spans to learn must hold int64 ids [n]. The position before may belong to another modality: the last token of a
    prompt predicts the first token of the answer. The very first token of a stream cannot be predicted.
    """
    if len(spans) != len(learn):
        raise StreamError(f"supervise got {len(spans)} spans but {len(learn)} learn flags")
    following = []
    for index, (span, wanted) in enumerate(zip(spans, learn, strict=True)):
        if wanted and (span.data.dtype != torch.int64 or span.data.ndim != 1):
            raise StreamError(
                f"supervise: span {index} of modality {span.modality!r} has data {tuple(span.data.shape)} "
                f"{span.data.dtype}; only int64 ids [n] can be predicted"
            )
        following.append(span.data if wanted else torch.full((span.n,), NO_TARGET))
    # the id at position i + 1 is the target of position i; the end of the stream predicts nothing
    next_T = torch.cat([*following, torch.tensor([NO_TARGET])])[1:] if following else torch.empty(0, dtype=torch.int64)
    parts = torch.split(next_T, [span.n for span in spans]) if spans else ()
    return Stream(spans=tuple(replace(span, targets=part) for span, part in zip(spans, parts, strict=True)))

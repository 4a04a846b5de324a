"""From a dataset to batches of exactly T positions, with a cursor that can be written down.

Samples are atomic: a batch holds whole samples or none of them. What is left of T is filled by one last sequence of
weight zero, so that every batch has the same total length and the CPU's matmul primitives are built once.

The order is a function of (seed, epoch) and a sample of (seed, epoch, index), so the cursor is a few integers plus the
indices that wait in the pool, whatever the position in the run. It is absolute: resuming twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from watersmeet.core.errors import ConfigError, DecodeError, WatersmeetError
from watersmeet.core.stream import NO_TARGET, Packed, Span, Stream, content_key, pack

FRUITLESS = 1000
"""Samples without a usable one among them after which one of several processes gives up."""


@runtime_checkable
class Dataset(Protocol):
    """What the trainer reads. `sample` is pure: the same index and generator state give the same stream.

    It may raise DecodeError: the sample is then counted and named in the log, never replaced by another one. A dataset
    may have `row_name(index) -> str`, e.g. file and line, which errors about a batch then use.
    """

    def __len__(self) -> int: ...

    def sample(self, index: int, rng: np.random.Generator) -> Stream: ...


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One packed batch. Positions from `real_tokens` on are filling; `cursor` is the packer's state after it."""

    packed: Packed
    real_tokens: int
    samples: tuple[tuple[int, int], ...]
    cursor: Mapping[str, Any] = field(repr=False)
    bad: tuple[str, ...] = ()


def filling(like: Span, n: int) -> Stream:
    """A stream of `n` tokens without loss, of the modality, dtype and columns of `like`, all zeros."""
    data = torch.zeros((n, *like.data.shape[1:]), dtype=like.data.dtype)
    span = Span(
        modality=like.modality,
        data=data,
        coords=torch.zeros((n, like.coords.shape[1]), dtype=torch.int64),
        time_us=None if like.time_us is None else torch.zeros(n, dtype=torch.int64),
        targets=torch.full((n,), NO_TARGET),
        weight=torch.zeros(n),
        key=content_key("filling", like.modality, n),
    )
    return Stream(spans=(span,))


def sample_order(
    seed: int, epoch: int, count: int, *, rank: int = 0, world: int = 1, shuffle: bool = True
) -> np.ndarray:
    """Indices of one epoch in the order of this rank; every rank gets equally many (up to one)."""
    order = np.random.default_rng([seed, epoch, 0]).permutation(count) if shuffle else np.arange(count)
    return order[rank::world]


def refuse_if_rotten(seen: int, bad: int, most: float, last: str) -> None:
    """Raise WatersmeetError when more than the fraction `most` of the samples seen could not be read; `last` names one."""
    if seen >= 20 and bad > most * seen:
        raise WatersmeetError(
            f"data: {bad} of {seen} samples could not be read, more than batch.max_bad_fraction {most}; last one: {last}"
        )


class Packer:
    """Batches of exactly `tokens` positions, without end unless `repeat` is False.

    A pool of `pool` samples waits. A batch takes the oldest sample first (so nothing waits for ever), then again and
    again the longest one that still fits.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        tokens: int,
        fill_modality: str,
        modality_names: tuple[str, ...] | None = None,
        pool: int = 32,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        shuffle: bool = True,
        repeat: bool = True,
        max_bad_fraction: float = 0.05,
    ) -> None:
        if len(dataset) < world:
            raise ConfigError(f"dataset has {len(dataset)} sample(s), expected at least {world} (one a process)")
        self.dataset, self.tokens, self.pool_size = dataset, tokens, pool
        self.fill_modality, self.modality_names = fill_modality, modality_names
        self.seed, self.rank, self.world, self.shuffle = seed, rank, world, shuffle
        self.repeat = repeat
        self.max_bad_fraction = max_bad_fraction
        self.epoch, self.position = 0, 0
        self.counts = {"samples": 0, "too_long": 0, "bad": 0}
        self._pool: list[tuple[int, int, Stream]] = []
        self._order = self._epoch_order()
        self._like: Span | None = None
        self._bad: list[str] = []

    def _epoch_order(self) -> np.ndarray:
        return sample_order(
            self.seed, self.epoch, len(self.dataset), rank=self.rank, world=self.world, shuffle=self.shuffle
        )

    def state(self) -> dict[str, Any]:
        """The cursor as JSON values."""
        waiting = [[epoch, index] for epoch, index, _ in self._pool]
        return {"epoch": self.epoch, "position": self.position, "waiting": waiting, "counts": dict(self.counts)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue after the batch that `state` belongs to."""
        self.epoch, self.position = int(state["epoch"]), int(state["position"])
        self.counts = dict(state["counts"])
        self._order = self._epoch_order()
        self._pool = [(epoch, index, self._read(epoch, index)) for epoch, index in state["waiting"]]

    def _read(self, epoch: int, index: int) -> Stream:
        return self.dataset.sample(int(index), np.random.default_rng([self.seed, epoch, 1, int(index)]))

    def _refill(self) -> None:
        fruitless = 0
        while len(self._pool) < self.pool_size:
            if self.position >= len(self._order):
                if not self.repeat:
                    return
                self.epoch, self.position = self.epoch + 1, 0
                self._order = self._epoch_order()
            index = int(self._order[self.position])
            self.position += 1
            self.counts["samples"] += 1
            fruitless += 1
            try:
                stream = self._read(self.epoch, index)
            except DecodeError as error:
                self.counts["bad"] += 1
                self._bad.append(f"sample {index}: {error}")
                if self.world == 1:  # of several processes none knows what the others read: the trainer counts for all
                    refuse_if_rotten(self.counts["samples"], self.counts["bad"], self.max_bad_fraction, self._bad[-1])
            else:
                if 0 < stream.n <= self.tokens:
                    self._pool.append((self.epoch, index, stream))
                    fruitless = 0
                else:
                    self.counts["too_long"] += 1
            # other processes wait meanwhile
            if fruitless > (len(self._order) if self.world == 1 else min(len(self._order), FRUITLESS)):
                raise WatersmeetError(
                    f"data: no usable sample among {fruitless - 1} (too long for {self.tokens} tokens: "
                    f"{self.counts['too_long']}, unreadable: {self.counts['bad']}); raise batch.tokens or check the data"
                )

    def _fill_like(self, streams: list[Stream]) -> Span:
        """The span whose columns the filling copies; the first of the wanted modality that was ever seen."""
        if self._like is None:
            spans = [span for stream in streams for span in stream.spans if span.n]
            wanted = [span for span in spans if span.modality == self.fill_modality]
            if not wanted:
                return spans[0]
            self._like = wanted[0]
        return self._like

    def next_batch(self) -> Batch:
        """The next batch; StopIteration after the last one without `repeat`.

        Raises WatersmeetError when the data holds nothing usable or too much that is unreadable.
        """
        self._refill()
        if not self._pool:
            raise StopIteration
        taken = [self._pool.pop(0)]
        room = self.tokens - taken[0][2].n
        while True:
            fitting = [place for place, (_, _, stream) in enumerate(self._pool) if stream.n <= room]
            if not fitting:
                break
            best = max(fitting, key=lambda place: (self._pool[place][2].n, -place))
            taken.append(self._pool.pop(best))
            room -= taken[-1][2].n
        streams = [stream for _, _, stream in taken]
        if room:
            streams.append(filling(self._fill_like(streams), room))
        bad, self._bad = tuple(self._bad), []
        return Batch(
            packed=pack(streams, self.modality_names),
            real_tokens=self.tokens - room,
            samples=tuple((epoch, index) for epoch, index, _ in taken),
            cursor=self.state(),
            bad=bad,
        )


def fixed_batches(dataset: Dataset, count: int, **options: Any) -> Iterator[Batch]:
    """The same (at most) `count` batches at every call, in the dataset's order, each sample once; for evaluation."""
    packer = Packer(dataset, shuffle=False, repeat=False, **options)
    for _ in range(count):
        try:
            yield packer.next_batch()
        except StopIteration:
            return

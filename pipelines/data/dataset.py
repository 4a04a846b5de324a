"""Samples on disk as streams to train on. Legend: n tokens of a span, P patches, F feature columns of a region."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from watersmeet.core.stream import Span, Stream, content_key, supervise
from watersmeet.pipelines.data.samples import DataError, encoders
from watersmeet.pipelines.layout import markup


@dataclass(frozen=True, kw_only=True)
class Augment:
    """How a training sample is varied; all probabilities."""

    worn: float = 0.6  # regions of a worse reader
    blank: float = 0.08  # no picture
    colour: float = 0.7  # other brightness, contrast and tint of the picture
    offset: float = 0.7  # reference numbers start somewhere else, so that every number is learnt
    max_colour: float = 0.18


class _Chunk:
    """One folder of samples; arrays are mapped, not read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def patches(self) -> np.ndarray:
        return np.load(self.path / "patches.npy", mmap_mode="r")

    @cached_property
    def regions(self) -> np.ndarray:
        return np.load(self.path / "regions.npy", mmap_mode="r")

    @cached_property
    def symbols(self) -> np.ndarray:
        return np.load(self.path / "symbols.npy", mmap_mode="r")


class LayoutDataset:
    """Samples below `path`: `sample(index, rng)` gives picture patches, regions and the markup to learn.

    `split` "train" varies samples by `augment`; any other gives each sample as it is. Views that show the same lines as
    an earlier one are left out, and so are those with more than `max_tokens` tokens. `limit` keeps the first so many.
    `vocabulary` is a sentencepiece model that stands in for that of layout models and has all of its symbols.
    Raises DataError when there is nothing below `path`, or when it was made with other encoder settings.
    """

    def __init__(
        self,
        path: str | Path,
        split: str = "train",
        *,
        augment: Augment | None = None,
        max_tokens: int = 2048,
        limit: int | None = None,
        vocabulary: bytes | None = None,
    ) -> None:
        self.path, self.split = Path(path), split
        self.augment = (augment or Augment()) if split == "train" else None
        self.encoders = encoders(vocabulary)
        self.entries: list[tuple[_Chunk, dict[str, Any]]] = []
        self.dropped = {"duplicate": 0, "too long": 0}
        self._read(max_tokens)
        if limit is not None:
            del self.entries[limit:]
        if not self.entries:
            raise DataError(f"{self.path} holds no samples; make some with `watersmeet data build`")
        text = self.encoders["text"]
        named = markup.symbols()
        self._ids = text.encode_markup(named).data
        self._open = text.encode_markup([markup.OPEN])
        self._end = int(text.encode_markup(["</s>"]).data[0])
        where = {symbol: i for i, symbol in enumerate(named)}
        self._t0, self._s0 = where["<t0>"], where["<s0>"]

    def _read(self, max_tokens: int) -> None:
        seen: set[str] = set()
        for index_file in sorted(self.path.glob("chunk-*/index.json")):
            index = json.loads(index_file.read_text("utf-8"))
            for name, settings in index["settings"].items():
                # answers are stored by name, so the ids of a vocabulary may change
                if name != "text" and settings != json.loads(json.dumps(self.encoders[name].settings)):
                    raise DataError(
                        f"{index_file.parent} was made with other settings of the {name} encoder; build the samples again"
                    )
            chunk = _Chunk(index_file.parent)
            for entry in index["samples"]:
                longest = max(r + m for _, r, _, m in entry["variants"]) + entry["patches"][1] + 2
                if entry["digest"] in seen:
                    self.dropped["duplicate"] += 1
                elif longest > max_tokens:
                    self.dropped["too long"] += 1
                else:
                    seen.add(entry["digest"])
                    self.entries.append((chunk, entry))

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def modalities(self) -> dict[str, dict[str, Any]]:
        """Settings of the modalities that occur, by name."""
        return {name: self.encoders[name].settings for name in ("image", "regions", "text")}

    @property
    def files(self) -> dict[str, bytes]:
        """Files to keep beside weights: the tokenizer's model."""
        return dict(self.encoders["text"].files)

    @property
    def vocab_size(self) -> int:
        return int(self.encoders["text"].vocab_size)

    @property
    def pad_id(self) -> int:
        return self._end

    def sample(self, index: int, rng: np.random.Generator) -> Stream:
        """Stream of sample `index`: picture span (unless blanked), regions span, text span with the markup as targets.

        Pure: the same index and state of `rng` give the same stream.
        """
        chunk, entry = self.entries[index]
        how = self.augment
        variant = 0
        if how is not None and len(entry["variants"]) > 1 and rng.random() < how.worn:
            variant = int(rng.integers(1, len(entry["variants"])))
        r0, rn, m0, mn = entry["variants"][variant]
        rows = torch.from_numpy(chunk.regions[r0 : r0 + rn].astype(np.int64))
        data, coords = rows[:, :-4].contiguous(), rows[:, -4:].contiguous()
        symbols = chunk.symbols[m0 : m0 + mn].astype(np.int64)
        if how is not None and hasattr(self.encoders["regions"], "shift") and rng.random() < how.offset:
            k, m = int(rng.integers(markup.MAX_TEXTS)), int(rng.integers(markup.MAX_SHAPES))
            data = self.encoders["regions"].shift(data, k, m)
            symbols = _shift(_shift(symbols, self._t0, markup.MAX_TEXTS, k), self._s0, markup.MAX_SHAPES, m)
        key = content_key("layout sample", entry["id"], variant, self.split, index)
        spans: list[Span] = []
        if how is None or rng.random() >= how.blank:
            spans.append(self._picture(chunk, entry, rng, key))
        spans.append(Span(modality="regions", data=data, coords=coords, key=key))
        answer = torch.cat([self._ids[torch.from_numpy(symbols)], torch.tensor([self._end])])
        return supervise(
            [*spans, self._open, self.encoders["text"].span_of_ids(answer.tolist())],
            [False] * (len(spans) + 1) + [True],
        )

    def _picture(self, chunk: _Chunk, entry: dict[str, Any], rng: np.random.Generator, key: bytes) -> Span:
        first, count = entry["patches"]
        patches = np.array(chunk.patches[first : first + count])
        how = self.augment
        if how is not None and rng.random() < how.colour:
            patches = recolour(patches, rng, how.max_colour)
        rows, columns = entry["grid"]
        coords = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).reshape(-1, 2)
        return Span(modality="image", data=torch.from_numpy(patches), coords=coords, key=key)

    def markup_of(self, stream: Stream) -> list[str]:
        """The markup symbols that a stream of this set teaches, read back from its targets."""
        names = {int(i): symbol for i, symbol in zip(self._ids.tolist(), markup.symbols(), strict=True)}
        out: list[int] = []
        for span in stream.spans:
            if span.targets is not None:
                out += [int(t) for t in span.targets if int(t) >= 0]
        return [names[i] for i in out if i != self._end]


def _shift(symbols: np.ndarray, first: int, count: int, by: int) -> np.ndarray:
    """References `first`..`first + count - 1` moved on by `by`, around the end."""
    inside = (symbols >= first) & (symbols < first + count)
    return np.where(inside, first + (symbols - first + by) % count, symbols)


def recolour(patches: np.ndarray, rng: np.random.Generator, strength: float) -> np.ndarray:
    """Patches [n, p * p * 3] uint8 with another brightness, contrast and tint, through one table a channel."""
    levels = np.arange(256, dtype=np.float32)
    gain = 1 + rng.uniform(-strength, strength)
    lift = rng.uniform(-strength, strength) * 128
    tint = rng.uniform(-strength, strength, 3) * 80
    out = patches.reshape(-1, 3)
    tables = [np.clip((levels - 128) * gain + 128 + lift + t, 0, 255).astype(np.uint8) for t in tint]
    return np.stack([table[out[:, c]] for c, table in enumerate(tables)], axis=1).reshape(patches.shape)


def open_dataset(
    split: str, *, path: str, val_path: str | None = None, val_limit: int = 200, **options: Any
) -> LayoutDataset:
    """The set of a training recipe: `path` for "train", `val_path` (or the end of nothing) for "val"."""
    if split == "train":
        return LayoutDataset(path, "train", **options)
    if val_path is None:
        raise DataError("the recipe names no val_path, expected a folder of samples of the validation packages")
    return LayoutDataset(val_path, "val", limit=val_limit)

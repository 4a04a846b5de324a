"""`--dry-run`: what a training run would learn, from how much, by what, for how long; nothing is trained or written."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from watersmeet.core.errors import DecodeError, WatersmeetError
from watersmeet.core.stream import NO_TARGET, Stream
from watersmeet.core.training.freeze import train_only
from watersmeet.core.training.groups import group_table, plan_parameters
from watersmeet.core.training.precision import DTYPES

if TYPE_CHECKING:
    from watersmeet.core.model.model import Model
    from watersmeet.core.training.config import TrainConfig
    from watersmeet.core.training.packing import Dataset

_LOOKED_AT = 200
_SHOWN = 5
_OPEN, _CLOSE = "\N{LEFT-POINTING DOUBLE ANGLE QUOTATION MARK}", "\N{RIGHT-POINTING DOUBLE ANGLE QUOTATION MARK}"
_MOST_CHARACTERS = 600

Pieces = list[tuple[str, bool]]
"""Texts in order, and whether each is learnt."""


def mask_pieces(stream: Stream, vocabulary: Any) -> Pieces:
    """The words of a stream as its own targets say they are learnt; media as their number of tokens.

    vocabulary: of what the model writes; None shows ids.
    """
    pieces: list[tuple[list[int] | str, bool]] = []
    learnt_next = False  # the first token of a stream is predicted from nowhere
    for span in stream.spans:
        targets = [NO_TARGET] * span.n if span.targets is None else span.targets.tolist()
        wanted = [learnt_next, *[target != NO_TARGET for target in targets]]
        learnt_next = wanted.pop()
        if span.data.dtype != torch.int64 or span.data.ndim != 1:
            pieces.append((f"[{span.modality}: {span.n} tokens]", False))
            continue
        for index, learnt in zip(span.data.tolist(), wanted, strict=True):
            if not pieces or isinstance(pieces[-1][0], str) or pieces[-1][1] != learnt:
                pieces.append(([], learnt))
            run = pieces[-1][0]
            assert isinstance(run, list)
            run.append(index)
    return [(run if isinstance(run, str) else _words(run, vocabulary), learnt) for run, learnt in pieces]


def _words(ids: list[int], vocabulary: Any) -> str:
    if vocabulary is None:
        return " ".join(map(str, ids))
    out, run = [], bytearray()
    for index in ids:
        if vocabulary.token_bytes[index]:
            run += vocabulary.token_bytes[index]
            continue
        out += [run.decode("utf-8", "replace"), vocabulary.name(index)]
        run.clear()
    return "".join([*out, run.decode("utf-8", "replace")])


@dataclass
class Statistics:
    """Of rows spread evenly over a set: tokens and targets of each that can be read, tokens by modality."""

    rows: int
    looked_at: int = 0
    tokens: list[int] = field(default_factory=list)
    learnt: int = 0
    by_modality: Counter[str] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)
    too_long: int = 0

    @property
    def usable(self) -> int:
        """Tokens of an epoch, estimated."""
        return round(sum(self.tokens) / max(self.looked_at, 1) * self.rows)

    def lines(self, limit: int) -> Iterator[str]:
        """For people."""
        yield f"{self.rows:,} rows, {self.looked_at} of them looked at (spread evenly)"
        if self.tokens:
            at = [int(np.percentile(self.tokens, q, method="higher")) for q in (0, 50, 95, 100)]
            yield "tokens of a row: least {:,}, median {:,}, 95 % below {:,}, most {:,}".format(*at)
            total = sum(self.tokens)
            shares = ", ".join(f"{name} {100 * n / total:.1f} %" for name, n in self.by_modality.most_common())
            yield f"by modality: {shares}; learnt: {100 * self.learnt / total:.1f} %"
        if self.too_long:
            yield f"{self.too_long} have more than the {limit:,} tokens of a batch and would be dropped"
        if self.bad:
            yield f"{len(self.bad)} cannot be read, e.g. {self.bad[0]}"


def statistics(dataset: Dataset, limit: int, most: int = _LOOKED_AT) -> Statistics:
    """Read up to `most` rows. limit: tokens of a batch."""
    rows = len(dataset)
    found = Statistics(rows=rows)
    for index in sorted({round(i * (rows - 1) / max(min(most, rows) - 1, 1)) for i in range(min(most, rows))}):
        found.looked_at += 1
        try:
            stream = dataset.sample(index, np.random.default_rng(index))
        except DecodeError as error:
            found.bad.append(str(error))
            continue
        if stream.n > limit:
            found.too_long += 1
            continue
        found.tokens.append(stream.n)
        for span in stream.spans:
            found.by_modality[span.modality] += span.n
            found.learnt += 0 if span.targets is None else int((span.targets != NO_TARGET).sum())
    return found


def part_of(name: str) -> str:
    """The part of a model that a parameter belongs to, for tables."""
    words = name.split(".")
    if words[0] == "embedders":
        return f"embedder of {words[1]}"
    if words[0] != "layers":
        return words[0]
    if "experts" in words:
        return "layers: routed experts"
    return f"layers: {words[2]}" if "norm" not in words[2] and "res" not in words[2] else "layers: norms and reads"


def trainable_lines(model: Model, recipe: TrainConfig) -> list[str]:
    """Parameters and trained ones of every part, then what updates them."""
    whole: Counter[str] = Counter()
    trained: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        whole[part_of(name)] += parameter.numel()
        trained[part_of(name)] += parameter.numel() if parameter.requires_grad else 0
    lines = [f"{'part':<28}{'parameters':>14}{'trained':>14}"]
    lines += [f"{part:<28}{count:>14,}{trained[part]:>14,}" for part, count in whole.items()]
    lines.append(f"{'all':<28}{whole.total():>14,}{trained.total():>14,}")
    o = recipe.optimizer
    plans = plan_parameters(
        model.named_parameters(), model.config, per_head=o.per_head, split_kv=o.split_kv, muon=o.muon
    )
    return [*lines, "", *group_table(plans).splitlines()]


def _one_step(model: Model, dataset: Dataset, recipe: TrainConfig, device: str) -> tuple[float, int]:
    """Seconds of one micro-batch forward and backward (the second of two), and bytes that it took at its peak."""
    from watersmeet.core.training.packing import Packer

    batch = Packer(
        dataset,
        tokens=recipe.batch.tokens,
        fill_modality=str(model.config.output_modality),
        modality_names=model.modality_names,
        pool=2,
        seed=recipe.seed,
        max_bad_fraction=recipe.batch.max_bad_fraction,
    ).next_batch()
    model.compute_dtype = DTYPES[recipe.run.precision]
    model.to(device).join().train()
    before, seconds = _memory(device), 0.0
    for _ in range(2):
        begin = time.monotonic()
        model.loss(batch.packed.to(device), real_tokens=batch.real_tokens).loss_sum.backward()
        model.discard_balancing()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds = time.monotonic() - begin
    peak = max(_memory(device, peak=True) - before, 0)
    model.zero_grad(set_to_none=True)
    return seconds, peak


def _memory(device: str, peak: bool = False) -> int:
    if device == "cuda":
        return torch.cuda.max_memory_allocated() if peak else torch.cuda.memory_allocated()
    import resource

    if peak:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def cost_lines(model: Model, dataset: Dataset, recipe: TrainConfig, found: Statistics, device: str) -> list[str]:
    """Steps, epochs, memory and time, from one real micro-batch on this machine."""
    seconds, activations = _one_step(model, dataset, recipe, device)
    o = recipe.optimizer
    plans = plan_parameters(
        model.named_parameters(), model.config, per_head=o.per_head, split_kv=o.split_kv, muon=o.muon
    )
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    state = sum(sizes[name] * (4 if plan.kind == "muon" else 8) for name, plan in plans.items())
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    step_tokens = recipe.batch.tokens * recipe.batch.accumulate
    steps = recipe.schedule.steps
    epochs = steps * step_tokens / max(found.usable, 1)
    total = steps * recipe.batch.accumulate * seconds
    gib = 2**30
    return [
        f"{steps:,} steps of {step_tokens:,} tokens in {recipe.batch.accumulate} micro-batches: about {epochs:.2f} epochs",
        f"memory on {device}: weights {weights / gib:.2f} GiB, optimizer state {state / gib:.2f} GiB, gradients and "
        f"activations {activations / gib:.2f} GiB (measured on one micro-batch)",
        f"time: {seconds:.2f} s a micro-batch forward and backward, so about {_duration(total)} and the optimizer's share",
    ]


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def rehearse(
    model: Model,
    dataset: Any,
    recipe: TrainConfig,
    *,
    vocabulary: Any = None,
    device: str | None = None,
    print_line: Callable[[str], None] | None = None,
) -> None:
    """Print everything. On a terminal what is learnt is green; elsewhere it stands between double angle quotation marks."""
    from rich.console import Console
    from rich.text import Text

    console = Console(soft_wrap=True)

    def say(line: str = "") -> None:
        print_line(line) if print_line is not None else console.print(line, markup=False, highlight=False)

    train_only(model, recipe.trainable)
    found = statistics(dataset, recipe.batch.tokens)
    colour = print_line is None and console.is_terminal
    say("what is learnt" + (" (green):" if colour else f" (between {_OPEN} and {_CLOSE}):"))
    shown = 0
    for index in range(len(dataset)):
        if shown == _SHOWN:
            break
        try:
            pieces = mask_pieces(dataset.sample(index, np.random.default_rng(index)), vocabulary)
        except DecodeError as error:
            say(f"  unreadable: {error}")
            continue
        except WatersmeetError as error:
            say(f"  refused: {error}")
            raise
        shown += 1
        name = dataset.source.where(index) if hasattr(dataset, "source") else f"sample {index}"
        if colour:
            shaded = Text(f"{name}: ")
            for text, learnt in pieces:
                shaded.append(_shorten(text), style="bold green" if learnt else "dim")
            console.print(shaded)
        else:
            marked = "".join(f"{_OPEN}{_shorten(t)}{_CLOSE}" if learnt else _shorten(t) for t, learnt in pieces)
            say(f"{name}: {marked}")
    for lines in (
        list(found.lines(recipe.batch.tokens)),
        trainable_lines(model, recipe),
        cost_lines(model, dataset, recipe, found, device or ("cuda" if torch.cuda.is_available() else "cpu")),
    ):
        say()
        for line in lines:
            say(line)


def _shorten(text: str) -> str:
    text = text.replace("\n", "\u23ce")
    if len(text) <= _MOST_CHARACTERS:
        return text
    half = _MOST_CHARACTERS // 2
    return f"{text[:half]} ... {len(text) - 2 * half:,} characters ... {text[-half:]}"

"""Toy data of three kinds, small models and a file of results that a measurement can go on from; used by the scripts beside it.

Text: sentences of a random grammar (a Markov chain of order two with few successors). Picture: a grid of cells, each of one
of a few colours with noise, followed by words that name the colours row by row. Film: a dot that moves over a grid,
followed by words for where it was. Loss is on the words alone, as in a captioning task; the alphabets of the three share
words, so experts could be shared.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
import time
from bisect import bisect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from watersmeet.core.config import ModelConfig, preset
from watersmeet.core.model.model import Model
from watersmeet.core.stream import Span, Stream, content_key, supervise
from watersmeet.core.training.config import config_from_dict
from watersmeet.core.training.trainer import Trainer, seed_everything

WORDS, CELLS, COLOURS = 64, 4, 8
END = 0


class Mixture:
    """An endless mixture: sample `index` is drawn by its number, and "val" draws others. `shares` weighs the three kinds."""

    def __init__(
        self,
        split: str = "train",
        *,
        shares: Mapping[str, float] | None = None,
        count: int = 1_000_000,
        length: int = 48,
        successors: int = 4,
    ) -> None:
        self.shares = dict(shares or {"text": 1.0, "picture": 1.0, "film": 1.0})
        self.offset = 0 if split == "train" else 10_000_000
        self.count, self.length = count, length
        # the grammar is the same for everybody: the two words before decide among a few
        grammar = np.random.default_rng(7)
        self.next = grammar.integers(1, WORDS, size=(WORDS, WORDS, successors))
        self.weights = grammar.dirichlet(np.full(successors, 0.6), size=(WORDS, WORDS))
        self.colours = grammar.normal(size=(COLOURS, 3))
        # a step is as long as its data: plain lists and bisection are ten times faster here than numpy's own choice
        self._next, self._reach = self.next.tolist(), self.weights.cumsum(-1).tolist()
        self._places = torch.cartesian_prod(torch.arange(CELLS), torch.arange(CELLS)) / CELLS

    def __len__(self) -> int:
        return self.count

    def sample(self, index: int, rng: np.random.Generator) -> Stream:
        draw = np.random.default_rng(self.offset + index)
        names = list(self.shares)
        weights = np.array([self.shares[name] for name in names])
        kind = names[int(draw.choice(len(names), p=weights / weights.sum()))]
        return {"text": self._text, "picture": self._picture, "film": self._film}[kind](draw, index)

    def _text(self, draw: np.random.Generator, index: int) -> Stream:
        words = [int(draw.integers(1, WORDS)), int(draw.integers(1, WORDS))]
        for chance in draw.random(self.length - 3).tolist():
            a, b = words[-2:]
            found = bisect(self._reach[a][b], chance)
            words.append(self._next[a][b][min(found, len(self._next[a][b]) - 1)])  # the last sum may lie a hair below 1
        return supervise([_words([*words, END], index)], [True])

    def _picture(self, draw: np.random.Generator, index: int) -> Stream:
        grid = draw.integers(0, COLOURS, size=CELLS * CELLS)
        cells = self.colours[grid] + draw.normal(size=(len(grid), 3)) * 0.2
        data = torch.cat([torch.from_numpy(cells).float(), self._places], dim=1)
        span = Span(modality="picture", data=data, key=content_key("p", index))
        return supervise([span, _words([*(1 + grid), END], index)], [False, True])

    def _film(self, draw: np.random.Generator, index: int) -> Stream:
        place, move = draw.integers(0, CELLS, size=2), draw.choice([-1, 1], size=2)
        frames, words = [], []
        for _ in range(8):
            frames.append([*(place / CELLS), *(draw.normal(size=3) * 0.1)])
            words += [1 + COLOURS + int(place[0]), 1 + COLOURS + CELLS + int(place[1])]
            place = (place + move) % CELLS
        data = torch.tensor(np.array(frames), dtype=torch.float32)
        span = Span(modality="film", data=data, key=content_key("f", index))
        return supervise([span, _words([*words, END], index)], [False, True])


def _words(ids: list[int], index: int) -> Span:
    return Span(modality="text", data=torch.tensor([int(i) for i in ids]), key=content_key("t", index))


class Lookup(nn.Module):
    """Words."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, size)

    def forward(self, data: Tensor, coords: Tensor, time_us: Tensor | None) -> Tensor:
        return self.table(data)


class Project(nn.Module):
    """Five numbers a token."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.project = nn.Linear(5, size)

    def forward(self, data: Tensor, coords: Tensor, time_us: Tensor | None) -> Tensor:
        return self.project(data)


def tiny_config(**changes: Any) -> ModelConfig:
    """The micro preset with the words above."""
    return preset("micro").replace(vocab_size=WORDS, output_modality="text", **changes)


def tiny_model(config: ModelConfig, seed: int) -> Model:
    """A model that reads all three kinds."""
    seed_everything(seed)
    d = config.hidden_size
    return Model(config, {"text": Lookup(d), "picture": Project(d), "film": Project(d)})


def make_trainer(
    config: ModelConfig,
    *,
    seed: int,
    steps: int,
    options: Mapping[str, Any] | None = None,
    shares: Mapping[str, float] | None = None,
) -> Trainer:
    """A trainer in a temporary folder; `options` are dotted settings of the recipe. The held-out set is always the mixture."""
    out = tempfile.mkdtemp(prefix="watersmeet-bench-")
    recipe = config_from_dict(
        {
            "dataset": "toy:Mixture",
            "seed": seed,
            "batch": {"tokens": 1024, "pool": 32, "prefetch": 0},
            "schedule": {"steps": steps, "warmup": max(steps // 20, 1), "decay": 0.3},
            "run": {
                "out": out,
                "save_every": 0,
                "save_minutes": 0,
                "eval_every": 0,
                "eval_batches": 8,
                "precision": "fp32",
                "tensorboard": False,
            },
        }
    ).with_values(**dict(options or {}))
    model = tiny_model(config, seed)
    return Trainer(model, recipe, Mixture(shares=shares), Mixture("val"), device="cpu", report=lambda line: None)


def train(trainer: Trainer, each: Callable[[int, Mapping[str, Any]], None] | None = None) -> dict[str, Any]:
    """All steps; the final held-out loss, tokens, and seconds by the clock and of the processor, evaluation left out."""
    trainer.on_step = each or (lambda step, record: None)
    begin, busy = time.monotonic(), time.process_time()
    summary = trainer.run()
    if summary.stopped != "done":
        raise SystemExit("stopped; the same command measures this run again and goes on")
    seconds, busy = time.monotonic() - begin, time.process_time() - busy
    held_out = trainer.evaluate()
    return {
        "loss": held_out["loss"],
        "tokens": summary.tokens,
        "seconds": seconds,
        "processor_seconds": busy,
        "diverged": not math.isfinite(held_out["loss"]),
    }


class Results:
    """One JSON object a line, each with a key; what is there already is not measured again."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.found: dict[str, dict[str, Any]] = {}
        if self.path.exists():
            for line in self.path.read_text(encoding="utf-8").splitlines():
                try:
                    record = json.loads(line)
                except json.JSONDecodeError:
                    continue  # the last line of a run that was killed
                self.found[record["key"]] = record

    def get(self, key: Mapping[str, Any], measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The result of `key`, measured now if it is not known."""
        name = json.dumps(key, sort_keys=True)
        if name not in self.found:
            record = {"key": name, **key, **measure()}
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
                file.flush()
                os.fsync(file.fileno())
            self.found[name] = record
            print(f"{self.path.name}: {name}", flush=True)
        return self.found[name]


def arguments(description: str, *, steps: int, seeds: int) -> argparse.Namespace:
    """What all scripts take; `--quick` only shows that they run."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument(
        "--out", type=Path, default=Path("out/benchmarks"), help="folder of results; a second start goes on"
    )
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes, a few steps: a test of the script, no measurement"
    )
    given = parser.parse_args()
    if given.quick:
        given.steps, given.seeds = min(given.steps, 4), min(given.seeds, 2)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    return given


@contextmanager
def canvas(path: Path, *, rows: int = 1, columns: int = 1) -> Iterator[list[Any]]:
    """Axes, row by row, of a picture that is written to `path` at the end."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        rows, columns, figsize=(4.2 * columns + 1.5, 2.9 * rows + 0.4), squeeze=False, layout="constrained"
    )
    for axis in axes.flat:
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    yield list(axes.flat)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def table(head: list[str], rows: list[list[Any]]) -> str:
    """A Markdown table."""
    text = [[f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    lines = ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *text]]
    return "\n".join(lines)

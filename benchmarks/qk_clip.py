"""QK-Clip under a learning rate that blows attention up: largest logit and loss with and without it.

    .venv/bin/python -P benchmarks/qk_clip.py

Writes a table and OUT/qk-clip.png. "After the clip" is the largest logit that the clipped weights give on the very batch that
was clipped for; the forward pass of the next step may find larger ones in other data.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
from toy import Results, arguments, canvas, make_trainer, table, tiny_config

from watersmeet.core.errors import WatersmeetError


def measure(threshold: float, passes: int, rate: float, seed: int, steps: int) -> dict[str, Any]:
    options = {
        "optimizer.qk_clip": threshold,
        "optimizer.qk_passes": passes,
        "optimizer.lr": rate,
        "optimizer.weight_decay": 0.0,
        "run.measure_every": 1,
        "schedule.kind": "constant",
        "batch.tokens": 512,
    }
    trainer = make_trainer(tiny_config(num_hidden_layers=2), seed=seed, steps=steps, options=options)
    losses: list[float] = []
    logits: list[float] = []
    after: list[float] = []
    clipped: list[int] = []
    real = trainer._step

    def step(batches: Any) -> Any:
        record = real(batches)
        losses.append(record["loss"])
        logits.append(record["max_logit"])
        clipped.append(record.get("qk_clipped", 0))
        if clipped[-1]:
            with torch.no_grad():
                trainer.qk_clip.begin(exact=True)
                for batch in batches:
                    trainer.model.loss(batch.packed, real_tokens=batch.real_tokens)
                trainer.balance.discard()
            after.append(float(trainer.qk_clip.maxima().max()))  # type: ignore[union-attr]
        return record

    trainer._step = step  # type: ignore[method-assign]
    ended = "done"
    try:
        trainer.run()
    except WatersmeetError as error:
        ended = str(error)[:60]
    return {"losses": losses, "logits": logits, "after": after, "clipped": clipped, "ended": ended}


def draw(found: dict[str, dict[str, Any]], path: Path) -> None:
    """Loss and largest logit step by step."""
    with canvas(path, columns=2) as (losses, logits):
        for name, one in found.items():
            smooth = (
                np.convolve(one["losses"], np.full(10, 0.1), mode="valid") if len(one["losses"]) > 10 else one["losses"]
            )
            losses.plot(np.arange(len(smooth)) + len(one["losses"]) - len(smooth), smooth, linewidth=0.9, label=name)
            logits.plot(one["logits"], linewidth=0.9, label=name)
        losses.set(xlabel="step", ylabel="loss (nats a target), mean of 10 steps")
        losses.legend(frameon=False, fontsize=8)
        logits.axhline(100, color="#888888", linewidth=0.6, linestyle="--")
        logits.set(xlabel="step", ylabel="largest attention logit, before the clip", yscale="log")


def main() -> None:
    given = arguments(__doc__ or "", steps=300, seeds=1)
    rate = 0.3
    results = Results(given.out / f"qk-clip{'-quick' if given.quick else ''}.jsonl")
    rows, curves = [], {}
    for name, threshold in (
        ("without", (0.0, 0)),
        ("QK-Clip 100", (100.0, 0)),
        ("QK-Clip 100, up to 3 passes", (100.0, 3)),
    ):
        for seed in range(1, given.seeds + 1):
            key = {"arm": name, "seed": seed, "steps": given.steps, "rate": rate}
            one = results.get(key, lambda t=threshold, s=seed: measure(*t, rate, s, given.steps))
            curves.setdefault(name, one)
            rows.append([
                name, seed, max(one["logits"]), max(one["after"], default=math.nan),
                sum(one["clipped"]), one["losses"][-1], one["ended"],
            ])  # fmt: skip
    draw(curves, given.out / "qk-clip.png")
    head = [
        "arm",
        "seed",
        "largest logit in a forward pass",
        "largest after the clip",
        "heads clipped",
        "last loss",
        "ended",
    ]
    print(f"rate {rate}, {given.steps} steps\n\n" + table(head, rows))


if __name__ == "__main__":
    main()

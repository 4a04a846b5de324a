"""Curve of a run, drawn from its JSONL log."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from watersmeet.core.errors import UsageError
from watersmeet.core.training.log import read_log


def _series(records: list[dict[str, Any]], key: str) -> tuple[list[int], list[float]]:
    points = [(r["step"], r[key]) for r in records if isinstance(r.get(key), (int, float))]
    return [step for step, _ in points], [float(value) for _, value in points]


def _smooth(values: list[float], weight: float = 0.9) -> list[float]:
    """Exponential mean, started at the first value."""
    result: list[float] = []
    for value in values:
        result.append(value if not result else weight * result[-1] + (1 - weight) * value)
    return result


def plot_log(log: Path, picture: Path) -> Path:
    """Draw losses, learning rates and expert load of `log` into a PNG at `picture`.

    Raises UsageError when the log holds no training step.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    records = read_log(log)
    train = [record for record in records if record.get("kind") == "train"]
    held_out = [record for record in records if record.get("kind") == "eval"]
    if not train:
        raise UsageError(f"{log}: no training step in it, nothing to draw")
    figure, axes = pyplot.subplots(3, 1, figsize=(8, 9), sharex=True, height_ratios=(3, 1, 1.4), layout="constrained")

    steps, losses = _series(train, "loss")
    axes[0].plot(steps, losses, color="#9db4d3", linewidth=0.6, label="train, each step")
    axes[0].plot(steps, _smooth(losses), color="#1f4e8c", linewidth=1.4, label="train, smoothed")
    steps, losses = _series(held_out, "loss")
    if steps:
        axes[0].plot(steps, losses, "o-", color="#c4511b", markersize=3, linewidth=1.2, label="held out")
    axes[0].set_ylabel("loss (nats a token)")
    axes[0].legend(frameon=False)

    for key, colour, label in (("lr", "#1f4e8c", "Muon"), ("adamw_lr", "#c4511b", "AdamW")):
        axes[1].plot(*_series(train, key), color=colour, linewidth=1.2, label=label)
    axes[1].set_ylabel("learning rate")
    axes[1].legend(frameon=False)

    for key, colour, label in (("load_max", "#c4511b", "busiest expert"), ("load_min", "#1f4e8c", "idlest expert")):
        steps, loads = _series(train, key)
        if steps:
            axes[2].plot(steps, loads, color=colour, linewidth=0.8, label=label)
    axes[2].axhline(1.0, color="#888888", linewidth=0.6, linestyle="--")
    axes[2].set_ylabel("expert load / mean")
    axes[2].set_xlabel("step")
    if axes[2].get_legend_handles_labels()[0]:
        axes[2].legend(frameon=False)
    for axis in axes:
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)

    picture = Path(picture)
    picture.parent.mkdir(parents=True, exist_ok=True)
    beside = picture.with_name(picture.name + ".tmp")
    figure.savefig(beside, dpi=110, format="png")
    pyplot.close(figure)
    os.replace(beside, picture)
    return picture

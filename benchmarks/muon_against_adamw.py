"""Tokens to a fixed held-out loss: MuonClip per head against AdamW, both tuned with the same number of trials.

    .venv/bin/python -P benchmarks/muon_against_adamw.py

For every size: (1) a search over learning rate, warm-up, decay, weight decay and betas, as many trials for both: at the first size
some wide and the others around the best of them, at the next around the best of the first, all over the full budget; (2) the
best of each, with several seeds, at several token budgets, every run with its own whole decay; (3) the target is AdamW's mean loss
at the full budget, and tokens to it are interpolated on the logarithm of the budget, seed by seed; (4) one-sided t-test of
log(tokens AdamW / tokens Muon) against 0 and against log 1.4. Time is the processor's: the clock would measure what else the
machine does.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

sys.path.insert(0, str(Path(__file__).parent))
from toy import Results, arguments, canvas, make_trainer, table, tiny_config, train

SIZES: dict[str, dict[str, int]] = {"small": {"num_hidden_layers": 2}, "large": {"hidden_size": 64}}
ARMS = ("adamw", "muon")
BUDGETS = (0.5, 1.0)
TRIALS, WIDE, AGAIN = 12, 8, 6
"""Trials of an arm at the first size, how many of them are drawn from the whole ranges before the others are drawn around the best
of them, and trials at another size, the first of which is the best of the first size."""

CHOICES: dict[str, tuple[Any, ...]] = {
    "decay": (0.0, 0.03, 0.1, 0.3),
    "beta_1": (0.8, 0.9, 0.95),
    "beta_2": (0.95, 0.98, 0.99),
    "warmup_share": (0.02, 0.05, 0.1),
    "decay_share": (0.3, 0.6, 0.9),
    "adamw_ratio": (0.3, 0.6, 1.0),
}


def draw(arm: str, trial: int, best: dict[str, float] | None) -> dict[str, float]:
    """Settings of one trial; the same ranges for both. Around `best` the rate moves by up to a half and a third of the rest."""
    rng = np.random.default_rng([1 if arm == "muon" else 2, trial])
    if best is None:
        rate = float(np.exp(rng.uniform(math.log(1e-3), math.log(6e-2))))
        return {"rate": rate} | {name: float(rng.choice(values)) for name, values in CHOICES.items()}
    out = {"rate": best["rate"] * float(np.exp(rng.uniform(-0.5, 0.5)))}
    for name, values in CHOICES.items():
        out[name] = float(rng.choice(values)) if rng.random() < 1 / 3 else best[name]
    return out


def options(arm: str, drawn: dict[str, float], steps: int) -> dict[str, Any]:
    """The recipe's settings. Muon's momentum takes the place of AdamW's first beta for the matrices."""
    muon = arm == "muon"
    out: dict[str, Any] = {
        "optimizer.muon": muon,
        "optimizer.adamw_lr": drawn["rate"] * (drawn["adamw_ratio"] if muon else 1.0),
        "optimizer.adamw_weight_decay": 0.0 if muon else drawn["decay"],
        "optimizer.betas": (0.9 if muon else drawn["beta_1"], drawn["beta_2"]),
        "schedule.warmup": max(round(drawn["warmup_share"] * steps), 1),
        "schedule.decay": drawn["decay_share"],
        "run.measure_every": 0,
        "batch.tokens": 512,
        "run.eval_batches": 16,
    }
    if muon:
        out |= {"optimizer.lr": drawn["rate"], "optimizer.weight_decay": drawn["decay"]}
        out["optimizer.momentum"] = drawn["beta_1"]
    return out


def search(
    results: Results, size: str, arm: str, trials: int, steps: int, start: dict[str, float] | None = None
) -> list[dict[str, Any]]:
    """All trials of one arm, best first; what diverged comes last."""

    def badness(one: dict[str, Any]) -> float:
        return one["loss"] if math.isfinite(one["loss"]) else math.inf

    tried: list[dict[str, Any]] = []
    for trial in range(trials):
        around = min(tried, key=badness)["drawn"] if trial >= (WIDE if start is None else 1) else None
        drawn = start if start is not None and trial == 0 else draw(arm, trial, around)
        key = {"what": "search", "size": size, "arm": arm, "trial": trial, "steps": steps, "drawn": drawn}
        tried.append(results.get(key, run(size, arm, drawn, 100, steps)))
    return sorted(tried, key=badness)


def run(size: str, arm: str, drawn: dict[str, float], seed: int, steps: int) -> Callable[[], dict[str, Any]]:
    """One run, to be measured when it is asked for."""

    def measured() -> dict[str, Any]:
        given = options(arm, drawn, steps)
        return train(make_trainer(tiny_config(**SIZES[size]), seed=seed, steps=steps, options=given))

    return measured


def tokens_to(curve: list[tuple[float, float]], target: float) -> float:
    """Tokens at which a falling curve of (tokens, loss) meets `target`, log-linear; the ends are extended."""
    x, y = np.log([t for t, _ in curve]), np.array([loss for _, loss in curve])
    for i in range(len(x) - 1):
        if y[i + 1] <= target or i == len(x) - 2:
            slope = (y[i + 1] - y[i]) / (x[i + 1] - x[i])
            if not math.isfinite(slope):
                return math.inf
            return float(np.exp(x[i] + (target - y[i]) / slope)) if slope < 0 else math.inf
    return math.inf


def compare(results: Results, size: str, best: dict[str, dict[str, float]], seeds: int, budgets: Any, full: int) -> Any:
    """Curves [seed][(tokens, loss)] and processor seconds a step of both arms."""
    curves: dict[str, list[list[tuple[float, float]]]] = {arm: [] for arm in ARMS}
    seconds: dict[str, list[float]] = {arm: [] for arm in ARMS}
    # seed by seed, so that a run that is stopped early has whole pairs
    for seed in range(1, seeds + 1):
        for arm in ARMS:
            curve = []
            for budget in budgets:
                steps = max(round(full * budget), 2)
                key = {"what": "run", "size": size, "arm": arm, "seed": seed, "steps": steps, "drawn": best[arm]}
                found = results.get(key, run(size, arm, best[arm], seed, steps))
                curve.append((found["tokens"], found["loss"]))
                seconds[arm].append(found["processor_seconds"] / steps)
            curves[arm].append(curve)
    return curves, {arm: float(np.median(values)) for arm, values in seconds.items()}


def verdict(curves: dict[str, list[list[tuple[float, float]]]], seconds: dict[str, float]) -> list[Any]:
    """One row of the table."""
    target = float(np.mean([curve[-1][1] for curve in curves["adamw"]]))
    # an arm that never reaches the target makes its seed's ratio infinite or undefined, and so the mean and p
    with np.errstate(all="ignore"):
        needed = {arm: np.array([tokens_to(curve, target) for curve in curves[arm]]) for arm in ARMS}
        ratios = np.log(needed["adamw"] / needed["muon"])
    better = stats.ttest_1samp(ratios, 0.0, alternative="greater").pvalue
    enough = stats.ttest_1samp(ratios, math.log(1.4), alternative="greater").pvalue
    ratio, step = float(np.exp(np.mean(ratios))), seconds["muon"] / seconds["adamw"]
    least, most = np.exp(ratios.min()), np.exp(ratios.max())
    final = float(np.mean([curve[-1][1] for curve in curves["muon"]]))
    spread = f"{ratio:.2f} ({least:.2f} to {most:.2f})"
    return [target, final, spread, float(better), float(enough), step, ratio / step]


HEAD = [
    "size", "target loss (AdamW)", "loss of Muon", "tokens AdamW / Muon (seeds)", "p (ratio > 1)", "p (ratio > 1.4)",
    "processor seconds a step, Muon / AdamW", "processor time AdamW / Muon",
]  # fmt: skip


def draw_curves(found: dict[str, dict[str, list[list[tuple[float, float]]]]], path: Path) -> None:
    """Held-out loss at the end of the decay against tokens; every seed a thin line."""
    with canvas(path, columns=len(found)) as axes:
        for axis, (size, curves) in zip(axes, found.items(), strict=True):
            for arm, colour in zip(ARMS, ("#888888", "#c0392b"), strict=True):
                points = np.array(curves[arm])
                axis.plot(points[..., 0].T, points[..., 1].T, color=colour, linewidth=0.5, alpha=0.5)
                axis.plot(
                    *points.mean(0).T, color=colour, marker="o", label={"adamw": "AdamW", "muon": "MuonClip"}[arm]
                )
            axis.axhline(np.array(curves["adamw"])[:, -1, 1].mean(), color="#888888", linewidth=0.6, linestyle="--")
            axis.set(title=size, xlabel="tokens", ylabel="held-out loss (nats a target)", xscale="log")
            axis.legend(frameon=False)


def main() -> None:
    given = arguments(__doc__ or "", steps=400, seeds=5)
    trials, again = (2, 2) if given.quick else (TRIALS, AGAIN)
    results = Results(given.out / f"muon-adamw{'-quick' if given.quick else ''}.jsonl")
    rows, pictures = [], {}
    best: dict[str, dict[str, float]] = {}
    for size in SIZES:
        for arm in ARMS:
            tried = search(results, size, arm, again if best.get(arm) else trials, given.steps, best.get(arm))
            best[arm] = tried[0]["drawn"]
            shown = ", ".join(f"{name} {value:.3g}" for name, value in best[arm].items())
            print(f"{size}: {arm}: {shown}; losses of the trials {[round(one['loss'], 3) for one in tried]}")
        curves, seconds = compare(results, size, best, given.seeds, BUDGETS, given.steps)
        pictures[size] = curves
        rows.append([size, *verdict(curves, seconds)])
        print(f"\n{given.seeds} seeds, {given.steps} steps\n\n" + table(HEAD, rows), flush=True)
    draw_curves(pictures, given.out / "muon-adamw.png")


if __name__ == "__main__":
    main()

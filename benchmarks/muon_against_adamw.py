"""Tokens to a fixed held-out loss: MuonClip per head against AdamW, both tuned with the same number of trials.

    .venv/bin/python -P benchmarks/muon_against_adamw.py

For every size: (1) a random search over learning rate, warm-up, decay, weight decay and betas, as many trials for both;
(2) the best of each, with several seeds, at several token budgets, every run with its own whole decay; (3) the target is
AdamW's mean loss at its largest budget, and tokens to it are interpolated on the logarithm of the budget, seed by seed;
(4) one-sided t-test of log(tokens AdamW / tokens Muon) against 0 and against log 1.4.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

sys.path.insert(0, str(Path(__file__).parent))
from toy import Results, arguments, make_trainer, table, tiny_config, train

SIZES = {
    "small": {},
    "large": {"hidden_size": 96, "num_hidden_layers": 6, "moe_intermediate_size": 48, "intermediate_size": 192},
}
ARMS = ("adamw", "muon")
BUDGETS = (0.25, 0.5, 1.0, 2.0)


def draw(arm: str, trial: int) -> dict[str, Any]:
    """Settings of one trial; the same ranges for both, and rates that both are known to like lie inside."""
    rng = np.random.default_rng([1 if arm == "muon" else 2, trial])
    rate = float(np.exp(rng.uniform(math.log(1e-3), math.log(4e-2))))
    decay = float(rng.choice([0.0, 0.03, 0.1]))
    out = {
        "optimizer.adamw_lr": rate,
        "optimizer.adamw_weight_decay": decay if arm == "adamw" else 0.0,
        "optimizer.betas": (0.9, float(rng.choice([0.95, 0.98, 0.99]))),
        "schedule.warmup_share": float(rng.choice([0.02, 0.05, 0.1])),
        "schedule.decay": float(rng.choice([0.2, 0.4, 0.7])),
        "optimizer.muon": arm == "muon",
    }
    if arm == "muon":
        out |= {"optimizer.lr": rate, "optimizer.weight_decay": decay}
        out["optimizer.adamw_lr"] = rate * float(rng.choice([0.3, 0.6, 1.0]))
    return out


def measure(size: str, options: dict[str, Any], seed: int, steps: int) -> dict[str, Any]:
    options = dict(options)
    options["schedule.warmup"] = max(round(options.pop("schedule.warmup_share") * steps), 1)
    return train(make_trainer(tiny_config(**SIZES[size]), seed=seed, steps=steps, options=options))


def tokens_to(losses: list[tuple[float, float]], target: float) -> float:
    """Tokens at which a falling curve of (tokens, loss) meets `target`, log-linear; the ends are extended."""
    x, y = np.log([t for t, _ in losses]), np.array([loss for _, loss in losses])
    for i in range(len(x) - 1):
        if y[i + 1] <= target or i == len(x) - 2:
            slope = (y[i + 1] - y[i]) / (x[i + 1] - x[i])
            if not math.isfinite(slope):
                return math.inf
            return float(np.exp(x[i] + (target - y[i]) / slope)) if slope < 0 else math.inf
    return math.inf


def main() -> None:
    given = arguments(__doc__ or "", steps=400, seeds=5)
    trials, budgets = (2, (0.5, 1.0)) if given.quick else (16, BUDGETS)
    results = Results(given.out / f"muon-adamw{'-quick' if given.quick else ''}.jsonl")
    rows = []
    for size in SIZES:
        best: dict[str, dict[str, Any]] = {}
        for arm in ARMS:
            tried = []
            for trial in range(trials):
                key = {"what": "search", "size": size, "arm": arm, "trial": trial, "steps": given.steps}
                loss = results.get(key, lambda a=arm, t=trial, s=size: measure(s, draw(a, t), 100, given.steps))["loss"]
                tried.append((loss if math.isfinite(loss) else math.inf, trial))
            best[arm] = draw(arm, min(tried)[1])
        curves: dict[str, list[list[tuple[float, float]]]] = {arm: [] for arm in ARMS}
        seconds: dict[str, list[float]] = {arm: [] for arm in ARMS}
        for arm in ARMS:
            for seed in range(1, given.seeds + 1):
                curve = []
                for budget in budgets:
                    steps = max(round(given.steps * budget), 2)
                    key = {
                        "what": "run",
                        "size": size,
                        "arm": arm,
                        "seed": seed,
                        "steps": steps,
                        "options": str(best[arm]),
                    }
                    found = results.get(key, lambda o=best[arm], r=seed, n=steps, s=size: measure(s, o, r, n))
                    curve.append((found["tokens"], found["loss"]))
                    if budget == budgets[-1]:
                        seconds[arm].append(found["seconds"] / steps)
                curves[arm].append(curve)
        target = float(np.mean([curve[-1][1] for curve in curves["adamw"]]))
        # an arm that never reaches the target makes its seed's ratio infinite or undefined, and so the mean and p
        with np.errstate(all="ignore"):
            needed = {arm: np.array([tokens_to(curve, target) for curve in curves[arm]]) for arm in ARMS}
            ratios = np.log(needed["adamw"] / needed["muon"])
        better = stats.ttest_1samp(ratios, 0.0, alternative="greater").pvalue
        enough = stats.ttest_1samp(ratios, math.log(1.4), alternative="greater").pvalue
        wall = np.mean(seconds["muon"]) / np.mean(seconds["adamw"])
        rows.append([size, target, float(np.exp(np.mean(ratios))), float(better), float(enough), float(wall)])
        print(f"{size}: best AdamW {best['adamw']}\n{size}: best Muon {best['muon']}")
    head = [
        "size",
        "target loss",
        "tokens AdamW / Muon",
        "p (ratio > 1)",
        "p (ratio > 1.4)",
        "seconds a step Muon / AdamW",
    ]
    print(f"\n{given.seeds} seeds, {trials} trials an arm\n\n" + table(head, rows))


if __name__ == "__main__":
    main()

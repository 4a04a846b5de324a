"""Rates per head: Muon on whole matrices, on heads, and on heads whose gradients scale their steps; held-out loss at the end.

    .venv/bin/python -P benchmarks/head_rate.py

All arms have the settings that `muon_against_adamw.py` found best for Muon per head with rates alike, so the others are not
tuned; run that first, with the same --out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

sys.path.insert(0, str(Path(__file__).parent))
from muon_against_adamw import SIZES, TRIALS, options, search
from toy import Results, arguments, make_trainer, table, tiny_config, train

ARMS: dict[str, dict[str, Any]] = {
    "per head": {},
    "whole matrices": {"optimizer.per_head": False},
    "per head, head_rate 0.5": {"optimizer.head_rate": 0.5},
    "per head, head_rate 1": {"optimizer.head_rate": 1.0},
}


def run(changes: dict[str, Any], drawn: dict[str, float], seed: int, steps: int) -> Callable[[], dict[str, Any]]:
    """One run, to be measured when it is asked for."""

    def measured() -> dict[str, Any]:
        given = {**options("muon", drawn, steps), **changes}
        return train(make_trainer(tiny_config(**SIZES["small"]), seed=seed, steps=steps, options=given))

    return measured


def main() -> None:
    given = arguments(__doc__ or "", steps=400, seeds=5)
    suffix = "-quick" if given.quick else ""
    trials = 2 if given.quick else TRIALS
    best = search(Results(given.out / f"muon-adamw{suffix}.jsonl"), "small", "muon", trials, given.steps)[0]["drawn"]
    results = Results(given.out / f"head-rate{suffix}.jsonl")
    losses: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for seed in range(1, given.seeds + 1):
        for arm, changes in ARMS.items():
            key = {"arm": arm, "seed": seed, "steps": given.steps, "drawn": best}
            losses[arm].append(results.get(key, run(changes, best, seed, given.steps))["loss"])
    rows = []
    for arm, found in losses.items():
        apart = np.array(found) - np.array(losses["per head"])
        p = float(stats.ttest_1samp(apart, 0.0).pvalue) if apart.any() else float("nan")
        rows.append([arm, float(np.mean(found)), f"{apart.mean():+.4f}", p])
    print(table(["arm", "held-out loss", "against per head", "p (two-sided, seed by seed)"], rows))


if __name__ == "__main__":
    main()

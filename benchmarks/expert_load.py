"""Are all experts in use? 896 experts, top-16, three kinds of data; Quantile Balancing, the sign rule, none, with the warm-up mask.

    .venv/bin/python -P benchmarks/expert_load.py

Two layers, one of them with experts: the cost of a step is the number of its experts. An expert is in use when its load over the last tenth of the steps is above 10 % of the mean load.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from toy import Results, arguments, canvas, make_trainer, table, tiny_config, train

ARMS: dict[str, dict[str, Any]] = {
    "quantile": {},
    "none": {"experts.balance": "none"},
    "sign bias 1e-3": {"experts.balance": "sign"},
    "quantile + warm-up mask": {"experts.warmup": 0.2},
}


def measure(options: dict[str, Any], seed: int, steps: int, experts: int, k: int) -> dict[str, Any]:
    config = tiny_config(num_experts=experts, num_experts_per_token=k, moe_intermediate_size=8, num_hidden_layers=2)
    trainer = make_trainer(config, seed=seed, steps=steps, options={"batch.tokens": 2048, **options})
    sums: list[Any] = []
    series: dict[str, list[float]] = {"used": [], "load_max": [], "loss": []}

    def each(step: int, record: Any) -> None:
        for name, values in series.items():
            values.append(round(record[name], 5))
        if step > steps - max(steps // 10, 1):
            load = trainer.meters.load.sum(1).double()  # type: ignore[union-attr]
            sums.append(load)

    out = train(trainer, each)
    load = sum(sums)
    relative = load / load.mean(1, keepdim=True)
    early = series["used"][: max(steps // 10, 1)]
    used = [int((layer > 0.1).sum()) for layer in relative]
    out |= {
        "used_least": min(used),
        "used_mean": sum(used) / len(used),
        "max_over_mean": float(relative.max()),
        "min_over_mean": float(relative.min()),
        "used_early": sum(early) / len(early),
        "series": series,
        "loads": [sorted(round(value, 4) for value in layer) for layer in relative.tolist()],
    }
    return out


def draw(found: dict[str, dict[str, Any]], path: Path) -> None:
    """Experts in use and the busiest one step by step, and the load of every expert at the end; the first seed."""
    with canvas(path, columns=3) as (used, largest, loads):
        for arm, one in found.items():
            for axis, name in ((used, "used"), (largest, "load_max")):
                series = np.array(one["series"][name])
                span = max(len(series) // 50, 1)
                smooth = series[: len(series) // span * span].reshape(-1, span).mean(1)
                axis.plot((np.arange(len(smooth)) + 0.5) * span, smooth, linewidth=1, label=arm)
            loads.plot(one["loads"][0], linewidth=1)
        used.set(xlabel="step", ylabel="share of experts in use in the step", ylim=(0, 1.02))
        used.legend(frameon=False, fontsize=8)
        largest.set(xlabel="step", ylabel="busiest expert / mean", yscale="log")
        loads.axhline(0.1, color="#888888", linewidth=0.6, linestyle="--")
        loads.set(xlabel="experts, in order of their load", ylabel="load / mean, last tenth", yscale="symlog")


def main() -> None:
    given = arguments(__doc__ or "", steps=500, seeds=1)
    experts, k = (24, 4) if given.quick else (896, 16)
    results = Results(given.out / f"expert-load{'-quick' if given.quick else ''}.jsonl")
    rows, first = [], {}
    for arm, options in ARMS.items():
        found = []
        for seed in range(1, given.seeds + 1):
            key = {"arm": arm, "seed": seed, "steps": given.steps, "experts": experts}
            found.append(results.get(key, lambda o=options, s=seed: measure(o, s, given.steps, experts, k)))

        first[arm] = found[0]

        def mean(name: str, found: list[Any] = found) -> float:
            return sum(one[name] for one in found) / len(found)

        worst = min(one["used_least"] for one in found)
        rows.append(
            [arm, len(found), f"{mean('used_mean') / experts:.2%}", f"{worst} ({worst / experts:.2%})",
             mean("max_over_mean"), mean("min_over_mean"), f"{mean('used_early'):.2%}", mean("loss")]
        )  # fmt: skip
    head = ["balancing", "seeds", "experts in use", "in use, worst layer and seed", "max / mean", "min / mean", "in use, first tenth", "held-out loss"]  # fmt: skip
    draw(first, given.out / "expert-load.png")
    print(f"{experts} experts, top-{k}, {given.steps} steps\n\n" + table(head, rows))


if __name__ == "__main__":
    main()

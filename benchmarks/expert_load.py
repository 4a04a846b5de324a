"""Are all experts in use? 896 experts, top-16, three kinds of data; Quantile Balancing, the sign rule, none, with the warm-up mask.

    .venv/bin/python -P benchmarks/expert_load.py

An expert is in use when its load over the last tenth of the steps is above 10 % of the mean load.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from toy import Results, arguments, make_trainer, table, tiny_config, train

ARMS = {
    "quantile": {},
    "quantile + warm-up mask": {"experts.warmup": 0.2},
    "sign bias 1e-3": {"experts.balance": "sign"},
    "sign bias 1e-2": {"experts.balance": "sign", "experts.sign_step": 1e-2},
    "none": {"experts.balance": "none"},
}


def measure(options: dict[str, Any], seed: int, steps: int, experts: int, k: int) -> dict[str, Any]:
    config = tiny_config(num_experts=experts, num_experts_per_token=k, moe_intermediate_size=8)
    trainer = make_trainer(config, seed=seed, steps=steps, options={"batch.accumulate": 2, **options})
    sums: list[Any] = []
    early: list[float] = []

    def each(step: int, record: Any) -> None:
        if step <= max(steps // 10, 1):
            early.append(record["used"])
        if step > steps - max(steps // 10, 1):
            load = trainer.meters.load.sum(1).double()  # type: ignore[union-attr]
            sums.append(load)

    out = train(trainer, each)
    load = sum(sums)
    relative = load / load.mean(1, keepdim=True)
    used = [int((layer > 0.1).sum()) for layer in relative]
    out |= {
        "used_least": min(used),
        "used_mean": sum(used) / len(used),
        "max_over_mean": float(relative.max()),
        "min_over_mean": float(relative.min()),
        "used_early": sum(early) / len(early),
    }
    return out


def main() -> None:
    given = arguments(__doc__ or "", steps=500, seeds=3)
    experts, k = (24, 4) if given.quick else (896, 16)
    results = Results(given.out / f"expert-load{'-quick' if given.quick else ''}.jsonl")
    rows = []
    for arm, options in ARMS.items():
        found = []
        for seed in range(1, given.seeds + 1):
            key = {"arm": arm, "seed": seed, "steps": given.steps, "experts": experts}
            found.append(results.get(key, lambda o=options, s=seed: measure(o, s, given.steps, experts, k)))

        def mean(name: str, found: list[Any] = found) -> float:
            return sum(one[name] for one in found) / len(found)

        worst = min(one["used_least"] for one in found)
        rows.append(
            [arm, len(found), f"{mean('used_mean') / experts:.2%}", f"{worst} ({worst / experts:.2%})",
             mean("max_over_mean"), mean("min_over_mean"), f"{mean('used_early'):.2%}", mean("loss")]
        )  # fmt: skip
    head = ["balancing", "seeds", "experts in use", "in use, worst layer and seed", "max / mean", "min / mean", "in use, first tenth", "held-out loss"]  # fmt: skip
    print(f"{experts} experts, top-{k}, {given.steps} steps\n\n" + table(head, rows))


if __name__ == "__main__":
    main()

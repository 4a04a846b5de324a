"""One expert diverges: what it does to everybody else's updates under the global clip and under the clip per expert.

    .venv/bin/python -P benchmarks/diverging_expert.py

From step STEPS/2 on the gradient of one expert is multiplied by 10^8. A run and its twin without the fault see the same data. Damage:
|difference of the updates of everything but that expert| / |update of the twin|, in the step in which the fault begins;
and the held-out loss at the end.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from toy import Results, arguments, make_trainer, table, tiny_config

from watersmeet.core.errors import WatersmeetError

ARMS: dict[str, dict[str, Any]] = {
    "global clip, Muon": {},
    "clip per expert, Muon": {"experts.clip": 4.0},
    "global clip, AdamW": {"optimizer.muon": False},
    "clip per expert, AdamW": {"experts.clip": 4.0, "optimizer.muon": False},
}
EXPERT = 3


def run(options: dict[str, Any], seed: int, steps: int, faulty: bool) -> tuple[dict[str, torch.Tensor], float]:
    """Updates of the step in which the fault begins, by parameter, and the final held-out loss."""
    trainer = make_trainer(
        tiny_config(num_hidden_layers=2), seed=seed, steps=steps, options={"batch.tokens": 512, **options}
    )
    name, target = next((n, p) for n, p in trainer.model.named_parameters() if n.endswith("experts.w2"))
    at = steps // 2
    updates: dict[str, torch.Tensor] = {}
    factor = torch.ones(len(target), 1, 1)

    def scale(grad: torch.Tensor) -> torch.Tensor:
        if faulty and trainer.counters.step >= at:
            factor[EXPERT] = 1e8
        return grad * factor

    target.register_hook(scale)
    real = trainer.optimizer.step

    def step() -> None:  # type: ignore[no-untyped-def]
        first = trainer.counters.step == at
        before = {n: p.detach().clone() for n, p in trainer.model.named_parameters()} if first else {}
        real()
        for n, p in trainer.model.named_parameters() if first else ():
            update = p.detach() - before[n]
            if n in (name, name.replace("w2", "w13")):
                update[EXPERT] = 0
            updates[n] = update

    trainer.optimizer.step = step  # type: ignore[method-assign]
    try:
        trainer.run()
        loss = float(trainer.evaluate()["loss"])
    except WatersmeetError:
        loss = float("nan")
    return updates, loss


def measure(options: dict[str, Any], seed: int, steps: int) -> dict[str, Any]:
    calm, calm_loss = run(options, seed, steps, False)
    wild, wild_loss = run(options, seed, steps, True)
    norm = sum(float(u.square().sum()) for u in calm.values())
    apart = sum(float((wild[n] - u).square().sum()) for n, u in calm.items())
    return {"damage": (apart / norm) ** 0.5, "loss": wild_loss, "loss_without_fault": calm_loss}


def main() -> None:
    given = arguments(__doc__ or "", steps=200, seeds=3)
    results = Results(given.out / f"diverging-expert{'-quick' if given.quick else ''}.jsonl")
    rows = []
    for arm, options in ARMS.items():
        for seed in range(1, given.seeds + 1):
            key = {"arm": arm, "seed": seed, "steps": given.steps}
            one = results.get(key, lambda o=options, s=seed: measure(o, s, given.steps))
            rows.append([arm, seed, one["damage"], one["loss_without_fault"], one["loss"]])
    print(table(["arm", "seed", "damage to the others' updates", "loss without the fault", "loss with it"], rows))


if __name__ == "__main__":
    main()

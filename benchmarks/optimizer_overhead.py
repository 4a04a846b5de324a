"""What share of a training step of the nano model is the optimizer, and what do measurements for the log add.

    .venv/bin/python -P benchmarks/optimizer_overhead.py

Processor seconds, the fastest of several steps: other programs on the machine disturb the others.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from toy import Results, arguments, make_trainer, table, tiny_config

from watersmeet.core.config import preset
from watersmeet.core.training.packing import Packer
from watersmeet.kernels.native import keep_memory

ARMS: dict[str, dict[str, Any]] = {
    "Muon per head, nothing measured": {"run.measure_every": 0},
    "the same, everything measured every step": {"run.measure_every": 1},
    "Muon per head, rates per head, clip per expert": {
        "run.measure_every": 0,
        "optimizer.head_rate": 0.5,
        "experts.clip": 4.0,
    },
    "AdamW": {"run.measure_every": 0, "optimizer.muon": False},
}


def measure(options: dict[str, Any], steps: int, quick: bool) -> dict[str, Any]:
    config = (
        tiny_config()
        if quick
        else preset("nano").replace(vocab_size=2048, output_modality="text", moe_intermediate_size=96)
    )
    tokens = 256 if quick else 2048
    trainer = make_trainer(
        config, seed=1, steps=steps + 2, options={"batch.tokens": tokens, "run.precision": "bf16", **options}
    )
    keep_memory()
    packer = Packer(trainer.train_set, seed=1, **trainer._packing())
    whole, inside = [], []
    real = trainer.optimizer.step

    def timed() -> None:  # type: ignore[no-untyped-def]
        begin = time.process_time()
        real()
        inside.append(time.process_time() - begin)

    trainer.optimizer.step = timed  # type: ignore[method-assign]
    for _ in range(steps + 2):
        batch = packer.next_batch()
        begin = time.process_time()
        trainer._step([batch])
        whole.append(time.process_time() - begin)
    return {"step": min(whole[2:]), "optimizer": min(inside[2:])}


def main() -> None:
    given = arguments(__doc__ or "", steps=10, seeds=1)
    results = Results(given.out / f"optimizer-overhead{'-quick' if given.quick else ''}.jsonl")
    rows = []
    for arm, options in ARMS.items():
        key = {"arm": arm, "steps": given.steps}
        one = results.get(key, lambda o=options: measure(o, given.steps, given.quick))
        rows.append([arm, one["step"], one["optimizer"], f"{one['optimizer'] / one['step']:.1%}"])
    print(table(["arm", "seconds a step", "seconds of the optimizer", "share"], rows))


if __name__ == "__main__":
    main()

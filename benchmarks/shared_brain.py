"""Do the kinds of data share experts? Shares of each expert's tokens, mutual information, and text with and without the rest.

    .venv/bin/python -P benchmarks/shared_brain.py

Mutual information between kind and expert, in bits, per layer, over the last tenth of the steps: 0 when every expert gets every
kind in the same proportion, the entropy of the kinds when every expert serves one kind. Text alone sees as many *text*
tokens as text with pictures and films does.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
from toy import Results, arguments, canvas, make_trainer, table, tiny_config, train

from watersmeet.core.training.packing import Packer

ARMS: dict[str, dict[str, float]] = {
    "text alone": {"text": 1.0},
    "text, pictures, films": {"text": 1.0, "picture": 1.0, "film": 1.0},
}


def information(load_QE: torch.Tensor) -> tuple[float, float]:
    """Mutual information of kind and expert, and the entropy of the kinds, in bits."""
    p = load_QE / load_QE.sum()
    kinds, experts = p.sum(1, keepdim=True), p.sum(0, keepdim=True)
    inside = torch.where(p > 0, p * (p / (kinds * experts).clamp(min=1e-30)).log2(), 0.0)
    entropy = torch.where(kinds > 0, -kinds * kinds.clamp(min=1e-30).log2(), 0.0)
    return float(inside.sum()), float(entropy.sum())


def text_loss(trainer: Any, batches: int) -> float:
    """Loss on held-out sentences."""
    from toy import Mixture

    options = {**trainer._packing(), "shuffle": False}
    packer = Packer(Mixture("val", shares={"text": 1.0}), **options)
    trainer.module.eval()
    total = weight = 0.0
    with torch.no_grad():
        for _ in range(batches):
            batch = packer.next_batch()
            out = trainer.model.loss(batch.packed, real_tokens=batch.real_tokens)
            total, weight = total + float(out.loss_sum), weight + float(out.weight_sum)
    return total / weight


def measure(shares: dict[str, float], seed: int, steps: int, experts: int, k: int) -> dict[str, Any]:
    config = tiny_config(num_experts=experts, num_experts_per_token=k, num_hidden_layers=3)
    trainer = make_trainer(config, seed=seed, steps=steps, shares=shares)
    loads: list[torch.Tensor] = []

    def each(step: int, record: Any) -> None:
        if step > steps - max(steps // 10, 1):
            loads.append(trainer.meters.load.double())  # type: ignore[union-attr]

    out = train(trainer, each)
    out["text_loss"] = text_loss(trainer, 8)
    load_MQE = torch.stack(loads).sum(0)
    found = [information(layer) for layer in load_MQE]
    share_MQE = load_MQE / load_MQE.sum(1, keepdim=True).clamp(min=1)
    largest = share_MQE.amax(1).flatten()
    out |= {
        "information": [bits for bits, _ in found],
        "entropy": found[0][1],
        "kinds": list(trainer.model.modality_names),
        "shares": share_MQE.tolist(),
        "largest_share": torch.quantile(largest, torch.tensor([0.0, 0.5, 0.9, 1.0], dtype=torch.float64)).tolist(),
    }
    return out


def draw(one: dict[str, Any], path: Path) -> None:
    """Whose tokens every expert serves, one picture a layer, experts in the order of their words."""
    layers = np.array(one["shares"])
    with canvas(path, columns=len(layers)) as axes:
        for number, (axis, share_QE) in enumerate(zip(axes, layers, strict=True), 1):
            words = one["kinds"].index("text")
            order = np.argsort(share_QE[words])
            axis.stackplot(np.arange(len(order)), share_QE[:, order], labels=one["kinds"], step="mid")
            axis.set(xlabel=f"expert, layer {number} with experts", ylabel="share of its tokens", ylim=(0, 1))
            axis.set_xlim(0, len(order) - 1)
        axes[0].legend(loc="upper left", fontsize=8)


def main() -> None:
    given = arguments(__doc__ or "", steps=600, seeds=3)
    experts, k = (8, 2) if given.quick else (64, 4)
    results = Results(given.out / f"shared-brain{'-quick' if given.quick else ''}.jsonl")
    rows, last = [], {}
    for arm, shares in ARMS.items():
        # a sentence has 48 tokens, a picture with its words 33, a film with its words 25: as many more steps as give
        # the same number of sentences
        length = {"text": 48, "picture": 33, "film": 25}
        steps = max(round(given.steps * sum(length[kind] for kind in shares) / length["text"]), 2)
        for seed in range(1, given.seeds + 1):
            key = {"arm": arm, "seed": seed, "steps": steps, "experts": experts}
            one = results.get(key, lambda s=shares, r=seed, n=steps: measure(s, r, n, experts, k))
            bits = one["information"]
            last[arm] = one
            rows.append([
                arm, seed, steps, one["text_loss"], sum(bits) / len(bits), one["entropy"],
                " / ".join(f"{value:.2f}" for value in one["largest_share"]),
            ])  # fmt: skip
    head = ["data", "seed", "steps", "held-out text loss", "information (bits)", "entropy of kinds (bits)", "largest share of a kind: least, median, 90 %, most"]  # fmt: skip
    draw(last["text, pictures, films"], given.out / "shared-brain.png")
    print(f"{experts} experts, top-{k}\n\n" + table(head, rows))


if __name__ == "__main__":
    main()

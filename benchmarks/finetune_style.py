"""The nano model on 200 pages of one design system, adapters and all weights: held-out pages of it, and the old ones.

    .venv/bin/python -P benchmarks/finetune_style.py --out runs/style

Pages are those of style_pages.py; everything after that is commands that a user has too, and a second start goes on where the
first was stopped. Learning rates are searched on pages of the 200 that are held out of training; the 30 pages that the tables are
about, and the packages of the benchmark (`watersmeet data fetch --split val` first), are looked at once, at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
from style_pages import LEARNT, UNSEEN, write_pages

from watersmeet.core.stream import NO_TARGET, pack
from watersmeet.core.training.log import read_log
from watersmeet.pipelines.finetune.dataset import open_conversations
from watersmeet.pipelines.models.local import load_local
from watersmeet.pipelines.screenshot_to_code.bench import validation_views

# peak rates, three times as large each: of Muon for all weights (AdamW has 0.4 of it), of AdamW for adapters
FULL = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
LORA = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
MODELS = {"nano": "nano", "LoRA, r = 16": "lora", "all weights": "full"}
SCORES = ("LOOK", "CODE", "role", "boxes", "content", "fill")


def watersmeet(*words: Any) -> None:
    """Run one command; its output goes where ours goes."""
    command = [sys.executable, "-P", "-m", "watersmeet", *map(str, words)]
    print("$ watersmeet", *words, flush=True)
    subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")})


def recipe(folder: Path, rate: float, lora: bool) -> Path:
    path = folder / f"{'lora' if lora else 'full'}-{rate:g}.toml"
    rates = f"adamw_lr = {rate:g}" if lora else f"lr = {rate:g}\nadamw_lr = {0.4 * rate:g}"
    path.write_text(f"[optimizer]\n{rates}\n[schedule]\nwarmup = 5\n[run]\nthreads = 1\ntensorboard = false\n")
    return path


def train(out: Path, name: str, rate: float, steps: int, lora: bool, evaluations: int) -> dict[str, Any]:
    """One run; what its log says of held-out rows before and after, and how long its steps took."""
    run = out / name
    if not (run / "model" / "config.json").exists():
        words = ["finetune", "--model", "nano", "--data", out / "rows.jsonl", "--eval-data", out / "rows.held.jsonl"]
        words += ["--out", run, "--config", recipe(out, rate, lora), "--steps", steps, "--batch-tokens", 2048]
        words += [
            "--too-long",
            "drop",
            "--eval-every",
            max(1, steps // evaluations),
            *(["--lora", "r=16"] if lora else []),
        ]
        watersmeet(*words)
    log = read_log(run / "log.jsonl")
    losses = [(record["loss"], record["step"]) for record in log if record["kind"] == "eval"]
    steps_done = [record for record in log if record["kind"] == "train"]
    seconds = sum(record["step_seconds"] for record in steps_done)
    return {
        "rate": rate,
        "before": losses[0][0],
        "best": min(losses),
        "steps": len(steps_done),
        "seconds": round(seconds),
    }


def search(out: Path, lora: bool, steps: int) -> tuple[float, list[dict[str, Any]]]:
    """The rate with the lowest held-out loss after `steps`: from two in the middle downhill until it rises again."""
    grid, kind = (LORA, "lora") if lora else (FULL, "full")
    tried: dict[int, dict[str, Any]] = {}
    waiting = [1, 2]
    while waiting:
        for i in waiting:
            tried[i] = train(out, f"search/{kind}-{grid[i]:g}", grid[i], steps, lora, 1)
        best = min(tried, key=lambda i: tried[i]["best"][0])
        waiting = [i for i in (best - 1, best + 1) if i in range(len(grid)) and i not in tried]
    return grid[best], [tried[i] for i in sorted(tried)]


def group(page: str) -> str:
    """Which of the 30 pages have templates that were learnt."""
    return (
        "templates not learnt" if page.partition("-")[2] in {made.__name__ for made in UNSEEN} else "templates learnt"
    )


def measure(out: Path, pages: str, *words: Any) -> dict[str, dict[str, float]]:
    """Means of the three models on some pages, by "group|model"; pages of ours are also grouped by template."""
    found: dict[str, list[dict[str, float | None]]] = {}
    for name, folder in MODELS.items():
        model = out / folder / "model" if folder != "nano" else folder
        shared = ("--regions", out / "regions", "--no-baselines")
        watersmeet("bench", "screenshot-to-code", "--model", model, "--out", out / pages / folder, *shared, *words)
        for line in (out / pages / folder / "rows.jsonl").read_text("utf-8").splitlines()[1:]:
            for row in json.loads(line):
                page = row["view"].split("/")[1].split(" ")[0]
                for key in ("all", group(page)) if pages == "new" else ("all",):
                    found.setdefault(f"{key}|{name}", []).append(row["scores"])
    out_of = {}
    for key, rows in found.items():
        out_of[key] = {score: sum(row[score] or 0.0 for row in rows) / len(rows) for score in SCORES}
        out_of[key]["views"] = len(rows)
    return out_of


def guesses(out: Path, pages: str, files: Sequence[Path]) -> dict[str, dict[str, float]]:
    """By "group|model" what the models make of right answers: nats a symbol, and the share of symbols they would have written.

    Each symbol after the true ones before it; one pass a view, so this is quick and needs no browser once the rows are there.
    """
    rows = out / f"{pages}.jsonl"
    if not rows.exists():
        watersmeet("data", "rows", *files, "--out", rows, "--reader", "page")
    data = open_conversations("train", path=str(rows), model="nano", too_long="drop")
    streams = [data.sample(i, np.random.default_rng(0)) for i in range(len(data))]
    found: dict[str, dict[str, float]] = {}
    for name, folder in MODELS.items():
        model = load_local(str(out / folder / "model") if folder != "nano" else folder).model
        nats, right, count = 0.0, 0, 0
        for stream in streams:
            with torch.no_grad():
                packed = pack([stream], model.modality_names)
                at = (packed.targets != NO_TARGET).nonzero().squeeze(1)
                logits, targets = model.logits(model(packed)[at]), packed.targets[at]
            nats += float(torch.nn.functional.cross_entropy(logits, targets, reduction="sum"))
            right += int((logits.argmax(-1) == targets).sum())
            count += len(targets)
        found[f"all|{name}"] = {"nats a symbol": nats / count, "symbols right": right / count, "views": len(streams)}
    return found


def table(found: dict[str, dict[str, float]]) -> str:
    """A table in Markdown, the three models of each group one below the other."""
    names = [name for name in next(iter(found.values())) if name != "views"]
    lines = [f"| pages | model | views | {' | '.join(names)} |", "|---|---|---:|" + "---:|" * len(names)]
    for key, row in sorted(found.items(), key=lambda item: item[0].split("|")[0]):
        pages, model = key.split("|")
        lines.append(
            f"| {pages} | {model} | {row['views']:.0f} | {' | '.join(f'{row[name]:.3f}' for name in SCORES)} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/style"))
    parser.add_argument("--data", type=Path, default=Path("data"), help="where the packages of the benchmark lie")
    parser.add_argument("--steps", type=int, default=120, help="of the two runs, 2,048 tokens each")
    parser.add_argument("--search-steps", type=int, default=30)
    parser.add_argument("--old-views", type=int, default=58, help="views of the old validation pages")
    parser.add_argument(
        "--new-views", type=int, default=60, help="views of the 30 held-out pages; 30 are the wide ones"
    )
    parser.add_argument("--learn", type=int, default=200)
    given = parser.parse_args()
    out: Path = given.out
    out.mkdir(parents=True, exist_ok=True)
    write_pages(out / "pages", learn=given.learn)
    if not (out / "rows.jsonl").exists():
        made = ("--reader", "page", "--worn", 1, "--hold-out", 0.1)
        watersmeet("data", "rows", out / "pages" / "learn", "--out", out / "rows.jsonl", *made)
    report: dict[str, Any] = {"pages": f"{given.learn} pages of {len(LEARNT)} templates"}
    for name in ("lora", "full"):
        rate, report[f"{name} search"] = search(out, name == "lora", given.search_steps)
        report[name] = train(out, name, rate, given.steps, name == "lora", 6)
        (out / "report.json").write_text(json.dumps(report, indent=1))
    report["new guesses"] = guesses(out, "new", [out / "pages" / "held"])
    report["old guesses"] = guesses(out, "old", sorted({view.page for view in validation_views(given.data)}))
    report["new"] = measure(out, "new", "--pages", out / "pages" / "held", "--limit", given.new_views)
    (out / "report.json").write_text(json.dumps(report, indent=1))
    report["old"] = measure(out, "old", "--data", given.data, "--limit", given.old_views)
    (out / "report.json").write_text(json.dumps(report, indent=1))
    for name in ("lora", "full"):
        run = report[name]
        print(
            f"{name}: rate {run['rate']:g}, held-out loss {run['before']:.3f} -> {run['best'][0]:.3f} at step {run['best'][1]}, {run['seconds']} s"
        )
    for pages in ("new guesses", "old guesses", "new", "old"):
        print(f"\n{pages} pages\n\n{table(report[pages])}")


if __name__ == "__main__":
    main()

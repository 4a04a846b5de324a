"""The nano model on 200 pages of one design system, adapters and all weights: held-out pages of it, and the old ones.

    .venv/bin/python -P benchmarks/finetune_style.py --out runs/style

Pages are those of style_pages.py; everything after that is commands that a user has too, and a second start goes on where the
first was stopped. Rows of pages that the model was trained on are mixed in, so that it does not forget them; they and the old pages
need the packages (`watersmeet data fetch` first). Learning rates are chosen on pages of the 200 that are held out of training; the 30
pages that the tables are about, and the validation packages, are looked at once, at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
from style_pages import LEARNT, UNSEEN, write_pages

from watersmeet.core.stream import NO_TARGET, pack
from watersmeet.core.training.log import read_log
from watersmeet.pipelines.data.plan import page_file, plan
from watersmeet.pipelines.finetune.dataset import open_conversations
from watersmeet.pipelines.models.local import load_local
from watersmeet.pipelines.screenshot_to_code.bench import Row, means, validation_views

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
    run = 'threads = 1\ntensorboard = false\nprecision = "fp32"'  # machines without bfloat16 units are twice as fast in float32
    path.write_text(f"[optimizer]\n{rates}\n[schedule]\nwarmup = 5\n[run]\n{run}\n")
    return path


def replay_pages(data: Path, count: int) -> list[Path]:
    """Pages that the nano model was trained on, in the order of its own plan; 1,300 views of each kind are within it."""
    found: dict[Path, None] = {}
    for job in plan(data, "train", real=1300, generated=1300):
        if len(found) == count:
            break
        if job.scroll == 0:
            found[page_file(job, data)] = None
    return list(found)


def write_mixture(out: Path, data: Path, replay: int) -> None:
    """`out`/mix.jsonl: the rows of the style, then those of `replay` other pages; runs shuffle them."""
    made = ("--reader", "page", "--worn", 1)
    if not (out / "rows.jsonl").exists():
        watersmeet("data", "rows", out / "pages" / "learn", "--out", out / "rows.jsonl", *made, "--hold-out", 0.1)
    if replay and not (out / "replay.jsonl").exists():
        watersmeet("data", "rows", *replay_pages(data, replay), "--out", out / "replay.jsonl", *made)
    parts = [out / "rows.jsonl", *([out / "replay.jsonl"] if replay else [])]
    (out / "mix.jsonl").write_text("".join(part.read_text("utf-8") for part in parts), encoding="utf-8")


def train(out: Path, name: str, rate: float, steps: int, lora: bool, evaluations: int) -> dict[str, Any]:
    """One run; what its log says of held-out rows before and after, and how long its steps took."""
    run = out / name
    if not (run / "model" / "config.json").exists():
        words = ["finetune", "--model", "nano", "--data", out / "mix.jsonl", "--eval-data", out / "rows.held.jsonl"]
        words += ["--out", run, "--config", recipe(out, rate, lora), "--steps", steps, "--batch-tokens", 2048]
        words += ["--too-long", "drop", "--eval-every", max(1, steps // evaluations)]
        words += ["--lora", "r=16"] if lora else []
        watersmeet(*words)
    log = read_log(run / "log.jsonl")
    losses = [(record["loss"], record["step"]) for record in log if record["kind"] == "eval"]
    steps_done = [record for record in log if record["kind"] == "train"]
    # not the sum: a pause of the whole process would stand in it
    seconds = len(steps_done) * median(record["step_seconds"] for record in steps_done)
    return {
        "rate": rate,
        "before": losses[0][0],
        "best": min(losses),
        "steps": len(steps_done),
        "seconds": round(seconds),
    }


def search(out: Path, lora: bool, rates: Sequence[float], steps: int) -> tuple[float, list[dict[str, Any]]]:
    """The rate with the lowest held-out loss after `steps`, and what every one came to; a single rate is taken as it is."""
    if len(rates) == 1:
        return rates[0], []
    tried = [train(out, f"search/{'lora' if lora else 'full'}-{rate:g}", rate, steps, lora, 1) for rate in rates]
    return min(tried, key=lambda run: run["best"][0])["rate"], tried


def group(page: str) -> str:
    """Which of the 30 pages have templates that were learnt."""
    return (
        "templates not learnt" if page.partition("-")[2] in {made.__name__ for made in UNSEEN} else "templates learnt"
    )


def measure(out: Path, pages: str, *words: Any) -> dict[str, dict[str, float]]:
    """Means of the three models on some pages, by "group|model"; pages of ours are also grouped by template."""
    names = {str(out / folder / "model") if folder != "nano" else folder: name for name, folder in MODELS.items()}
    models = [word for folder in names for word in ("--model", folder)]
    shared = ("--regions", out / "regions", "--no-baselines")
    watersmeet("bench", "screenshot-to-code", *models, "--out", out / pages, *shared, *words)
    found: dict[str, list[Row]] = {}
    for line in (out / pages / "rows.jsonl").read_text("utf-8").splitlines()[1:]:
        for row in json.loads(line):
            page = row["view"].split("/")[1].split(" ")[0]
            for key in ("all", group(page)) if pages == "new" else ("all",):
                found.setdefault(f"{key}|{names[row['method']]}", []).append(Row(**row))
    return {key: next(iter(means(rows).values())) | {"views": len(rows)} for key, rows in found.items()}


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
    first = next(iter(found.values()))
    names = [name for name in first if name in SCORES] or [name for name in first if name != "views"]
    lines = [f"| pages | model | views | {' | '.join(names)} |", "|---|---|---:|" + "---:|" * len(names)]
    for key, row in sorted(found.items(), key=lambda item: item[0].split("|")[0]):
        pages, model = key.split("|")
        lines.append(f"| {pages} | {model} | {row['views']:.0f} | {' | '.join(f'{row[name]:.3f}' for name in names)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/style"))
    parser.add_argument("--data", type=Path, default=Path("data"), help="where the packages of the benchmark lie")
    parser.add_argument("--replay", type=int, default=70, help="pages of the model's own training that are mixed in")
    parser.add_argument("--lora-steps", type=int, default=120, help="2,048 tokens each")
    parser.add_argument("--full-steps", type=int, default=160)
    parser.add_argument("--search-steps", type=int, default=16)
    # peak rates to choose from: of AdamW for adapters, of Muon for all weights (AdamW has 0.4 of it)
    parser.add_argument("--lora-rates", type=float, nargs="+", default=[0.005])
    parser.add_argument("--full-rates", type=float, nargs="+", default=[0.001, 0.003])
    parser.add_argument("--old-views", type=int, default=20, help="views of the old validation pages, of 58")
    parser.add_argument("--new-views", type=int, default=20, help="views of the 30 held-out pages, of 60")
    parser.add_argument("--learn", type=int, default=200)
    given = parser.parse_args()
    out: Path = given.out
    out.mkdir(parents=True, exist_ok=True)
    write_pages(out / "pages", learn=given.learn)
    write_mixture(out, given.data, given.replay)
    report: dict[str, Any] = {"pages": f"{given.learn} pages of {len(LEARNT)} templates"}
    runs = (("lora", given.lora_rates, given.lora_steps), ("full", given.full_rates, given.full_steps))
    for name, rates, steps in runs:
        rate, report[f"{name} search"] = search(out, name == "lora", rates, given.search_steps)
        report[name] = train(out, name, rate, steps, name == "lora", 6)
        (out / "report.json").write_text(json.dumps(report, indent=1))
    report["new guesses"] = guesses(out, "new", [out / "pages" / "held"])
    report["old guesses"] = guesses(out, "old", sorted({view.page for view in validation_views(given.data)}))
    report["new"] = measure(out, "new", "--pages", out / "pages" / "held", "--limit", given.new_views)
    (out / "report.json").write_text(json.dumps(report, indent=1))
    report["old"] = measure(out, "old", "--data", given.data, "--limit", given.old_views)
    (out / "report.json").write_text(json.dumps(report, indent=1))
    for name in ("lora", "full"):
        run = report[name]
        loss, step = run["best"]
        print(
            f"{name}: rate {run['rate']:g}, held-out loss {run['before']:.3f} -> {loss:.3f} at step {step}, {run['seconds']} s"
        )
    for pages in ("new guesses", "old guesses", "new", "old"):
        print(f"\n{pages} pages\n\n{table(report[pages])}")


if __name__ == "__main__":
    main()

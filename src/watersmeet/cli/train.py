"""`watersmeet train`: from a recipe (TOML) to a checkpoint that pipelines can load."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from watersmeet.core.training.config import TrainConfig
    from watersmeet.core.training.saving import Counters
    from watersmeet.core.training.trainer import Summary


def train_command(
    config: Path,
    *,
    steps: int | None = None,
    seed: int | None = None,
    device: str | None = None,
    fresh: bool = False,
    max_minutes: float | None = None,
    out: Path | None = None,
    batch_tokens: int | None = None,
    save_every: int | None = None,
    dry_run: bool = False,
    report: Callable[[str], None] | None = None,
) -> Summary | None:
    """Train by the recipe `config`, resuming what its output directory holds; export the model to OUT/model.

    steps, seed, out  replace `schedule.steps`, `seed` and `run.out`; more steps than before extend a finished run
    batch_tokens, save_every  replace `batch.tokens` and `run.save_every`
    device            "cpu" keeps off a GPU that is there
    fresh             moves an earlier run in the same directory aside and starts anew
    max_minutes       stops cleanly, with a checkpoint, after that time; the next call goes on
    dry_run           prints what would be learnt, by what and for how long, and trains nothing (None is returned)
    report            called with lines of text; None: a bar on a terminal, lines elsewhere, on stderr
    Raises WatersmeetError with one sentence for everything that is wrong with recipe, data or checkpoint.
    """
    from watersmeet.core.training.config import read_config

    recipe = read_config(config)
    changes = {"schedule.steps": steps, "seed": seed, "run.out": None if out is None else str(out)}
    changes |= {"batch.tokens": batch_tokens, "run.save_every": save_every}
    recipe = recipe.with_values(**{name: value for name, value in changes.items() if value is not None})
    if dry_run:
        rehearse_recipe(recipe, device=device)
        return None
    return run_recipe(recipe, device=device, fresh=fresh, max_minutes=max_minutes, report=report)


def rehearse_recipe(recipe: TrainConfig, *, device: str | None = None, train_set: Any = None) -> None:
    """Print what `run_recipe` would do; writes nothing."""
    from watersmeet.cli.flags import check_device
    from watersmeet.cli.rehearsal import rehearse
    from watersmeet.cli.start import start_run
    from watersmeet.core.training.precision import settled
    from watersmeet.core.training.sharding import on_cpu
    from watersmeet.core.training.trainer import seed_everything

    check_device(device)
    recipe = settled(recipe, "cpu" if on_cpu(device) else None)
    seed_everything(recipe.seed)
    train_set = open_dataset(recipe, "train") if train_set is None else train_set
    start = start_run(recipe, train_set)
    rehearse(start.model, train_set, recipe, vocabulary=start.vocabulary(), device=device)


def run_recipe(
    recipe: TrainConfig,
    *,
    device: str | None = None,
    fresh: bool = False,
    max_minutes: float | None = None,
    report: Callable[[str], None] | None = print,
    train_set: Any = None,
) -> Summary:
    """The same from a configuration that has been read already, and perhaps a data set that is open already."""
    from watersmeet.cli.console import show_steps
    from watersmeet.cli.flags import check_device

    check_device(device)
    how: dict[str, Any] = {"device": device, "fresh": fresh, "max_minutes": max_minutes, "train_set": train_set}
    if report is None and os.environ.get("RANK", "0") != "0":
        report = _say_nothing  # one process of a run speaks for all
    if report is not None:
        return _run(recipe, report=report, on_step=None, **how)
    with show_steps(recipe.schedule.steps) as (on_step, say):
        return _run(recipe, report=say, on_step=on_step, **how)


def _say_nothing(line: str) -> None:
    pass


def _run(
    recipe: TrainConfig,
    *,
    device: str | None,
    fresh: bool,
    max_minutes: float | None,
    report: Callable[[str], None],
    on_step: Any,
    train_set: Any,
) -> Summary:
    from watersmeet.cli.start import start_run, teacher_of
    from watersmeet.core.training.precision import settled
    from watersmeet.core.training.sharding import in_first_process, on_cpu
    from watersmeet.core.training.trainer import Trainer, seed_everything

    recipe = settled(recipe, "cpu" if on_cpu(device) else None)
    seed_everything(recipe.seed)
    train_set = open_dataset(recipe, "train") if train_set is None else train_set
    val_set = open_dataset(recipe, "val") if recipe.run.eval_every else None
    start = start_run(recipe, train_set)
    out = Path(recipe.run.out)
    if fresh:
        # several processes would move each other's files
        in_first_process(lambda: _move_aside(out, report), device=device)
    if hasattr(train_set, "work_in"):
        train_set.work_in(out)
    trainer = Trainer(
        start.model,
        recipe,
        train_set,
        val_set,
        out=out,
        device=device,
        report=report,
        on_step=on_step,
        teacher=teacher_of(recipe),
    )
    if trainer.resume():
        report(f"resumed at step {trainer.counters.step} of {recipe.schedule.steps}")
    else:
        total = sum(parameter.numel() for parameter in start.model.parameters())
        report(f"{len(train_set)} training samples, {total:,} parameters\n{trainer.table()}")
    summary = trainer.run(max_minutes=max_minutes)
    kept = trainer.restore_best()
    if trainer.main:
        start.save(out / "model")
        if (out / "log.jsonl").exists():
            from watersmeet.core.training.plot import plot_log

            plot_log(out / "log.jsonl", out / "curve.png")
    reasons = {"done": "finished", "signal": "stopped by a signal", "time": "stopped after the time given"}
    reasons["patience"] = f"stopped after {recipe.run.patience} evaluations that were no better"
    # a run that had nothing left to do took no step and has no loss of its own
    loss = "" if math.isnan(summary.loss) else f", loss {summary.loss:.4f}"
    report(
        f"{reasons[summary.stopped]} at step {summary.step} of {recipe.schedule.steps}{loss}; {_best(trainer.counters, kept)}"
        f"model in {out / 'model'}, curves in {out / 'curves.html'}, log in {out / 'log.jsonl'}"
        + ("" if summary.stopped in ("done", "patience") else f"; the same command goes on from {summary.checkpoint}")
    )
    return summary


def _best(counters: Counters, kept: int) -> str:
    if counters.best_loss is None or kept != counters.best_step:
        return ""
    hint = "" if kept else ", so no step was better than the model as it was: lower the rates"
    return f"the lowest held-out loss was {counters.best_loss:.4f} at step {kept}{hint}; "


def open_dataset(recipe: TrainConfig, split: str) -> Any:
    """Call the recipe's dataset target for one split."""
    from watersmeet.core.errors import ConfigError, PluginError
    from watersmeet.plugins.specs import LazyTarget

    try:
        target = LazyTarget(recipe.dataset).resolve()
    except PluginError as error:
        raise ConfigError(f"dataset: {error}") from error
    options = dict(recipe.dataset_options) | (dict(recipe.val_options) if split == "val" else {})
    try:
        return target(split, **options)
    except TypeError as error:
        if "unexpected keyword" in str(error):
            raise ConfigError(f"dataset_options: {recipe.dataset} does not know one of them: {error}") from error
        raise


def _move_aside(out: Path, report: Callable[[str], None]) -> None:
    """Rename checkpoints and log of an earlier run; nothing is deleted."""
    number = 1
    while any(out.glob(f"*.before-{number}")):
        number += 1
    for name in ("checkpoints", "log.jsonl"):
        path = out / name
        if path.exists():
            os.replace(path, path.with_name(f"{name}.before-{number}"))
            report(f"fresh run: moved {path} to {name}.before-{number}")

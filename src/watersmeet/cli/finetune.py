"""`watersmeet finetune`: from a model folder and a file of conversations to a model folder."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from watersmeet.core.errors import ConfigError, UsageError, WatersmeetError

if TYPE_CHECKING:
    from watersmeet.core.training.config import TrainConfig
    from watersmeet.core.training.trainer import Summary

DATASET = "watersmeet.pipelines.finetune.dataset:open_conversations"

# where to start from; --config changes any of it
_DEFAULTS: dict[str, Any] = {
    "batch": {"tokens": 4096, "pool": 32},
    "optimizer": {"lr": 5e-4, "adamw_lr": 2e-4, "weight_decay": 0.0},
    "schedule": {"kind": "cosine", "final": 0.1},
    "run": {"eval_every": 0, "save_every": 100},
}
# with --eval-data: so many judgements over a run, on so many batches at most
_EVALUATIONS, _EVAL_BATCHES = 10, 64
_LORA_DEFAULTS: dict[str, Any] = {"optimizer": {"adamw_lr": 1e-3}}


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was asked for; None leaves a value to --config, and then to the defaults."""

    model: str
    data: Path
    out: Path
    lora: str | None = None
    config: Path | None = None
    steps: int | None = None
    seed: int | None = None
    batch_tokens: int | None = None
    save_every: int | None = None
    device: str | None = None
    root: Path | None = None
    urls: bool = False
    too_long: str | None = None
    fresh: bool = False
    dry_run: bool = False
    max_minutes: float | None = None
    epochs: float | None = None
    eval_data: Path | None = None
    eval_every: int | None = None
    patience: int | None = None


def finetune_command(request: Request, report: Callable[[str], None] | None = None) -> Summary | None:
    """Train, or go on with training, and write `out/model`; with `dry_run` only print what would be done.

    Raises WatersmeetError with one sentence for everything that is wrong with model, data, configuration or checkpoint.
    """
    from watersmeet.cli.flags import check_device
    from watersmeet.cli.rehearsal import statistics
    from watersmeet.cli.train import open_dataset, rehearse_recipe, run_recipe

    check_device(request.device)
    if request.steps is not None and request.epochs is not None:
        raise UsageError("--steps and --epochs both say how long to train; give one of them")
    if request.eval_data is None and not (request.eval_every is None and request.patience is None):
        raise UsageError("--eval-every and --patience need --eval-data, a file of rows that are held out")
    values = recipe_values(request)
    planned = "steps" in values["schedule"] and request.epochs is None
    recipe = _recipe(values, request)
    dataset = open_dataset(recipe, "train")
    if not planned:
        found = statistics(dataset, recipe.batch.tokens)
        if not found.tokens:
            reason = found.bad[0] if found.bad else f"all have more than {recipe.batch.tokens:,} tokens"
            raise WatersmeetError(f"{request.data}: none of {found.looked_at} rows can be used: {reason}")
        a_step = recipe.batch.tokens * recipe.batch.accumulate
        steps = max(1, math.ceil((request.epochs or 1.0) * found.usable / a_step))
        warmup = min(recipe.schedule.warmup, steps // 10)
        recipe = recipe.with_values(**{"schedule.steps": steps, "schedule.warmup": warmup})
    if request.eval_data is not None:
        recipe = _judged(recipe, request)
    if request.dry_run:
        rehearse_recipe(recipe, device=request.device, train_set=dataset)
        return None
    return run_recipe(
        recipe,
        device=request.device,
        fresh=request.fresh,
        max_minutes=request.max_minutes,
        report=report,
        train_set=dataset,
    )


def recipe_values(request: Request) -> dict[str, Any]:
    """The recipe as plain values: defaults, then --config, then what the command line says."""
    from watersmeet.cli.flags import read_lora
    from watersmeet.pipelines.finetune.sources import open_source

    given = _read(request.config)
    for key in ("dataset", "model"):
        if key in given:
            raise ConfigError(
                f"{request.config}: has {key!r}, which --{'data' if key == 'dataset' else 'model'} says here"
            )
    if request.lora is not None:
        given = _merged(given, {"lora": read_lora(request.lora)})
    values = _merged(_DEFAULTS, _LORA_DEFAULTS if given.get("lora", {}).get("r") else {})
    values = _merged(values, given)
    options = {
        "path": str(request.data),
        "model": request.model,
        # so that a run never goes on with other rows than it began with
        "fingerprint": open_source(request.data).fingerprint,
        "root": None if request.root is None else str(request.root),
        "urls": request.urls or None,
        "too_long": request.too_long,
    }
    if request.eval_data is not None:
        held = {"val_path": str(request.eval_data), "val_fingerprint": open_source(request.eval_data).fingerprint}
        below = {"eval_batches": _EVAL_BATCHES, "keep_best": True, "eval_every": 1}
        above = {"eval_every": request.eval_every, "patience": request.patience}
        values = _merged(_merged({"run": below}, values), {"val_options": held, "run": above})
        values["run"]["eval_every"] = values["run"]["eval_every"] or 1
    batch, run = {"tokens": request.batch_tokens}, {"save_every": request.save_every, "out": str(request.out)}
    said = {"seed": request.seed, "batch": batch, "run": run, "schedule": {"steps": request.steps}}
    values = _merged(values, {"dataset": DATASET, "dataset_options": options, "model": {"init": request.model}} | said)
    values["dataset_options"]["max_tokens"] = values["batch"]["tokens"]
    return values


def _judged(recipe: TrainConfig, request: Request) -> TrainConfig:
    """The recipe with its evaluations spread over the run, after a look whether the held-out rows are held out."""
    from watersmeet.cli.train import open_dataset
    from watersmeet.pipelines.finetune.sources import open_source, shared_rows

    held = Path(recipe.val_options["val_path"])
    if shared := shared_rows(open_source(request.data), open_source(held)):
        raise ConfigError(
            f"{shared[0]} is a row of {request.data} too ({len(shared)} of such in all); what is learnt cannot judge what was learnt, "
            "so take them out of one of the files"
        )
    open_dataset(recipe, "val")
    asked = request.eval_every or _read(request.config).get("run", {}).get("eval_every")
    return recipe if asked else recipe.with_values(**{"run.eval_every": max(1, recipe.schedule.steps // _EVALUATIONS)})


def _recipe(values: dict[str, Any], request: Request) -> TrainConfig:
    from watersmeet.core.training.config import config_from_dict

    try:
        return config_from_dict(values)
    except ConfigError as error:
        raise ConfigError(f"{request.config}: {error}" if request.config else str(error)) from None


def _read(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); --config is a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Tables joined key by key; None in `above` changes nothing."""
    out = dict(below)
    for key, value in above.items():
        if isinstance(value, Mapping):
            lower = out.get(key, {})
            out[key] = _merged(lower if isinstance(lower, Mapping) else {}, value)
        elif value is not None:
            out[key] = value
    return out

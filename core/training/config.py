"""Training configuration: frozen dataclasses read from TOML.

Every table of the file is one dataclass below. A key that no dataclass knows is an error that names the key, because a
misspelt `weight_decey` that silently means "the default" costs a whole training run.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import tomllib
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from watersmeet.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class ModelSection:
    """`[model]`: a preset of `ModelConfig` and the fields to change in it, or `init`, the model to start from.

    `init` is "nano" or a model folder of either layout, grafted or not; its own configuration holds then.
    """

    preset: str = "nano"
    overrides: dict[str, Any] = field(default_factory=dict)
    init: str | None = None


@dataclass(frozen=True, kw_only=True)
class BatchSection:
    """`[batch]`: `tokens` positions a micro-batch (fixed, the rest is filled), `accumulate` micro-batches a step.

    `pool` is how many samples wait to be packed: a larger pool fills batches better and shuffles a little more.
    `prefetch` batches are made ahead in a background thread; 0 makes them in the training thread.
    """

    tokens: int = 4096
    accumulate: int = 1
    pool: int = 32
    prefetch: int = 2
    max_bad_fraction: float = 0.05

    def __post_init__(self) -> None:
        _at_least("batch", self, tokens=16, accumulate=1, pool=1, prefetch=0)
        if not 0 <= self.max_bad_fraction < 1:
            raise ConfigError(f"batch.max_bad_fraction is {self.max_bad_fraction}, expected 0 <= x < 1")


@dataclass(frozen=True, kw_only=True)
class OptimizerSection:
    """`[optimizer]`: `lr` is Muon's peak rate, `adamw_lr` the peak rate of embeddings, head, norms and other vectors.

    `weight_decay` acts on Muon's matrices, `adamw_weight_decay` on embeddings and head; vectors never decay.
    `per_head` cuts q/k/v projections into heads, `split_kv` cuts a head of `kv_b_proj` into its K and V part.
    `ns_dtype` is the dtype of the Newton-Schulz iteration: "bfloat16", "float32", or "auto": bfloat16 where the machine
    multiplies it in hardware (measured 4x faster with AMX).
    `muon` off trains every matrix with AdamW, at `adamw_lr` and `adamw_weight_decay`; it is there to compare with.
    `qk_clip` is the largest attention logit a head of full attention may keep after an update (see qk_clip.py); 0: any.
    The logits that are clipped for are those from before the update. `qk_passes` above 0 reads the batches of a step in which
    a head was clipped up to so many times more, with the new weights, until none is above.
    `head_rate` above 0 lets the gradient statistics of a head scale its step, see `head_rate.py`; 0: all heads alike.
    """

    lr: float = 6e-3
    adamw_lr: float = 6e-3
    weight_decay: float = 0.1
    adamw_weight_decay: float = 0.0
    momentum: float = 0.95
    nesterov: bool = True
    ns_steps: int = 5
    ns_dtype: str = "auto"
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    muon: bool = True
    per_head: bool = True
    split_kv: bool = True
    clip_norm: float = 1.0
    qk_clip: float = 100.0
    qk_passes: int = 0
    head_rate: float = 0.0

    def __post_init__(self) -> None:
        for name in ("lr", "adamw_lr", "weight_decay", "adamw_weight_decay", "clip_norm", "eps", "qk_clip"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"optimizer.{name} is {getattr(self, name)}, expected a number >= 0")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"optimizer.momentum is {self.momentum}, expected 0 <= x < 1")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError(f"optimizer.betas is {list(self.betas)}, expected two numbers in [0, 1)")
        if self.ns_dtype not in ("auto", "bfloat16", "float32"):
            raise ConfigError(f"optimizer.ns_dtype is {self.ns_dtype!r}, expected 'auto', 'bfloat16' or 'float32'")
        _at_least("optimizer", self, ns_steps=1, qk_passes=0)
        if not 0 <= self.head_rate <= 1:
            raise ConfigError(f"optimizer.head_rate is {self.head_rate}, expected 0 <= x <= 1")
        if self.head_rate and not (self.muon and self.per_head):
            raise ConfigError(
                "optimizer.head_rate is set but optimizer.per_head or optimizer.muon is off; heads then have no step of "
                "their own"
            )


@dataclass(frozen=True, kw_only=True)
class ExpertSection:
    """`[experts]`: how routed experts are kept in use and apart.

    `balance` moves the router's bias: "quantile" (Quantile Balancing), "sign" (a step of `sign_step` towards the mean load, as
    in Kimi K2) or "none".
    `warmup` above 0 forces uniform use of the experts at the start and lets go over this fraction of `schedule.steps`, e.g.
    0.2; see `core/model/warmup.py`.
    `clip` above 0 clips the gradient of every expert by `clip` times its own running norm, in place of the global clip; see
    expert_clip.py. `clip_memory` is how much of the running norm stays each step.
    """

    balance: str = "quantile"
    sign_step: float = 1e-3
    warmup: float = 0.0
    clip: float = 0.0
    clip_memory: float = 0.95

    def __post_init__(self) -> None:
        if self.balance not in ("quantile", "sign", "none"):
            raise ConfigError(f"experts.balance is {self.balance!r}, expected 'quantile', 'sign' or 'none'")
        _at_least("experts", self, sign_step=0, clip=0)
        for name in ("warmup", "clip_memory"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"experts.{name} is {getattr(self, name)}, expected 0 <= x < 1")
        if 0 < self.clip < 1:
            raise ConfigError(f"experts.clip is {self.clip}, expected 0 or at least 1 (times an expert's running norm)")


@dataclass(frozen=True, kw_only=True)
class LoraSection:
    """`[lora]`: with `r` above 0 adapters of that rank are trained and the model itself stays, see lora.py.

    `alpha` scales what an adapter adds by alpha / r; 0 means 2 r. `targets` are ends of names ("q_proj", "experts.w13") or
    "all-linear".
    """

    r: int = 0
    alpha: float = 0.0
    targets: tuple[str, ...] = ("all-linear",)

    def __post_init__(self) -> None:
        _at_least("lora", self, r=0, alpha=0)

    @property
    def strength(self) -> float:
        """`alpha` with its default filled in."""
        return self.alpha or 2.0 * self.r


@dataclass(frozen=True, kw_only=True)
class LossSection:
    """`[loss]`: `weights` by modality, 1 where not named: a target counts so many times, in the loss that is trained and in the
    one that is reported for all together. It belongs to the modality that was read last before it, see `model.loss.subject_ids`.
    `teacher` names a model whose word counts for `teacher_share` of the loss of all streams that it can read, so that what it
    could do is not forgotten while something new is learnt, see teacher.py; empty: none.
    """

    weights: dict[str, float] = field(default_factory=dict)
    teacher: str = ""
    teacher_share: float = 0.7

    def __post_init__(self) -> None:
        if not 0 < self.teacher_share <= 1:
            raise ConfigError(f"loss.teacher_share is {self.teacher_share}, expected 0 < x <= 1")
        for name, value in self.weights.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
                raise ConfigError(f"loss.weights.{name} is {value!r}, expected a number of at least 0")


@dataclass(frozen=True, kw_only=True)
class ScheduleSection:
    """`[schedule]`: see `schedule.lr_factor`. `decay` counts steps of the WSD tail; a fraction below 1 is of `steps`."""

    kind: str = "wsd"
    steps: int = 1000
    warmup: int = 50
    decay: float = 0.2
    final: float = 0.05

    def __post_init__(self) -> None:
        if self.kind not in ("wsd", "cosine", "constant"):
            raise ConfigError(f"schedule.kind is {self.kind!r}, expected 'wsd', 'cosine' or 'constant'")
        _at_least("schedule", self, steps=1, warmup=0, decay=0, final=0)

    @property
    def decay_steps(self) -> int:
        """Length of the WSD tail in steps."""
        return round(self.decay * self.steps) if self.decay < 1 else int(self.decay)


@dataclass(frozen=True, kw_only=True)
class RunSection:
    """`[run]`: where the run lives and how often it logs, evaluates and saves (steps; 0 switches off).

    `keep` last checkpoints stay; those whose step is a multiple of `keep_every` stay for good. A WSD run that may be
    extended later wants the one before its decay.
    `measure_every` so many steps the log also holds what costs a little time: the exact largest attention logit of every
    head, update sizes, gradient norms by group, expert load by modality, and the depth weights of the residual reads.
    `keep_best` keeps the checkpoint of the lowest held-out loss besides, and the finished model is that one; the model as it was
    is judged too. `patience` above 0 ends the run when so many evaluations in a row were no better.
    `precision` is what the model computes in (masters are float32): "bf16", "fp32", or "auto": bf16 on a GPU and where a
    CPU has units for it, fp32 elsewhere, where it is many times as fast.
    `tensorboard` writes the numbers of the log as TensorBoard scalars too. `sharding` is for several processes: "ddp" keeps
    whole copies of the weights, "fsdp2" shards them.
    """

    out: str = "runs/train"
    save_every: int = 200
    save_minutes: float = 10.0
    keep: int = 2
    keep_every: int = 0
    log_every: int = 1
    eval_every: int = 100
    eval_batches: int = 4
    keep_best: bool = False
    patience: int = 0
    precision: str = "auto"
    threads: int = 0
    measure_every: int = 10
    tensorboard: bool = True
    sharding: str = "ddp"

    def __post_init__(self) -> None:
        _at_least("run", self, save_every=0, save_minutes=0, keep=1, keep_every=0, log_every=1, eval_every=0)
        _at_least("run", self, measure_every=0, eval_batches=1, patience=0)
        if (self.keep_best or self.patience) and not self.eval_every:
            raise ConfigError(
                f"run.{'keep_best' if self.keep_best else 'patience'} is set but run.eval_every is 0, so nothing is judged; set it"
            )
        if self.sharding not in ("ddp", "fsdp2"):
            raise ConfigError(f"run.sharding is {self.sharding!r}, expected 'ddp' or 'fsdp2'")
        if self.precision not in ("auto", "bf16", "fp32"):
            raise ConfigError(f"run.precision is {self.precision!r}, expected 'auto', 'bf16' or 'fp32'")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A whole training recipe. `dataset` is "module:attr" of a callable `(split, **dataset_options) -> dataset`.

    `trainable` names what is trained, e.g. ["embedders.sensor"], see `freeze.train_only`; empty: everything.
    """

    dataset: str
    seed: int = 1
    dataset_options: dict[str, Any] = field(default_factory=dict)
    val_options: dict[str, Any] = field(default_factory=dict)
    trainable: tuple[str, ...] = ()
    model: ModelSection = field(default_factory=ModelSection)
    lora: LoraSection = field(default_factory=LoraSection)
    batch: BatchSection = field(default_factory=BatchSection)
    optimizer: OptimizerSection = field(default_factory=OptimizerSection)
    experts: ExpertSection = field(default_factory=ExpertSection)
    loss: LossSection = field(default_factory=LossSection)
    schedule: ScheduleSection = field(default_factory=ScheduleSection)
    run: RunSection = field(default_factory=RunSection)

    def __post_init__(self) -> None:
        if ":" not in self.dataset:
            raise ConfigError(f"dataset is {self.dataset!r}, expected 'package.module:attribute'")

    def with_values(self, **changes: Any) -> TrainConfig:
        """A copy with dotted fields changed: `config.with_values(**{"schedule.steps": 10, "seed": 2})`."""
        result = self
        for path, value in changes.items():
            section, _, name = path.rpartition(".")
            if section:
                value, name = dataclasses.replace(getattr(result, section), **{name: value}), section
            result = dataclasses.replace(result, **{name: value})
        return result

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        values = dataclasses.asdict(self)
        values["optimizer"]["betas"] = list(self.optimizer.betas)
        # left out where it says nothing, as in checkpoints that are older than it
        values["trainable"] = list(self.trainable)
        if not self.trainable:
            del values["trainable"]
        if not self.loss.teacher:
            del values["loss"]["teacher"], values["loss"]["teacher_share"]
        values["lora"]["targets"] = list(self.lora.targets)
        if not self.lora.r:
            del values["lora"]
        return values


def _at_least(section: str, values: Any, **limits: float) -> None:
    for name, limit in limits.items():
        if getattr(values, name) < limit:
            raise ConfigError(f"{section}.{name} is {getattr(values, name)}, expected at least {limit}")


def _convert(path: str, kind: Any, value: Any) -> Any:
    """Check one TOML value against the annotation of its field; int is fine where float is expected."""
    origin = get_origin(kind)
    if dataclasses.is_dataclass(kind):
        return _build(kind, value, path)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in get_args(kind):
            return None
        return _convert(path, next(arm for arm in get_args(kind) if arm is not type(None)), value)
    if origin is tuple and isinstance(value, (list, tuple)):
        return tuple(_convert(path, get_args(kind)[0], item) for item in value)
    wanted = origin or kind
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
        name = getattr(wanted, "__name__", str(wanted))
        raise ConfigError(f"{path} is {value!r} ({type(value).__name__}), expected {name}")
    return value


def _build(kind: Any, values: Any, path: str) -> Any:
    if not isinstance(values, dict):
        raise ConfigError(f"{path} is {values!r}, expected a table")
    hints = get_type_hints(kind)
    known = [item.name for item in dataclasses.fields(kind)]
    converted = {}
    for name, value in values.items():
        where = f"{path}.{name}" if path else name
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
            raise ConfigError(f"unknown key {where!r}; {hint}")
        converted[name] = _convert(where, hints[name], value)
    missing = [
        item.name
        for item in dataclasses.fields(kind)
        if item.default is dataclasses.MISSING
        and item.default_factory is dataclasses.MISSING
        and item.name not in converted
    ]
    if missing:
        raise ConfigError(f"key {'.'.join(filter(None, [path, missing[0]]))!r} is missing")
    return kind(**converted)


def config_from_dict(values: dict[str, Any]) -> TrainConfig:
    """Build a `TrainConfig` from plain values. Raises ConfigError naming the key that is unknown, missing or wrong."""
    config: TrainConfig = _build(TrainConfig, values, "")
    return config


def read_config(path: Path) -> TrainConfig:
    """Read a TOML recipe. Raises ConfigError with file and key for anything that is not exactly as documented."""
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; give the path of a training recipe (TOML)") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    try:
        return config_from_dict(values)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None

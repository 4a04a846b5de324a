"""The training loop.

One step = `accumulate` packed batches of fixed length, one optimizer update, one expert-balancing update. The loss is the
sum of weighted token losses over the *whole* step, divided by the number of tokens that have a target, so K micro-batches
give the gradient of one batch K times as large, and a step without any target changes nothing but the momenta.

`accelerate` places the model and wraps it for several processes. Order of samples, data cursor, random generators and
checkpoints are our own: see packing.py and state.py for why.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from torch import Tensor, nn

from watersmeet.core.errors import CheckpointError, WatersmeetError
from watersmeet.core.model.model import Model
from watersmeet.core.model.stored import stored_views
from watersmeet.core.training import state
from watersmeet.core.training.config import TrainConfig
from watersmeet.core.training.freeze import forget_frozen_balancing, train_only
from watersmeet.core.training.groups import check_layers, group_table, plan_parameters
from watersmeet.core.training.loader import Loader
from watersmeet.core.training.log import JsonlLog
from watersmeet.core.training.meters import Meters
from watersmeet.core.training.muon import MuonAdamW, fast_matmul_dtype
from watersmeet.core.training.packing import Batch, Dataset, Packer, fixed_batches
from watersmeet.core.training.schedule import lr_factor
from watersmeet.kernels.native import keep_memory

# a resumed run may differ from the saved one in these; anything else would silently be another run
_MAY_CHANGE = ("schedule", "run", "optimizer", "val_options")
_MAY_CHANGE_IN_BATCH = ("prefetch", "max_bad_fraction")


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a call of `Trainer.run` did. `stopped` is "done", "signal" or "time"."""

    step: int
    stopped: str
    loss: float
    checkpoint: Path
    tokens: int
    seconds: float


@dataclass(kw_only=True)
class _Counters:
    """Totals over the whole life of the run; saved with it."""

    step: int = 0
    tokens: int = 0
    targets: int = 0
    skipped: int = 0
    seconds: float = 0.0
    cursor: Mapping[str, Any] | None = field(default=None, repr=False)


class _LossModule(nn.Module):
    """What accelerate wraps: distributed wrappers only see `forward`, so the loss has to be one."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> Any:
        return self.model.loss(batch.packed, real_tokens=batch.real_tokens)


class Trainer:
    """Train `model` on `train_set` under the directory `out`.

    model       float32 parameters (the masters); its computation runs in bfloat16 when `run.precision` says so. What
                `config.trainable` leaves out is frozen here and may have any dtype
    train_set   see `packing.Dataset`; `val_set` the same, or None
    report      called with one line of text now and then; `print` by default
    on_step     called with (step, what the log says of it) after every step of the main process; nothing about steps is
                reported then
    """

    def __init__(
        self,
        model: Model,
        config: TrainConfig,
        train_set: Dataset,
        val_set: Dataset | None = None,
        *,
        out: Path | None = None,
        device: str | None = None,
        report: Callable[[str], None] = print,
        on_step: Callable[[int, Mapping[str, Any]], None] | None = None,
    ) -> None:
        self.config, self.train_set, self.val_set, self.report = config, train_set, val_set, report
        self.on_step = on_step
        self.out = Path(out or config.run.out)
        self.checkpoints = self.out / "checkpoints"
        if config.run.threads:
            torch.set_num_threads(config.run.threads)
        # the first residual read of the model has parameters that one source cannot train
        unused = DistributedDataParallelKwargs(find_unused_parameters=True)
        self.accelerator = Accelerator(cpu=device == "cpu" or not torch.cuda.is_available(), kwargs_handlers=[unused])
        self.main = self.accelerator.is_main_process
        self.world = self.accelerator.num_processes
        train_only(model, config.trainable)
        trained = [(name, param) for name, param in model.named_parameters() if param.requires_grad]
        if wrong := [name for name, param in trained if param.dtype != torch.float32]:
            raise WatersmeetError(f"trainer: parameter {wrong[0]!r} is not float32; masters must be")
        self.model = model
        model.compute_dtype = torch.bfloat16 if config.run.precision == "bf16" else torch.float32
        self.device = self.accelerator.device
        self.plans = plan_parameters(
            model.named_parameters(),
            model.config,
            per_head=config.optimizer.per_head,
            split_kv=config.optimizer.split_kv,
        )
        if config.optimizer.per_head and all(param.requires_grad for param in model.parameters()):
            check_layers(self.plans, model.config)
        self.module = self.accelerator.prepare(_LossModule(model))
        model.join()  # where `prepare` has put it
        self.optimizer = self._optimizer()
        self.counters = _Counters()
        self.log = JsonlLog(self.out / "log.jsonl")
        self.meters = Meters()
        self._stop: str | None = None
        self._loader: Loader | None = None
        self._val: list[Batch] | None = None

    def _optimizer(self) -> MuonAdamW:
        o = self.config.optimizer
        return MuonAdamW(
            self.model.named_parameters(),
            self.plans,
            lr=o.lr,
            adamw_lr=o.adamw_lr,
            weight_decay=o.weight_decay,
            adamw_weight_decay=o.adamw_weight_decay,
            momentum=o.momentum,
            nesterov=o.nesterov,
            ns_steps=o.ns_steps,
            ns_dtype=fast_matmul_dtype(self.device) if o.ns_dtype == "auto" else getattr(torch, o.ns_dtype),
            betas=o.betas,
            eps=o.eps,
        )

    # --- data ---------------------------------------------------------------------------------------------------

    def _packing(self) -> dict[str, Any]:
        return {
            "tokens": self.config.batch.tokens,
            "pool": self.config.batch.pool,
            "fill_modality": self.model.config.output_modality,
            "modality_names": self.model.modality_names,
        }

    def _packer(self) -> Packer:
        packer = Packer(
            self.train_set,
            seed=self.config.seed,
            rank=self.accelerator.process_index,
            world=self.world,
            max_bad_fraction=self.config.batch.max_bad_fraction,
            **self._packing(),
        )
        if self.counters.cursor is not None:
            packer.load_state(self.counters.cursor)
        return packer

    # --- checkpoints --------------------------------------------------------------------------------------------

    def _masters(self) -> dict[str, Tensor]:
        """Trained parameters and persistent buffers by name on disk; a tensor that two modules share appears once."""
        persistent = self.model.state_dict(keep_vars=True)
        buffers = {name: buffer for name, buffer in self.model.named_buffers() if name in persistent}
        trained = {name: param for name, param in self.model.named_parameters() if param.requires_grad}
        return stored_views((trained | buffers).items())

    def save(self) -> Path:
        """Write a checkpoint of the state after the last finished step."""
        rng_tensors, rng_values = state.rng_state()
        cursors: list[Any] = [self.counters.cursor]
        if self.world > 1:
            from accelerate.utils import gather_object

            cursors = gather_object(cursors)
        path = self.checkpoints / f"step-{self.counters.step:08d}"
        if self.main:
            counters = {k: v for k, v in vars(self.counters).items() if k != "cursor"}
            path = state.save_state(
                self.checkpoints,
                self.counters.step,
                {"model": self._masters(), "optimizer": self.optimizer.state_tensors(), "rng": rng_tensors},
                {
                    "counters": counters,
                    "cursors": cursors,
                    "updates": self.optimizer.updates,
                    "rng": rng_values,
                    "samples": len(self.train_set),
                    "threads": torch.get_num_threads(),
                    "torch": torch.__version__,
                    "config": self.config.to_dict(),
                    "model": self.model.config.to_dict(),
                },
            )
            state.clean(self.checkpoints, self.config.run.keep, self.config.run.keep_every)
        self.accelerator.wait_for_everyone()
        return path

    def resume(self, path: Path | None = None) -> bool:
        """Continue from `path` or the latest checkpoint under `out`; False when there is none.

        Raises CheckpointError when it is damaged or was made by another recipe.
        """
        path = path or state.latest_checkpoint(self.checkpoints)
        if path is None:
            return False
        tensors, values = state.load_state(path)
        self._check_same_run(path, values)
        state.copy_into(self._masters(), tensors["model"], f"{path}: model")
        state.copy_into(self.optimizer.state_tensors(), tensors["optimizer"], f"{path}: optimizer")
        self.optimizer.updates = int(values["updates"])
        state.set_rng_state(tensors["rng"], values["rng"])
        cursors = values["cursors"]
        if len(cursors) != self.world:
            raise CheckpointError(
                f"{path}: written by {len(cursors)} process(es) but this run has {self.world}; use as many as before"
            )
        self.counters = _Counters(**values["counters"], cursor=cursors[self.accelerator.process_index])
        if self.main:
            self.log.cut_after(self.counters.step)
        if values["threads"] != torch.get_num_threads():
            self.report(
                f"note: the checkpoint was made with {values['threads']} threads, this run has "
                f"{torch.get_num_threads()}: sums may differ in their last bits"
            )
        return True

    def _check_same_run(self, path: Path, values: Mapping[str, Any]) -> None:
        def flat(prefix: str, given: Any) -> dict[str, Any]:
            if not isinstance(given, Mapping):
                return {prefix: list(given) if isinstance(given, tuple) else given}
            return {k: v for name, item in given.items() for k, v in flat(f"{prefix}.{name}", item).items()}

        def fixed(config: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
            kept = {name: item for name, item in config.items() if name not in (*_MAY_CHANGE, "model")}
            kept["batch"] = {k: v for k, v in config["batch"].items() if k not in _MAY_CHANGE_IN_BATCH}
            return flat("config", kept) | flat("model", model)

        then = fixed(values["config"], values["model"])
        now = fixed(self.config.to_dict(), self.model.config.to_dict())
        then["number of training samples"], now["number of training samples"] = values["samples"], len(self.train_set)
        for name in sorted(set(then) | set(now)):
            if then.get(name) != now.get(name):
                raise CheckpointError(
                    f"{path}: made with {name} = {then.get(name)!r} but this run has {now.get(name)!r}; "
                    "restore the old value, or start a new run with --fresh or another out directory"
                )

    # --- one step -----------------------------------------------------------------------------------------------

    def _sum_over_processes(self, value: Tensor) -> Tensor:
        return self.accelerator.reduce(value, "sum") if self.world > 1 else value

    def _step(self, batches: list[Batch]) -> dict[str, Any]:
        """Forward, backward, clip, update; returns what the log wants to know."""
        self.module.train()
        packed = [batch.packed.to(self.device) if self.device.type != "cpu" else batch.packed for batch in batches]
        targets = self._sum_over_processes(sum(p.weight.sum() for p in packed)).item()  # type: ignore[arg-type]
        self.meters.reset()
        for batch, on_device in zip(batches, packed, strict=True):
            out = self.module(Batch(**{**vars(batch), "packed": on_device}))
            # distributed wrappers average gradients over processes; the factor makes that a sum
            (out.loss_sum * (self.world / max(targets, 1.0))).backward()
            self.meters.add(out)
        grads = [param.grad for param in self.model.parameters() if param.grad is not None]
        norm = torch.nn.utils.get_total_norm(grads, foreach=True)
        factor = lr_factor(self.config.schedule, self.counters.step)
        self.optimizer.set_lr(factor)
        clip = self.config.optimizer.clip_norm
        norm_value = float(norm)
        if math.isfinite(norm_value):
            if clip and norm_value > clip:
                torch._foreach_mul_(grads, clip / (norm_value + 1e-6))
            self.optimizer.step()
            forget_frozen_balancing(self.model)
            self.model.update_balancing(self._sum_over_processes)
            self.counters.skipped = 0
        else:
            self.model.discard_balancing()  # scores that are not finite must not reach the router bias
            self.counters.skipped += 1
            if self.counters.skipped >= 10:
                raise WatersmeetError(
                    f"step {self.counters.step}: the gradient was not finite 10 steps in a row; lower optimizer.lr"
                )
        self.optimizer.zero_grad(set_to_none=True)
        self.counters.step += 1
        self.counters.tokens += sum(batch.real_tokens for batch in batches) * self.world
        self.counters.targets += int(targets)
        self.counters.cursor = batches[-1].cursor
        return {
            **self.meters.result(self._sum_over_processes),
            "lr": self.config.optimizer.lr * factor,
            "adamw_lr": self.config.optimizer.adamw_lr * factor,
            "grad_norm": norm_value,
            "targets": int(targets),
            "fill": 1 - sum(batch.real_tokens for batch in batches) / sum(batch.packed.T for batch in batches),
        }

    # --- the loop -----------------------------------------------------------------------------------------------

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._stop == "signal":  # asked twice: the user means now
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self._stop = "signal"

    def run(self, *, max_minutes: float | None = None) -> Summary:
        """Train until `schedule.steps`, a signal (SIGTERM, SIGINT) or `max_minutes`; always ends with a checkpoint."""
        # large blocks of a step are used again by the next one instead of being faulted in anew: a third of the time
        keep_memory()
        handlers = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                handlers[number] = signal.signal(number, self._on_signal)
        self._loader = Loader(self._packer(), self.config.batch.prefetch)
        try:
            return self._loop(max_minutes)
        finally:
            self._loader.close()
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _loop(self, max_minutes: float | None) -> Summary:
        assert self._loader is not None
        run, begin = self.config.run, time.monotonic()
        last_save = last_line = begin
        earlier, last_saved_step, first_step = self.counters.seconds, -1, self.counters.step
        record: dict[str, Any] = {}
        recent: list[tuple[float, int]] = [(begin, self.counters.tokens)]
        while self.counters.step < self.config.schedule.steps and self._stop is None:
            before = time.monotonic()
            batches = [self._loader.next() for _ in range(self.config.batch.accumulate)]
            waited = time.monotonic() - before
            record = self._step(batches)
            now, step = time.monotonic(), self.counters.step
            self.counters.seconds = earlier + now - begin
            recent = [*recent[-50:], (now, self.counters.tokens)]
            speed = (recent[-1][1] - recent[0][1]) / max(recent[-1][0] - recent[0][0], 1e-9)
            record |= {"tokens": self.counters.tokens, "seconds": self.counters.seconds}
            record |= {"step_seconds": now - before, "wait_seconds": waited, "tokens_per_second": speed}
            if step % run.log_every == 0 and self.main:
                counts = dict(batches[-1].cursor["counts"])
                self.log.append("train", step, **record, epoch=batches[-1].cursor["epoch"], data=counts)
                for bad in (line for batch in batches for line in batch.bad):
                    self.log.append("note", step, bad_sample=bad)
            if self.on_step is not None:
                if self.main:
                    self.on_step(step, record)
            elif now - last_line > 10 or step == first_step + 1:
                last_line = now
                self._line(record, speed)
            if run.eval_every and step % run.eval_every == 0:
                self._evaluate_and_log()
            if max_minutes is not None and time.monotonic() - begin > 60 * max_minutes:
                self._stop = self._stop or "time"
            due = bool(run.save_every) and step % run.save_every == 0
            due = due or (run.save_minutes > 0 and time.monotonic() - last_save > 60 * run.save_minutes)
            if self._agree(bool(due)):
                self.save()
                last_save, last_saved_step = time.monotonic(), step
            if self._agree(self._stop is not None) and self._stop is None:
                self._stop = "signal"
        if self.counters.step != last_saved_step or state.latest_checkpoint(self.checkpoints) is None:
            self.save()
        return Summary(
            step=self.counters.step,
            stopped=self._stop or "done",
            loss=float(record.get("loss", math.nan)),
            checkpoint=self.checkpoints / f"step-{self.counters.step:08d}",
            tokens=self.counters.tokens,
            seconds=self.counters.seconds,
        )

    def _agree(self, wish: bool) -> bool:
        """True on every process when it is True on one; clocks and signals differ between processes."""
        if self.world == 1:
            return wish
        return bool(self._sum_over_processes(torch.tensor(int(wish), device=self.device)).item())

    def _line(self, record: Mapping[str, Any], speed: float) -> None:
        if not self.main:
            return
        steps, step = self.config.schedule.steps, self.counters.step
        left = (steps - step) * record["step_seconds"]
        self.report(
            f"step {step}/{steps}  loss {record['loss']:.4f}  lr {record['lr']:.2e}  {speed:,.0f} tokens/s  "
            f"load max {record.get('load_max', math.nan):.2f}  left {left / 60:.0f} min"
        )

    # --- evaluation ---------------------------------------------------------------------------------------------

    @torch.no_grad()
    def evaluate(self) -> dict[str, Any]:
        """Loss on the first `eval_batches` batches of the held-out set; the router bias is not touched."""
        if self.val_set is None:
            raise WatersmeetError("evaluate: this run has no held-out set")
        if self._val is None:
            self._val = list(fixed_batches(self.val_set, self.config.run.eval_batches, **self._packing()))
        self.module.eval()
        self.meters.reset()
        for batch in self._val[self.accelerator.process_index :: self.world]:
            packed = batch.packed.to(self.device) if self.device.type != "cpu" else batch.packed
            self.meters.add(self.model.loss(packed, real_tokens=batch.real_tokens))
        return self.meters.result(self._sum_over_processes)

    def _evaluate_and_log(self) -> None:
        if self.val_set is None:
            return
        begin = time.monotonic()
        result = self.evaluate()
        if self.main:
            self.log.append("eval", self.counters.step, **result, seconds=time.monotonic() - begin)
            self.report(f"step {self.counters.step}: held-out loss {result['loss']:.4f}")

    def table(self) -> str:
        """Which parameter is updated by what."""
        return group_table(self.plans)


def seed_everything(seed: int) -> None:
    """Seed the global generators of torch, numpy and Python (weights are drawn from the first)."""
    import random

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)

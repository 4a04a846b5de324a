"""The training loop.

One step = `accumulate` packed batches of fixed length, one optimizer update, one expert-balancing update. The loss is the
sum of weighted token losses over the *whole* step, divided by the number of tokens that have a target, so K micro-batches
give the gradient of one batch K times as large, and a step without any target changes nothing but the momenta.

`accelerate` places the model and wraps it for several processes; see sharding.py for what it leaves to us. Order of samples,
data cursor, random generators and checkpoints are our own: see packing.py and state.py for why.

Processes train the same number of steps whatever their data: they agree before every step that all of them have batches and
that none was told to stop, so a process that fails or ends does not leave the others waiting.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from torch import nn

from watersmeet.core.errors import ConfigError, UsageError, WatersmeetError
from watersmeet.core.model.depth import recorded_depth
from watersmeet.core.model.loss import weigh_subjects
from watersmeet.core.model.model import Model
from watersmeet.core.stream import Packed
from watersmeet.core.training.board import Board
from watersmeet.core.training.config import TrainConfig
from watersmeet.core.training.expert_clip import ExpertClip
from watersmeet.core.training.experts import ExpertBalance
from watersmeet.core.training.freeze import train_only
from watersmeet.core.training.gradients import Gradients
from watersmeet.core.training.groups import check_layers, group_table, plan_parameters
from watersmeet.core.training.loader import Loader
from watersmeet.core.training.log import JsonlLog
from watersmeet.core.training.meters import Meters
from watersmeet.core.training.muon import MuonAdamW
from watersmeet.core.training.packing import Batch, Dataset, Packer, fixed_batches, refuse_if_rotten
from watersmeet.core.training.page import FILE_NAME, write_page
from watersmeet.core.training.precision import DTYPES, fast_matmul_dtype, settled
from watersmeet.core.training.qk_clip import QKClip
from watersmeet.core.training.saving import Counters, Saved
from watersmeet.core.training.schedule import lr_factor
from watersmeet.core.training.sharding import Team, on_cpu, shard_layers
from watersmeet.core.training.teacher import Teacher
from watersmeet.kernels.native import keep_memory


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a call of `Trainer.run` did. `stopped` is "done", "signal", "time" or "patience"."""

    step: int
    stopped: str
    loss: float
    checkpoint: Path
    tokens: int
    seconds: float


class _LossModule(nn.Module):
    """What accelerate wraps: distributed wrappers only see `forward`, so the loss has to be one."""

    def __init__(self, model: Model, teacher: Teacher | None = None) -> None:
        super().__init__()
        self.model, self.teacher = model, teacher

    def forward(self, batch: Batch) -> Any:
        out = self.model.loss(batch.packed, real_tokens=batch.real_tokens)
        return self.teacher.blend(out, batch.packed, self.model) if self.teacher and self.training else out


class Trainer(Saved):
    """Train `model` on `train_set` under the directory `out`.

    model       float32 parameters (the masters); its computation runs in bfloat16 when `run.precision` says so. What
                `config.trainable` leaves out is frozen here and may have any dtype
    train_set   see `packing.Dataset`; `val_set` the same, or None
    teacher     the model that `loss.teacher` names
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
        teacher: Model | None = None,
    ) -> None:
        self.config, self.train_set, self.val_set, self.report = config, train_set, val_set, report
        self.on_step = on_step
        self.out = Path(out or config.run.out)
        self.checkpoints = self.out / "checkpoints"
        if config.run.threads:
            torch.set_num_threads(config.run.threads)
        # the first residual read of the model has parameters that one source cannot train;
        # buffers are ours: broadcasting the balancing counts of one process would drop what the others counted
        unused = DistributedDataParallelKwargs(find_unused_parameters=True, broadcast_buffers=False)
        self.accelerator = Accelerator(cpu=on_cpu(device), kwargs_handlers=[unused])
        self.config = config = settled(config, self.accelerator.device)
        self.main = self.accelerator.is_main_process
        self.world = self.accelerator.num_processes
        self.team = Team(rank=self.accelerator.process_index, world=self.world)
        train_only(model, config.trainable)
        trained = [(name, param) for name, param in model.named_parameters() if param.requires_grad]
        if wrong := [name for name, param in trained if param.dtype != torch.float32]:
            raise WatersmeetError(f"trainer: parameter {wrong[0]!r} is not float32; masters must be")
        if unknown := sorted(set(config.loss.weights) - set(model.modality_names)):
            raise ConfigError(
                f"loss.weights names {unknown[0]!r}, but the model reads {', '.join(model.modality_names)}"
            )
        self.model = model
        model.compute_dtype = DTYPES[config.run.precision]
        self.device = self.accelerator.device
        self.plans = plan_parameters(
            model.named_parameters(),
            model.config,
            per_head=config.optimizer.per_head,
            split_kv=config.optimizer.split_kv,
            muon=config.optimizer.muon,
        )
        if (
            config.optimizer.muon
            and config.optimizer.per_head
            and all(param.requires_grad for param in model.parameters())
        ):
            check_layers(self.plans, model.config)
        older = None if teacher is None else Teacher(teacher.to(self.device), model, config.loss.teacher_share)
        self.module: nn.Module = _LossModule(model, older)
        if self.world > 1 and config.run.sharding == "fsdp2":
            model.to(self.device)
            shard_layers(self.module, model.layers, self.world, self.device)
        else:
            self.module = self.accelerator.prepare(self.module)
            model.join()  # where `prepare` has put it
        self.optimizer = self._optimizer()
        self.gradients = Gradients(
            model, self.plans, self.team, self._expert_clip(), clip_norm=config.optimizer.clip_norm
        )
        self.qk_clip = QKClip(model, config.optimizer.qk_clip)
        self.balance = ExpertBalance(model, config.experts, config.schedule.steps, config.seed)
        self.counters = Counters()
        self.log = JsonlLog(self.out / "log.jsonl")
        self.board = Board(self.out / "tensorboard") if config.run.tensorboard and self.main else None
        self.meters = Meters()
        self._stop: str | None = None
        self._loader: Loader | None = None
        self._val: list[Batch] | None = None
        self._saved_step = -1

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
            head_rate=o.head_rate,
            team=self.team,
        )

    def _expert_clip(self) -> ExpertClip | None:
        e = self.config.experts
        if not e.clip:
            return None
        return ExpertClip(self.model.named_parameters(), factor=e.clip, memory=e.clip_memory, team=self.team)

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

    # --- one step -----------------------------------------------------------------------------------------------

    def _on_device(self, batch: Batch) -> Packed:
        """Where the model is, with targets weighed by modality."""
        packed = batch.packed.to(self.device) if self.device.type != "cpu" else batch.packed
        return weigh_subjects(packed, self.model.config.output_modality, self.config.loss.weights)

    def _step(self, batches: list[Batch]) -> dict[str, Any]:
        """Forward, backward, clip, update; returns what the log wants to know."""
        self.module.train()
        every = self.config.run.measure_every
        measure = every > 0 and (self.counters.step + 1) % every == 0
        packed = [self._on_device(batch) for batch in batches]
        targets = self.team.sum(sum(p.weight.sum() for p in packed)).item()  # type: ignore[arg-type]
        self.meters.reset()
        self.qk_clip.begin(exact=measure)
        self.balance.begin(self.counters.step)
        losses, depth = [], None
        for number, (batch, on_device) in enumerate(zip(batches, packed, strict=True)):
            # whole copies add their gradients up once a step; shards cannot wait without whole gradients in memory
            wait = self.world > 1 and self.config.run.sharding == "ddp" and number + 1 < len(batches)
            with (
                self.accelerator.no_sync(self.module) if wait else nullcontext(),
                recorded_depth() if measure and number == 0 else nullcontext() as recorded,
            ):
                out = self.module(Batch(**{**vars(batch), "packed": on_device}))
                # distributed wrappers average gradients over processes; the factor makes that a sum
                (out.loss_sum * (self.world / max(targets, 1.0))).backward()
            depth = recorded if recorded is not None else depth
            losses.append(out.loss_sum.detach())
            self.meters.add(out)
        finite = torch.stack(losses).isfinite()
        if float(self.team.max((~finite).any().float())) > 0:
            self._refuse_loss(batches, finite.tolist())
        measured = self.gradients.clip(by_group=measure)
        factor = lr_factor(self.config.schedule, self.counters.step)
        self.optimizer.set_lr(factor)
        self.optimizer.measure = measure
        maxima = self.qk_clip.maxima(self.team.max)
        if math.isfinite(measured["grad_norm"]):
            self.optimizer.step()
            if maxima is not None:
                measured["qk_clipped"] = self.qk_clip.clip(maxima)
            self.balance.update(self.meters.load, self.team.sum)
            if measured.get("qk_clipped"):
                measured["qk_clipped"] += self._clip_again(batches, packed)
            self.counters.skipped = 0
        else:
            self.balance.discard()  # scores that are not finite must not reach the router bias
            self.counters.skipped += 1
            if self.counters.skipped >= 10:
                raise WatersmeetError(
                    f"step {self.counters.step}: the gradient was not finite 10 steps in a row; lower optimizer.lr"
                )
        self.optimizer.zero_grad(set_to_none=True)
        self.counters.step += 1
        self.counters.tokens += self._total(sum(batch.real_tokens for batch in batches))
        self.counters.targets += int(targets)
        self.counters.cursor = batches[-1].cursor
        if measure:
            measured["depth"] = [[round(weight, 4) for weight in read] for read in depth or []]
            measured["update_rms"] = {name: value**0.5 for name, value in self.optimizer.update_square.items()}
        if maxima is not None and float(maxima.max()) > -math.inf:
            measured["max_logit"] = float(maxima.max())
        return {
            **self.meters.result(self.team.sum, by_modality=measure),
            "lr": self.config.optimizer.lr * factor,
            "adamw_lr": self.config.optimizer.adamw_lr * factor,
            **measured,
            "targets": int(targets),
            "fill": 1 - sum(batch.real_tokens for batch in batches) / sum(batch.packed.T for batch in batches),
        }

    @torch.no_grad()
    def _clip_again(self, batches: list[Batch], packed: list[Packed]) -> int:
        """Read the batches again with the new weights and clip what is still above; returns how often a head was."""
        clipped = 0
        for _ in range(self.config.optimizer.qk_passes):
            self.qk_clip.begin(exact=False)
            for batch, on_device in zip(batches, packed, strict=True):
                self.module(Batch(**{**vars(batch), "packed": on_device}))
            self.balance.discard()
            maxima = self.qk_clip.maxima(self.team.max)
            assert maxima is not None
            again = self.qk_clip.clip(maxima)
            clipped += again
            if not again:
                break
        return clipped

    def _total(self, count: int) -> int:
        """Sum over processes."""
        return int(self.team.sum(torch.tensor(count, device=self.device))) if self.world > 1 else count

    def _refuse_loss(self, batches: list[Batch], finite: list[bool]) -> None:
        """Leave the state as the last good step left it, save it, and name the rows that were read."""
        self.optimizer.zero_grad(set_to_none=True)
        self.balance.discard()
        name = getattr(self.train_set, "row_name", "sample {}".format)
        rows = [
            name(index) for batch, good in zip(batches, finite, strict=True) if not good for _, index in batch.samples
        ]
        if self.world > 1:
            from accelerate.utils import gather_object

            rows = gather_object(rows)
        path = self.save()
        raise WatersmeetError(
            f"step {self.counters.step + 1}: the loss is not finite on a batch of {len(rows)} sample(s): "
            f"{', '.join(rows[:40])}{' ...' if len(rows) > 40 else ''}; the last good step is saved in {path}; "
            "mend these rows, or start again with a lower optimizer.lr"
        )

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
        earlier, first_step = self.counters.seconds, self.counters.step
        record: dict[str, Any] = {}
        recent: list[tuple[float, int]] = [(begin, self.counters.tokens)]
        if run.keep_best and self.counters.step == 0 and self.counters.best_loss is None:
            self._evaluate_and_log()
        while self.counters.step < self.config.schedule.steps:
            if run.patience and self.counters.no_better >= run.patience:
                self._stop = self._stop or "patience"
            before = time.monotonic()
            batches, failure = self._next_batches()
            stop, failed = self._agree(self._stop is not None, failure is not None)
            if failed:
                self.save()
                raise failure or WatersmeetError("another process could not read its data; it says why")
            if stop:
                self._stop = self._stop or "signal"
                break
            waited = time.monotonic() - before
            counts = self._count_rows(batches)
            record = self._step(batches)
            now, step = time.monotonic(), self.counters.step
            self.counters.seconds = earlier + now - begin
            recent = [*recent[-50:], (now, self.counters.tokens)]
            speed = (recent[-1][1] - recent[0][1]) / max(recent[-1][0] - recent[0][0], 1e-9)
            record |= {"tokens": self.counters.tokens, "seconds": self.counters.seconds}
            record |= {"step_seconds": now - before, "wait_seconds": waited, "tokens_per_second": speed}
            if (step % run.log_every == 0 or "depth" in record) and self.main:
                self._write("train", step, record | {"epoch": batches[-1].cursor["epoch"], "data": counts})
            if self.on_step is not None:
                if self.main:
                    self.on_step(step, record)
            elif now - last_line > 10 or step == first_step + 1:
                last_line = now
                self._line(record, speed)
            last = run.keep_best and step == self.config.schedule.steps
            if run.eval_every and (step % run.eval_every == 0 or last):
                self._evaluate_and_log()
            if max_minutes is not None and time.monotonic() - begin > 60 * max_minutes:
                self._stop = self._stop or "time"
            due = bool(run.save_every) and step % run.save_every == 0
            due = due or (run.save_minutes > 0 and time.monotonic() - last_save > 60 * run.save_minutes)
            if self._agree(bool(due))[0]:
                self.save()
                self._draw()
                last_save = time.monotonic()
        path = self.save()
        self._draw()
        return Summary(
            step=self.counters.step,
            stopped=self._stop or "done",
            loss=float(record.get("loss", math.nan)),
            checkpoint=path,
            tokens=self.counters.tokens,
            seconds=self.counters.seconds,
        )

    def _next_batches(self) -> tuple[list[Batch], Exception | None]:
        """The batches of one step, or why there are none; a process that was told to stop reads nothing more."""
        assert self._loader is not None
        if self._stop is not None:
            return [], None
        try:
            return [self._loader.next() for _ in range(self.config.batch.accumulate)], None
        except Exception as error:  # whatever it is:
            # handed on and raised by all processes together: one that left alone would let the others wait for ever
            return [], error

    def _count_rows(self, batches: list[Batch]) -> dict[str, int]:
        """What became of the rows read so far by all processes; those of this step that could not be read go to the log.

        Raises WatersmeetError in all processes alike when there are too many of them.
        """
        mine = [line for batch in batches for line in batch.bad]
        counts = dict(batches[-1].cursor["counts"])
        values = torch.tensor([*counts.values(), len(mine)], dtype=torch.int64, device=self.device)
        *sums, new = self.team.sum(values).tolist()
        counts = dict(zip(counts, sums, strict=True))
        if not new:
            return counts
        if self.world > 1:
            from accelerate.utils import gather_object

            mine = gather_object(mine)
        if self.main:
            for line in mine:
                self.log.append("note", self.counters.step + 1, bad_sample=line)
        try:
            refuse_if_rotten(counts["samples"], counts["bad"], self.config.batch.max_bad_fraction, mine[-1])
        except WatersmeetError:
            self.save()
            raise
        return counts

    def _write(self, kind: str, step: int, record: Mapping[str, Any]) -> None:
        self.log.append(kind, step, **record)
        if self.board is not None:
            self.board.add(kind, step, record)

    def _draw(self) -> None:
        """Write the page with the curves, once there is something to draw."""
        if self.main and self.log.path.exists():
            with suppress(UsageError):  # a log without a step yet
                clip = self.config.optimizer.qk_clip
                write_page(self.log.path, self.out / FILE_NAME, title=self.out.name, clip=clip)

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
        # every process takes part in every pass, with a batch that does not count where it has none of its own
        for first in range(0, len(self._val), self.world):
            mine = first + self.team.rank
            batch = self._val[min(mine, len(self._val) - 1)]
            out = self.module(Batch(**{**vars(batch), "packed": self._on_device(batch)}))
            self.meters.add(out, counts=mine < len(self._val))
        return self.meters.result(self.team.sum)

    def _evaluate_and_log(self) -> None:
        if self.val_set is None:
            return
        begin = time.monotonic()
        result = self.evaluate()
        if self.main:
            self._write("eval", self.counters.step, result | {"seconds": time.monotonic() - begin})
            self.report(f"step {self.counters.step}: held-out loss {result['loss']:.4f}")
        self.judge(result["loss"], self._judged_by())

    def _judged_by(self) -> str:
        options = sorted(self.config.val_options.items())
        return f"{options} {self.config.run.eval_batches} {self.config.batch.tokens} {len(self.val_set or ())}"

    def table(self) -> str:
        """Which parameter is updated by what."""
        return group_table(self.plans)


def seed_everything(seed: int) -> None:
    """Seed the global generators of torch, numpy and Python (weights are drawn from the first)."""
    import random

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)

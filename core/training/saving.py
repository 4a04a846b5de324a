"""What of a run goes into a checkpoint and comes out of it again, with one process or several."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from watersmeet.core.errors import CheckpointError
from watersmeet.core.model.model import Model
from watersmeet.core.model.stored import stored_views
from watersmeet.core.training import state
from watersmeet.core.training.config import TrainConfig
from watersmeet.core.training.gradients import Gradients
from watersmeet.core.training.log import JsonlLog
from watersmeet.core.training.muon import MuonAdamW
from watersmeet.core.training.packing import Dataset
from watersmeet.core.training.resume import differences
from watersmeet.core.training.sharding import Team, put_back, whole_tensors


@dataclass(kw_only=True)
class Counters:
    """Totals over the whole life of the run; saved with it.

    best_loss, best_step, no_better: the lowest held-out loss, its step, and how many evaluations came after it. judged_by: the
    held-out set that they are of.
    """

    step: int = 0
    tokens: int = 0
    targets: int = 0
    skipped: int = 0
    seconds: float = 0.0
    best_loss: float | None = None
    best_step: int = 0
    no_better: int = 0
    judged_by: str = ""
    cursor: Mapping[str, Any] | None = field(default=None, repr=False)


class Saved:
    """The part of the trainer that writes and reads checkpoints; what it names below is the trainer's."""

    config: TrainConfig
    model: Model
    train_set: Dataset
    optimizer: MuonAdamW
    gradients: Gradients
    counters: Counters
    checkpoints: Path
    accelerator: Accelerator
    team: Team
    device: torch.device
    main: bool
    world: int
    log: JsonlLog
    report: Callable[[str], None]
    _saved_step: int

    def _masters(self) -> dict[str, Tensor]:
        """Trained parameters and persistent buffers by name; a tensor that two modules share appears once."""
        persistent = self.model.state_dict(keep_vars=True)
        buffers = {name: buffer for name, buffer in self.model.named_buffers() if name in persistent}
        trained = {name: param for name, param in self.model.named_parameters() if param.requires_grad}
        return trained | buffers

    def save(self) -> Path:
        """Write a checkpoint of the state after the last finished step; every process has to call it.

        Raises CheckpointError, in every process, when it could not be written; the one before is then still there.
        """
        step = self.counters.step
        path = self.checkpoints / f"step-{step:08d}"
        if self._saved_step == step:
            return path
        rng_tensors, rng_values = state.rng_state()
        cursors: list[Any] = [self.counters.cursor]
        if self.world > 1:
            from accelerate.utils import gather_object

            cursors = gather_object(cursors)
        masters = stored_views(whole_tensors(self._masters()).items())
        moments = self.optimizer.state_tensors() | self.gradients.state_tensors()
        failure: CheckpointError | None = None
        if self.main:
            counters = {k: v for k, v in vars(self.counters).items() if k != "cursor"}
            values = {
                "counters": counters,
                "cursors": cursors,
                "updates": self.optimizer.updates,
                "rng": rng_values,
                "threads": torch.get_num_threads(),
                **self._recipe(),
            }
            try:
                tensors = {"model": masters, "optimizer": moments, "rng": rng_tensors}
                state.save_state(self.checkpoints, step, tensors, values)
                spared = {self.counters.best_step} if self._keeps_best else set()
                state.clean(self.checkpoints, self.config.run.keep, self.config.run.keep_every, spared)
            except CheckpointError as error:
                failure = error
        (failed,) = self._agree(failure is not None)
        if failed:
            raise failure or CheckpointError(f"checkpoint {path} could not be written; the first process says why")
        self._saved_step = step
        return path

    def _recipe(self) -> dict[str, Any]:
        """What a resumed run must have in common with this one."""
        return {
            "config": self.config.to_dict(),
            "model": self.model.config.to_dict(),
            "samples": len(self.train_set),
        }

    def resume(self, path: Path | None = None) -> bool:
        """Continue from `path` or the latest checkpoint under `out`; False when there is none.

        Raises CheckpointError when it is damaged or was made by another recipe, with the list of differences.
        """
        path = path or state.latest_checkpoint(self.checkpoints)
        if path is None:
            if self.main:
                self.log.cut_after(0)  # steps of a run that died before its first checkpoint
            return False
        tensors, values = state.load_state(path)
        if found := differences(values, self._recipe()):
            raise CheckpointError(
                f"{path}: made by another recipe: {'; '.join(found)}; restore the old values, or start a new run "
                "with --fresh or another out directory"
            )
        cursors = values["cursors"]
        if len(cursors) != self.world:
            raise CheckpointError(
                f"{path}: written by {len(cursors)} process(es) but this run has {self.world}; use as many as before"
            )
        masters = self._masters()
        whole = whole_tensors(masters)
        state.copy_into(stored_views(whole.items()), tensors["model"], f"{path}: model")
        put_back(masters, whole)
        clip, what = self.gradients.state_tensors(), f"{path}: optimizer"
        self.optimizer.load_state_tensors(lambda given: state.copy_into(given | clip, tensors["optimizer"], what))
        self.optimizer.updates = int(values["updates"])
        state.set_rng_state(tensors["rng"], values["rng"])
        self.counters = Counters(**values["counters"], cursor=cursors[self.accelerator.process_index])
        self._saved_step = self.counters.step if path.parent == self.checkpoints else -1
        if self.main:
            self.log.cut_after(self.counters.step)
        if values["threads"] != torch.get_num_threads():
            self.report(
                f"note: the checkpoint was made with {values['threads']} threads, this run has "
                f"{torch.get_num_threads()}: sums may differ in their last bits"
            )
        return True

    # --- the best so far ----------------------------------------------------------------------------------------

    @property
    def _keeps_best(self) -> bool:
        return self.config.run.keep_best and self.counters.best_loss is not None

    def judge(self, loss: float, judged_by: str) -> None:
        """Take note of a held-out loss; the state that gave the lowest is saved. Every process has to call it with the same."""
        counters = self.counters
        if counters.judged_by != judged_by:
            # losses on other rows cannot be compared
            counters.judged_by, counters.best_loss, counters.no_better = judged_by, None, 0
        if math.isfinite(loss) and (counters.best_loss is None or loss < counters.best_loss):
            counters.best_loss, counters.best_step, counters.no_better = loss, counters.step, 0
            if self.config.run.keep_best:
                self._saved_step = -1  # a checkpoint of this step from before the judgement would not know of it
                self.save()
        else:
            counters.no_better += 1

    def restore_best(self) -> int:
        """Give the model the weights of the lowest held-out loss; returns their step. Every process has to call it.

        Without a judgement the weights stay as they are. Raises CheckpointError when the checkpoint is damaged or gone.
        """
        if not self._keeps_best or self.counters.best_step == self.counters.step:
            return self.counters.step
        path = state.checkpoint_steps(self.checkpoints).get(self.counters.best_step)
        if path is None:
            raise CheckpointError(
                f"{self.checkpoints}: the checkpoint of step {self.counters.best_step}, which had the lowest held-out loss, is gone; "
                "train again with --fresh"
            )
        tensors, _ = state.load_state(path)
        masters = self._masters()
        whole = whole_tensors(masters)
        state.copy_into(stored_views(whole.items()), tensors["model"], f"{path}: model")
        put_back(masters, whole)
        return self.counters.best_step

    def _agree(self, *wishes: bool) -> list[bool]:
        """For each wish, whether any process has it; clocks, signals and data differ between processes."""
        if self.world == 1:
            return list(wishes)
        return self.team.max(torch.tensor(wishes, dtype=torch.int32, device=self.device)).bool().tolist()

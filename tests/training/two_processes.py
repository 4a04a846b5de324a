"""One of two gloo processes on CPU: `python two_processes.py CASE OUT`, started by test_two_processes.py with RANK set.

Every case leaves under OUT whole weights and optimizer state in safetensors and numbers in JSON, by the first process.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor

sys.path.insert(0, str(Path(__file__).parent))
from test_trainer import recipe
from tiny_data import Echo, micro_model

from watersmeet.cli import train
from watersmeet.core.errors import DecodeError, WatersmeetError
from watersmeet.core.training.log import read_log
from watersmeet.core.training.lora import add_lora
from watersmeet.core.training.packing import Packer, sample_order
from watersmeet.core.training.sharding import local_rows, whole_tensors
from watersmeet.core.training.trainer import Trainer, seed_everything

COMMON = {"run.precision": "fp32", "run.measure_every": 2, "optimizer.ns_dtype": "float32", "schedule.steps": 4}


class OneKindARow(Echo):
    """Two rows, one a process: the first process never sees a dot, the second sees long rows of them."""

    def __init__(self, split="train", count=2):
        super().__init__(split, 2)

    def sample(self, index, rng):
        stream = super().sample(3 + 2 * index, rng)
        if index:
            return stream
        ids = next(span for span in stream.spans if span.modality == "ids")
        return type(stream)(spans=(ids,))


class Rotten(Echo):
    """Raises for one of the rows, whichever process meets it."""

    def sample(self, index, rng):
        if index == 5:
            raise RuntimeError("row 5 is rotten")
        return super().sample(index, rng)


class BadShare(Echo):
    """Every third row of what the second of two processes reads in the first epoch is damaged, and no row of the first's."""

    def __init__(self, split="train", count=240):
        super().__init__(split, count)
        self.bad = set(sample_order(1, 0, count, rank=1, world=2)[::3].tolist()) if split == "train" else set()

    def sample(self, index, rng):
        if index in self.bad:
            raise DecodeError(f"row {index} is damaged")
        return super().sample(index, rng)


DATA = {"bad": BadShare, "echo": Echo, "kinds": OneKindARow, "rotten": Rotten}


def build(out, data="echo", idle_expert=False, **changes):
    """A trainer on the micro model; `idle_expert` keeps all tokens from one expert."""
    config = recipe(out, **{**COMMON, **changes})
    seed_everything(config.seed)
    model = micro_model()
    if config.lora.r:
        add_lora(model, r=config.lora.r, alpha=config.lora.strength, targets=config.lora.targets)
    if idle_expert:
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer[5] = -10.0
    return Trainer(model, config, DATA[data](), Echo("val"), out=out, device="cpu", report=lambda line: None)


def packer_of(run, rank, world):
    """The batches that process `rank` of `world` would read."""
    return Packer(run.train_set, seed=run.config.seed, rank=rank, world=world, **run._packing())


def steps(run, count, world):
    """`count` steps of the batches of two processes: this one's when there are two, else those of both."""
    ranks = [run.team.rank] if world == 2 else [0, 1]
    packers = [packer_of(run, rank, 2) for rank in ranks]
    every = run.config.batch.accumulate
    return [run._step([packer.next_batch() for packer in packers for _ in range(every)]) for _ in range(count)]


def result(run, records, path):
    """Write what the run came to; every process has to call it."""
    masters = whole_tensors(run._masters())
    moments = run.optimizer.state_tensors()
    if run.main:
        tensors = {f"model/{name}": value for name, value in masters.items()}
        tensors |= {f"optimizer/{name}": value for name, value in moments.items()}
        save_file({name: value.detach().clone().contiguous() for name, value in tensors.items()}, f"{path}.safetensors")
        kept = ("loss", "grad_norm", "targets", "load", "max_logit", "loss_by_modality")
        Path(f"{path}.json").write_text(json.dumps([{k: r[k] for k in kept if k in r} for r in records]))


# name -> (steps, options); what two processes do and what one process is compared with
CASES = {
    "ddp": (3, {}),
    "ddp-accumulate": (1, {"batch.accumulate": 2}),
    "ddp-options": (3, {"optimizer.head_rate": 0.5, "experts.clip": 2.0, "experts.warmup": 0.4}),
    "ddp-kinds": (3, {"data": "kinds"}),
    "ddp-lora": (3, {"lora.r": 2}),
    "fsdp2-lora": (3, {"run.sharding": "fsdp2", "lora.r": 2}),
    "ddp-idle": (2, {"idle_expert": True, "experts.balance": "none"}),
    "fsdp2": (3, {"run.sharding": "fsdp2"}),
    "fsdp2-accumulate": (1, {"run.sharding": "fsdp2", "batch.accumulate": 2}),
    "fsdp2-options": (
        3,
        {"run.sharding": "fsdp2", "optimizer.head_rate": 0.5, "experts.clip": 2.0, "experts.warmup": 0.4},
    ),
    "fsdp2-kinds": (3, {"run.sharding": "fsdp2", "data": "kinds"}),
    "fsdp2-idle": (2, {"run.sharding": "fsdp2", "idle_expert": True, "experts.balance": "none"}),
}


def drawn_updates(out, kind, world):
    """Three updates from gradients drawn at random, the same whatever the number of processes; nothing is summed."""
    run = build(out / f"drawn-{kind}", **{"run.sharding": kind, "optimizer.head_rate": 0.5})
    generator = torch.Generator().manual_seed(5)
    run.optimizer.set_lr(1.0)
    for _ in range(3):
        for param in run.model.parameters():
            grad = torch.randn(param.shape, generator=generator)
            if kind == "fsdp2" and world == 2:
                local = grad[local_rows(param)].clone()
                grad = DTensor.from_local(
                    local, param.device_mesh, param.placements, shape=param.shape, stride=grad.stride()
                )
            param.grad = grad
        run.optimizer.step()
    result(run, [], out / f"drawn-{kind}-{world}")


def resumed(out, kind):
    """Six steps straight, and twice interrupted: after two steps and after four."""
    straight = build(out / f"{kind}-straight", **{"run.sharding": kind, "schedule.steps": 6})
    straight.run()
    for end in (2, 4, 6):
        part = build(out / f"{kind}-parts", **{"run.sharding": kind, "schedule.steps": 6})
        part.resume()
        packer_steps = end - part.counters.step
        part.on_step = lambda step, record, part=part, end=end: setattr(part, "_stop", "time" if step == end else None)
        assert packer_steps == 2
        part.run()
        assert part.counters.step == end, part.counters.step


def bad_fractions(out, most):
    """Ten steps over rows of which a sixth is damaged, all in the share of the second process."""
    run = build(
        out / f"bad-{most}", data="bad", **{"schedule.steps": 10, "batch.max_bad_fraction": most, "batch.pool": 8}
    )
    told = "done"
    try:
        run.run()
    except WatersmeetError as error:
        told = str(error)
    notes = [r["bad_sample"] for r in read_log(run.log.path) if r["kind"] == "note"]
    seen = [r["data"] for r in read_log(run.log.path) if r["kind"] == "train"]
    own = dict((run.counters.cursor or {}).get("counts", {}))
    result = {"told": told, "step": run.counters.step, "notes": notes, "seen": seen, "own": own}
    Path(out / f"bad-{most}.{run.team.rank}").write_text(json.dumps(result))


def fresh(out):
    """Start anew over an earlier run; the first process takes its time to move that aside."""
    rank, real = int(os.environ["RANK"]), train._move_aside

    def slowly(folder, report):
        time.sleep(2)
        real(folder, report)

    train._move_aside = slowly
    config = recipe(
        out / "fresh", **{**COMMON, "schedule.steps": 2, "dataset": "tiny_data:Letters", "run.out": str(out / "fresh")}
    )
    config = config.with_values(**{"model.preset": "micro", "batch.tokens": 96})
    summary = train.run_recipe(config, device="cpu", fresh=True, report=lambda line: None)
    (out / f"fresh.{rank}").write_text(json.dumps([summary.step, summary.stopped]))
    # a failure of the first process is everybody's
    train._move_aside = lambda folder, report: (_ for _ in ()).throw(OSError("no space"))
    try:
        train.run_recipe(config, device="cpu", fresh=True, report=lambda line: None)
    except (OSError, WatersmeetError) as error:
        (out / f"fails.{rank}").write_text(f"{type(error).__name__}: {error}")


def main(cases, out):
    torch.set_num_threads(1)
    for case in cases:
        if case.startswith("resume-"):
            resumed(out, case.removeprefix("resume-"))
        elif case.startswith("drawn-"):
            drawn_updates(out, case.removeprefix("drawn-"), 2)
        elif case.startswith("bad-"):
            bad_fractions(out, float(case.removeprefix("bad-")))
        elif case == "fresh":
            fresh(out)
        elif case == "rotten":
            run = build(out / case, data="rotten", **{"schedule.steps": 40})
            try:
                run.run()
            except Exception as error:
                Path(out / f"rotten.{run.team.rank}").write_text(f"{type(error).__name__}: {error}")
        elif case == "evaluate":
            run = build(out / case, **{"run.eval_batches": 3, "run.sharding": "fsdp2"})
            (out / f"evaluate.{run.team.rank}").write_text(json.dumps(run.evaluate()["loss"]))
        else:
            count, options = CASES[case]
            run = build(out / case, **options)
            assert run.world == 2
            result(run, steps(run, count, 2), out / case)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1].split(","), Path(sys.argv[2]))

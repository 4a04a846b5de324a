"""Two gloo processes on CPU come to what one process comes to, and never wait for each other in vain."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import two_processes  # noqa: E402

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without torch.distributed")


@pytest.fixture(autouse=True)
def one_thread():
    """The same bits are promised for one thread a process, and the other processes have one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def start(cases, out, timeout=240):
    """Run the cases in two processes; a hang is a failure."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    common |= {"OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": "2"}
    processes = []
    for rank in range(2):
        log = (out / f"log.{rank}").open("wb")
        environment = common | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        command = [sys.executable, "-P", str(HERE / "two_processes.py"), ",".join(cases), str(out)]
        processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
        log.close()
    try:
        codes = [process.wait(timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert codes == [0, 0], "\n".join((out / f"log.{rank}").read_text()[-3000:] for rank in range(2))


def compare(case, out, *, bits):
    """The result of two processes beside one process that accumulates the batches of both."""
    count, options = two_processes.CASES[case]
    one = two_processes.build(out / f"one-{case}", **{**options, "run.sharding": "ddp"})
    records = two_processes.steps(one, count, 1)
    two_processes.result(one, records, out / f"one-{case}")
    ours, theirs = (load_file(out / f"{name}.safetensors") for name in (case, f"one-{case}"))
    assert set(ours) == set(theirs)
    for name, value in theirs.items():
        if bits:
            assert torch.equal(ours[name], value), name
        else:
            torch.testing.assert_close(
                ours[name], value, rtol=2e-3, atol=2e-4, msg=lambda text, name=name: f"{name}: {text}"
            )
    ours, theirs = (json.loads((out / f"{name}.json").read_text()) for name in (case, f"one-{case}"))
    for mine, other in zip(ours, theirs, strict=True):
        assert mine["targets"] == other["targets"]
        for key in ("loss", "grad_norm", "max_logit"):
            assert (key in mine) == (key in other)
            assert mine.get(key, 0) == pytest.approx(other.get(key, 0), rel=1e-5), key
        assert mine["loss_by_modality"] == pytest.approx(other["loss_by_modality"], rel=1e-5)
    # the picks of the first step, before rounding could part the two
    assert ours[0]["load"] == theirs[0]["load"]


def test_two_processes_are_one_in_whole_copies_and_in_shards(tmp_path):
    """DDP: the same bits. FSDP2: the same up to the order of sums of gradients.

    Given gradients, the optimizer's updates and states are the same bits in both: momentum is dealt out or sharded, whole
    matrices are orthogonalised once, by their owner.
    """
    start(["ddp", "fsdp2", "drawn-ddp", "drawn-fsdp2"], tmp_path)
    compare("ddp", tmp_path, bits=True)
    compare("fsdp2", tmp_path, bits=False)
    two_processes.drawn_updates(tmp_path, "ddp", 1)
    one = load_file(tmp_path / "drawn-ddp-1.safetensors")
    for kind in ("ddp", "fsdp2"):
        two = load_file(tmp_path / f"drawn-{kind}-2.safetensors")
        assert set(two) == set(one)
        assert not (different := [name for name in one if not torch.equal(one[name], two[name])]), different


@pytest.mark.slow
def test_pitfall_28_accumulated_balancing_counts_are_summed_once_over_processes(tmp_path):
    start(["ddp-accumulate", "fsdp2-accumulate"], tmp_path)
    for case in ("ddp-accumulate", "fsdp2-accumulate"):
        compare(case, tmp_path, bits=False)
        ours, theirs = (load_file(tmp_path / f"{name}.safetensors") for name in (case, f"one-{case}"))
        biases = [name for name in ours if name.endswith("e_score_correction_bias")]
        assert biases and all(torch.equal(ours[name], theirs[name]) for name in biases)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_options_a_missing_modality_and_an_idle_expert_change_nothing(tmp_path, kind):
    cases = [f"{kind}-{what}" for what in ("options", "kinds", "idle")]
    start(cases, tmp_path)
    for case in cases:
        compare(case, tmp_path, bits=False)


@pytest.mark.slow
def test_adapters_in_two_processes_are_those_of_one(tmp_path):
    start(["ddp-lora", "fsdp2-lora"], tmp_path)
    for case in ("ddp-lora", "fsdp2-lora"):
        compare(case, tmp_path, bits=case == "ddp-lora")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_interrupted_and_resumed_twice_is_the_unbroken_run_to_the_bit(tmp_path, kind):
    start([f"resume-{kind}"], tmp_path)
    ends = [tmp_path / f"{kind}-{way}" / "checkpoints" / "step-00000006" for way in ("straight", "parts")]
    for name in ("model", "optimizer"):
        a, b = (load_file(end / f"{name}.safetensors") for end in ends)
        assert set(a) == set(b) and all(torch.equal(a[key], b[key]) for key in a)
    a, b = (json.loads((end / "state.json").read_text()) for end in ends)
    assert a["cursors"] == b["cursors"] and len(a["cursors"]) == 2 and a["updates"] == b["updates"] == 6


@pytest.mark.slow
def test_a_process_that_cannot_read_ends_both_and_evaluation_waits_for_nobody(tmp_path):
    start(["evaluate", "rotten"], tmp_path)
    told = sorted((tmp_path / f"rotten.{rank}").read_text() for rank in range(2))
    assert told[0] == "RuntimeError: row 5 is rotten" and "another process could not read" in told[1]
    # three batches for two processes: the one without a third takes part and does not count
    losses = [json.loads((tmp_path / f"evaluate.{rank}").read_text()) for rank in range(2)]
    one = two_processes.build(tmp_path / "one", **{"run.eval_batches": 3}).evaluate()["loss"]
    assert losses[0] == losses[1] == pytest.approx(one, rel=1e-6)


def test_fault_29_the_fraction_of_bad_rows_is_counted_over_processes(tmp_path):
    """A third of one process's rows is damaged, a sixth of all: 0.25 allows that and 0.1 does not, in both processes alike."""
    start(["bad-0.25", "bad-0.1"], tmp_path)
    first, second = (json.loads((tmp_path / f"bad-0.25.{rank}").read_text()) for rank in range(2))
    assert first["told"] == second["told"] == "done" and first["step"] == second["step"] == 10
    assert first["own"]["bad"] == 0 and second["own"]["bad"] > 0.25 * second["own"]["samples"]
    last = first["seen"][-1]
    assert last == {name: first["own"][name] + second["own"][name] for name in last}
    # every damaged row is named once, by the process that keeps the log
    assert len(first["notes"]) == len(set(first["notes"])) == last["bad"] and "is damaged" in first["notes"][0]
    first, second = (json.loads((tmp_path / f"bad-0.1.{rank}").read_text()) for rank in range(2))
    assert first["told"] == second["told"] and first["step"] == second["step"] < 10
    assert "samples could not be read, more than batch.max_bad_fraction 0.1; last one: sample " in first["told"]


@pytest.mark.slow
def test_a_fresh_start_of_two_processes_moves_the_earlier_run_once(tmp_path):
    old = tmp_path / "fresh" / "checkpoints" / "step-00000007"
    old.mkdir(parents=True)
    (old / "mark").write_text("of the earlier run")
    start(["fresh"], tmp_path)
    assert (tmp_path / "fresh" / "checkpoints.before-1" / old.name / "mark").read_text() == "of the earlier run"
    assert {path.name for path in (tmp_path / "fresh").glob("checkpoints*")} == {"checkpoints", "checkpoints.before-1"}
    for rank in range(2):
        assert json.loads((tmp_path / f"fresh.{rank}").read_text()) == [2, "done"]
    told = [(tmp_path / f"fails.{rank}").read_text() for rank in range(2)]
    assert told[0] == "OSError: no space" and "another process could not prepare the run" in told[1]

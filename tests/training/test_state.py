"""Checkpoints on disk: whole or absent, checked by hash, and never lost to a death in the middle."""

import json
import subprocess
import sys

import pytest
import torch

from watersmeet.core.errors import CheckpointError
from watersmeet.core.training import state


def write(root, step, value):
    tensors = {"model": {"w": torch.full((4, 4), float(value))}, "optimizer": {"m": torch.zeros(3)}}
    return state.save_state(root, step, tensors, {"cursor": {"epoch": step}})


def test_round_trip_and_listing(tmp_path):
    write(tmp_path, 3, 1.0)
    path = write(tmp_path, 12, 2.0)
    assert list(state.checkpoint_steps(tmp_path)) == [3, 12] and state.latest_checkpoint(tmp_path) == path
    tensors, values = state.load_state(path)
    assert torch.equal(tensors["model"]["w"], torch.full((4, 4), 2.0))
    assert values["step"] == 12 and values["cursor"] == {"epoch": 12}
    assert {item.suffix for item in path.iterdir()} == {".safetensors", ".json"}


@pytest.mark.parametrize("fatal", range(1, 5))
def test_dying_between_files_leaves_the_last_checkpoint(tmp_path, monkeypatch, fatal):
    write(tmp_path, 1, 1.0)
    written = []

    def fail_at(path, data, real=state._write_file):
        if len(written) + 1 == fatal:
            path.write_bytes(data[: len(data) // 2])  # torn in the middle, as a kill would leave it
            raise KeyboardInterrupt
        written.append(path.name)
        real(path, data)

    monkeypatch.setattr(state, "_write_file", fail_at)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, 2, 2.0)
    monkeypatch.undo()
    latest = state.latest_checkpoint(tmp_path)
    assert latest is not None and latest.name == "step-00000001"
    assert torch.equal(state.load_state(latest)[0]["model"]["w"], torch.ones(4, 4))
    write(tmp_path, 2, 3.0)
    state.clean(tmp_path, keep=5)
    assert sorted(item.name for item in tmp_path.iterdir()) == ["step-00000001", "step-00000002"]


def test_kill_9_while_saving_in_a_loop(tmp_path):
    code = (
        "import sys, torch; from watersmeet.core.training import state\n"
        "step = 0\n"
        "while True:\n"
        "    step += 1\n"
        "    state.save_state(sys.argv[1], step, {'model': {'w': torch.full((300, 300), float(step))}}, {})\n"
        "    state.clean(sys.argv[1], keep=2)\n"
        "    print(step, flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) >= 5:
            break
    process.kill()
    process.wait()
    process.stdout.close()
    for step, path in state.checkpoint_steps(tmp_path).items():
        tensors, values = state.load_state(path)
        assert values["step"] == step and bool((tensors["model"]["w"] == step).all())
    assert state.latest_checkpoint(tmp_path) is not None


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_damaged_file_is_refused_by_hash(tmp_path, name):
    path = write(tmp_path, 1, 1.0)
    data = bytearray((path / name).read_bytes())
    data[-3] ^= 1
    (path / name).write_bytes(data)
    with pytest.raises(CheckpointError, match=rf"{name} is damaged: sha256"):
        state.load_state(path)


def test_missing_file_and_manifest_are_named(tmp_path):
    path = write(tmp_path, 1, 1.0)
    (path / "optimizer.safetensors").unlink()
    with pytest.raises(CheckpointError, match="optimizer.safetensors"):
        state.load_state(path)
    (path / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="manifest.json"):
        state.load_state(path)


def test_keep_last_and_multiples(tmp_path):
    for step in range(1, 8):
        write(tmp_path, step, step)
    state.clean(tmp_path, keep=2, keep_every=3)
    assert list(state.checkpoint_steps(tmp_path)) == [3, 6, 7]


def test_same_step_can_be_written_again(tmp_path):
    write(tmp_path, 4, 1.0)
    path = write(tmp_path, 4, 2.0)
    assert float(state.load_state(path)[0]["model"]["w"][0, 0]) == 2.0


def test_unwritable_place_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match="could not be written"):
        write(tmp_path / "file", 1, 1.0)


def test_copy_into_names_what_does_not_fit():
    target = {"a": torch.zeros(2), "b": torch.zeros(3)}
    for source, word in (
        ({"a": torch.zeros(2)}, "'b' is missing"),
        ({"a": torch.zeros(2), "b": torch.zeros(3), "c": torch.zeros(1)}, "'c' is not part"),
        ({"a": torch.zeros(2), "b": torch.zeros(4)}, "'b' is"),
        ({"a": torch.zeros(2), "b": torch.zeros(3, dtype=torch.float64)}, "float64"),
    ):
        with pytest.raises(CheckpointError, match=word):
            state.copy_into(target, source, "test")


def test_generators_are_restored(tmp_path):
    import random

    import numpy as np

    tensors, values = state.rng_state()
    path = state.save_state(tmp_path, 1, {"rng": tensors}, {"rng": values})
    first = (torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random(), random.gauss(0, 1))
    loaded, read = state.load_state(path)
    state.set_rng_state(loaded["rng"], json.loads(json.dumps(read["rng"])))
    assert first == (torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random(), random.gauss(0, 1))

"""The programs in benchmarks/: they start, say what is missing, and their measuring code works at tiny sizes."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch


@pytest.fixture(scope="module")
def root():
    """The checkout; an installed wheel is tested without these programs."""
    folder = Path(__file__).resolve().parents[2]
    if not (folder / "benchmarks" / "gpu.py").exists():
        pytest.skip("the programs are not here")
    return folder


def load(root, name):
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", root / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_sentence(root, tmp_path):
    program = [sys.executable, "-P", str(root / "benchmarks" / "gpu.py"), "--out", str(tmp_path / "gpu.md")]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stdout == "" and not (tmp_path / "gpu.md").exists()
    assert "sees no GPU" in done.stderr and len(done.stderr.splitlines()) == 1


def test_gpu_measurements_run_in_the_interpreter(root, device, capsys):
    """Every operator in its Triton form, at sizes of one tile."""
    pytest.importorskip("triton")
    gpu = load(root, "gpu")
    text = gpu.measure(device, dtype=torch.float32, rounds=1, tiny=True)
    lines = text.splitlines()
    assert "torch" in lines[0] and len(lines) == 4 + 2 + 1 + 2 + 2
    for what in ("KDA forward,", "KDA forward+backward", "KDA decode", "experts forward,", "AttnRes", "convolution"):
        (line,) = [line for line in lines if what in line]
        assert " ms |" in line
    assert "x |" in next(line for line in lines if "experts forward+backward" in line)


def test_a_form_without_memory_is_left_out(root, device):
    gpu = load(root, "gpu")

    def too_large():
        raise torch.OutOfMemoryError("none left")

    times = gpu.medians({"ours": lambda: None, "theirs": too_large}, torch.device("cpu"), 1)
    assert set(times) == {"ours"} and gpu.ratio(times) == "" and gpu.shown(times, "theirs") == "-"


def test_length_draws_a_plot(root, tmp_path, capsys):
    length = load(root, "length")
    assert length.main(["--out", str(tmp_path / "plot.png"), "--most", "4096", "--piece", "1024"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["tokens"] for one in found] == [1024, 2048, 4096] and all(one["seconds"] > 0 for one in found)
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")

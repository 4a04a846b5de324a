"""`watersmeet bench kernels` at sizes of seconds: the numbers are there, both sides agree, missing peers are said."""

import json

import pytest

from watersmeet.cli import bench_kernels, bench_kernels_work, bench_peers
from watersmeet.cli.app import run_command_line


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(bench_kernels, "ROUNDS", 1)
    monkeypatch.setattr(bench_kernels, "SHAPES", ((64, 1, 32),))
    monkeypatch.setattr(bench_kernels, "MEMORY", (256, 1, 32))
    monkeypatch.setattr(bench_kernels, "EXPERTS", {"T": 64, "D": 32, "inner": 16, "experts": 4, "k": 2})
    monkeypatch.setattr(bench_kernels, "TOKENS", 128)


def test_operators_beside_the_peer(tiny, tmp_path, capsys, monkeypatch):
    pytest.importorskip(bench_peers.TRANSFORMERS)
    monkeypatch.setattr(bench_kernels, "fla_function", lambda: None)
    monkeypatch.setattr(bench_kernels_work, "fla_function", lambda: None)
    file = tmp_path / "numbers.json"
    words = ["bench", "kernels", "--part", "kda", "--part", "experts", "--part", "step", "--json", str(file)]
    assert run_command_line(words) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "flash-linear-attention is not installed" in said and "transformers' fallback" in said
    found = json.loads(file.read_text())["results"]
    for name, one in found["kda"].items():
        assert min(one["forward"].values()) > 0 and min(one["both"].values()) > 0 and one["share_forward"] > 0
        tol = 1e-5 if "float32" in name else 3e-2
        assert max(one["distance"].values()) < tol
    assert max(found["experts"]["distance"].values()) < 1e-5
    assert found["step"]["outside"] < 1 and found["step"]["weights"] > 1e5


@pytest.mark.slow
def test_memory_and_training(tiny, tmp_path, capsys):
    file = tmp_path / "numbers.json"
    assert run_command_line(["bench", "kernels", "--part", "memory", "--part", "training", "--json", str(file)]) == 0
    assert "training step of 128 tokens" in capsys.readouterr().out
    found = json.loads(file.read_text())["results"]
    parts = found["training"]["parts"]
    assert parts["matrix products of torch"] > 0 and 0.9 < sum(parts.values()) < 1.1
    assert found["memory"]["ours"] >= 0


def test_without_any_peer_our_own_numbers_follow(tiny, monkeypatch, capsys):
    for module in (bench_kernels, bench_kernels_work):
        monkeypatch.setattr(module, "transformers_module", lambda: None)
        monkeypatch.setattr(module, "fla_function", lambda: None)
    monkeypatch.setattr(bench_kernels_work, "peer_function", lambda: None)
    assert run_command_line(["bench", "kernels", "--part", "kda", "--part", "experts"]) == 0
    said = capsys.readouterr().out
    assert "transformers with kimi_linear" in said and "GFLOP/s" in said


def test_the_naive_form_is_found_without_its_package(tmp_path, monkeypatch):
    """Only its own file runs; importing the package would need a GPU."""
    folder = tmp_path / "fla" / "ops" / "kda"
    folder.mkdir(parents=True)
    (tmp_path / "fla" / "__init__.py").write_text("raise RuntimeError('needs a GPU')")
    (folder / "naive.py").write_text("def naive_chunk_kda(*x):\n    return 'naive', None\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    function = bench_peers.fla_function()
    assert function is not None and function()[0] == "naive"
    (folder / "naive.py").write_text("import nothing_of_that_name\n")
    assert bench_peers.fla_function() is None


def test_an_unknown_part_is_named(capsys):
    assert run_command_line(["bench", "kernels", "--part", "gpu"]) != 0
    assert "kda, experts, step" in capsys.readouterr().err


def test_useful_operations_by_hand():
    """One head, one token, D = 2, C = 16: 6*4 + 3*16*2 + 256."""
    assert bench_kernels_work.useful(1, 1, 2) == 376

"""`watersmeet bench model` on the small model and a short prompt: the numbers are there and both sides agree."""

import json

import pytest

from watersmeet.cli import bench_model, bench_model_sides
from watersmeet.cli.app import run_command_line


@pytest.mark.slow
def test_both_sides_on_the_same_weights(tmp_path, monkeypatch, capsys):
    pytest.importorskip("transformers.models.kimi_linear.modeling_kimi_linear")
    monkeypatch.setattr(bench_model, "ROUNDS", 1)
    file = tmp_path / "numbers.json"
    command = ["bench", "model", "--size", "4m", "--dtype", "float32", "--tokens", "96", "--json", str(file)]
    assert run_command_line(command) == 0
    assert "times better" in capsys.readouterr().out
    (found,) = json.loads(file.read_text())["results"].values()
    assert found["distance"]["ours"] == 0.0
    assert found["distance"]["peer"] < 1e-4
    for what in ("decode", "decode_one_thread", "prefill"):
        for side in ("ours", "peer"):
            # a machine of one core measures the same number once
            assert what not in found or found[what][side] > 0
    assert found["memory"]["peer"] > 0
    # by hand: 4 bytes for 7 layers of experts (5 of 17 with the shared one), mixers, one dense layer, the head
    assert 7e6 < found["active_bytes"] < 10e6


def test_without_the_peer_our_own_numbers_follow_one_sentence(monkeypatch, capsys):
    monkeypatch.setattr(bench_model_sides, "peer_version", lambda: None)
    monkeypatch.setattr(bench_model, "ROUNDS", 1)
    monkeypatch.setattr(bench_model, "_memory", lambda *a: 2**20)
    assert run_command_line(["bench", "model", "--size", "4m", "--dtype", "float32", "--tokens", "64"]) == 0
    text = capsys.readouterr().out
    assert "transformers with kimi_linear" in text and "decode" in text


@pytest.mark.parametrize(
    ("options", "said"),
    [(["--size", "9b"], "4m, 100m"), (["--dtype", "int8"], "float32 or bfloat16"), (["--tokens", "5"], "at least 64")],
)
def test_wrong_options(options, said, capsys):
    assert run_command_line(["bench", "model", *options]) != 0
    assert said in capsys.readouterr().err

"""The measurements of training run at tiny sizes, and a second start measures nothing twice."""

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = (
    "expert_load",
    "muon_against_adamw",
    "head_rate",
    "qk_clip",
    "diverging_expert",
    "shared_brain",
    "optimizer_overhead",
)

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="benchmarks are no part of the package")


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_script_runs_and_goes_on(script, tmp_path):
    command = [sys.executable, "-P", str(FOLDER / f"{script}.py"), "--quick", "--steps", "2", "--seeds", "2"]
    runs = [
        subprocess.run([*command, "--out", str(tmp_path)], capture_output=True, text=True, timeout=900)
        for _ in range(2)
    ]
    for done in runs:
        assert done.returncode == 0, done.stderr[-2000:]
        assert "| --- |" in done.stdout
    found = list(tmp_path.glob("*.jsonl"))
    assert found and {path.suffix for path in tmp_path.iterdir()} <= {".jsonl", ".png"}
    for results in found:
        lines = results.read_text().splitlines()
        assert lines and len(lines) == len(set(lines)) and f"{results.name}:" in runs[0].stdout
        assert f"{results.name}:" not in runs[1].stdout
    table = [run.stdout[run.stdout.rindex("| --- |") :] for run in runs]
    assert table[0] == table[1]


@pytest.mark.slow
def test_a_run_that_was_stopped_is_not_taken_for_a_result(tmp_path, monkeypatch):
    """A trainer ends in good order when it is told to stop; what it has come to by then is no measurement."""
    monkeypatch.syspath_prepend(str(FOLDER))
    toy = pytest.importorskip("toy")
    trainer = toy.make_trainer(toy.tiny_config(num_hidden_layers=2), seed=1, steps=5)
    results = toy.Results(tmp_path / "one.jsonl")

    def stop(step, record):
        trainer._stop = "signal"

    with pytest.raises(SystemExit, match="stopped"):
        results.get({"arm": "a"}, lambda: toy.train(trainer, stop))
    assert not results.path.exists()

"""The measurements of training run at tiny sizes, and a second start measures nothing twice."""

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = ("expert_load", "muon_against_adamw", "qk_clip", "diverging_expert", "shared_brain", "optimizer_overhead")

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="benchmarks are no part of the package")


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_script_runs_and_goes_on(script, tmp_path):
    command = [sys.executable, "-P", str(FOLDER / f"{script}.py"), "--quick", "--steps", "2", "--seeds", "2"]
    runs = [
        subprocess.run([*command, "--out", str(tmp_path)], capture_output=True, text=True, timeout=300)
        for _ in range(2)
    ]
    for done in runs:
        assert done.returncode == 0, done.stderr[-2000:]
        assert "| --- |" in done.stdout
    (results,) = tmp_path.glob("*.jsonl")
    lines = results.read_text().splitlines()
    assert len(lines) == len(set(lines)) and f"{results.name}:" in runs[0].stdout
    assert f"{results.name}:" not in runs[1].stdout

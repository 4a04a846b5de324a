"""The measurement of videos runs, finds its menus, and stays below what it says is the most."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "video.py"

pytestmark = pytest.mark.skipif(not SCRIPT.is_file(), reason="benchmarks are no part of the package")


@pytest.mark.slow
def test_the_measurement_runs(tmp_path):
    command = [sys.executable, "-P", str(SCRIPT), "--out", str(tmp_path), "--only", "typical", "--seconds", "30"]
    for more, frames in (([], "900"), (["--hour", "0.5"], "1,800")):
        done = subprocess.run([*command, *more], capture_output=True, text=True, timeout=1200)
        assert done.returncode == 0, done.stderr[-2000:]
        row = [cell.strip() for cell in done.stdout.strip().splitlines()[-1].strip("| ").split("|")]
        assert row[1] == frames
        tokens, bound = (int(row[i].replace(",", "")) for i in (2, 4))
        assert 240 < tokens <= bound
        if not more:
            assert row[5] == "2 of 2"

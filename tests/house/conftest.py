"""What the tests of the house look at: the checkout, not the installed package."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("core", "kernels", "plugins", "tokenizers", "pipelines")


@pytest.fixture(scope="session")
def root():
    return ROOT


@pytest.fixture(scope="session")
def rooms():
    return ROOMS


@pytest.fixture(scope="session")
def project_files():
    """Paths relative to the root of all files that are, or could next be, part of a commit."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("needs a git checkout")
    return sorted(Path(name) for name in listed.stdout.split("\0") if name and (ROOT / name).is_file())


@pytest.fixture(scope="session")
def built(project_files, tmp_path_factory):
    """(sdist, wheel), built from a copy of the project's files, the wheel out of the sdist."""
    pytest.importorskip("build")
    copy = tmp_path_factory.mktemp("checkout")
    for name in project_files:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes((ROOT / name).read_bytes())
    done = subprocess.run(
        [sys.executable, "-P", "-m", "build", "--no-isolation", "--outdir", "dist", "."],
        cwd=copy,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    [sdist], [wheel] = (copy / "dist").glob("*.tar.gz"), (copy / "dist").glob("*.whl")
    return sdist, wheel

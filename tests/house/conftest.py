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


@pytest.fixture(scope="session")
def new_environment(tmp_path_factory):
    """`make(*wheels)` gives the bin folder of a fresh environment with them; libraries are borrowed from the running one."""

    def make(*wheels):
        folder = tmp_path_factory.mktemp("environment")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        programs = folder / "bin"
        ask = [programs / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        site = Path(subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip())
        libraries = [entry for entry in sys.path if entry.endswith("site-packages")]
        # lines after the first import are not followed by .pth files, so the editable install stays out
        (site / "zz_libraries.pth").write_text("\n".join(libraries) + "\n")
        pip = [sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "--python", programs / "python"]
        if subprocess.run([*pip[:4], "--version"], capture_output=True, check=False).returncode != 0:
            pytest.skip("needs pip")
        subprocess.run([*pip, "install", "-qq", "--no-deps", "--no-index", "--force-reinstall", *wheels], check=True)
        return programs

    return make

"""The mapping from folders to import names, with every way it is known to go wrong without a word."""

import configparser
import importlib.metadata
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import watersmeet


@pytest.fixture(scope="module")
def setup_cfg(root):
    parser = configparser.ConfigParser()
    parser.read(root / "setup.cfg", encoding="utf-8")
    return parser


@pytest.fixture(scope="module")
def pyproject(root):
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))


def as_import_name(path, rooms):
    """core/model/x.py -> watersmeet/core/model/x.py; src/watersmeet/y.py -> watersmeet/y.py; others None."""
    if path.parts[:2] == ("src", "watersmeet"):
        return Path(*path.parts[1:])
    return Path("watersmeet", path) if path.parts[0] in rooms else None


def packaged(project_files, rooms):
    """Where each file of the package must be in a wheel."""
    return {name: path for path in project_files if (name := as_import_name(path, rooms)) is not None}


def test_the_package_list_names_every_package(setup_cfg, project_files, rooms):
    listed = setup_cfg["options"]["packages"].split()
    wanted = {".".join(name.parent.parts) for name in packaged(project_files, rooms) if name.name == "__init__.py"}
    assert set(listed) == wanted
    assert len(listed) == len(set(listed))


def test_every_folder_with_python_is_a_package(project_files, rooms):
    names = packaged(project_files, rooms)
    without = {str(name.parent) for name in names if name.suffix == ".py" and name.parent / "__init__.py" not in names}
    assert without == set(), "modules there would be missing from the wheel"


def test_folders_and_import_names_agree(setup_cfg, rooms):
    lines = setup_cfg["options"]["package_dir"].split("\n")
    mapping = dict(re.split(r"\s*=\s*", line) for line in lines if line)
    assert mapping == {"watersmeet": "src/watersmeet", **{f"watersmeet.{room}": room for room in rooms}}


def test_data_files_match_a_pattern(setup_cfg, project_files, rooms):
    patterns = {
        package: value.replace(",", " ").split() for package, value in setup_cfg["options.package_data"].items()
    }
    missing = []
    for name, path in packaged(project_files, rooms).items():
        if name.suffix == ".py":
            continue
        found = any(
            name.match(str(Path(*package.split("."), pattern)))
            for package, words in patterns.items()
            for pattern in words
        )
        if not found:
            missing.append(str(path))
    assert missing == [], "add them to [options.package_data] in setup.cfg"


def test_entry_points_are_only_in_pyproject(setup_cfg, pyproject):
    # setuptools ignores those of setup.cfg with no more than a warning
    assert "options.entry_points" not in setup_cfg.sections()
    wanted = pyproject["project"]["entry-points"]["watersmeet.plugins"]
    installed = importlib.metadata.distribution("watersmeet").entry_points.select(group="watersmeet.plugins")
    assert {point.name: point.value for point in installed} == wanted


def test_each_entry_point_names_a_module_of_the_package(pyproject, project_files, rooms):
    names = packaged(project_files, rooms)
    for target in pyproject["project"]["entry-points"]["watersmeet.plugins"].values():
        assert Path(*target.split(".")).with_suffix(".py") in names, target


def test_the_version_is_written_twice_and_alike(pyproject):
    assert pyproject["project"]["version"] == watersmeet.__version__ == importlib.metadata.version("watersmeet")


def test_rooms_refuse_their_bare_names(root, rooms):
    script = f"""
import importlib, sys
sys.path.insert(0, {str(root)!r})
for room in {rooms!r}:
    try:
        importlib.import_module(room)
    except ImportError as error:
        assert "watersmeet." + room in str(error), error
    else:
        raise SystemExit(room + " was imported under its bare name: two copies of one module can now exist")
"""
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_wheel_holds_the_package_and_nothing_else(built, project_files, rooms):
    _, wheel = built
    with zipfile.ZipFile(wheel) as archive:
        names = {Path(name) for name in archive.namelist()}
    info = f"watersmeet-{watersmeet.__version__}.dist-info"
    assert {name.parts[0] for name in names} == {"watersmeet", info}
    assert {name for name in names if name.parts[0] == "watersmeet"} == set(packaged(project_files, rooms))
    assert Path(info, "licenses", "LICENSE") in names


@pytest.mark.parametrize(
    "name",
    ["py.typed", "pipelines/layout/walker.js", "pipelines/layout/tokenizer.model", "pipelines/report/report.html.j2"],
)
def test_the_wheel_holds_what_the_program_reads(built, name):
    with zipfile.ZipFile(built[1]) as archive:
        assert f"watersmeet/{name}" in archive.namelist()


def test_the_sdist_builds_the_wheel_and_keeps_to_one_folder(built):
    sdist, _ = built
    with tarfile.open(sdist) as archive:
        names = archive.getnames()
    assert {name.split("/")[0] for name in names} == {f"watersmeet-{watersmeet.__version__}"}
    # what a user of the sdist needs to build and to know the terms
    for wanted in ("pyproject.toml", "setup.cfg", "LICENSE", "README.md", "core/stream.py"):
        assert any(name.endswith(f"/{wanted}") for name in names), wanted


def test_weights_stay_small(project_files, root):
    for path in project_files:
        if path.suffix == ".safetensors":
            assert (root / path).stat().st_size <= 20_000_000, path


@pytest.fixture(scope="module")
def installed_wheel(built, new_environment):
    """bin folder of a fresh environment with the wheel."""
    return new_environment(built[1])


def call(program, *arguments, cwd):
    return subprocess.run([program, *arguments], cwd=cwd, capture_output=True, text=True, check=False)


def test_the_installed_wheel_runs(installed_wheel, tmp_path):
    where = call(installed_wheel / "python", "-c", "import watersmeet.core as core; print(core.__file__)", cwd=tmp_path)
    assert str(installed_wheel.parent) in where.stdout, where
    done = call(installed_wheel / "watersmeet", "--help", cwd=tmp_path)
    assert done.returncode == 0 and "screenshot" in done.stdout.lower(), done
    done = call(installed_wheel / "watersmeet", "plugins", "--strict", cwd=tmp_path)
    assert done.returncode == 0, done
    assert [line.split()[1] for line in done.stdout.splitlines()] == ["loaded"] * 7, done.stdout
    done = call(installed_wheel / "python", "-m", "watersmeet", "--version", cwd=tmp_path)
    assert done.stdout.strip() == f"watersmeet {watersmeet.__version__}", done

"""Setting up: the make targets, the pins, and what is said when something cannot be had."""

import importlib.metadata
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


@pytest.fixture(scope="module")
def pins(root):
    lines = (root / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def needed(name, extras=("",), seen=None):
    """Names of all packages that installing `name` with `extras` brings."""
    seen = {} if seen is None else seen
    key = canonicalize_name(name)
    if set(extras) <= seen.get(key, set()):
        return seen
    seen.setdefault(key, set()).update(extras)
    for line in importlib.metadata.distribution(name).requires or []:
        requirement = Requirement(line)
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras):
            needed(requirement.name, ("", *requirement.extras), seen)
    return seen


def test_everything_needed_is_pinned_exactly(pins):
    for pin in pins:
        assert re.fullmatch(r"==[^*]+", str(pin.specifier)), f"{pin} is no exact pin"
        assert pin.url is None
    names = [canonicalize_name(pin.name) for pin in pins]
    assert len(names) == len(set(names))
    assert set(needed("watersmeet", ("", "dev"))) - {"watersmeet"} <= set(names)


def test_the_pins_meet_the_project_s_own_ranges(pins):
    versions = {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in pins}
    for line in importlib.metadata.distribution("watersmeet").requires or []:
        requirement = Requirement(line)
        if requirement.name != "watersmeet":
            assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)]), line


def test_the_pins_that_matter(pins):
    by_name = {pin.name: pin for pin in pins}
    assert str(by_name["torch"].specifier) == "==2.13.0"
    assert "linux" in str(by_name["triton"].marker)
    assert int(str(by_name["av"].specifier).removeprefix("==").split(".")[0]) < 19


def test_help_lists_the_targets(root):
    done = subprocess.run(["make", "-s", "help"], cwd=root, capture_output=True, text=True, check=True)
    listed = {line.split()[1] for line in done.stdout.splitlines()}
    assert {"help", "demo", "test", "test-all", "test-wheel", "lint", "typecheck", "bench", "clean"} <= listed


@pytest.fixture
def bare(root, tmp_path):
    """A checkout with no environment, as far as the set-up script reads one."""
    (tmp_path / "scripts").mkdir()
    for name in ("scripts/setup.sh", "pyproject.toml", "setup.cfg", "constraints.txt"):
        shutil.copy(root / name, tmp_path / name)
    return tmp_path


def setup(folder, *words, **variables):
    environment = {key: value for key, value in os.environ.items() if key not in ("VENV", "PYTHON")} | variables
    return subprocess.run(
        ["scripts/setup.sh", *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_a_wrong_interpreter_is_named(bare):
    done = setup(bare, "runtime", PYTHON="no-such-python")
    assert done.returncode == 1
    assert "no-such-python" in done.stderr and "3.11" in done.stderr
    assert not (bare / ".venv/bin").exists()


def test_an_old_interpreter_is_refused(bare):
    old = bare / "old-python"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    done = setup(bare, "dev", PYTHON=str(old))
    assert done.returncode == 1 and "3.11" in done.stderr


def test_an_unknown_word_shows_the_usage(bare):
    done = setup(bare, "everything")
    assert done.returncode == 1 and "runtime|dev|browser" in done.stderr


def fake_environment(folder, browser):
    """An environment that counts as installed, whose python finds or does not find a browser."""
    python = folder / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{browser}\n")
    python.chmod(0o755)
    # the stamp of an environment that is up to date, computed the way the script does
    script = "echo runtime; cat pyproject.toml setup.cfg constraints.txt scripts/setup.sh"
    stamp = subprocess.run(
        ["bash", "-c", f"{{ {script}; }} | cksum"], cwd=folder, capture_output=True, text=True, check=True
    )
    (folder / ".venv/.installed-runtime").write_text(stamp.stdout)


def test_a_second_call_does_nothing(bare):
    fake_environment(bare, "echo /usr/bin/some-chromium")
    assert setup(bare, "runtime").stderr == ""
    assert setup(bare, "browser").stderr == ""


def test_a_browser_that_cannot_be_had_is_said_in_one_sentence(bare):
    fake_environment(bare, "echo 'watersmeet.core.errors.RenderError: no Chromium was found' >&2; exit 1")
    programs = bare / "programs"
    programs.mkdir()
    # not root, and no apt-get that could be asked
    (programs / "id").write_text("#!/bin/sh\necho 1000\n")
    (programs / "id").chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    done = setup(bare, "browser", PATH=path)
    assert done.returncode == 1 and done.stderr == "setup: no Chromium was found\n"


def test_a_variable_that_is_wrong_is_never_repaired_by_installing(bare):
    fake_environment(bare, "echo 'RenderError: WATERSMEET_CHROMIUM is wrong' >&2; exit 1")
    done = setup(bare, "browser", WATERSMEET_CHROMIUM="/nowhere")
    assert done.returncode == 1 and "installing" not in done.stderr


def test_what_ci_runs_is_what_people_run(root):
    script = (root / ".ci/run").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    called = {word for line in re.findall(r"^make (.+)$", script, flags=re.MULTILINE) for word in line.split()}
    assert {"lint", "typecheck", "test", "test-wheel"} <= called <= targets


def test_libraries_that_import_and_libraries_that_are_declared_agree(root, project_files, rooms):
    """What the package imports at its top level is installed with it, not only with the developer's extras."""
    imported = set()
    for path in project_files:
        if path.suffix == ".py" and path.parts[0] in (*rooms, "src"):
            text = (root / path).read_text(encoding="utf-8")
            found = set(re.findall(r"^(?:import|from) ([a-zA-Z_]\w*)", text, flags=re.MULTILINE))
            # the fixtures are loaded by pytest itself
            imported |= found - ({"pytest"} if path.name == "fixtures.py" and "testing" in path.parts else set())
    by_module = importlib.metadata.packages_distributions()
    runtime = set(needed("watersmeet"))
    for module in imported - {"watersmeet", "__future__"}:
        owners = {canonicalize_name(owner) for owner in by_module.get(module, [])}
        assert not owners or owners & runtime or module == "triton", f"{module} is imported but not declared"


def test_paths_in_scripts_start_at_the_project(root):
    for name in ("scripts/setup.sh", "scripts/test_wheel.sh", ".ci/run"):
        text = (root / name).read_text(encoding="utf-8")
        assert (
            text.startswith("#!/usr/bin/env bash\n") and 'cd "$(dirname "$0")' in text and "set -euo pipefail" in text
        )
        assert Path(root / name).stat().st_mode & 0o111

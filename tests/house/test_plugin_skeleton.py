"""`watersmeet plugins new`: what it writes is a package whose own tests pass at once, and `plugins check` agrees."""

import json
import subprocess
import sys

import pytest

from watersmeet.__main__ import main
from watersmeet.core.errors import UsageError
from watersmeet.testing import PipelineSubject, Subject, examine, examine_pipeline, isolated_plugins
from watersmeet.testing.checks import FAILED, PASSED
from watersmeet.testing.skeleton import KINDS, write_skeleton

NAMES = {"modality": "heart-rate", "pipeline": "word_count"}


@pytest.fixture
def skeleton(tmp_path, monkeypatch):
    """Write a skeleton and register what it holds, without installing it."""
    monkeypatch.chdir(tmp_path)
    with isolated_plugins() as plugins:

        def write(kind):
            name = NAMES[kind]
            said = write_skeleton(name, kind=kind)
            folder = tmp_path / f"watersmeet-{name.replace('_', '-')}"
            monkeypatch.syspath_prepend(str(folder))
            plugins.add(f"watersmeet_{name.replace('-', '_')}", name=name)
            return folder, said

        yield write


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_keeps_the_contract(kind, skeleton):
    folder, said = skeleton(kind)
    written = sorted(str(path.relative_to(folder.parent)) for path in folder.rglob("*") if path.is_file())
    assert sorted(said[:-1]) == [name for name in written if "__pycache__" not in name]
    name = NAMES[kind]
    if kind == "modality":
        examination = examine(Subject(modality=name))
        # the worker of check 3 has no such folder on its path before it is installed; the slow test below has
        numbers = [number for number in examination.checks if number not in (3, 6)]
    else:
        examination = examine_pipeline(PipelineSubject(pipeline=name))
        numbers = list(examination.checks)
    outcomes = [examination.outcome(number) for number in numbers]
    assert {one.check.name: one.detail for one in outcomes if one.state == FAILED} == {}
    assert sum(one.state == PASSED for one in outcomes) >= 8


def test_its_files_are_few_and_short(skeleton):
    for kind in KINDS:
        folder, _ = skeleton(kind)
        test = next(folder.glob("tests/test_*.py")).read_text()
        assert len([line for line in test.splitlines() if line]) <= 5
        for path in folder.rglob("*.py"):
            assert "{{" not in path.read_text() and path.read_text().count("\n") <= 60, path
        assert (folder / "pyproject.toml").is_file() and (folder / "README.md").is_file()


WRONG = {
    "capitals": ("Heart Rate", "try 'heart-rate'"),
    "nothing": ("", "can be no name"),
    "signs": ("../x", "try 'x'"),
    "one of ours": ("text", "'text' is a plugin of watersmeet itself"),
    "one of ours in disguise": ("screenshot_to_code", "is a plugin of watersmeet itself"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_name_that_cannot_be_is_refused(what, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name, words = WRONG[what]
    with pytest.raises(UsageError, match=words):
        write_skeleton(name)
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_not_written_over(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "watersmeet-mine").mkdir()
    assert main(["plugins", "new", "mine"]) == 2
    assert "watersmeet-mine is there already" in capsys.readouterr().err
    assert main(["plugins", "new", "mine", "--out", "deep/down", "--kind", "pipelin"]) == 2
    assert "did you mean 'pipeline'?" in capsys.readouterr().err
    assert main(["plugins", "new", "mine", "--out", "deep/down"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert "deep/down/pyproject.toml" in said and "watersmeet plugins check mine" in said[-1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "watersmeet-mine"]


@pytest.mark.slow
def test_its_tests_pass_in_a_fresh_environment(tmp_path, built, new_environment):
    wheels = []
    for kind, name in NAMES.items():
        folder = tmp_path / kind
        write_skeleton(name, kind=kind, out=folder)
        command = [sys.executable, "-P", "-m", "build", "--wheel", "--no-isolation", "--outdir", "dist", "."]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        wheels += (folder / "dist").glob("*.whl")
    programs = new_environment(built[1], *wheels)
    for kind, name in NAMES.items():
        command = [programs / "python", "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
        done = subprocess.run(command, cwd=tmp_path / kind, capture_output=True, text=True, check=False)
        assert done.returncode == 0 and " passed" in done.stdout, done.stdout
        command = [programs / "watersmeet", "plugins", "check", name, "--json"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        [report] = json.loads(done.stdout)["plugins"]
        assert (report["kind"], report["name"], report["version"]) == (kind, name, "0.1.0")
        assert len(report["checks"]) == {"modality": 16, "pipeline": 8}[kind]

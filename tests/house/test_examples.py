"""The example packages from their own wheels beside the project's, and what the documents of plugins say, done."""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from test_docs import parse

from watersmeet.plugins.loader import GROUP, Choice, Found, load_plugin

PACKAGES = {
    "watersmeet-timeseries": ("timeseries",),
    "watersmeet-audio": ("audio",),
    "watersmeet-chart-to-table": ("chart-marks", "chart-to-table"),
}
PAGES = ("tutorial", "reference", "versioning", "publishing")
TUTORIAL = "watersmeet-timeseries"
EVERYTHING = Choice(allowed=None, blocked=frozenset())


def page(root, name):
    return (root / "docs" / "plugins" / f"{name}.md").read_text(encoding="utf-8")


def blocks(text):
    """(file that the block is for or None, language, text) in order."""
    pattern = r"(?:^`([\w./-]+)`:\n\n)?^ *```(\w+)\n(.*?)^ *```$"
    found = re.findall(pattern, text, flags=re.DOTALL | re.MULTILINE)
    return [(name or None, language, re.sub(r"^   (?=\S)", "", body, flags=re.MULTILINE) if language == "sh" else body)
            for name, language, body in found]  # fmt: skip


def test_the_tutorial_builds_the_example_package(root):
    written = {name: body for name, _, body in blocks(page(root, "tutorial")) if name}
    folder = root / "examples" / TUTORIAL
    for name, body in written.items():
        assert (folder / name).read_text(encoding="utf-8") == body, name
    made = {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.suffix in (".py", ".toml") and "build" not in path.parts
    }
    assert made == set(written)


def test_the_modality_of_the_tutorial_has_sixty_lines(root):
    modules = (root / "examples" / TUTORIAL / "watersmeet_timeseries").glob("*.py")
    assert sum(path.read_text(encoding="utf-8").count("\n") for path in modules) <= 60


@pytest.mark.parametrize("name", PAGES)
def test_commands_of_the_pages_exist_and_take_these_words(root, name):
    for _, language, body in blocks(page(root, name)):
        for line in body.splitlines() if language == "sh" else ():
            program, *words = line.split()
            if program == "watersmeet":
                parse(words)
            else:
                assert program in ("python", "mkdir", "cd"), line
    for words in re.findall(r"`watersmeet ((?:plugins|graft|models|finetune)[^`]*)`", page(root, name)):
        if "NAME" not in words:
            parse(words.split())


@pytest.mark.parametrize("name", ["reference", "versioning", "publishing"])
def test_code_of_the_pages_runs_and_files_parse(root, name, monkeypatch):
    for _, language, body in blocks(page(root, name)):
        if language == "toml":
            assert tomllib.loads(body)["project"]["entry-points"][GROUP]
        if language != "python":
            continue
        if "transformers" in body:
            pytest.importorskip("transformers")
        module = type(sys)("documented")
        monkeypatch.setitem(sys.modules, "documented", module)
        exec(compile(body, name, "exec"), module.__dict__)
        if "@hookimpl" in body:
            point = importlib.metadata.EntryPoint("documented", "documented", GROUP)
            record = load_plugin(Found(entry_point=point, distribution="d", version="1"), EVERYTHING)
            assert record.error == "" and record.modalities + record.pipelines


def test_the_reference_names_every_field_of_specs_and_spans(root):
    from dataclasses import fields

    from watersmeet import ModalitySpec, PipelineSpec, Span

    text = page(root, "reference")
    for kind in (ModalitySpec, PipelineSpec, Span):
        for item in fields(kind):
            if item.name not in ("head", "modality"):
                assert f"`{item.name}`" in text, f"{kind.__name__}.{item.name}"


def copied(root, name, folder):
    """A copy of an example package without what building left in it."""
    skip = shutil.ignore_patterns("build", "dist", "*.egg-info", "__pycache__", "runs", "*.npz")
    return Path(shutil.copytree(root / "examples" / name, folder / name, ignore=skip))


@pytest.fixture(scope="module")
def installed(root, built, new_environment, tmp_path_factory):
    """bin folder of an environment with the project's wheel and those of the three packages, and copies of their folders."""
    folder = tmp_path_factory.mktemp("examples")
    wheels = []
    for name in PACKAGES:
        source = copied(root, name, folder)
        command = [
            sys.executable,
            "-P",
            "-m",
            "build",
            "--no-isolation",
            "--wheel",
            "--outdir",
            folder / "dist",
            source,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        shutil.rmtree(source / name.replace("-", "_"))  # what is tested is what the wheel brought
    wheels = sorted((folder / "dist").glob("*.whl"))
    return new_environment(built[1], *wheels), folder


def run(programs, *words, cwd):
    environment = os.environ | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", PACKAGES)
def test_an_example_package_keeps_the_contract_and_passes_its_own_tests(installed, name, tmp_path):
    programs, folder = installed
    found = run(
        programs, programs / "python", "-c", f"import {name.replace('-', '_')} as m; print(m.__file__)", cwd=tmp_path
    )
    assert str(programs.parent) in found
    run(programs, programs / "watersmeet", "plugins", "--strict", cwd=tmp_path)
    tests = [programs / "python", "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib"]
    said = run(programs, *tests, folder / name / "tests", cwd=tmp_path)
    assert " passed" in said and "failed" not in said
    # exit code 1 where a check fails
    for brought in PACKAGES[name]:
        checked = run(programs, programs / "watersmeet", "plugins", "check", brought, "--json", cwd=tmp_path)
        assert json.loads(checked)["passed"]


@pytest.mark.slow
def test_the_tutorial_from_an_empty_folder_to_a_model_that_beats_a_constant_answer(
    root, built, new_environment, tmp_path
):
    programs = new_environment(built[1])
    here, said = tmp_path, ""
    for number, (file, language, body) in enumerate(blocks(page(root, "tutorial")) + blocks(page(root, "publishing"))):
        if file:
            (here / file).write_text(body, encoding="utf-8")
        elif language == "sh":
            said += run(programs, "bash", "-ec", body, cwd=here)
            here = here / TUTORIAL if "cd " in body else here
        elif language == "python":
            (tmp_path / f"block-{number}.py").write_text(body)
            run(programs, programs / "python", "-P", tmp_path / f"block-{number}.py", cwd=here)
    shares = re.findall(r"(\w+): ([\d.]+) of 200 named rightly, ([\d.]+) by the best constant answer", said)
    assert [name for name, _, _ in shares] == ["trend", "anomaly"]
    for _, found, constant in shares:
        assert float(found) > float(constant) + 0.3

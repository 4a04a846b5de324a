"""Habits that hold for every file of the project."""

import ast
import os
import re
from collections import Counter
from pathlib import Path

import pytest

MOST_LINES = 600
SOURCES = {".py", ".js", ".css", ".sh", ".j2", ".toml", ".cfg"}
# written with spaces, so that this file does not find itself
REGISTRIES = (
    "pypi org",
    "pythonhosted org",
    "npmjs org",
    "npmjs com",
    "yarnpkg com",
    "npmmirror com",
    "deb debian org",
    "download pytorch org",
)
FORBIDDEN = {
    "a path of somebody's machine": re.compile(
        r"(?<![\w.])/(?:" + "|".join(("work", "root", "home/[a-z]+", "Users/[A-Za-z]+")) + r")/"
    ),
    "the host of a package registry": re.compile(
        "|".join(host.replace(" ", r"\.") for host in REGISTRIES),
    ),
    "a key": re.compile("BEGIN [A-Z ]*PRIVATE[ ]KEY|ghp_[A-Za-z0-9]{20}|sk-[A-Za-z0-9]{32}"),
}
# unpickling runs whatever a file says
UNSAFE = ("pickle", "cPickle", "dill", "shelve", "marshal")


def text_of(path):
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def test_no_source_is_longer_than_a_sitting(project_files, root):
    lengths = {
        str(path): (root / path).read_text(encoding="utf-8").count("\n")
        for path in project_files
        if path.suffix in SOURCES or path.name == "Makefile"
    }
    assert {path: lines for path, lines in lengths.items() if lines > MOST_LINES} == {}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_names(what, project_files, root):
    found = []
    for path in project_files:
        text = text_of(root / path)
        if text is None:
            continue
        found += [f"{path}: {match.group()}" for match in FORBIDDEN[what].finditer(text)]
    assert found == []


def test_the_package_never_unpickles(project_files, rooms, root):
    found = []
    for path in project_files:
        if path.suffix != ".py" or path.parts[0] not in (*rooms, "src"):
            continue
        for node in ast.walk(ast.parse((root / path).read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Call):
                call = ast.unparse(node.func)
                if call == "torch.load":
                    names = [call]
                if any(
                    word.arg == "allow_pickle" and not (isinstance(word.value, ast.Constant) and not word.value.value)
                    for word in node.keywords
                ):
                    names.append("pickle")
            found += [f"{path}:{node.lineno} {name}" for name in names if name in (*UNSAFE, "torch.load")]
    assert found == []


def test_test_files_have_names_of_their_own_and_no_package(project_files):
    tests = [path for path in project_files if path.parts[0] == "tests"]
    assert [str(path) for path in tests if path.name == "__init__.py"] == []
    counts = Counter(path.name for path in tests if path.suffix == ".py" and path.name != "conftest.py")
    assert [name for name, count in counts.items() if count > 1] == []


def test_each_test_lies_in_the_folder_of_its_room(project_files, rooms):
    folders = {path.parts[1] for path in project_files if path.parts[0] == "tests" and len(path.parts) > 2}
    assert folders <= {*rooms, "finetune", "house", "official", "parity", "training"}


def test_scripts_can_be_run(project_files, root):
    for path in project_files:
        content = (root / path).read_bytes()[:2]
        if content == b"#!" and path.suffix != ".py":
            assert os.access(root / path, os.X_OK), path


def test_public_modules_say_what_they_are_for(project_files, rooms, root):
    without = [
        str(path)
        for path in project_files
        if path.suffix == ".py"
        and path.parts[0] in (*rooms, "src")
        and (root / path).stat().st_size
        and ast.get_docstring(ast.parse((root / path).read_text(encoding="utf-8"))) is None
    ]
    assert without == []


def test_markdown_links_lead_somewhere(project_files, root):
    broken = []
    for path in project_files:
        if path.suffix != ".md":
            continue
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", (root / path).read_text(encoding="utf-8")):
            if "://" not in target and not (root / path.parent / Path(target)).exists():
                broken.append(f"{path}: {target}")
    assert broken == []

"""What the documents say is tried: commands parse, code runs, files exist."""

import re
import shlex
import tomllib

import pytest
import typer

from watersmeet.cli.app import app
from watersmeet.core.training.config import config_from_dict
from watersmeet.plugins import hookspecs
from watersmeet.plugins.loader import Choice, Found, load_plugin

# pictures of results are made when there is a result
DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "docs/architecture.md",
    "docs/finetune-nano.md",
    "docs/kernels.md",
    "docs/layout.md",
    "docs/official.md",
    "docs/runs.md",
    "docs/training.md",
    "docs/training-measured.md",
    "docs/video-to-spec.md",
    "docs/video.md",
)


def blocks(root, language):
    """(document, text) of every fenced block in a language."""
    found = []
    for name in DOCUMENTS:
        text = (root / name).read_text(encoding="utf-8")
        found += [(name, block) for block in re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)]
    return found


def parse(words):
    """Parse a command line of watersmeet down to its last sub-command, running nothing."""
    command, name = typer.main.get_command(app), "watersmeet"
    while hasattr(command, "commands") and (words or not command.invoke_without_command):
        assert words and words[0] in command.commands, f"{name} has no command {words[:1]}"
        command, name, words = command.commands[words[0]], words[0], words[1:]
        if name == "data":
            from watersmeet.cli.data import app as data_app

            command = typer.main.get_command(data_app)
    command.make_context(name, list(words))


def test_there_is_something_to_check(root):
    assert len(blocks(root, "sh")) >= 4 and blocks(root, "python") and blocks(root, "toml")


def test_commands_exist_and_take_these_words(root):
    targets = set(re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    for name, block in blocks(root, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            program, *words = shlex.split(line, comments=True) or [""]
            if program == "make":
                assert set(words) <= targets, f"{name}: {line}"
            elif program == ".venv/bin/watersmeet":
                parse(words)
            elif program == ".venv/bin/python":
                assert words[0] == "-P" and (root / words[1]).is_file(), f"{name}: {line}"
            else:
                assert program in ("", ".venv/bin/pre-commit"), f"{name}: {line} is checked by nobody"


@pytest.mark.parametrize("words", [["run", "screenshot-to-code", "shot.png"], ["rum"], ["data", "bild"]])
def test_the_check_above_would_notice(words):
    with pytest.raises(Exception) as caught:  # which class a usage error has is typer's affair
        parse(words)
    assert isinstance(caught.value, AssertionError) or caught.value.exit_code == 2


def test_python_blocks_run_and_the_plugin_loads(root):
    for name, block in blocks(root, "python"):
        module = type(hookspecs)("documented")
        exec(compile(block, name, "exec"), module.__dict__)
        if "hookimpl" not in block:
            continue  # not a plugin; running it was the check

        class Point:
            name, value = "documented", "documented"

            def load(self, module=module):
                return module

        record = load_plugin(
            Found(entry_point=Point(), distribution="d", version="1"), Choice(allowed=None, blocked=frozenset())
        )
        assert record.error == "" and record.modalities and record.pipelines


def test_toml_blocks_parse(root):
    for _, block in blocks(root, "toml"):
        values = tomllib.loads(block)
        if "dataset" in values:
            config_from_dict(values)  # a training recipe
        elif "project" in values:
            assert values["project"]["entry-points"]["watersmeet.plugins"]
        else:
            config_from_dict({"dataset": "said.by:flags"} | values)  # what `finetune --config` reads


def test_files_that_documents_name_exist(root, rooms):
    missing = []
    for name in DOCUMENTS:
        text = (root / name).read_text(encoding="utf-8")
        for path in re.findall(
            rf"(?<![\w/])(?:{'|'.join(rooms)}|src|configs|examples|docs|scripts|tests)/[\w./-]*\w", text
        ):
            if not (root / path).exists():
                missing.append(f"{name}: {path}")
    assert missing == []


def test_the_tests_that_documents_name_exist(root):
    named = [
        found
        for name in DOCUMENTS
        for found in re.findall(r"(tests/[\w/]+\.py)::(\w+)", (root / name).read_text(encoding="utf-8"))
    ]
    missing = [test for file, test in named if f"def {test}(" not in (root / file).read_text(encoding="utf-8")]
    assert named and missing == []


def test_the_architecture_page_names_every_room_and_package(root, rooms):
    text = (root / "docs/architecture.md").read_text(encoding="utf-8")
    for room in rooms:
        assert f"`{room}/`" in text
        for package in (root / room).glob("*/__init__.py"):
            assert f"{room}/{package.parent.name}" in text


def test_the_changelog_has_a_place_for_the_next_change(root):
    headings = re.findall(r"^## (.+)$", (root / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert headings[0] == "Unreleased"

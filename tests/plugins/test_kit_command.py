"""`watersmeet plugins` and `plugins check` as a person and as a program meet them."""

import json

import pytest

from watersmeet.__main__ import main
from watersmeet.testing import MODALITY_CHECKS, PIPELINE_CHECKS, PipelineSubject, Subject
from watersmeet.testing.checks import SKIPPED, Examination, failed

PIPELINE = """
from watersmeet import PipelineSpec, hookimpl

@hookimpl
def register_pipelines():
    return [PipelineSpec(name={name!r}, inputs=("text/plain",), pipeline=__name__ + ":Echo", own_model=True)]

class Echo:
    def __init__(self, settings=None):
        from watersmeet import ConfigError
        if settings:
            raise ConfigError(f"echo has no setting {{next(iter(settings))!r}}")

    def run(self, inputs, model, out_dir, progress):
        from watersmeet import Result, read_source
        assert model is None
        progress("reading", 0.0)
        raw, _ = read_source(inputs[0], "text")
        out_dir.mkdir(parents=True)
        (out_dir / "a.txt").write_bytes(raw)
        {extra}
        return Result(out_dir=out_dir, files=("a.txt",))
"""
FAULTS = {
    "nothing": ("", None, ""),
    "a file beside": ("(out_dir.parent / 'log').write_text('x')", "folder", "left 'run-first/log' beside"),
    "a clock": ("import time; (out_dir / 'a.txt').write_text(str(time.time_ns()))", "repeat", "wrote different a.txt"),
    "a step back": ("progress('a', 0.5); progress('b', 0.4)", "progress", "went backwards"),
    "a share too many": ("progress('a', 50)", "progress", "expected a text and a number from 0 to 1"),
    "a missing file": ("return Result(out_dir=out_dir, files=('b.txt',))", "result", "no such file"),
    "a file that only some are": (
        "from watersmeet import DecodeError; raise DecodeError('no bill')",
        "result",
        "made-up input was refused (no bill); give the class a method examples(folder), or --item FILE",
    ),
    "another record": ("return {}", "result", "run returned a dict"),
}

pytest_plugins = ["watersmeet.testing.fixtures"]


@pytest.mark.parametrize("what", FAULTS)
def test_a_pipeline_is_held_against_its_checks(what, tmp_plugin, capsys):
    extra, check, words = FAULTS[what]
    source = PIPELINE.format(name="echo", extra=extra or "pass").replace(
        "ConfigError\n", "WatersmeetError as ConfigError\n"
    )
    tmp_plugin(source, name="echo")
    assert main(["plugins", "check", "echo", "--json"]) == (0 if check is None else 1)
    report = json.loads(capsys.readouterr().out)
    assert report["passed"] is (check is None)
    [plugin] = report["plugins"]
    failed = {one["name"]: one["detail"] for one in plugin["checks"] if one["state"] == "failed"}
    assert list(failed) == ([] if check is None else [check]), failed
    assert words in "".join(failed.values())


def test_a_broken_plugin_is_checked_and_says_what_to_change(plugin_manager, capsys):
    plugin_manager.write("raise OSError('no device')", name="broken")
    assert main(["plugins", "check", "broken"]) == 1
    said = capsys.readouterr().out
    assert (
        "found:  plugin broken" in said
        and "OSError: no device" in said
        and "change: install the package, and mend what" in said
    )
    assert said.splitlines()[-1] == "  1 failed, 15 skipped"
    assert main(["plugins", "--strict"]) == 1
    assert "broken ((registered)): OSError: no device" in capsys.readouterr().err
    assert main(["plugins", "check", "brokn"]) == 1
    assert "did you mean 'broken'?" in capsys.readouterr().err


def test_oddities_are_notes_and_not_failures(plugin_manager, capsys):
    source = PIPELINE.format(name="screenshot-to-code", extra="pass")
    plugin_manager.write("print('hello')\n" + source, name="double")
    assert main(["plugins", "--strict"]) == 0
    said = capsys.readouterr()
    assert "pipeline screenshot-to-code (ask for (registered):screenshot-to-code)" in said.out
    assert (
        "the bare name means watersmeet's own" in said.err and "double prints when it is imported: 'hello'" in said.err
    )
    assert main(["plugins", "check", "text", "--item", "gone.txt"]) == 1
    assert "there is no file gone.txt" in capsys.readouterr().err


def test_what_brings_nothing_cannot_be_checked(plugin_manager, capsys):
    plugin_manager.write(
        "from watersmeet import hookimpl\n@hookimpl\ndef register_pipelines(): return []", name="empty"
    )
    assert main(["plugins", "check", "empty"]) == 1
    assert "brings nothing that could be checked" in capsys.readouterr().err
    assert main(["plugins"]) == 0
    assert any(
        line.split()[:2] == ["empty", "loaded"] and "brings nothing" in line
        for line in capsys.readouterr().out.splitlines()
    )


@pytest.mark.parametrize(
    ("checks", "subject"),
    [
        (MODALITY_CHECKS, Subject(modality="nowhere")),
        (PIPELINE_CHECKS, PipelineSubject(pipeline="nowhere")),
    ],
    ids=["modality", "pipeline"],
)
def test_what_is_not_installed_fails_one_check_that_says_so(checks, subject, plugin_manager):
    outcomes = Examination(checks, subject).outcomes()
    [failure] = failed(outcomes)
    assert failure.check.number == 1 and failure.detail.startswith("there is no ")
    assert "What to change: install the package" in failure.sentence()
    assert all(outcome.state == SKIPPED for outcome in outcomes[1:])

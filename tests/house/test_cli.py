"""The command line as a person meets it: what is printed where, and the exit codes."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from watersmeet.__main__ import main
from watersmeet.cli.console import plain_progress
from watersmeet.cli.lists import table
from watersmeet.cli.run import parse_assignments
from watersmeet.core.errors import RenderError, UsageError
from watersmeet.plugins import PipelineSpec, Registry
from watersmeet.plugins.loader import FAILED, LOADED, PluginRecord
from watersmeet.plugins.result import Result
from watersmeet.plugins.survey import Seen, brought


class Echo:
    """A pipeline that writes down what it was given, or fails the way it is told to."""

    failure: BaseException | None = None

    def __init__(self, settings):
        self.settings = settings

    def run(self, inputs, model, out_dir, progress):
        progress("reading", 0.0)
        progress("reading", 0.2)
        progress("writing [b]loudly[/b]", 0.9)
        if self.failure is not None:
            raise self.failure
        out_dir.mkdir(parents=True)
        (out_dir / "echo.txt").write_text(f"{inputs} {model} {sorted(self.settings.items())}")
        return Result(
            out_dir=out_dir,
            files=("echo.txt",),
            warnings=("it is only an echo",),
            summary=f"report: {out_dir}/echo.txt",
        )


def seen(record):
    """A record in the form in which the lists see it."""
    names = ("plugin", "target", "distribution", "version", "state", "error")
    return Seen(**{name: getattr(record, name) for name in names}, brings=brought(record))


@pytest.fixture
def echo(monkeypatch, tmp_path):
    """A process whose only pipelines are `echo`, and `broken` of a plugin that failed; in an empty folder."""
    records = [
        PluginRecord(
            plugin="echo",
            target="echo",
            distribution="echo-package",
            version="1.0",
            state=LOADED,
            pipelines=(PipelineSpec(name="echo", summary="says what it heard", pipeline=Echo),),
        ),
        PluginRecord(
            plugin="broken", target="broken", distribution="b", version="1", state=FAILED, error="ImportError: no x"
        ),
    ]
    monkeypatch.setattr("watersmeet.plugins.registry._registry", Registry(records))
    for home in ("lists", "plugins"):
        monkeypatch.setattr(f"watersmeet.cli.{home}.survey", lambda: [seen(record) for record in records])
    monkeypatch.setattr("watersmeet.pipelines.models.open_model", lambda spec: f"<{spec}>")
    monkeypatch.setattr(Echo, "failure", None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.png").write_bytes(b"picture")
    return tmp_path


def run(capsys, *words):
    code = main(words)
    said = capsys.readouterr()
    return code, said.out, said.err


def test_a_run_ends_with_the_summary(echo, capsys):
    code, out, err = run(capsys, "run", "echo", "in.png", "--out", "there", "--set", "size=3", "--target", "html")
    assert code == 0
    assert out == "report: there/echo.txt\n"
    assert "warning: it is only an echo" in err
    assert (echo / "there/echo.txt").read_text() == "['in.png'] <nano> [('size', 3), ('target', 'html')]"


def test_progress_is_plain_lines_when_nobody_watches(echo, capsys):
    _, _, err = run(capsys, "run", "echo", "in.png", "--out", "there")
    assert err.splitlines()[:3] == ["  0 % loading model nano", "  0 % reading", " 90 % writing [b]loudly[/b]"]


def test_progress_repeats_itself_only_after_a_while():
    stream, now = io.StringIO(), [0.0]
    progress = plain_progress(stream, clock=lambda: now[0])
    for second in range(25):
        now[0] = float(second)
        progress("thinking", second / 20)
    assert stream.getvalue().splitlines() == ["  0 % thinking", " 50 % thinking", "100 % thinking"]


def test_progress_is_a_bar_on_a_terminal(echo, capsys, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    assert main(["run", "echo", "in.png", "--out", "there"]) == 0
    assert "\x1b[" in terminal.getvalue() and "[b]loudly[/b]" in terminal.getvalue()


WRONG_USAGE = {
    "no value": (["run", "echo", "in.png", "--out", "x", "--set", "size"], "KEY=VALUE"),
    "no key": (["run", "echo", "in.png", "--out", "x", "--set", "=3"], "KEY=VALUE"),
    "a key that is none": (["run", "echo", "in.png", "--out", "x", "--set", "a b=3"], "KEY=VALUE"),
    "a key twice": (["run", "echo", "in.png", "--out", "x", "--set", "a=3", "--set", "a=4"], "twice"),
    "two targets": (
        ["run", "echo", "in.png", "--out", "x", "--target", "html", "--set", "target=react"],
        "contradicts",
    ),
    "no --out": (["run", "echo", "in.png"], "--out"),
    "no input": (["run", "echo", "--out", "x"], "INPUT"),
    "unknown option": (["run", "echo", "in.png", "--out", "x", "--colour"], "--colour"),
    "unknown command": (["rum"], "rum"),
}


@pytest.mark.parametrize("name", WRONG_USAGE)
def test_wrong_usage_is_code_2(name, echo, capsys):
    words, hint = WRONG_USAGE[name]
    code, out, err = run(capsys, *words)
    assert code == 2 and out == ""
    assert hint in err and "Traceback" not in err
    assert not (echo / "x").exists()


@pytest.mark.parametrize(("name", "hint"), [("ecko", "did you mean 'echo'?"), ("zzz", "there are: echo")])
def test_an_unknown_pipeline_is_code_1_and_one_sentence(name, hint, echo, capsys):
    code, out, err = run(capsys, "run", name, "in.png", "--out", "x")
    assert code == 1 and out == "" and hint in err and len(err.strip().splitlines()) == 1
    assert not (echo / "x").exists()


def test_an_unknown_model_is_code_1_and_a_malformed_one_code_2(echo, capsys, monkeypatch):
    monkeypatch.undo()
    os.chdir(echo)
    code, _, err = run(capsys, "run", "screenshot-to-code", "in.png", "--out", "x", "--model", "nanno")
    assert code == 1 and "did you mean 'nano'?" in err.splitlines()[-1]
    code, _, err = run(capsys, "run", "screenshot-to-code", "in.png", "--out", "x", "--model", "openai:name")
    assert code == 2 and "openai:NAME@URL" in err.splitlines()[-1]


FAILURES = {
    "an error of ours": (RenderError("the page could not be drawn:\n  no browser"), "drawn: no browser"),
    "a full disk": (OSError(28, "No space left on device", "there/a.png"), "there/a.png: No space left on device"),
    "a bug": (ZeroDivisionError("division by zero"), "unexpected ZeroDivisionError: division by zero"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_failed_work_is_code_1_and_one_sentence(name, echo, capsys, monkeypatch):
    failure, sentence = FAILURES[name]
    monkeypatch.setattr(Echo, "failure", failure)
    code, out, err = run(capsys, "run", "echo", "in.png", "--out", "x")
    assert code == 1 and out == ""
    assert sentence in err.splitlines()[-1] and err.splitlines()[-1].startswith("watersmeet: ")
    assert "Traceback" not in err
    for words in (["--debug", "run"], ["run", "--debug"]):
        code, _, err = run(capsys, *words, "echo", "in.png", "--out", "x")
        assert code == 1 and "Traceback" in err and sentence in err.splitlines()[-1]


def test_a_missing_file_is_named_before_anything_is_loaded(echo, capsys, monkeypatch):
    monkeypatch.setattr("watersmeet.pipelines.models.open_model", lambda spec: pytest.fail("a model was loaded"))
    code, _, err = run(capsys, "run", "echo", "gone.png", "--out", "x")
    assert code == 1 and err == "watersmeet: there is no file gone.png\n"


def test_a_broken_plugin_is_a_failure_with_its_reason(echo, capsys):
    code, _, err = run(capsys, "run", "broken", "in.png", "--out", "x")
    assert code == 1 and "ImportError: no x" in err


def test_ctrl_c_is_code_130_and_one_line(echo, capsys, monkeypatch):
    monkeypatch.setattr(Echo, "failure", KeyboardInterrupt())
    code, out, err = run(capsys, "run", "echo", "in.png", "--out", "x")
    assert code == 130 and out == ""
    assert err.splitlines()[-1] == "watersmeet: stopped" and "Traceback" not in err


def test_lists_show_what_is_there_and_why_something_is_not(echo, capsys):
    assert run(capsys, "pipelines")[1].split() == ["echo", "says", "what", "it", "heard"]
    _, out, _ = run(capsys, "plugins")
    assert "echo    loaded  echo-package 1.0  pipeline echo" in out.splitlines()
    assert "broken  failed  b 1               ImportError: no x" in out.splitlines()
    assert run(capsys, "modalities")[1].startswith("no modalities")
    code, _, err = run(capsys, "plugins", "--strict")
    assert code == 1 and "ImportError: no x" in err


def test_models_lists_the_forms(capsys):
    code, out, _ = run(capsys, "models")
    assert code == 0 and "openai:NAME@URL" in out


def test_no_command_shows_help(capsys):
    code, out, err = run(capsys)
    assert code == 2 and "Commands:" in out + err


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("3", 3),
        ("0.5", 0.5),
        ("true", True),
        ("[1, 2]", [1, 2]),
        ("html", "html"),
        ("", ""),
        ("a=b", "a=b"),
        ("'x'", "'x'"),
    ],
)
def test_values_are_json_where_they_can_be(word, value):
    assert parse_assignments([f"key={word}"]) == {"key": value}


def test_no_assignment_is_lost():
    assert parse_assignments(["a.b=1", "c-d=2", "e_f=3"]) == {"a.b": 1, "c-d": 2, "e_f": 3}
    with pytest.raises(UsageError):
        parse_assignments(["a/b=1"])


def test_table_has_straight_columns():
    assert table([("a", "bb", ""), ("ccc", "d", "e")]) == ["a    bb", "ccc  d   e"]
    assert table([]) == []


def test_a_reader_that_leaves_early_is_no_error():
    command = f"{sys.executable} -P -m watersmeet modalities | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_the_checkout_does_not_shadow_other_packages(root: Path):
    script = "import runpy, sys; sys.argv[1:] = ['--version']; runpy.run_module('watersmeet', run_name='__main__')"
    tail = "import tokenizers; print(tokenizers.__file__)"
    code = f"try:\n    {script}\nexcept SystemExit: pass\n{tail}"
    pytest.importorskip("tokenizers")
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "site-packages" in done.stdout, done.stderr

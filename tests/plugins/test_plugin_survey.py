"""Looking at plugins from outside: whatever one does when it is imported, the list is whole and the others are in it."""

import os

import pytest

from watersmeet.core.errors import PluginError
from watersmeet.plugins import registered, survey
from watersmeet.plugins.registry import reset_registry

GOOD = """
from watersmeet.plugins import PipelineSpec, hookimpl

@hookimpl
def register_pipelines():
    return [PipelineSpec(name={name!r}, pipeline="fractions:Fraction")]
"""

MUTE = GOOD.format(name="mute")

# what a module does first, and a piece of the reason that the list gives
NASTY = {
    "ends the process at once": ("import os; os._exit(3)", "ended the process (exit code 3)"),
    "is killed": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "ended the process (signal 9)"),
    "sleeps": ("import time; time.sleep(1e6)", "took longer than 8 s"),
    "raises Ctrl-C": ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    "exits": ("raise SystemExit(2)", "SystemExit: 2"),
    "raises a class of its own": ("class Stop(BaseException): pass\nraise Stop('now')", "Stop: now"),
    "raises what cannot be shown": (
        "class Mute(Exception):\n    def __str__(self): raise ValueError\nraise Mute",
        "cannot be shown",
    ),
    "keeps a thread": (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1e6,), name='pump').start()\n" + MUTE,
        "starts thread 'pump' when it is imported",
    ),
    "moves the folder": ("import os; os.chdir('/')\n" + MUTE, "changes the working folder"),
    "closes the output": (
        "import sys; sys.stdout.close(); sys.stdout = None; raise OSError('closed')",
        "OSError: closed",
    ),
    "never ends its list": (
        "from watersmeet.plugins import hookimpl\nimport itertools\n"
        "@hookimpl\ndef register_modalities(): return itertools.count()",
        "a list with a int",
    ),
    "recurses": ("def f(): f()\nf()", "RecursionError"),
}


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Write modules and register them in this process; no installed package but watersmeet is seen."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv(registered.REGISTERED, "")

    def write(name, body):
        module = "surveyed_" + name.replace("-", "_")
        (tmp_path / f"{module}.py").write_text(body)
        registered.register_plugin(module, name=name)

    yield write
    monkeypatch.undo()
    reset_registry()


def by_name(**options):
    return {one.plugin: one for one in survey.survey(**options)}


@pytest.mark.parametrize("what", NASTY)
def test_a_nasty_plugin_is_a_line_of_the_list(what, packages):
    body, reason = NASTY[what]
    packages("before", GOOD.format(name="first"))
    packages("nasty", body)
    packages("after", GOOD.format(name="last"))
    here = os.getcwd()
    seen = by_name(limit_s=8.0)
    assert seen["nasty"].state == "failed" and reason in seen["nasty"].error, seen["nasty"]
    assert seen["before"].brings[0].name == "first" and seen["after"].brings[0].name == "last"
    assert seen["text"].state == "loaded" and os.getcwd() == here


def test_a_fork_at_import_does_not_make_two_hosts(packages):
    packages("forks", "import os\nos.fork()\n" + GOOD.format(name="forked"))
    packages("after", GOOD.format(name="last"))
    seen = survey.survey()
    assert [one.plugin for one in seen].count("after") == 1
    assert [one.state for one in seen if one.plugin == "forks"] == ["loaded"]


def test_what_is_printed_and_imported_is_told(packages, tmp_path):
    (tmp_path / "jax.py").write_text("")
    packages(
        "loud", "print('hello')\nimport subprocess\nsubprocess.run(['echo', 'there'])\n" + GOOD.format(name="loud")
    )
    packages("heavy", "import jax\n" + GOOD.format(name="heavy"))
    seen = by_name()
    assert seen["loud"].printed == "hello\n" and seen["loud"].state == "loaded"
    assert seen["heavy"].heavy == ("jax",) and seen["loud"].heavy == ()


def test_only_one_plugin_is_imported_when_only_one_is_asked_for(packages):
    packages("wanted", GOOD.format(name="wanted"))
    packages("other", "import os; os._exit(9)")
    assert [one.plugin for one in survey.survey(only="Wanted")] == ["wanted"]
    assert survey.survey(only="nobody") == []


def test_a_blocked_plugin_is_not_imported(packages, monkeypatch):
    packages("blocked", "import os; os._exit(9)")
    monkeypatch.setenv("WATERSMEET_PLUGINS", "-blocked")
    assert by_name()["blocked"].state == "blocked"


def test_two_owners_of_a_name_are_found(packages):
    packages("one", GOOD.format(name="shared"))
    packages("two", GOOD.format(name="shared"))
    packages("ours", GOOD.format(name="screenshot-to-code"))
    found = survey.collisions(survey.survey())
    assert {key: [one.plugin for one in owners] for key, owners in found.items()} == {
        ("pipeline", "shared"): ["one", "two"],
        ("pipeline", "screenshot-to-code"): ["screenshot-to-code", "ours"],
    }


def test_a_damaged_variable_is_named(monkeypatch):
    monkeypatch.setenv(registered.REGISTERED, "{nonsense")
    with pytest.raises(PluginError, match="WATERSMEET_REGISTERED is '{nonsense', expected a JSON list"):
        survey.survey()

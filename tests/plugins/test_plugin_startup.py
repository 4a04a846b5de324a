"""What looking at plugins imports: counted, not timed. `watersmeet bench startup` has the seconds."""

import json
import os
import subprocess
import sys

import pytest

from watersmeet.cli.bench_startup import install_dummies, run

SPY = """
import contextlib, io, json, sys
with contextlib.redirect_stdout(io.StringIO()) as said:
    from watersmeet.__main__ import main
    code = main({words!r})
mine = sorted(name for name in sys.modules if name.startswith("dummy_"))
heavy = sorted({{"torch", "numpy", "PIL", "transformers", "rich"}} & set(sys.modules))
print(json.dumps([code, mine, heavy, said.getvalue()]))
"""


@pytest.fixture(scope="module")
def hundred(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dummies")
    install_dummies(folder, 100)
    # whoever imports this one waits for ever
    (folder / "dummy_50.py").write_text("import time; time.sleep(1e6)")
    (folder / "dummy_51.py").write_text("import os; os._exit(9)")
    return folder


def spied(words, folder, **extra):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WATERSMEET_")}
    environment |= {"PYTHONPATH": str(folder), **extra}
    done = subprocess.run(
        [sys.executable, "-P", "-c", SPY.format(words=words)],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("words", [["--help"], ["plugins", "--help"], ["--version"], ["models"]])
def test_help_imports_no_plugin(words, hundred):
    code, mine, heavy, _ = spied(words, hundred)
    assert (code, mine, heavy) == (0, [], [])


def test_a_list_imports_each_in_a_child_and_none_here(hundred):
    blocked = "-dummy-50,-dummy-51"
    code, mine, heavy, said = spied(["plugins", "--json"], hundred, WATERSMEET_PLUGINS=blocked)
    assert (code, mine, heavy) == (0, [], [])
    states = {one["plugin"]: one["state"] for one in json.loads(said)}
    assert sum(state == "loaded" for name, state in states.items() if name.startswith("dummy-")) == 98
    assert (states["dummy-50"], states["dummy-51"], states["text"]) == ("blocked", "blocked", "loaded")


ASK = """
import json, sys
from watersmeet.plugins import get_registry
registry = get_registry()
registry.encoder("image")
names = registry.modality_names()
answers = [name in names for name in ("text", "dummy-7")]
print(json.dumps([answers, sorted(name for name in sys.modules if name.startswith("dummy_"))]))
"""


def test_a_run_imports_only_what_it_asks_for(hundred):
    environment = dict(os.environ) | {"PYTHONPATH": str(hundred)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", ASK], capture_output=True, text=True, env=environment, check=True
    )
    assert json.loads(done.stdout) == [[True, True], ["dummy_7"]]


def test_the_benchmark_measures_what_it_says(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("watersmeet.cli.bench_startup.COMMANDS", (("--version",),))
    run(rounds=1, count=3, json_file=tmp_path / "all.json")
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("--version  ") and lines[2].startswith("--version beside 3 plugins  ")
    found = json.loads((tmp_path / "all.json").read_text())["commands"]
    assert all(one["cpu_s"] > 0 and one["wall_s"] > 0 for one in found.values())

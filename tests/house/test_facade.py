"""The package's top: lazy names and what importing it costs."""

import json
import subprocess
import sys

import pytest

import watersmeet

HEAVY = (
    "torch",
    "numpy",
    "PIL",
    "cv2",
    "onnxruntime",
    "scipy",
    "matplotlib",
    "transformers",
    "rich",
    "jinja2",
    "httpx",
)


def modules_after(code):
    """(heavy modules loaded, CPU seconds used) in a fresh interpreter that ran `code`."""
    script = f"""
import contextlib, io, json, resource, sys
with contextlib.redirect_stdout(io.StringIO()):
    {code}
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([sorted(set({HEAVY!r}) & set(sys.modules)), used.ru_utime + used.ru_stime]))
"""
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_importing_it_imports_nothing_heavy():
    assert modules_after("import watersmeet")[0] == []


@pytest.mark.parametrize(
    "words", [["--help"], ["run", "--help"], ["bench", "--help"], ["train", "--help"], ["--version"]]
)
def test_help_is_quick_and_free_of_heavy_imports(words):
    heavy, seconds = modules_after(f"from watersmeet.__main__ import main; assert main({words!r}) == 0")
    assert heavy == []
    # CPU time of the whole process, which other work on the machine does not lengthen
    assert seconds < 0.5


@pytest.mark.parametrize("word", ["pipelines", "modalities", "models", "plugins"])
def test_lists_import_nothing_heavy(word):
    assert modules_after(f"from watersmeet.__main__ import main; assert main([{word!r}]) == 0")[0] == []


def test_every_public_name_exists():
    for name in watersmeet.__all__:
        assert getattr(watersmeet, name) is not None
    assert set(watersmeet.__all__) <= set(dir(watersmeet))


def test_an_unknown_name_is_named():
    with pytest.raises(AttributeError, match="no attribute 'generat'; it has .*generate"):
        _ = watersmeet.generat

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
    "torch._dynamo",
    "scipy.signal",
    "scipy.optimize",
)


def modules_after(code):
    """Heavy modules loaded in a fresh interpreter that ran `code`. What it costs in seconds is `bench startup`'s to say."""
    script = f"""
import contextlib, io, json, sys
with contextlib.redirect_stdout(io.StringIO()):
    {code}
print(json.dumps(sorted(set({HEAVY!r}) & set(sys.modules))))
"""
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_importing_it_imports_nothing_heavy():
    assert modules_after("import watersmeet") == []


@pytest.mark.parametrize(
    "words", [["--help"], ["run", "--help"], ["bench", "--help"], ["train", "--help"], ["--version"]]
)
def test_help_is_free_of_heavy_imports(words):
    assert modules_after(f"from watersmeet.__main__ import main; assert main({words!r}) == 0") == []


@pytest.mark.parametrize("word", ["pipelines", "modalities", "models", "plugins"])
def test_lists_import_nothing_heavy(word):
    assert modules_after(f"from watersmeet.__main__ import main; assert main([{word!r}]) == 0") == []


def test_every_public_name_exists():
    for name in watersmeet.__all__:
        assert getattr(watersmeet, name) is not None
    assert set(watersmeet.__all__) <= set(dir(watersmeet))


def test_an_unknown_name_is_named():
    with pytest.raises(AttributeError, match="no attribute 'generat'; it has .*generate"):
        _ = watersmeet.generat


def test_loading_a_model_imports_no_compiler():
    """Torch imports its own where something is drawn on the device "meta"; nothing of a loaded model is drawn."""
    found = modules_after("import watersmeet; watersmeet.load('nano')")
    assert "torch" in found and not {"torch._dynamo", "scipy.signal", "httpx"} & set(found)


def test_the_pipeline_of_recordings_imports_only_what_it_needs():
    found = modules_after("import watersmeet.pipelines.video_to_spec.pipeline")
    assert not {"torch._dynamo", "scipy.signal", "scipy.optimize", "httpx"} & set(found)

"""`core` serves any modality and any task, so the name of none may occur in it."""

import io
import re
import tokenize
from pathlib import Path

import pytest

import watersmeet.core

# page.py writes a report that a browser opens: its format is no modality and no task
SOURCES = sorted(file for file in Path(watersmeet.core.__path__[0]).rglob("*.py") if file.name != "page.py")

# these words mean a modality or a task wherever they stand, comments included
ANYWHERE = re.compile(
    r"(?<![a-z])(images?|videos?|audios?|speech|pixels?|screenshots?|ocr|html|css|tailwind|react|svg|"
    r"browser|chromium|markup|webpages?|pillow|sentencepiece)(?![a-z])",
    re.IGNORECASE,
)
# these are ordinary words too, so only a string that consists of them counts
AS_STRING = {"text", "regions", "region", "layout", "frames", "frame", "patches", "patch", "page", "code"}


def found_names(source):
    hits = [f"line {number}: {match.group()}" for number, line in enumerate(source.splitlines(), 1)
            for match in ANYWHERE.finditer(line)]  # fmt: skip
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.STRING and token.string.strip("rbfuRBFU'\"").lower() in AS_STRING:
            hits.append(f"line {token.start[0]}: {token.string}")
    return hits


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: file.name)
def test_core_names_no_modality_and_no_task(file):
    assert found_names(file.read_text(encoding="utf-8")) == []


def test_the_search_finds_what_it_should():
    assert len(SOURCES) >= 3
    assert found_names('if modality == "text":\n    pass\n')
    assert (
        found_names("def image_tokens(): ...\n")
        and found_names("# for Videos\n")
        and found_names("HTMLWriter = 1\n") == []
    )
    assert found_names("x = context  # plain text, a region of memory\n") == []


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: file.name)
def test_core_imports_nothing_above_it(file):
    imports = re.findall(r"^\s*(?:from|import) (watersmeet\S*)", file.read_text(encoding="utf-8"), re.MULTILINE)
    assert [name for name in imports if not name.startswith(("watersmeet.core", "watersmeet.kernels"))] == []

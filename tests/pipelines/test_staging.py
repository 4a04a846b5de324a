"""Output folders appear whole or not at all."""

import os
import subprocess

import pytest

from watersmeet.pipelines.task.staging import OutputError, staged


def test_results_appear_when_the_block_ends(tmp_path):
    out = tmp_path / "a" / "b" / "out"
    with staged(out) as stage:
        (stage / "x").write_text("1")
        assert not out.exists()
    assert (out / "x").read_text() == "1"
    assert sorted(p.name for p in out.parent.iterdir()) == ["out"]


def test_a_failure_leaves_nothing_behind(tmp_path):
    out = tmp_path / "a" / "b" / "out"
    with pytest.raises(ZeroDivisionError), staged(out) as stage:
        (stage / "x").write_text("1")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_an_earlier_result_is_replaced_only_by_a_whole_one(tmp_path):
    out = tmp_path / "out"
    with staged(out) as stage:
        (stage / "images").mkdir()
        (stage / "images" / "old.png").write_text("old")
    (out / "notes.txt").write_text("mine")
    with pytest.raises(ZeroDivisionError), staged(out) as stage:
        (stage / "images").mkdir()
        raise ZeroDivisionError
    assert (out / "images" / "old.png").exists()
    with staged(out) as stage:
        (stage / "images").mkdir()
        (stage / "images" / "new.png").write_text("new")
    assert sorted(p.name for p in (out / "images").iterdir()) == ["new.png"]
    assert (out / "notes.txt").read_text() == "mine"


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    out = tmp_path / "out"
    out.write_text("mine")
    with pytest.raises(OutputError, match="is a file"), staged(out):
        pass
    assert out.read_text() == "mine"


def test_a_path_that_no_system_allows_is_one_sentence(tmp_path):
    with pytest.raises(OutputError, match="cannot write to"), staged(tmp_path / ("x" * 300)):
        pass


def test_a_parent_that_is_a_file_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write to"), staged(tmp_path / "file" / "out"):
        pass


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path):
    """A file-size limit stands in for a full disk: both make the system refuse a write."""
    code = f"""
import resource, signal
from pathlib import Path
from watersmeet.core.errors import WatersmeetError
from watersmeet.pipelines.task.staging import staged
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    with staged(Path({str(tmp_path / "out")!r})) as stage:
        (stage / "x").write_bytes(bytes(5000))
except WatersmeetError as error:
    print(error)
"""
    done = subprocess.run(
        [os.sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False
    )
    assert "cannot write to" in done.stdout, done.stderr
    assert list(tmp_path.iterdir()) == []

"""Finding the browser: a variable that is set wins and must be right, then the system, then Playwright's folder."""

import os
from pathlib import Path

import pytest

from watersmeet.core.errors import RenderError
from watersmeet.pipelines.browser import find
from watersmeet.pipelines.browser.find import find_chromium


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without any browser."""
    monkeypatch.delenv("WATERSMEET_CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path / "managed"))
    monkeypatch.setattr(find, "SYSTEM_PATHS", ())
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    return tmp_path


def test_order(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    managed = program(bare / "managed/chromium_headless_shell-1200/chrome-linux/headless_shell")
    assert find_chromium() == managed
    system = program(bare / "bin/chromium")
    assert find_chromium() == system
    chosen = program(bare / "other/browser")
    monkeypatch.setenv("WATERSMEET_CHROMIUM", str(chosen))
    assert find_chromium() == chosen


def test_newest_managed_one(bare: Path) -> None:
    program(bare / "managed/chromium-1100/chrome-linux/chrome")
    newest = program(bare / "managed/chromium-1200/chrome-linux/chrome")
    assert find_chromium() == newest


def test_wrong_variable_is_an_error_even_with_a_browser_there(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(bare / "bin/chromium")
    monkeypatch.setenv("WATERSMEET_CHROMIUM", "/nowhere/chromium")
    with pytest.raises(RenderError, match=r"WATERSMEET_CHROMIUM is '/nowhere/chromium'"):
        find_chromium()


def test_none_says_what_to_do(bare: Path) -> None:
    with pytest.raises(RenderError, match=r"apt-get install chromium.*WATERSMEET_CHROMIUM"):
        find_chromium()


def test_a_file_that_cannot_be_run_is_no_browser(bare: Path) -> None:
    path = program(bare / "bin/chromium")
    path.chmod(0o644)
    assert not os.access(path, os.X_OK)
    with pytest.raises(RenderError):
        find_chromium()

"""Where the browser is, and which pages there are for it."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from watersmeet.core.errors import RenderError, UsageError

VARIABLE = "WATERSMEET_CHROMIUM"
SYSTEM_NAMES = (
    "chromium",
    "chromium-browser",
    "google-chrome-stable",
    "google-chrome",
    "chrome",
    "headless_shell",
    "chrome-headless-shell",
    "microsoft-edge",
)
SYSTEM_PATHS = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "C:/Program Files/Google/Chrome/Application/chrome.exe",
    "C:/Program Files (x86)/Microsoft/Edge/Application/msedge.exe",
)


def find_chromium() -> Path:
    """Path of a Chromium: `WATERSMEET_CHROMIUM`, else the system's, else one that Playwright manages.

    A variable that is set and wrong is an error, never skipped: whoever set it meant it.
    """
    if chosen := os.environ.get(VARIABLE):
        path = shutil.which(chosen)
        if path is None:
            raise RenderError(f"{VARIABLE} is {chosen!r}, which is no program that can be run; correct or unset it")
        return Path(path)
    for name in (*SYSTEM_NAMES, *SYSTEM_PATHS):
        if path := shutil.which(name):
            return Path(path)
    if managed := _managed():
        return managed
    raise RenderError(
        "no Chromium was found (looked at WATERSMEET_CHROMIUM, the system's chromium and chrome, and Playwright's own); "
        "install one, for example with `apt-get install chromium` or `playwright install chromium`, "
        f"or set {VARIABLE} to its path"
    )


def _managed() -> Path | None:
    """The newest Chromium in Playwright's folder, without starting Playwright."""
    home = Path.home()
    roots: list[str | Path] = [
        os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or "",
        home / ".cache/ms-playwright",
        home / "Library/Caches/ms-playwright",
        home / "AppData/Local/ms-playwright",
    ]
    for root in roots:
        if not root or not Path(root).is_dir():
            continue
        for folder in sorted(Path(root).glob("chromium*"), reverse=True):
            for pattern in (
                "*/headless_shell",
                "*/chrome-headless-shell*",
                "*/chrome",
                "*/chrome.exe",
                "*/*/*/*/Chromium",
            ):
                for path in folder.glob(pattern):
                    if path.is_file() and os.access(path, os.X_OK):
                        return path
    return None


def find_pages(inputs: Sequence[Path]) -> list[Path]:
    """The HTML files among `inputs` and below its folders, sorted, each once. Raises UsageError when there are none."""
    found: dict[Path, None] = {}
    for item in inputs:
        if not item.exists():
            raise UsageError(f"{item}: there is no such file or folder")
        below = sorted(p for p in item.rglob("*") if p.suffix.lower() in (".html", ".htm")) if item.is_dir() else [item]
        found |= dict.fromkeys(below)
    if not found:
        raise UsageError(f"{', '.join(map(str, inputs))}: no .html file in there")
    return list(found)

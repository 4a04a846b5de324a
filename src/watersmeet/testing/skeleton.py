"""The first files of a plugin's package, written out of `templates/`."""

from __future__ import annotations

import re
import shutil
import tempfile
from importlib import resources
from pathlib import Path

from watersmeet import __version__
from watersmeet.core.errors import UsageError
from watersmeet.plugins.specs import CONTRACT, is_name

_FILES = {
    "modality": {
        "pyproject.toml.in": "pyproject.toml",
        "README.md.in": "README.md",
        "__init__.py.in": "{module}/__init__.py",
        "parts.py.in": "{module}/parts.py",
        "test.py.in": "tests/test_{word}.py",
    },
    "pipeline": {
        "pyproject.toml.in": "pyproject.toml",
        "README.md.in": "README.md",
        "__init__.py.in": "{module}/__init__.py",
        "pipeline.py.in": "{module}/pipeline.py",
        "test.py.in": "tests/test_{word}.py",
    },
}
KINDS = tuple(_FILES)


def write_skeleton(name: str, *, kind: str = "modality", out: Path | None = None) -> list[str]:
    """Write the package for `name` to `out`, by default the folder watersmeet-NAME; returns what to tell the user.

    The folder appears whole or not at all. Raises UsageError for a name that no plugin can have, one that watersmeet
    itself has, or a folder that is there already.
    """
    if not is_name(name):
        better = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        hint = f"; try {better!r}" if is_name(better) else ", e.g. 'my-sensor'"
        raise UsageError(f"{name!r} can be no name of a plugin: lower-case words joined by '-' or '_'{hint}")
    word = name.replace("-", "_")
    module, package = f"watersmeet_{word}", f"watersmeet-{name.replace('_', '-')}"
    _refuse_taken(name)
    folder = Path(package) if out is None else out
    if folder.exists():
        raise UsageError(f"{folder} is there already; name another folder with --out, or move it away")
    values = {
        "name": name,
        "module": module,
        "package": package,
        "word": word,
        "class": "".join(part.capitalize() for part in re.split("[-_]", name)),
        "host": __version__,
        "contract": str(CONTRACT),
    }
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        written = _write(beside, kind, values)
        beside.chmod(0o755)
        beside.rename(folder)
    except BaseException:  # Ctrl-C too: nothing half-written is left
        shutil.rmtree(beside, ignore_errors=True)
        raise
    lines = [f"{folder / path}" for path in written]
    check = f"watersmeet plugins check {name}"
    return [*lines, f"next: pip install -e {folder}, then {check}; begin at the lines marked CHANGE"]


def _refuse_taken(name: str) -> None:
    from watersmeet.plugins.hookspecs import PROJECT
    from watersmeet.plugins.loader import find_plugins, normalise

    for found in find_plugins():
        if found.distribution == PROJECT and normalise(found.entry_point.name) == normalise(name):
            raise UsageError(f"{name!r} is a plugin of watersmeet itself; choose another name")


def _write(folder: Path, kind: str, values: dict[str, str]) -> list[str]:
    templates = resources.files(__package__).joinpath("templates", kind)
    written = []
    for template, pattern in _FILES[kind].items():
        path = pattern.format(**values)
        text = templates.joinpath(template).read_text(encoding="utf-8")
        for key, value in values.items():
            text = text.replace("{{" + key + "}}", value)
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        written.append(path)
    return written

"""A folder of results that appears whole or not at all."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from watersmeet.core.errors import WatersmeetError


class OutputError(WatersmeetError):
    """The output folder cannot be written."""


@contextmanager
def staged(out_dir: Path) -> Iterator[Path]:
    """A fresh folder beside `out_dir`, whose entries move into `out_dir` when the block ends well.

    Entries of the same name from an earlier run are replaced; others stay. If the block raises, `out_dir` is as it
    was. Raises OutputError, naming the folder and the system's reason, when it cannot be written.
    """
    try:
        if out_dir.exists() and not out_dir.is_dir():
            raise OutputError(f"{out_dir} is a file, and --out must be a folder; choose another name")
        parent = out_dir.resolve().parent
        created = _make_parents(parent)
        stage = Path(tempfile.mkdtemp(prefix=f".{out_dir.name}-", dir=parent))
    except OSError as error:
        raise _named(out_dir, error) from error
    try:
        yield stage
        _move_into(stage, out_dir)
    except OSError as error:
        if error.errno in _OUTPUT_ERRORS:
            raise _named(out_dir, error) from error
        raise
    finally:
        shutil.rmtree(stage, ignore_errors=True)
        if not out_dir.exists():
            for folder in created:
                _remove_if_empty(folder)


_OUTPUT_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG, errno.ENAMETOOLONG}


def _named(out_dir: Path, error: OSError) -> OutputError:
    return OutputError(f"cannot write to {out_dir}: {error.strerror or error}; choose another --out or make room")


def _make_parents(parent: Path) -> list[Path]:
    """Create missing parents; returns those created, innermost first."""
    missing = []
    while not parent.exists():
        missing.append(parent)
        parent = parent.parent
    for folder in reversed(missing):
        folder.mkdir()
    return missing


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return  # something else was put there meanwhile


def _move_into(stage: Path, out_dir: Path) -> None:
    # mkdtemp makes folders private; results are for whoever may read the parent
    os.chmod(stage, 0o777 & ~_umask())
    if not out_dir.exists():
        os.rename(stage, out_dir)
        return
    for entry in sorted(stage.iterdir()):
        target = out_dir / entry.name
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        os.replace(entry, target)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask

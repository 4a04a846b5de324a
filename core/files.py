"""Directories that are complete or absent."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written_beside(target: Path) -> Iterator[Path]:
    """An empty directory to write into; it takes the name `target`, and the place of what is there, when the block ends.

    Its files are on disk before the rename. When the block raises, nothing is left of it and `target` is as it was.
    """
    partial, old = (target.with_name(f".{target.name}.{word}-{os.getpid()}") for word in ("partial", "old"))
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        for path in partial.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        if target.exists():
            shutil.rmtree(old, ignore_errors=True)
            target.rename(old)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)

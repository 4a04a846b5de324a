"""Rows of a benchmark on disk, so that a run that was stopped goes on where it was."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from watersmeet.pipelines.models.local import find_local

RowT = TypeVar("RowT")
ItemT = TypeVar("ItemT")


class Kept(Generic[RowT]):
    """Rows, the group of one item a line, behind a first line that says of what; rows of something else are replaced.

    what: everything that a run has to have in common with the one that it goes on with. read, write: a row from plain
    values and back.
    """

    def __init__(
        self,
        path: Path,
        what: Sequence[str],
        *,
        read: Callable[[Mapping[str, Any]], RowT],
        write: Callable[[RowT], Mapping[str, Any]],
    ) -> None:
        self.path, self._write = path, write
        self.groups: list[list[RowT]] = []
        head = json.dumps({"what": list(what)})
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        if lines[:1] == [head]:
            for line in lines[1:]:
                try:
                    self.groups.append([read(row) for row in json.loads(line)])
                except ValueError:
                    break  # the last line of a run that was killed
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in [head, *lines[1 : 1 + len(self.groups)]]), encoding="utf-8")

    @property
    def rows(self) -> list[RowT]:
        """All of them, in the order in which they came."""
        return [row for group in self.groups for row in group]

    def add(self, rows: Sequence[RowT]) -> None:
        """All rows of one item."""
        self.groups.append(list(rows))
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([dict(self._write(row)) for row in rows]) + "\n")


def state_of(files: Iterable[Path]) -> str:
    """A name that changes when one of the files does."""
    known = sorted((p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in files)
    return hashlib.sha256(repr(known).encode()).hexdigest()[:16]


def model_state(model: str) -> str:
    """A name that changes when the files of a local model do. Raises CheckpointError if there is no such model."""
    return state_of(path for path in find_local(model).iterdir() if path.is_file())


def evenly(items: Sequence[ItemT], limit: int | None) -> list[ItemT]:
    """At most `limit` of the items, evenly taken."""
    if limit is None or limit >= len(items):
        return list(items)
    step = len(items) / limit
    return [items[int(i * step)] for i in range(limit)]

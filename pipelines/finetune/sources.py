"""Files of rows with an index that is built once, so that any row can be read without the others in memory.

JSONL: one 64-bit offset a row. webdataset tar: the offsets of a sample's members; a sample is the files with one stem,
and its .json or .jsonl member is the row, whose paths name the others ("image": "jpg" or "image": "0007.jpg").
"""

from __future__ import annotations

import hashlib
import os
import tarfile
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Protocol

from watersmeet.core.errors import DecodeError
from watersmeet.pipelines.finetune.rows import RowError

_CHUNK = 1 << 20
_MOST_ROW = 64 << 20
_MARK = b"\xef\xbb\xbf"


class Source(Protocol):
    """Rows by index. `fingerprint` changes whenever the content does."""

    path: Path
    fingerprint: str

    def __len__(self) -> int: ...

    def number(self, index: int) -> int:
        """The row as people count: from 1, as lines of an editor do."""
        ...

    def file(self, index: int) -> Path:
        """The file that a row lies in."""
        ...

    def where(self, index: int) -> str:
        """File and row for messages."""
        ...

    def line(self, index: int) -> bytes:
        """The JSON text of a row."""
        ...

    def member(self, index: int, name: str) -> bytes | None:
        """Content of a file that lies in the source beside the row; None where sources hold rows alone."""
        ...


class JsonlSource:
    """A file with one JSON object a line; empty lines are no rows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offsets, self._lines = array("q"), array("q")
        digest, position, number, start, blank = hashlib.sha256(), 0, 1, 0, True
        try:
            self._file = os.open(path, os.O_RDONLY)
            while chunk := os.pread(self._file, _CHUNK, position):
                digest.update(chunk)
                cursor = 0
                while (stop := chunk.find(b"\n", cursor)) >= 0:
                    if not blank or chunk[cursor:stop].strip():
                        self._add(start, number)
                    start, number, blank, cursor = position + stop + 1, number + 1, True, stop + 1
                blank = blank and not chunk[cursor:].strip()
                position += len(chunk)
        except OSError as error:
            raise RowError(f"{path}: cannot be read ({error.strerror}); give a file of JSON lines") from error
        if not blank:
            self._add(start, number)
        self._size = position
        self.fingerprint = digest.hexdigest()[:32]

    def _add(self, start: int, number: int) -> None:
        self._offsets.append(start)
        self._lines.append(number)

    def __len__(self) -> int:
        return len(self._offsets)

    def number(self, index: int) -> int:
        return self._lines[index]

    def file(self, index: int) -> Path:
        return self.path

    def where(self, index: int) -> str:
        return f"{self.path} row {self._lines[index]}"

    def line(self, index: int) -> bytes:
        begin = self._offsets[index]
        end = self._offsets[index + 1] if index + 1 < len(self._offsets) else self._size
        if end - begin > _MOST_ROW:
            raise RowError(f"{self.where(index)}: has {end - begin:,} bytes, expected at most {_MOST_ROW:,}")
        # pread has no position of its own, so threads and forked workers may share the file
        line = os.pread(self._file, end - begin, begin)
        return line.removeprefix(_MARK) if begin == 0 else line

    def member(self, index: int, name: str) -> bytes | None:
        return None


class TarSource:
    """A webdataset shard: an uncompressed tar. Compressed ones have no offsets to go to and are refused."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._samples: list[tuple[str, dict[str, tuple[int, int]]]] = []
        digest = hashlib.sha256()
        try:
            with tarfile.open(path, "r:") as archive:
                for info in archive:
                    if not info.isfile():
                        continue
                    digest.update(f"{info.name}\0{info.size}\0{info.mtime}\0{info.chksum}\n".encode())
                    folder, _, name = info.name.rpartition("/")
                    stem, _, ending = name.partition(".")
                    key = f"{folder}/{stem}" if folder else stem
                    if not self._samples or self._samples[-1][0] != key:
                        self._samples.append((key, {}))
                    members = self._samples[-1][1]
                    if ending in members:
                        raise RowError(f"{path}: holds {info.name!r} twice")
                    members[ending] = (info.offset_data, info.size)
            self._file = os.open(path, os.O_RDONLY)
        except (tarfile.TarError, OSError, EOFError) as error:
            raise RowError(f"{path}: cannot be read as an uncompressed tar ({error})") from error
        keys = [key for key, _ in self._samples]
        if len(set(keys)) != len(keys):
            repeated = next(key for key in keys if keys.count(key) > 1)
            raise RowError(f"{path}: files of sample {repeated!r} do not stand together; write the shard anew")
        self.fingerprint = digest.hexdigest()[:32]

    def __len__(self) -> int:
        return len(self._samples)

    def number(self, index: int) -> int:
        return index + 1

    def file(self, index: int) -> Path:
        return self.path

    def where(self, index: int) -> str:
        return f"{self.path} row {index + 1} ({self._samples[index][0]})"

    def line(self, index: int) -> bytes:
        members = self._samples[index][1]
        if "json" not in members:
            raise RowError(
                f"{self.where(index)}: has {', '.join(sorted(members))}, expected a member 'json' with messages"
            )
        return self._read(members["json"])

    def member(self, index: int, name: str) -> bytes | None:
        key, members = self._samples[index]
        ending = name.removeprefix(key.rpartition("/")[2] + ".")
        if ending not in members:
            raise DecodeError(f"{name!r} is not in the sample, which holds {', '.join(sorted(members))}")
        return self._read(members[ending])

    def _read(self, place: tuple[int, int]) -> bytes:
        return os.pread(self._file, place[1], place[0])


class JoinedSource:
    """Several files one after the other, e.g. the shards of a set."""

    def __init__(self, path: Path, parts: Sequence[Source]) -> None:
        self.path, self._parts = path, parts
        self._ends = list(accumulate(len(part) for part in parts))
        joined = "".join(f"{part.path.name}\0{part.fingerprint}\n" for part in parts)
        self.fingerprint = hashlib.sha256(joined.encode()).hexdigest()[:32]

    def __len__(self) -> int:
        return self._ends[-1]

    def place(self, index: int) -> tuple[Source, int]:
        """The file of a row and its index there."""
        which = bisect_right(self._ends, index)
        return self._parts[which], index - (self._ends[which - 1] if which else 0)

    def number(self, index: int) -> int:
        part, inside = self.place(index)
        return part.number(inside)

    def file(self, index: int) -> Path:
        part, inside = self.place(index)
        return part.file(inside)

    def where(self, index: int) -> str:
        part, inside = self.place(index)
        return part.where(inside)

    def line(self, index: int) -> bytes:
        part, inside = self.place(index)
        return part.line(inside)

    def member(self, index: int, name: str) -> bytes | None:
        part, inside = self.place(index)
        return part.member(inside, name)


def shared_rows(one: Source, other: Source) -> list[str]:
    """Where in `other` stand lines that are in `one` too, byte for byte."""
    found = {hashlib.sha256(other.line(index).strip()).digest(): index for index in range(len(other))}
    same = {found.get(hashlib.sha256(one.line(index).strip()).digest()) for index in range(len(one))}
    return [other.where(index) for index in sorted(index for index in same if index is not None)]


_OPENERS: dict[str, Callable[[Path], Source]] = {".jsonl": JsonlSource, ".ndjson": JsonlSource, ".tar": TarSource}


def open_source(path: str | os.PathLike[str]) -> Source:
    """The rows of a file, by its ending, or of all files that a pattern (`shards/*.tar`) names, in the order of names.

    Raises RowError for other endings and for files without rows.
    """
    found = Path(path)
    if "*" in found.name and not found.exists():
        files = sorted(found.parent.glob(found.name))
        if not files:
            raise RowError(f"{found}: no file has a name of this form")
        return JoinedSource(found, [open_source(file) for file in files])
    if found.suffix not in _OPENERS:
        hint = (
            "; turn it into JSON lines with `watersmeet data convert`" if found.suffix in (".json", ".parquet") else ""
        )
        raise RowError(f"{found}: expected a file that ends in {', '.join(_OPENERS)}{hint}")
    source = _OPENERS[found.suffix](found)
    if not len(source):
        raise RowError(f"{found}: holds no rows")
    return source

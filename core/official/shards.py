"""A directory of safetensors: what it holds, known from the headers alone, and reading through a memory map.

All headers are read and checked before any weight is. Nothing is ever unpickled.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from watersmeet.core.errors import CheckpointError
from watersmeet.core.official.names import shown

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_BYTES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "BF16": 2, "F16": 2, "I16": 2, "U16": 2}
_MAX_HEADER = 100_000_000
"""What the format allows for a header; a longer one is damage."""


@dataclass(frozen=True, kw_only=True)
class Stored:
    """One tensor of a file: its dtype as the format writes it, shape, and where its bytes lie."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


class Shards:
    """All tensors of a directory by name. Files stay mapped until `close`."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """Read index and headers. Raises CheckpointError naming the file and what is wrong with it."""
        self.directory = Path(directory)
        try:
            self.indexed = (self.directory / INDEX).is_file()
            placed = self._index() if self.indexed else None
            self.files = self._files() if placed is None else sorted(set(placed.values()))
        except OSError as error:
            raise CheckpointError(
                f"{error.filename or self.directory}: cannot be read ({error.strerror}); give the right to read it"
            ) from error
        self.tensors: dict[str, Stored] = {}
        for file in self.files:
            for name, stored in read_header(self.directory / file).items():
                if name in self.tensors:
                    raise CheckpointError(
                        f"{self.directory}: tensor {name} is in {self.tensors[name].file} and in {file}; expected one"
                    )
                self.tensors[name] = stored
        if placed is not None:
            self._compare(placed)
        self._open: dict[str, Any] = {}
        self._descriptors: dict[str, int] = {}

    def _index(self) -> dict[str, str]:
        path = self.directory / INDEX
        try:
            placed = json.loads(path.read_bytes())["weight_map"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CheckpointError(
                f"{path}: not an index of shards ({error!r}); expected an object with weight_map"
            ) from error
        if not isinstance(placed, dict) or not placed:
            raise CheckpointError(f"{path}: weight_map is empty or no object; expected tensor names with their files")
        for name, file in placed.items():
            if not isinstance(file, str) or Path(file).name != file:
                raise CheckpointError(
                    f"{path}: {name} is placed in {file!r}, expected the plain name of a file beside the index"
                )
            if not file.endswith(".safetensors"):
                raise CheckpointError(f"{path}: {name} is placed in {file!r}; only .safetensors files are read")
        if missing := [file for file in sorted(set(placed.values())) if not (self.directory / file).is_file()]:
            raise CheckpointError(
                f"{self.directory}: {len(missing)} shards of the index are not there ({shown(missing)}); download them again"
            )
        return placed

    def _files(self) -> list[str]:
        if (self.directory / SINGLE).is_file():
            return [SINGLE]
        present = sorted(entry.name for entry in self.directory.iterdir()) if self.directory.is_dir() else []
        if loose := [name for name in present if name.endswith(".safetensors")]:
            raise CheckpointError(
                f"{self.directory}: there are shards ({shown(loose, 3)}) but no {INDEX}, which says what they should hold"
            )
        if pickles := [name for name in present if name.endswith(PICKLES)]:
            raise CheckpointError(
                f"{self.directory}: the weights are pickle files ({shown(pickles, 3)}), which are never opened because they "
                "can run code; convert them to safetensors where you trust them"
            )
        if ggufs := [name for name in present if name.endswith(".gguf")]:
            raise CheckpointError(
                f"{self.directory}: the weights are GGUF files ({shown(ggufs, 3)}), which are not read, because some hold "
                "decays and names in other forms; get the safetensors files"
            )
        raise CheckpointError(f"{self.directory}: there are no weights; expected {SINGLE} or {INDEX} with its shards")

    def _compare(self, placed: dict[str, str]) -> None:
        """The index and the headers must say the same."""
        if missing := [n for n, file in placed.items() if n not in self.tensors or self.tensors[n].file != file]:
            raise CheckpointError(
                f"{self.directory}: {INDEX} names {len(missing)} tensors that are not in their shards ({shown(missing)})"
            )
        if extra := [name for name in self.tensors if name not in placed]:
            raise CheckpointError(
                f"{self.directory}: the shards hold {len(extra)} tensors that {INDEX} does not name ({shown(extra)})"
            )

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor."""
        return {name: stored.shape for name, stored in self.tensors.items()}

    def read(self, name: str) -> Tensor:
        """A view of the mapped file; copy it before the file is closed or changed."""
        file = self.tensors[name].file
        if file not in self._open:
            try:
                self._open[file] = safe_open(self.directory / file, framework="pt")
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"{self.directory / file}: cannot be read as safetensors ({error})") from error
        tensor: Tensor = self._open[file].get_tensor(name)
        return tensor

    def open(self, file: str) -> None:
        """Map a file, so that several threads can read it."""
        try:
            self._open.setdefault(file, safe_open(self.directory / file, framework="pt"))
            if file not in self._descriptors:
                self._descriptors[file] = os.open(self.directory / file, os.O_RDONLY)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{self.directory / file}: cannot be read as safetensors ({error})") from error

    def read_into(self, name: str, target: Tensor, piece: int) -> Iterator[Tensor]:
        """Read a tensor of `target`'s dtype straight into its memory, flat on the CPU; yields the pieces as they come.

        The file must be open. Saves the page faults of a map, which cost as much as the copy.
        """
        stored = self.tensors[name]
        memory = memoryview(target.view(torch.uint8).numpy())  # type: ignore[arg-type]
        step, at = piece * target.element_size(), stored.start
        for begin in range(0, stored.nbytes, step):
            part = memory[begin : begin + step]
            done = 0
            while done < len(part):
                got = os.preadv(self._descriptors[stored.file], [part[done:]], at + begin + done)
                if got == 0:
                    raise CheckpointError(f"{self.directory / stored.file}: the file became shorter while it was read")
                done += got
            yield target[begin // target.element_size() :][:piece]

    def close(self, file: str | None = None) -> None:
        """Unmap one file, or all."""
        for name in [file] if file is not None else [*self._open, *self._descriptors]:
            self._open.pop(name, None)
            descriptor = self._descriptors.pop(name, None)
            if descriptor is not None:
                os.close(descriptor)


def read_header(path: Path) -> dict[str, Stored]:
    """The tensors of one file. Raises CheckpointError for a file that is damaged, cut short or of another format."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(8)
            length = int.from_bytes(start, "little")
            if len(start) < 8 or length > min(_MAX_HEADER, size - 8):
                raise CheckpointError(_not_safetensors(path, start, size))
            values = json.loads(file.read(length))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not a safetensors file, its header is no JSON ({error})") from error
    out, end = {}, 0
    try:
        values.pop("__metadata__", None)
        for name, value in values.items():
            first, last = value["data_offsets"]
            shape = tuple(value["shape"])
            wanted = _BYTES.get(value["dtype"], 1)
            for n in shape:
                wanted *= n
            if last - first != wanted and value["dtype"] not in _SUBBYTE:
                raise CheckpointError(
                    f"{path}: tensor {name} has {last - first} bytes, but {value['dtype']} {list(shape)} has {wanted}"
                )
            end = max(end, last)
            out[name] = Stored(
                file=path.name, dtype=value["dtype"], shape=shape, start=8 + length + first, nbytes=last - first
            )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path}: not a safetensors file, its header is not as specified ({error!r})") from error
    if 8 + length + end != size:
        what = "cut short" if size < 8 + length + end else "longer than its header says"
        raise CheckpointError(
            f"{path}: the file is {what}: {size} bytes, expected {8 + length + end}; download it again"
        )
    return out


_SUBBYTE = ("F4", "F6_E2M3", "F6_E3M2")


def _not_safetensors(path: Path, start: bytes, size: int) -> str:
    if start[:2] in (b"PK", b"\x80\x02") or path.suffix in PICKLES:
        return f"{path}: a pickle file, not safetensors; pickle files are never opened because they can run code"
    if len(start) == 8 and size > 8 and int.from_bytes(start, "little") < _MAX_HEADER:
        return f"{path}: the file is cut short: {size} bytes do not even hold its header; download it again"
    return f"{path}: not a safetensors file"


TORCH_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
}
"""Dtypes a weight may be stored in."""

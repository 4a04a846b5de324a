"""TensorBoard scalars without the tensorboard package: its event files are length-prefixed protobuf records with checksums.

A record is: length (uint64), masked CRC-32C of it, the data, masked CRC-32C of the data. The data is a protobuf `Event` of which
we need four fields: wall_time (1, double), step (2, varint), file_version (3, string) and summary (5), a list (1) of
values with tag (1, string) and simple_value (2, float). All little-endian.
"""

from __future__ import annotations

import math
import os
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def _table() -> tuple[int, ...]:
    out = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        out.append(value)
    return tuple(out)


_CRC = _table()


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def record(data: bytes) -> bytes:
    """One framed record."""
    length = struct.pack("<Q", len(data))
    return length + _masked(length) + data + _masked(data)


def event(step: int, values: Mapping[str, float], wall_time: float) -> bytes:
    """A protobuf event with scalars."""
    items = b"".join(
        _field(1, _field(1, tag.encode()) + b"\x15" + struct.pack("<f", value)) for tag, value in values.items()
    )
    return b"\x09" + struct.pack("<d", wall_time) + b"\x10" + _varint(step) + _field(5, items)


def scalars(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    """Finite numbers of nested values under names with slashes; lists are left to the page."""
    for name, value in values.items():
        tag = f"{prefix}/{name}"
        if isinstance(value, Mapping):
            yield from scalars(value, tag)
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            yield tag, float(value)


class Board:
    """Scalars under `directory`, in a new file for every process that writes: TensorBoard reads them as one run."""

    def __init__(self, directory: Path) -> None:
        self.directory = Path(directory)
        self._path: Path | None = None

    def add(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Append the scalars of one step, e.g. of kind "train" as "train/loss"."""
        now = time.time()
        if self._path is None:
            self.directory.mkdir(parents=True, exist_ok=True)
            number = 0
            while True:
                name = f"events.out.tfevents.{int(now):010d}.{os.uname().nodename}.{os.getpid()}.{number}"
                if not (path := self.directory / name).exists():
                    break
                number += 1
            self._path = path
            version = b"\x09" + struct.pack("<d", now) + _field(3, b"brain.Event:2")
            path.write_bytes(record(version))
        with self._path.open("ab") as file:
            file.write(record(event(step, dict(scalars(values, kind)), now)))

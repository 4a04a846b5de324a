"""Where the file of a part comes from: inside a declared folder, in the row itself, beside it in an archive, or, when that
is switched on, an https address."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote_to_bytes

from watersmeet.core.errors import DecodeError

_ADDRESS = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+:")
_DATA = re.compile(
    r"^data:(?P<type>[\w.+-]+/[\w.+-]+)?(?:;[\w-]+=[^;,]*)*(?P<base64>;base64)?,(?P<body>.*)$", re.DOTALL
)


@dataclass(frozen=True, kw_only=True)
class Media:
    """Finds files. root: the folder that paths are relative to and must stay in, links followed. fetch: what reads https
    addresses, None where they are switched off. max_bytes: of a data URI."""

    root: Path
    fetch: Callable[[str], bytes] | None = None
    max_bytes: int = 256_000_000

    def find(self, value: str | bytes, member: Callable[[str], bytes | None] = lambda name: None) -> Path | bytes:
        """A path that exists, or bytes. member: files that lie beside the row.

        Raises DecodeError: not there, outside the folder, damaged, too large, or an address while those are off.
        """
        if isinstance(value, bytes):
            return value
        if value.startswith("data:"):
            return self._data(value)
        if _ADDRESS.match(value) and not re.match(r"^[A-Za-z]:[\\/]", value):
            if self.fetch is None:
                raise DecodeError(
                    f"{_short(value)}: addresses are switched off; give a local file, or --urls to allow https"
                )
            return self.fetch(value)
        if "\0" in value:
            raise DecodeError(f"{_short(value)}: holds a zero byte, expected a path")
        found = member(value)
        return self._local(value) if found is None else found

    def _local(self, value: str) -> Path:
        root = self.root.resolve()
        path = (root / value).resolve()
        if not path.is_relative_to(root):
            raise DecodeError(f"{_short(value)}: lies outside {root}; move it there, or give its folder with --root")
        if not path.is_file():
            raise DecodeError(f"{path}: {'is a folder, expected a file' if path.is_dir() else 'there is no such file'}")
        return path

    def _data(self, value: str) -> bytes:
        if len(value) > self.max_bytes * 4 // 3 + 200:
            raise DecodeError(f"{_short(value)}: has {len(value):,} characters, more than the limit allows")
        match = _DATA.match(value)
        if match is None:
            raise DecodeError(f"{_short(value)}: is no data URI, expected data:TYPE;base64,...")
        if not match["base64"]:
            return unquote_to_bytes(match["body"])
        try:
            return base64.b64decode(match["body"], validate=True)
        except (binascii.Error, ValueError) as error:
            raise DecodeError(f"{_short(value)}: damaged base64 ({error})") from error


def keep_file(content: bytes, store: Path, root: Path, ending: str = "") -> str:
    """Write `content` below the folder `store`, named by its hash; returns the path below `root`. The same bytes are kept once."""
    name = hashlib.sha256(content).hexdigest()[:32]
    path = store / name[:2] / f"{name}{ending}"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{name}.{os.getpid()}")
        beside.write_bytes(content)
        beside.rename(path)
    return path.relative_to(root).as_posix()


def _short(value: str) -> str:
    return value if len(value) <= 120 else f"{value[:100]}… ({len(value):,} characters)"

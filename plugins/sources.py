"""The bytes behind an item: a path or bytes, within a limit, with a sentence for everything that can be wrong."""

from __future__ import annotations

import os
from pathlib import Path

from watersmeet.core.errors import DecodeError

MAX_BYTES = 256_000_000


def read_source(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview,
    what: str,
    *,
    expected: str = "",
    max_bytes: int = MAX_BYTES,
) -> tuple[bytes, str]:
    """Content, and the name to use in messages.

    what: a noun for items without a name ("image"). expected: what files are read, for messages. Raises DecodeError for what
    is neither path nor bytes, a folder, a file that is empty, larger than `max_bytes` (found out before it is read), or cannot be read.
    """
    wanted = f", expected {expected}" if expected else ""
    if isinstance(source, (bytes, bytearray, memoryview)):
        raw, name = bytes(source), f"{what} of {len(source)} bytes"
    else:
        if not isinstance(source, (str, os.PathLike)):
            # rows of training data may hold any value where a file should be named
            raise DecodeError(f"{what} is a {type(source).__name__}{wanted or ', expected a path or bytes'}")
        path = Path(source)
        name = str(path)
        try:
            if path.is_dir():
                raise DecodeError(f"{name}: is a folder{wanted}")
            size = path.stat().st_size
            if size > max_bytes:
                raise DecodeError(f"{name}: file has {size:,} bytes, more than the limit of {max_bytes:,}")
            raw = path.read_bytes()
        except OSError as error:
            raise DecodeError(f"{name}: cannot be read: {error.strerror or error}") from error
        except ValueError as error:  # a path with a zero byte
            raise DecodeError(f"{name!r}: is no path ({error})") from error
    if len(raw) > max_bytes:
        raise DecodeError(f"{name}: {len(raw):,} bytes are more than the limit of {max_bytes:,}")
    if not raw:
        raise DecodeError(f"{name}: file is empty (0 bytes){wanted}")
    return raw, name

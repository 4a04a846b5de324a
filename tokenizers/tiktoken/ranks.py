"""Files of byte-pair ranks: one line a token, its bytes in base64 and its rank, which is its id."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable

from watersmeet.core.errors import CheckpointError

FILE_NAME = "tiktoken.model"

# official files have 2.8 MB and tokens of at most a few hundred bytes; what is far beyond is no vocabulary
_MOST_BYTES = 256 << 20
_MOST_TOKEN_BYTES = 1 << 16


def parse_ranks(data: bytes, name: str = FILE_NAME) -> dict[bytes, int]:
    """Token bytes -> rank, ranks 0 .. n-1 without a gap and with every single byte among the tokens.

    Raises CheckpointError that names `name`, the line and the fault: not base64, no rank, a token or rank given twice,
    a rank left out, a byte that no token covers, or a file that is far too long.
    """
    if len(data) > _MOST_BYTES:
        raise CheckpointError(f"{name}: {len(data)} bytes are too many for a vocabulary, expected under {_MOST_BYTES}")
    ranks: dict[bytes, int] = {}
    seen: dict[int, int] = {}
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not (words := line.split()):
            continue
        if len(words) != 2 or not words[1].isdigit() or len(words[1]) > 9:
            raise CheckpointError(
                f"{name}: line {number} is {_shown(line)}, expected base64 and a rank; the file is cut short or no "
                "tiktoken vocabulary"
            )
        try:
            token = base64.b64decode(words[0], validate=True)
        except binascii.Error as error:
            raise CheckpointError(f"{name}: line {number} holds {_shown(words[0])}, not base64 ({error})") from error
        rank = int(words[1])
        if not token or len(token) > _MOST_TOKEN_BYTES:
            raise CheckpointError(f"{name}: line {number} has a token of {len(token)} bytes, expected 1 or more")
        if token in ranks:
            raise CheckpointError(
                f"{name}: line {number} gives the token {token!r} a second time, with ranks {ranks[token]} and {rank}"
            )
        if rank in seen:
            raise CheckpointError(f"{name}: lines {seen[rank]} and {number} both have rank {rank}")
        ranks[token], seen[rank] = rank, number
    missing = next((rank for rank in range(len(ranks)) if rank not in seen), None)
    if missing is not None:
        raise CheckpointError(
            f"{name}: rank {missing} is left out of {len(ranks)} ranks, expected 0 .. n-1; the file is damaged"
        )
    bare = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if bare:
        raise CheckpointError(
            f"{name}: no token is the single byte {bare[0]:#04x} ({len(bare)} bytes are missing among {len(ranks)} "
            "ranks), so not every text could be encoded; the file is cut short or of another kind"
        )
    return ranks


def _shown(line: bytes) -> str:
    return repr(line[:40].decode("latin-1")) + ("…" if len(line) > 40 else "")


def write_ranks(tokens: Iterable[bytes]) -> bytes:
    """The bytes of a file that gives these tokens the ranks 0, 1, ..."""
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))

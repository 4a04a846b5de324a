"""Train a small file of ranks, for models of one's own and for tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise

import regex

from watersmeet.core.errors import ConfigError
from watersmeet.tokenizers.tiktoken.ranks import write_ranks
from watersmeet.tokenizers.tiktoken.vocabulary import PATTERN


def pieces(text: str) -> Iterator[str]:
    """The pieces of a text that tokens never reach across."""
    # VERSION1 reads "&&" as an intersection of sets, as the library that encodes does
    return (match.group() for match in regex.finditer(PATTERN, text, flags=regex.VERSION1))


def train_ranks(corpus: Iterable[str], size: int) -> bytes:
    """A small file of `size` ranks (fewer when nothing repeats) by byte-pair merging over the pieces of a corpus.

    For models of one's own and for tests: quadratic, so a few thousand ranks over a few thousand words. The 256 bytes
    come first. Ties go to the pair that is smaller as bytes, so equal input gives equal ranks. Raises ConfigError for
    fewer than 256 ranks.
    """
    if size < 256:
        raise ConfigError(f"a vocabulary of {size} ranks cannot hold all bytes, expected at least 256")
    words = Counter(piece.encode("utf-8", "replace") for text in corpus for piece in pieces(text))
    split = {word: [bytes([byte]) for byte in word] for word in words}
    tokens = [bytes([byte]) for byte in range(256)]
    known = set(tokens)
    while len(tokens) < size:
        pairs: Counter[tuple[bytes, bytes]] = Counter()
        for word, parts in split.items():
            for pair in pairwise(parts):
                pairs[pair] += words[word]
        fresh = {pair: count for pair, count in pairs.items() if pair[0] + pair[1] not in known}
        if not fresh:
            break
        left, right = min(fresh, key=lambda pair: (-fresh[pair], pair))
        known.add(left + right)
        tokens.append(left + right)
        for word, parts in split.items():
            split[word] = _merged(parts, left, right)
    return write_ranks(tokens)


def _merged(parts: list[bytes], left: bytes, right: bytes) -> list[bytes]:
    merged: list[bytes] = []
    for part in parts:
        # a merge result equals no part to its left unless it was there before, so looking back once is enough
        if merged and merged[-1] == left and part == right:
            merged[-1] = left + right
        else:
            merged.append(part)
    return merged

"""Ranks and control slots as one vocabulary. No text ever becomes a control id; names lead to them."""

from __future__ import annotations

import difflib
import functools
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tiktoken

from watersmeet.core.errors import CheckpointError, ConfigError
from watersmeet.tokenizers.tiktoken.ranks import FILE_NAME, parse_ranks
from watersmeet.tokenizers.tiktoken.specials import (
    SLOTS,
    TOKENIZER_CONFIG,
    generation_by_names,
    generation_of,
    named_slots,
    slot_names,
    table,
)

_NOT_HAN = "&&[^\\p{Han}]]"
_UPPER, _LOWER = "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}" + _NOT_HAN, "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}" + _NOT_HAN
_BEFORE, _AFTER = "[^\\r\\n\\p{L}\\p{N}]?", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"

PATTERN = "|".join(
    (
        "[\\p{Han}]+",
        f"{_BEFORE}{_UPPER}*{_LOWER}+{_AFTER}",
        f"{_BEFORE}{_UPPER}+{_LOWER}*{_AFTER}",
        "\\p{N}{1,3}",
        " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*",
        "\\s*[\\r\\n]+",
        "\\s+(?!\\S)",
        "\\s+",
    )
)
"""Where a text is cut before byte pairs are merged, the first alternative that matches: runs of Han; words of other
scripts with one sign before and an English ending after; one to three digits; signs; white space of four kinds."""

MOST_CHARACTERS = 400_000
MOST_ALIKE = 25_000
"""A text is cut every 400,000 characters, and a run without a change between white space and other characters every
25,000 within that, before anything is encoded. Official ids depend on it, and it keeps the expression within bounds."""


class TiktokenVocabulary:
    """Ids, bytes and control names; the counterpart of the sentencepiece vocabulary, with the same attributes.

    Attributes: `size` (ranks and slots), `ranks` (number of ids that a text can become), `generation` ("k2" or "k3"),
    `bos_id`, `eos_id`, `unk_id` (-1 where there is none), `specials` (every slot by name), `symbols` (the same without
    those three), `token_bytes` (b"" for slots), `digest` (of ranks and names).
    """

    def __init__(self, ranks: Mapping[bytes, int], specials: Mapping[str, int], generation: str, digest: bytes) -> None:
        self.ranks = len(ranks)
        self.size = self.ranks + len(specials)
        self.generation = generation
        self.specials = dict(specials)
        self.digest = digest
        self.token_bytes: list[bytes] = [b""] * self.size
        for token, rank in ranks.items():
            self.token_bytes[rank] = token
        self._names = {index: name for name, index in specials.items()}
        self.bos_id, self.eos_id, self.unk_id = (specials.get(name, -1) for name in ("[BOS]", "[EOS]", "[UNK]"))
        ends = (self.bos_id, self.eos_id, self.unk_id)
        self.symbols = {name: index for name, index in specials.items() if index not in ends}
        # no special tokens here: what the library does not know it cannot find in a text
        self._encoding = tiktoken.Encoding(
            "watersmeet", pat_str=PATTERN, mergeable_ranks=dict(ranks), special_tokens={}
        )

    def encode(self, text: str) -> list[int]:
        """Ids of a text, all below `ranks`. Half of a surrogate pair, which no UTF-8 has, becomes U+FFFD."""
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        ids: list[int] = []
        for part in split_long(text):
            ids += self._encoding.encode_ordinary(part)
        return ids

    def symbol_id(self, name: str) -> int:
        """Id of a control name. Raises ConfigError (did you mean) for a name without a slot."""
        if name in self.specials:
            return self.specials[name]
        close = difflib.get_close_matches(name, self.specials, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else f"; it has {len(self.specials)} others"
        raise ConfigError(f"tokenizer of generation {self.generation} has no control token {name!r}{hint}")

    def is_special(self, index: int) -> bool:
        """Whether an id is a control slot. Raises ConfigError for an id outside the vocabulary."""
        self._check(index)
        return index >= self.ranks

    def name(self, index: int) -> str:
        """Name of a control id; the bytes of an ordinary one as text, with escapes where they are no UTF-8."""
        self._check(index)
        return self._names.get(index) or self.token_bytes[index].decode("utf-8", "backslashreplace")

    def bytes_of(self, ids: Sequence[int]) -> bytes:
        """UTF-8 bytes of ids; control ids add nothing. Raises ConfigError for an id outside the vocabulary."""
        for index in ids:
            self._check(index)
        return b"".join(self.token_bytes[index] for index in ids)

    def _check(self, index: int) -> None:
        if not 0 <= index < self.size:
            raise ConfigError(f"id {index} is outside the tokenizer's vocabulary of {self.size}")


def split_long(text: str, most_characters: int = MOST_CHARACTERS, most_alike: int = MOST_ALIKE) -> Iterator[str]:
    """The parts in which a text is encoded; joined they are the text. Most texts are one part."""
    for start in range(0, len(text), most_characters):
        chunk = text[start : start + most_characters]
        if len(chunk) <= most_alike:
            yield chunk
            continue
        cut = 0
        for run in re.finditer(r"\s+|\S+", chunk):
            for stop in range(run.start() + most_alike, run.end(), most_alike):
                yield chunk[cut:stop]
                cut = stop
        yield chunk[cut:]


def open_tiktoken(settings: Mapping[str, Any], model: bytes) -> TiktokenVocabulary:
    """The vocabulary of a file of ranks and of what settings say about it.

    settings: `vocab_size`, the model's (None: ranks + 256); `files`, of which tokenizer_config.json names the control
    slots; `generation` or `family`, which name them when it does not. Raises CheckpointError for damaged files and when
    ranks and slots do not add up to `vocab_size`.
    """
    files = settings.get("files") or {}
    config = files.get(TOKENIZER_CONFIG)
    generation = None if settings.keys().isdisjoint(("generation", "family")) else generation_of(settings)
    size = settings.get("vocab_size")
    if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
        raise ConfigError(f"text settings have vocab_size {size!r}, expected a positive integer")
    return _open(bytes(model), None if config is None else bytes(config), generation, size)


@functools.lru_cache(maxsize=4)
def _open(model: bytes, config: bytes | None, generation: str | None, size: int | None) -> TiktokenVocabulary:
    """Kept for the few in use: an official file takes a second to read."""
    ranks = parse_ranks(model)
    first = len(ranks)
    names = None if config is None else named_slots(config, first)
    wanted = first + SLOTS if size is None else size
    listed = names is not None and all(index in names for index in range(first, wanted))
    if wanted <= first or not (wanted == first + SLOTS or listed):
        raise CheckpointError(
            f"{FILE_NAME}: has {first} ranks, with {SLOTS} control slots {first + SLOTS} ids, but the model has a "
            f"vocabulary of {wanted}; the file is incomplete or belongs to another model"
        )
    if names is not None:
        if beyond := [index for index in names if index >= wanted]:
            raise CheckpointError(
                f"{TOKENIZER_CONFIG}: added token {names[beyond[0]]!r} has id {beyond[0]}, beyond the vocabulary of "
                f"{wanted} ids"
            )
        generation = generation_by_names(names) or generation
    if generation is None:
        generation = generation_of({})
    if names is None:
        names = table(generation, first, wanted)
    specials = slot_names(names, first, wanted)
    digest = hashlib.sha256(model + repr(sorted(specials.items())).encode()).digest()
    return TiktokenVocabulary(ranks, specials, generation, digest)

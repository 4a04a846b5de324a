"""Text to ids. Shapes: n tokens."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch

from watersmeet.core.errors import DecodeError
from watersmeet.core.stream import Span, content_key
from watersmeet.tokenizers.text.vocabulary import open_vocabulary

VERSION = 1
"""Part of every key; raised when equal text and settings would give other ids than before."""


class Encoder:
    """Encodes `str` or UTF-8 bytes.

    settings: `model`, bytes or path of a sentencepiece model, or the name of an entry of `files`; for the vocabulary of
    an official checkpoint see `vocabulary.open_vocabulary`. The attribute `settings` holds plain values only, `files`
    the model and what belongs to it: a checkpoint keeps both.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings: dict[str, Any]
        self.files: dict[str, bytes]
        self.vocabulary, self.settings, self.files = open_vocabulary(settings)

    @classmethod
    def train(
        cls,
        corpus: Iterable[str],
        symbols: Sequence[str],
        vocab_size: int,
        out_path: str | os.PathLike[str] | None = None,
    ) -> Encoder:
        """Encoder with a tokenizer trained on the spot, see `train.train_tokenizer`."""
        from watersmeet.tokenizers.text.train import train_tokenizer

        return cls({"model": train_tokenizer(corpus, symbols, vocab_size, out_path)})

    def __reduce__(self) -> tuple[Any, ...]:
        return Encoder, ({**self.settings, "files": self.files},)

    @property
    def vocab_size(self) -> int:
        """Number of ids, symbols included."""
        return self.vocabulary.size

    @property
    def bos_id(self) -> int:
        """Id that opens a text; never produced by `encode`."""
        return self.vocabulary.bos_id

    @property
    def eos_id(self) -> int:
        """Id that ends an output; never produced by `encode`."""
        return self.vocabulary.eos_id

    @property
    def symbols(self) -> dict[str, int]:
        """Ids of the symbols by name, in id order."""
        return self.vocabulary.symbols

    def symbol_id(self, name: str) -> int:
        """Id of a symbol. Raises ConfigError for an unknown name."""
        return self.vocabulary.symbol_id(name)

    def encode(self, item: str | bytes) -> list[Span]:
        """One span of int64 ids [n]; `source` has the UTF-8 byte range (start, stop) of each token.

        Raises DecodeError for bytes that are not UTF-8.
        """
        if isinstance(item, (bytes, bytearray)):
            try:
                item = bytes(item).decode("utf-8")
            except UnicodeDecodeError as error:
                raise DecodeError(
                    f"text of {len(item)} bytes is not UTF-8: byte {error.object[error.start]:#04x} at {error.start}"
                ) from error
        if not isinstance(item, str):
            raise DecodeError(f"text encoder got a {type(item).__name__}, expected str or UTF-8 bytes")
        ids = self.vocabulary.encode(item)
        ends = list(accumulate(len(self.vocabulary.token_bytes[index]) for index in ids))
        return [self._span(ids, tuple(zip([0, *ends], ends, strict=False)))]

    def encode_ids(self, text: str) -> list[int]:
        """Ids of a text as a list; never a symbol."""
        return self.vocabulary.encode(text)

    def chat(self) -> Any:
        """The form of conversations that belongs to an official vocabulary, see `tokenizers/chat/chat.py`.

        Raises ConfigError for a vocabulary without control tokens for it.
        """
        from watersmeet.tokenizers.chat.chat import chat_of

        return chat_of(self)

    def encode_markup(self, symbols: Sequence[str]) -> Span:
        """Span of the named symbols, the only way to their ids. "<s>" and "</s>" name begin and end.

        Raises ConfigError for an unknown name.
        """
        ends = {self.vocabulary.name(index): index for index in (self.bos_id, self.eos_id) if index >= 0}
        ids = [ends[name] if name in ends else self.symbol_id(name) for name in symbols]
        return self._span(ids, ())

    def span_of_ids(self, ids: Sequence[int]) -> Span:
        """Span of ids that already exist, e.g. a tokenised training answer that mixes text and symbols."""
        return self._span(list(ids), ())

    def _span(self, ids: list[int], source: tuple[Any, ...]) -> Span:
        # the ids and the model are all there is to the content: equal ids may share a cache entry
        key = content_key("text", VERSION, self.vocabulary.digest, ids)
        return Span(modality="text", data=torch.tensor(ids, dtype=torch.int64), key=key, source=source)

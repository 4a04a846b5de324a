"""Ids to text, whole or as they come."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from typing import Any

from watersmeet.tokenizers.text.vocabulary import AnyVocabulary, open_vocabulary


class IncrementalDecoder:
    """Turns ids into text one at a time and never shows half a character.

    The texts returned by `push` and `close` joined are what decoding all ids at once gives.
    """

    def __init__(self, vocabulary: AnyVocabulary) -> None:
        self._vocabulary = vocabulary
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, index: int) -> str:
        """Text that is complete now that this id has come; often "" inside a character of several bytes."""
        return self._utf8.decode(self._vocabulary.bytes_of([index]))

    def close(self) -> str:
        """What is left: U+FFFD when the last character was never completed."""
        return self._utf8.decode(b"", final=True)


class Decoder:
    """Decodes ids; symbols add nothing to the text. `settings` as for the encoder."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.vocabulary, _, _ = open_vocabulary(settings)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; bytes that are no UTF-8 become U+FFFD. Raises ConfigError for an id outside the vocabulary."""
        return self.vocabulary.bytes_of([int(index) for index in ids]).decode("utf-8", "replace")

    def stream(self) -> IncrementalDecoder:
        """New incremental decoder."""
        return IncrementalDecoder(self.vocabulary)

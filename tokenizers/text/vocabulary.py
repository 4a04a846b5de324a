"""A sentencepiece model as a lossless map between text and ids, plus symbols reachable only by name.

Symbols (markup, control) are sentencepiece CONTROL pieces, which its encoder never produces from text. So whatever a
user writes, "<page>" and "<s>" included, becomes ordinary pieces; `symbol_id` is the only way to a symbol.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import sentencepiece

from watersmeet.core.errors import ConfigError

FILE_NAME = "tokenizer.model"

# what lies beside official ranks and is read with them: control names, and the forms of a conversation
_SPEAKING = ("tokenizer_config.json", "chat_template.jinja", "encoding_k3.py")

# sentencepiece writes a space as U+2581 and would turn a real U+2581 of the text into a space
_SPACE = "\u2581"


class AnyVocabulary(Protocol):
    """What encoder and decoder need of a vocabulary, whichever library makes the ids."""

    size: int
    unk_id: int
    bos_id: int
    eos_id: int
    symbols: dict[str, int]
    token_bytes: list[bytes]
    digest: bytes

    def encode(self, text: str) -> list[int]:
        """Ids of a text; never a symbol."""

    def symbol_id(self, name: str) -> int:
        """Id of a symbol."""

    def name(self, index: int) -> str:
        """Name of an id, for people."""

    def bytes_of(self, ids: Sequence[int]) -> bytes:
        """UTF-8 bytes of ids; symbols add nothing."""


def open_vocabulary(settings: Mapping[str, Any]) -> tuple[AnyVocabulary, dict[str, Any], dict[str, bytes]]:
    """(vocabulary, completed settings of plain values, files) of what an encoder or a checkpoint was given.

    settings: `tokenizer` is "sentencepiece" (the default) or "tiktoken" (official checkpoints); `model` as for
    `model_bytes`; with tiktoken also `vocab_size` and `generation` or `family`, and those of `files` that say how to speak are kept.
    Raises ConfigError for settings that make no sense and CheckpointError for damaged official files.
    """
    kind = settings.get("tokenizer", "sentencepiece")
    if kind == "sentencepiece":
        model = model_bytes(settings)
        vocabulary = load_vocabulary(model)
        completed = {"model": FILE_NAME, "vocab_size": vocabulary.size}
        return vocabulary, completed | {"model_sha256": hashlib.sha256(model).hexdigest()}, {FILE_NAME: model}
    if kind != "tiktoken":
        raise ConfigError(f"text settings have tokenizer {kind!r}, expected 'sentencepiece' or 'tiktoken'")
    # imported for official checkpoints alone
    from watersmeet.tokenizers.tiktoken import ranks
    from watersmeet.tokenizers.tiktoken.vocabulary import open_tiktoken

    model = model_bytes(settings, ranks.FILE_NAME)
    official = open_tiktoken(settings, model)
    completed = {"tokenizer": kind, "model": ranks.FILE_NAME, "vocab_size": official.size}
    completed |= {"generation": official.generation, "model_sha256": hashlib.sha256(model).hexdigest()}
    files = {name: data for name, data in (settings.get("files") or {}).items() if name in _SPEAKING}
    return official, completed, {**files, ranks.FILE_NAME: model}


def model_bytes(settings: Mapping[str, Any], default: str = FILE_NAME) -> bytes:
    """The tokenizer model that `settings` speak of.

    `settings["model"]` is bytes, a path, or the name of an entry of `settings["files"]` (how a checkpoint gives it
    back), `default` if there is such an entry. Raises ConfigError when there is none.
    """
    files = settings.get("files") or {}
    model = settings.get("model", default if default in files else None)
    if isinstance(model, (bytes, bytearray)):
        return bytes(model)
    if model is None:
        raise ConfigError("text settings have no 'model'; give bytes or a path, or build one with train_tokenizer")
    if str(model) in files:
        return bytes(files[str(model)])
    try:
        return Path(model).read_bytes()
    except OSError as error:
        raise ConfigError(f"tokenizer model {str(model)!r} cannot be read: {error.strerror or error}") from error


@functools.lru_cache(maxsize=4)
def load_vocabulary(model: bytes) -> Vocabulary:
    """Vocabulary of a model's bytes; the few in use are kept, because building the tables takes milliseconds."""
    return Vocabulary(model)


class Vocabulary:
    """Ids, pieces and bytes of one sentencepiece model.

    Attributes: `size`, `unk_id`, `bos_id`, `eos_id`, `symbols` (name -> id, in id order, without those three),
    `token_bytes` (bytes of each id, b"" for symbols), `digest` (SHA-256 of the model).
    """

    def __init__(self, model: bytes) -> None:
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
            self.size: int = self._processor.vocab_size()
        except Exception as error:  # the wrapper raises bare RuntimeErrors of several kinds
            raise ConfigError(f"tokenizer model of {len(model)} bytes is not a sentencepiece model: {error}") from error
        sp = self._processor
        self.unk_id, self.bos_id, self.eos_id = sp.unk_id(), sp.bos_id(), sp.eos_id()
        special = {self.unk_id, self.bos_id, self.eos_id}
        self.digest: bytes = hashlib.sha256(model).digest()
        self.symbols: dict[str, int] = {}
        self.token_bytes: list[bytes] = []
        for index in range(self.size):
            piece = sp.id_to_piece(index)
            if sp.is_control(index) or sp.is_unknown(index):
                self.token_bytes.append(b"")
                if index not in special:
                    self.symbols[piece] = index
            elif sp.is_byte(index):
                self.token_bytes.append(bytes([int(piece[3:-1], 16)]))
            else:
                self.token_bytes.append(piece.replace(_SPACE, " ").encode("utf-8"))
        self._space_ids = [sp.piece_to_id(f"<0x{byte:02X}>") for byte in _SPACE.encode("utf-8")]
        if self.unk_id in self._space_ids:
            raise ConfigError("tokenizer model has no byte pieces; train it with byte fallback (train_tokenizer does)")

    def encode(self, text: str) -> list[int]:
        """Ids of a text; never a symbol. Half of a surrogate pair, which no UTF-8 has, becomes U+FFFD."""
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        ids: list[int] = []
        for index, part in enumerate(text.split(_SPACE)):
            if index:
                ids += self._space_ids
            if part:
                ids += self._processor.encode(part)
        return ids

    def symbol_id(self, name: str) -> int:
        """Id of a symbol. Raises ConfigError (did you mean) for a name the model was not trained with."""
        try:
            return self.symbols[name]
        except KeyError:
            close = difflib.get_close_matches(name, self.symbols, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else f"; it has {len(self.symbols)} symbols"
            raise ConfigError(f"tokenizer has no symbol {name!r}{hint}") from None

    def name(self, index: int) -> str:
        """Piece of an id as sentencepiece writes it; the name of a symbol."""
        return self._processor.id_to_piece(index)

    def bytes_of(self, ids: Sequence[int]) -> bytes:
        """UTF-8 bytes of ids; symbols add nothing. Raises ConfigError for an id outside the vocabulary."""
        table = self.token_bytes
        for index in ids:
            if not 0 <= index < self.size:
                raise ConfigError(f"id {index} is outside the tokenizer's vocabulary of {self.size}")
        return b"".join(table[index] for index in ids)

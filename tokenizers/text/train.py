"""Train a tokenizer in seconds."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import sentencepiece

from watersmeet.core.errors import ConfigError
from watersmeet.tokenizers.text.vocabulary import load_vocabulary

# sentencepiece drops longer sentences without a word
MAX_SENTENCE_BYTES = 4096

_RESERVED = ("<unk>", "<s>", "</s>")


def _sentences(corpus: Iterable[str]) -> Iterator[str]:
    for text in corpus:
        for line in text.splitlines():
            # a character is at most 4 bytes long
            for start in range(0, len(line), MAX_SENTENCE_BYTES // 4):
                yield line[start : start + MAX_SENTENCE_BYTES // 4]


def train_tokenizer(
    corpus: Iterable[str], symbols: Sequence[str], vocab_size: int, out_path: str | os.PathLike[str] | None = None
) -> bytes:
    """Train a unigram sentencepiece model and return its bytes; also written to `out_path` when given.

    corpus      texts; long ones are fine. A few thousand lines train in about a second
    symbols     names of markup and control symbols; they get the ids 3, 4, ... in this order
    vocab_size  upper bound for all ids: 3 + symbols + 256 bytes + pieces. A small corpus gives fewer: ask the encoder

    Text is taken as it is (no normalisation, spaces kept), digits are single pieces, unknown characters fall back to
    bytes. Equal input gives equal bytes. Raises ConfigError for bad symbols, an empty corpus or too small a size.
    """
    symbols = list(symbols)
    if twice := sorted({name for name in symbols if symbols.count(name) > 1}):
        raise ConfigError(f"symbol {twice[0]!r} is given twice; every symbol needs a name of its own")
    for name in symbols:
        if not name or name in _RESERVED or (name.startswith("<0x") and name.endswith(">")) or name != name.strip():
            raise ConfigError(f"symbol {name!r} is empty, padded or a name that sentencepiece keeps for itself")
    smallest = len(_RESERVED) + len(symbols) + 256
    if vocab_size <= smallest:
        raise ConfigError(
            f"vocab_size is {vocab_size} but {len(symbols)} symbols and the 256 bytes alone take {smallest}; raise it"
        )
    out = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_sentences(corpus),
            model_writer=out,
            model_type="unigram",
            vocab_size=vocab_size,
            hard_vocab_limit=False,
            control_symbols=symbols,
            byte_fallback=True,
            character_coverage=0.9995,
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            allow_whitespace_only_pieces=True,
            split_digits=True,
            pad_id=-1,
            max_sentence_length=MAX_SENTENCE_BYTES,
            # more threads would sum in another order and give other bytes
            num_threads=1,
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"no tokenizer of {vocab_size} ids could be trained on this corpus: {reason}") from error
    model = out.getvalue()
    load_vocabulary(model)
    if out_path is not None:
        target = Path(out_path)
        beside = target.with_name(target.name + ".part")
        beside.write_bytes(model)
        beside.replace(target)
    return model


def with_symbols(model: bytes, symbols: Sequence[str]) -> bytes:
    """A vocabulary with further symbols behind all ids that it has, which stay as they are; names that are there are kept.

    Raises ConfigError for a name that a symbol cannot have.
    """
    from sentencepiece import sentencepiece_model_pb2

    form: Any = sentencepiece_model_pb2  # made at import, out of sight of type checkers
    proto = form.ModelProto.FromString(model)
    known = {piece.piece for piece in proto.pieces}
    for name in symbols:
        if not name or name in _RESERVED or (name.startswith("<0x") and name.endswith(">")) or name != name.strip():
            raise ConfigError(f"symbol {name!r} is empty, padded or a name that sentencepiece keeps for itself")
        if name not in known:
            known.add(name)
            kind = form.ModelProto.SentencePiece.CONTROL
            proto.pieces.add(piece=name, score=0.0, type=kind)
    return bytes(proto.SerializeToString())

"""What a format makes of a conversation: control tokens, texts and media in order, and which of them are learnt.

Control tokens are pieces of their own kind. A text piece is always encoded with the library that knows no control
token, so whatever a person or a tool wrote can never become one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from watersmeet.core.errors import UsageError
from watersmeet.core.stream import Span
from watersmeet.tokenizers.chat.messages import Picture
from watersmeet.tokenizers.tiktoken.vocabulary import TiktokenVocabulary


@dataclass(frozen=True)
class Piece:
    """One control token by name, or a text that is encoded by itself. `learn`: the model wrote it."""

    text: str
    control: bool = False
    learn: bool = False


@dataclass(frozen=True)
class Media:
    """The place of a picture's vectors."""

    part: Picture


Pieces = list[Piece | Media]


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """ids, and for each of them 1.0 where the model wrote it and 0.0 where it only read it."""

    ids: list[int]
    weights: list[float]


def shown(pieces: Iterable[Piece | Media]) -> str:
    """The pieces as one text, for people and for tests; encoding that text would not give the same ids."""
    return "".join(piece.text if isinstance(piece, Piece) else "<|media_pad|>" for piece in pieces)


def encode_pieces(
    pieces: Iterable[Piece | Media], vocabulary: TiktokenVocabulary, pads: Callable[[Picture], int] | None = None
) -> Encoded:
    """Ids of pieces, each text by itself.

    pads: how many `<|media_pad|>` a picture takes, for engines that replace them. Without it a picture is an UsageError.
    Raises ConfigError for a control token that the vocabulary does not have.
    """
    ids: list[int] = []
    weights: list[float] = []
    for piece in pieces:
        if isinstance(piece, Media):
            if pads is None:
                raise UsageError("chat: a message holds a picture, but only text was asked for; leave the picture out")
            fresh, learn = [vocabulary.symbol_id("<|media_pad|>")] * pads(piece.part), False
        else:
            fresh = [vocabulary.symbol_id(piece.text)] if piece.control else vocabulary.encode(piece.text)
            learn = piece.learn
        ids += fresh
        weights += [float(learn)] * len(fresh)
    return Encoded(ids=ids, weights=weights)


def spans_of(
    pieces: Sequence[Piece | Media], encoder: Any, media: Callable[[Picture], list[Span]] | None = None
) -> tuple[list[Span], list[bool]]:
    """(spans, learn) for `supervise` or a `Stream`: ids through the text encoder, pictures through `media`.

    encoder: the text modality's, over a tiktoken vocabulary. Consecutive pieces that are learnt alike are one span.
    """
    spans: list[Span] = []
    learn: list[bool] = []
    run: list[int] = []
    state = False

    def flush() -> None:
        if run:
            spans.append(encoder.span_of_ids(list(run)))
            learn.append(state)
            run.clear()

    for piece in pieces:
        if isinstance(piece, Media):
            flush()
            if media is None:
                raise UsageError("chat: a message holds a picture, but this model reads text alone")
            found = media(piece.part)
            spans += found
            learn += [False] * len(found)
            continue
        if piece.learn != state:
            flush()
            state = piece.learn
        run += encode_pieces([piece], encoder.vocabulary).ids
    flush()
    return spans, learn

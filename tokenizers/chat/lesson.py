"""A conversation in an official form as something to learn from: spans, and the weight of every token.

The forms say which pieces are whose, so a message's weight falls on what its author would have written: for an assistant
everything after the opening up to and including the end of the message, for a user the same part of theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from watersmeet.core.errors import ConfigError, UsageError
from watersmeet.core.stream import Span
from watersmeet.tokenizers.chat import k2, xtml
from watersmeet.tokenizers.chat.messages import Picture, conversation
from watersmeet.tokenizers.chat.options import ChatOptions
from watersmeet.tokenizers.chat.pieces import Media, Piece, Pieces, encode_pieces

PartWeights = Sequence[tuple[str, float]] | None
"""Texts of a message's parts in order, each with its weight; None: the message has one weight for all of it."""


def lesson(
    chat: Any,
    messages: Sequence[Mapping[str, Any]],
    encoder: Any,
    media: Callable[[Picture], list[Span]],
    weights: Sequence[float],
    parts: Sequence[PartWeights],
    *,
    tools: Any = None,
    thinking: bool | None = None,
) -> tuple[list[Span], list[torch.Tensor]]:
    """(spans, float32 weights [n] of each span's tokens) of OpenAI-style messages in the form of `chat`.

    weights, parts: one entry a message. Only messages of users and assistants can have a weight: what else a form says in
    the system's name is not all written by somebody. Raises UsageError and ConfigError for messages the form cannot hold.
    """
    wrong = [i for i, (m, w) in enumerate(zip(messages, weights, strict=True)) if w and m["role"] not in _LEARNT]
    if wrong:
        role = messages[wrong[0]]["role"]
        raise UsageError(
            f"chat: message {wrong[0]} ({role}) has weight {weights[wrong[0]]:g}, but only messages of users and "
            "assistants can be learnt in this form; set it to 0"
        )
    talk = conversation(list(messages), tools or None)
    k2_form = chat.vocabulary.generation == "k2"
    pieces = chat.pieces(talk, ChatOptions(thinking=thinking, generate=False))
    waiting = {role: [i for i, m in enumerate(messages) if m["role"] == role] for role in _LEARNT}
    spans: list[Span] = []
    columns: list[torch.Tensor] = []
    ids: list[int] = []
    learnt: list[float] = []

    def flush() -> None:
        if ids:
            spans.append(encoder.span_of_ids(list(ids)))
            columns.append(torch.tensor(learnt, dtype=torch.float32))
            ids.clear()
            learnt.clear()

    for segment in _segments(pieces, k2.END if k2_form else xtml.END):
        role = _role(segment, k2_form)
        index = waiting[role].pop(0) if role in _LEARNT and waiting[role] else None
        weight = 0.0 if index is None else weights[index]
        own = None if index is None else parts[index]
        for piece, values in _weighed(segment, weight, own, k2_form, role, encoder, index):
            if isinstance(piece, Media):
                flush()
                for span in media(piece.part):
                    spans.append(span)
                    columns.append(torch.zeros(span.n))
                continue
            fresh = encode_pieces([piece], encoder.vocabulary).ids
            ids += fresh
            learnt += values if isinstance(values, list) else [values] * len(fresh)
    flush()
    if left := [i for rest in waiting.values() for i in rest]:
        raise UsageError(f"chat: message {min(left)} does not appear in what the checkpoint's template makes of this")
    return spans, columns


_LEARNT = ("user", "assistant")


def _segments(pieces: Pieces, end: str) -> list[Pieces]:
    """One list a message, its end included."""
    out: list[Pieces] = [[]]
    for piece in pieces:
        out[-1].append(piece)
        if isinstance(piece, Piece) and piece.control and piece.text == end:
            out.append([])
    return [segment for segment in out if segment]


def _role(segment: Pieces, k2_form: bool) -> str:
    named = [piece for piece in segment if isinstance(piece, Piece)]
    if k2_form:
        controls = {piece.text for piece in named if piece.control}
        return next((role for role in _LEARNT if f"<|im_{role}|>" in controls), "")
    texts = [piece.text for piece in named]
    return texts[texts.index(" role") + 2] if " role" in texts else ""


def _weighed(
    segment: Pieces, weight: float, own: PartWeights, k2_form: bool, role: str, encoder: Any, index: int | None
) -> list[tuple[Piece | Media, float | list[float]]]:
    """Every piece with one weight for its tokens, or with a list of them where it holds parts of different weights."""
    begin, body, hidden = (k2.MIDDLE if k2_form else xtml.SEP), False, False
    left = list(own or ())
    out: list[tuple[Piece | Media, float | list[float]]] = []
    before = ""
    for piece in segment:
        if isinstance(piece, Media):
            out.append((piece, 0.0))
            before = ""
            continue
        learn = body and (k2_form or role != "assistant" or piece.learn)
        value: float | list[float] = weight if learn else 0.0
        if piece.control:
            body = body or piece.text == begin
            hidden = (hidden or piece.text == k2.THINK) and piece.text != k2.THINK_END
        elif body and before in (xtml.OPEN, xtml.CLOSE):
            # the name of an element; what stands in a thought is no part of the content
            hidden = (before == xtml.OPEN and piece.text == "think") or (hidden and before == xtml.OPEN)
        elif learn and left and not hidden:
            value = _by_part(piece.text, left, encoder, weight)
        before = piece.text if piece.control else ""
        out.append((piece, value))
    if left:
        raise ConfigError(
            f"chat: the parts of message {index} cannot be told apart in what the checkpoint's template makes of them; give "
            "the message one weight"
        )
    return out


def _by_part(text: str, left: list[tuple[str, float]], encoder: Any, weight: float) -> float | list[float]:
    """Weights of a text's tokens when it is the next parts joined, which are then taken from `left`; else `weight`."""
    taken, joined = 0, ""
    while joined != text:
        if taken == len(left) or not text.startswith(joined):
            return weight
        joined += left[taken][0]
        taken += 1
    ends, total = [], 0
    for part, value in left[:taken]:
        total += len(part.encode("utf-8", "replace"))
        ends.append((total, value))
    del left[:taken]
    [span] = encoder.encode(text)
    # a token that two parts share (" blue" behind a part that ends in a space) is weighed as the part in which it ends
    return [next((value for end, value in ends if stop <= end), ends[-1][1]) for _, stop in span.source]

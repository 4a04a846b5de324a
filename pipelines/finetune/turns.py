"""How messages are told apart in our own vocabularies, and a row as spans with the weight of every token.

An official vocabulary has a form of conversations that goes with it; here are those that have none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from watersmeet.core.errors import ConfigError
from watersmeet.core.stream import NO_TARGET, Span, Stream, supervise
from watersmeet.pipelines.finetune.rows import ROLES, Item, Row, RowError, Symbols, Text

END = "</s>"
DEFAULT_ROLES = {"system": 0.0, "user": 0.0, "assistant": 1.0, "tool": 0.0}


@dataclass(frozen=True, kw_only=True)
class Delimiters:
    """Control symbols at the beginning of a stream, and before and after the messages of each role.

    Without an opening for users and assistants the end of a question shows only in what it holds, so a row may then be one
    question and one answer (`alone`).
    """

    begin: tuple[str, ...] = ()
    opening: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    closing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def alone(self) -> bool:
        """Whether a row may hold one question and one answer only."""
        return not (self.opening.get("user") and self.opening.get("assistant"))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as a checkpoint keeps them."""
        return {
            "begin": list(self.begin),
            "opening": {role: list(names) for role, names in self.opening.items()},
            "closing": {role: list(names) for role, names in self.closing.items()},
        }

    @classmethod
    def of(cls, values: Mapping[str, Any], encoder: Any) -> Delimiters:
        """From plain values. Raises ConfigError for unknown keys, roles and symbols."""
        if unknown := sorted(set(values) - {"begin", "opening", "closing"}):
            raise ConfigError(f"turns has an unknown key {unknown[0]!r}, expected begin, opening and closing")
        parts = {key: dict(values.get(key, {})) for key in ("opening", "closing")}
        for key, table in parts.items():
            if wrong := sorted(set(table) - set(ROLES)):
                raise ConfigError(f"turns.{key} names a role {wrong[0]!r}, expected {', '.join(ROLES)}")
        made = cls(
            begin=tuple(values.get("begin", ())),
            opening={role: tuple(names) for role, names in parts["opening"].items()},
            closing={role: tuple(names) for role, names in parts["closing"].items()},
        )
        for names in (made.begin, *made.opening.values(), *made.closing.values()):
            encoder.encode_markup(names)
        return made


def default_delimiters(encoder: Any) -> Delimiters:
    """`<user>`, `<assistant>`, ... where the vocabulary has such symbols; the end symbol after an answer in any case."""
    named = {role: (f"<{role}>",) for role in ROLES if f"<{role}>" in encoder.symbols}
    opening = named if "user" in named and "assistant" in named else {}
    if encoder.eos_id < 0:
        raise ConfigError("the vocabulary has no end symbol, so an answer could not end; say how with turns.closing")
    return Delimiters(opening=opening, closing={"assistant": (END,)})


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """Spans of a row and, for each, the weight with which each of its tokens is learnt, float32 [n]."""

    spans: tuple[Span, ...]
    weights: tuple[torch.Tensor, ...]

    @property
    def n(self) -> int:
        """Number of tokens."""
        return sum(span.n for span in self.spans)

    def stream(self) -> Stream:
        """The stream to train on: a position carries the target and the weight of the token after it."""
        stream = supervise(self.spans, [bool((w > 0).any()) for w in self.weights])
        following = torch.cat([*self.weights, torch.zeros(1)])[1:]
        spans = []
        for span, weight in zip(stream.spans, following.split([s.n for s in stream.spans]), strict=True):
            assert span.targets is not None
            targets = torch.where(weight > 0, span.targets, NO_TARGET)
            spans.append(replace(span, targets=targets, weight=weight.contiguous()))
        return Stream(spans=tuple(spans))


def turn_weight(row: Row, index: int, roles: Mapping[str, float]) -> float:
    """Weight of a message: its own, else that of its role."""
    turn = row.turns[index]
    return roles[turn.role] if turn.weight is None else turn.weight


def native_lesson(
    row: Row, delimiters: Delimiters, encoder: Any, encode: Callable[[Item], Sequence[Span]], roles: Mapping[str, float]
) -> Lesson:
    """Spans and weights in a vocabulary without a form of its own.

    encoder: of what the model writes. encode: spans of an item. What opens a message is given, not learnt; what closes it
    is learnt like the message. Raises RowError for what this form cannot hold.
    """
    answers = [index for index, turn in enumerate(row.turns) if turn.role == "assistant"]
    if delimiters.alone and answers != [len(row.turns) - 1]:
        raise RowError(
            f"{row.where}: has {len(answers)} answers, but this model's vocabulary has no symbols that tell messages apart, "
            "so a row may hold one, at its end; say which symbols do with turns.opening"
        )
    made = _weighed_spans(row, delimiters, encoder, encode, roles)
    columns = tuple(torch.full((span.n,), weight) for span, weight in made)
    return Lesson(spans=tuple(span for span, _ in made), weights=columns)


def native_prompt(
    row: Row, delimiters: Delimiters, encoder: Any, encode: Callable[[Item], Sequence[Span]]
) -> list[Span]:
    """Spans of a conversation up to where the model's next answer begins: what `native_lesson` puts before it."""
    if delimiters.alone and any(turn.role == "assistant" for turn in row.turns):
        raise RowError(
            f"{row.where}: holds an answer already, but this model was trained on one question and one answer; ask anew"
        )
    spans = [span for span, _ in _weighed_spans(row, delimiters, encoder, encode, DEFAULT_ROLES)]
    opening = delimiters.opening.get("assistant", ())
    return [*spans, encoder.encode_markup(opening)] if opening else spans


def _weighed_spans(
    row: Row, delimiters: Delimiters, encoder: Any, encode: Callable[[Item], Sequence[Span]], roles: Mapping[str, float]
) -> list[tuple[Span, float]]:
    _check(row)
    out: list[tuple[Span, float]] = []

    def add(fresh: Sequence[Span], weight: float) -> None:
        out.extend((span, weight) for span in fresh if span.n)

    def symbols(names: Sequence[str], weight: float) -> None:
        if names:
            add([encoder.encode_markup(names)], weight)

    symbols(delimiters.begin, 0.0)
    for index, turn in enumerate(row.turns):
        own = turn_weight(row, index, roles)
        symbols(delimiters.opening.get(turn.role, ()), 0.0)
        for place, part in enumerate(turn.parts):
            weight = own if part.weight is None else part.weight
            where = f"{row.where}: messages[{index}].content[{place}]"
            if isinstance(part, Text):
                add(encoder.encode(part.text), weight)
            elif isinstance(part, Symbols):
                try:
                    symbols(part.names, weight)
                except ConfigError as error:
                    raise RowError(f"{where}.symbols: {error}") from error
            elif part.weight:
                raise RowError(
                    f"{where} of type {part.kind!r} has weight {part.weight:g}, but the model does not write such; leave "
                    "the weight out"
                )
            else:
                add(encode(part), 0.0)
        symbols(delimiters.closing.get(turn.role, ()), own)
    return out


def _check(row: Row) -> None:
    for index, turn in enumerate(row.turns):
        if turn.extra:
            name = next(iter(turn.extra))
            raise RowError(
                f"{row.where}: messages[{index}].{name}: this model's vocabulary has no form for it; leave it out"
            )
    if row.tools:
        raise RowError(f"{row.where}: tools: this model's vocabulary has no form for them; leave them out")

"""Ask a local model what happens in a recording, turn by turn.

The recording is one stream: what is seen of a turn is read behind all that was seen and said before, and what the model
says of it is read again with the next turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from watersmeet.core.errors import UsageError
from watersmeet.core.stream import Span, Stream, pack
from watersmeet.pipelines.models.local import LocalModel
from watersmeet.pipelines.models.threads import one_thread
from watersmeet.pipelines.video_to_spec import markup
from watersmeet.pipelines.video_to_spec.grammar import StepGrammar
from watersmeet.pipelines.video_to_spec.likely import Likely, likely
from watersmeet.pipelines.video_to_spec.prior import Prior
from watersmeet.pipelines.video_to_spec.prompt import Memory, follow, prompt_of
from watersmeet.pipelines.video_to_spec.spec import Spec
from watersmeet.pipelines.video_to_spec.watch.sight import Sight

CONTEXT = 2048  # tokens of the longest stream that models of this project have learnt from
_OVERLAP = 640  # of these are read again when a new stream begins
_EQUAL = 0.35  # probability of a second reading that leaves a doubt


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The specification, what did not fit, how many tokens were read and written, and the markup of each turn."""

    spec: Spec
    warnings: tuple[str, ...]
    read: int
    written: int
    markups: tuple[tuple[str, ...], ...]


def ask_steps(
    model: LocalModel,
    sight: Sight,
    *,
    blank: bool = False,
    max_tokens: int = 48,
    context: int = CONTEXT,
    progress: Callable[[float], None] = lambda share: None,
) -> Asked:
    """What `model` says of `sight`. blank: it does not see the patches. max_tokens: of what is said about one turn.
    context: tokens of one stream; of a longer recording the next stream begins with the last turns of the one before.

    Raises UsageError for a model without the modalities or the symbols that this takes.
    """
    missing = [name for name in ("video", "regions", "text") if name not in model.encoders]
    if missing:
        raise UsageError(f"the model {model.name} does not read {' and '.join(missing)}; take nano or one made from it")
    reader = markup.Reader(sight.source, blind=not sight.pointer)
    markups: list[tuple[str, ...]] = []
    with one_thread(), torch.inference_mode(), model.model.fused():
        talk = _Talk(model, context)
        for number, turn in enumerate(sight.turns):
            prompt = prompt_of(turn, talk.memory, model.encoders, blank=blank)
            seen = [screen.first_seen_s for screen in reader.screens]
            mask = talk.grammar.mask(turn.observed, screens=seen)
            said = talk.say(prompt, mask, max_tokens, likely(turn, talk.memory, blind=not sight.pointer))
            reader.read(
                markup.Written(
                    observed=turn.observed, markup=said.symbols, confidences=said.confidences, doubts=said.doubts
                )
            )
            markups.append(tuple(said.symbols))
            follow(talk.memory, turn, said.symbols)
            progress((number + 1) / len(sight.turns))
    decoded = reader.done()
    return Asked(
        spec=decoded.spec,
        warnings=decoded.warnings,
        read=talk.read,
        written=talk.written,
        markups=tuple(markups),
    )


@dataclass(frozen=True, kw_only=True)
class _Said:
    symbols: list[str]
    confidences: list[float]
    doubts: list[markup.Doubt]


@lru_cache(maxsize=2)
def _grammar(text: Any) -> StepGrammar:
    return StepGrammar(text.symbols, text.vocab_size, text.eos_id)


class _Talk:
    """A stream that grows by what is seen and what is said."""

    def __init__(self, model: LocalModel, context: int) -> None:
        self.model, self.text, self.context = model.model, model.encoders["text"], context
        self.grammar = _grammar(self.text)
        self.names = {index: name for name, index in self.text.symbols.items()}
        self._prior = Prior(self.text.symbols, self.text.eos_id)
        self._actions = {self.text.symbols[symbol]: action for action, symbol in markup.DO.items()}
        self.memory = Memory()
        self.read = self.written = 0
        self._turns: list[list[Span]] = []  # of this stream, each with its answer
        self._cache = self.model.new_cache(1)
        self._length = 0

    def say(self, prompt: Sequence[Span], mask: Any, max_tokens: int, known: Likely) -> _Said:
        """What the model says of a turn, and the turn becomes part of the stream. known: what plain code takes for likely."""
        size = sum(span.n for span in prompt)
        if self._turns and self._length + size + max_tokens > self.context:
            self._begin_anew(size + max_tokens)
        hidden = self._feed(prompt)
        ids: list[int] = []
        chances: list[dict[int, float]] = []
        while len(ids) < max_tokens:
            prior = self._prior.after(ids, known)
            token, chance = _choose(
                self.model.logits(hidden), mask.allowed(max_tokens - len(ids)), self._actions, prior
            )
            mask.accept(token)
            chances.append(chance)
            ids.append(token)
            hidden = self.model.step(self.model.embed_ids(torch.tensor([token])), self._cache)
            if token == self.text.eos_id:
                break
        self._length += len(ids)
        self.written += len(ids)
        self._turns.append([*prompt, self.text.span_of_ids(ids)])
        return self._said([i for i in ids if i != self.text.eos_id], chances)

    def _feed(self, spans: Sequence[Span]) -> torch.Tensor:
        stream = pack([Stream(spans=tuple(spans))], self.model.modality_names)
        count = sum(span.n for span in spans)
        self._length += count
        self.read += count
        return self.model.prefill(self._cache, stream)

    def _begin_anew(self, needed: int) -> None:
        kept: list[list[Span]] = []
        total = 0
        for turn in reversed(self._turns):
            size = sum(span.n for span in turn)
            if total + size > _OVERLAP or total + size + needed > self.context:
                break
            kept.insert(0, turn)
            total += size
        self._cache, self._length, self._turns = self.model.new_cache(1), 0, kept
        if kept:
            self._feed([span for turn in kept for span in turn])

    def _said(self, ids: list[int], chances: list[dict[int, float]]) -> _Said:
        actions = self._actions
        confidences: list[float] = []
        doubts: list[markup.Doubt] = []
        for token, chance in zip(ids, chances, strict=False):
            if token in actions:
                confidences.append(1.0)
                others = [(p, other) for other, p in chance.items() if other in actions and other != token]
                best = max(others, default=(0.0, token))
                if best[0] >= _EQUAL:
                    doubts.append(markup.Doubt(step=len(confidences) - 1, other=actions[best[1]]))
            if confidences:
                confidences[-1] *= chance.get(token, 1.0)
        return _Said(
            symbols=[self.names[i] for i in ids],
            confidences=[round(min(1.0, max(0.0, one)), 4) for one in confidences],
            doubts=doubts,
        )


def _choose(
    logits: torch.Tensor, allowed: np.ndarray, wanted: dict[int, str], prior: Mapping[int, float]
) -> tuple[int, dict[int, float]]:
    """(the likeliest allowed id, probabilities among the allowed ones of it and of the ids `wanted`). prior: added to logits."""
    values = logits[0].float().cpu().numpy().astype(np.float64)
    for index, more in prior.items():
        values[index] += more
    values = np.where(allowed, values, -np.inf)
    token = int(values.argmax())
    chances = np.exp(values - values[token])
    total = float(chances.sum())
    return token, {i: float(chances[i]) / total for i in (token, *wanted)}

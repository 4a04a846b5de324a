"""Writing ids one after the other: greedy or sampled, under a mask, many streams at a time.

Legend of shapes: N streams still running, D hidden width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from watersmeet.core.errors import UsageError
from watersmeet.core.model import Model
from watersmeet.core.stream import Stream, pack


class LogitMask(Protocol):
    """A grammar, or any other rule about what may come next; one object a stream."""

    def allowed(self, remaining: int) -> NDArray[np.bool_] | torch.Tensor:
        """[V] bool, which ids may come next when `remaining` ids (this one included) may still be written.

        At least one must be True; with `remaining` at hand a mask can force its end in time.
        """
        ...

    def accept(self, token: int) -> None:
        """Told of every id that was chosen, the end id too."""
        ...


@dataclass(frozen=True, kw_only=True)
class GenerateResult:
    """ids without the end id; logprob: sum of the chosen ids' log probabilities (nats, among the allowed ids, at
    temperature 1, the end id included); stopped: True when an end id was written, False when the budget ran out;
    stop_id: the end id that was written, or None."""

    ids: list[int]
    logprob: float
    stopped: bool
    stop_id: int | None = None


@dataclass
class _Writer:
    """State of one stream."""

    index: int
    mask: LogitMask | None
    rng: np.random.Generator
    ids: list[int]
    logprob: float = 0.0
    stop_id: int | None = None

    def choose(self, logits_V: NDArray[np.float32], remaining: int, temperature: float, top_p: float) -> int:
        """Pick the next id, account for its probability and tell the mask."""
        logits = logits_V.astype(np.float64)
        if self.mask is not None:
            allowed = np.asarray(self.mask.allowed(remaining), dtype=bool)
            if allowed.shape != logits.shape:
                raise UsageError(
                    f"generate: the mask of prompt {self.index} has shape {allowed.shape} but the vocabulary has "
                    f"{len(logits)} ids; build it for this model's vocabulary"
                )
            if not allowed.any():
                raise UsageError(
                    f"generate: the mask of prompt {self.index} allows no id after {len(self.ids)} ids; "
                    "a mask must always leave one"
                )
            logits = np.where(allowed, logits, -np.inf)
        if temperature == 0.0:
            token = int(logits.argmax())
        else:
            token = _sample(logits / temperature, top_p, self.rng.random())
        top = logits.max()
        self.logprob += float(logits[token] - top - np.log(np.exp(logits - top).sum()))
        if self.mask is not None:
            self.mask.accept(token)
        return token


def _sample(logits: NDArray[np.float64], top_p: float, draw: float) -> int:
    """Inverse of the cumulative distribution over the smallest set of best ids that holds `top_p` of the probability."""
    probability = np.exp(logits - logits.max())
    probability /= probability.sum()
    order = np.argsort(-probability, kind="stable")
    cumulative = probability[order].cumsum()
    kept = min(int(np.searchsorted(cumulative, top_p)) + 1, int((probability > 0).sum()))
    return int(order[min(int(np.searchsorted(cumulative[:kept], draw * cumulative[kept - 1], side="right")), kept - 1)])


def generate(
    model: Model,
    prompts: Sequence[Stream],
    *,
    max_new_tokens: int,
    eos_id: int | Collection[int] | None,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    mask: Sequence[LogitMask | None] | None = None,
    on_token: Callable[[int, int], None] | None = None,
    chunk: int = 2048,
) -> list[GenerateResult]:
    """Continue every prompt by up to `max_new_tokens` ids of the output modality.

    temperature 0 is greedy. Each prompt draws from its own generator, seeded by (seed, index), so a result does not
    depend on which other prompts share the batch. `mask`: one LogitMask (or None) a prompt. `on_token(prompt, id)` is
    called for every chosen id. Streams that wrote `eos_id`, or one of several, leave the batch. `chunk`: tokens read at once from prompts.
    """
    if mask is not None and len(mask) != len(prompts):
        raise UsageError(f"generate: got {len(mask)} masks for {len(prompts)} prompts; give one (or None) a prompt")
    if temperature < 0.0 or not 0.0 < top_p <= 1.0:
        raise UsageError(f"generate: temperature {temperature} and top_p {top_p}, expected >= 0 and 0 < top_p <= 1")
    ends = frozenset([eos_id] if isinstance(eos_id, int) else eos_id or ())
    masks = [None] * len(prompts) if mask is None else list(mask)
    writers = [
        _Writer(i, one, np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, i]))), [])
        for i, one in enumerate(masks)
    ]
    running = list(writers)
    if not prompts or max_new_tokens <= 0:
        return [GenerateResult(ids=[], logprob=0.0, stopped=False) for _ in writers]
    device = model.lm_head.weight.device
    with torch.inference_mode(), model.fused():
        cache = model.new_cache(len(prompts))
        hidden_ND = model.prefill(cache, pack(prompts, model.modality_names).to(device), chunk=chunk)
        for written in range(max_new_tokens):
            logits_NV = model.logits(hidden_ND).cpu().numpy()
            chosen, alive = [], []
            for row, (writer, logits_V) in enumerate(zip(running, logits_NV, strict=True)):
                token = writer.choose(logits_V, max_new_tokens - written, temperature, top_p)
                if on_token is not None:
                    on_token(writer.index, token)
                if token in ends:
                    writer.stop_id = token
                    continue
                writer.ids.append(token)
                chosen.append(token)
                alive.append(row)
            if not alive or written + 1 == max_new_tokens:
                break
            if len(alive) < len(running):
                cache.select(alive)
                running = [running[row] for row in alive]
            hidden_ND = model.step(model.embed_ids(torch.tensor(chosen, device=device)), cache)
    return [
        GenerateResult(ids=w.ids, logprob=w.logprob, stopped=w.stop_id is not None, stop_id=w.stop_id) for w in writers
    ]

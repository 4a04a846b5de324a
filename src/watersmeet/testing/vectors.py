"""Checks 9, 10 and 12: what the embedder gives. Shapes: n tokens, D hidden size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from watersmeet.core.stream import Segment, Span, Stream, pack
from watersmeet.kernels.dispatch import forced
from watersmeet.plugins.guard import describe
from watersmeet.testing.checks import CheckFailure
from watersmeet.testing.loading import spec_is_there
from watersmeet.testing.subject import Subject


def _own(subject: Subject, spans: Sequence[Span]) -> Segment:
    """The tokens of the modality in some spans, as its embedder would get them."""
    found = pack([Stream(spans=tuple(spans))]).segment(subject.spec.name)
    assert found is not None  # check 4 saw one
    return found


def _embed(embedder: Any, part: Segment) -> torch.Tensor:
    vectors: torch.Tensor = embedder(part.data, part.coords, part.time_us)
    return vectors


def embeds_every_count(subject: Subject) -> None:
    """9: the right shape and dtype, and gradients for everything, also of nothing."""
    spec_is_there(subject)
    embedder = subject.new_embedder()
    if not isinstance(embedder, nn.Module):
        raise CheckFailure(f"the embedder is a {type(embedder).__name__}, expected a torch.nn.Module")
    part = _own(subject, subject.examples[0].spans)
    empty = Segment(
        modality=part.modality,
        data=part.data[:0],
        coords=part.coords[:0],
        time_us=None if part.time_us is None else part.time_us[:0],
        positions=part.positions[:0],
    )
    for dtype in (torch.float32, torch.bfloat16):
        embedder.to(dtype)
        for segment in (part, empty):
            _check_vectors(embedder, segment, dtype, subject.hidden_size)


def _check_vectors(embedder: nn.Module, part: Segment, dtype: torch.dtype, width: int) -> None:
    where = f"with {part.n} tokens and weights in {str(dtype).removeprefix('torch.')}"
    embedder.zero_grad(set_to_none=True)
    try:
        vectors = _embed(embedder, part)
    except Exception as error:  # the plugin's own code
        raise CheckFailure(f"{where} the embedder raised {describe(error)}") from error
    if not isinstance(vectors, torch.Tensor) or vectors.shape != (part.n, width):
        shape = tuple(vectors.shape) if isinstance(vectors, torch.Tensor) else type(vectors).__name__
        raise CheckFailure(f"{where} it gave {shape}, expected ({part.n}, {width})")
    has_weights = any(parameter.requires_grad for parameter in embedder.parameters())
    if has_weights and vectors.dtype != dtype:
        raise CheckFailure(f"{where} it gave {str(vectors.dtype).removeprefix('torch.')}")
    if not bool(torch.isfinite(vectors).all()):
        raise CheckFailure(f"{where} it gave NaN or infinity")
    if not has_weights:
        return
    if not vectors.requires_grad:
        raise CheckFailure(f"{where} its result has no gradient")
    vectors.sum().backward()
    without = [name for name, p in embedder.named_parameters() if p.requires_grad and p.grad is None]
    if without:
        raise CheckFailure(f"{where} parameter {without[0]} gets no gradient, not even zero")


def embeds_items_apart(subject: Subject) -> None:
    """10: an item's vectors are the same alone and beside others."""
    spec_is_there(subject)
    embedder = subject.new_embedder().eval()
    # rounding depends on how many rows a product has; float64 tells it from a leak
    dtype, tolerance = torch.float64, 1e-9
    try:
        embedder.to(dtype)
        _embed(embedder, _own(subject, subject.examples[0].spans))
    except Exception:  # whether it fails in float32 too is check 9's affair
        embedder, dtype, tolerance = subject.new_embedder().eval(), torch.float32, 1e-4
    with torch.no_grad():
        first, second = subject.examples[0], subject.examples[1]
        alone = [_embed(embedder, _own(subject, one.spans)) for one in (first, second)]
        for order in ((0, 1), (1, 0)):
            both = [(first, second)[index] for index in order]
            joined = _embed(embedder, _own(subject, [*both[0].spans, *both[1].spans]))
            expected = torch.cat([alone[index] for index in order])
            scale = max(float(expected.abs().max()), 1e-6)
            off = float((joined - expected).abs().max()) / scale
            if off > tolerance:
                raise CheckFailure(
                    f"items {order[0]} and {order[1]} embedded together differ by {off:.1e} (relative) from each alone"
                )


def samples_stay_apart(subject: Subject) -> None:
    """12: in a whole model that trains, another sample of the batch changes nothing of this one."""
    spec_is_there(subject)
    model = _model(subject)
    model.eval()
    # statistics over a batch leak only while a model trains
    model.embedders[subject.spec.name].train()
    first, second = subject.examples[0], subject.examples[1]
    changed = _with_other_content(first.spans, second.spans, subject.spec.name)
    kept = Stream(spans=second.spans)
    for front in (True, False):
        results = []
        for other in (first.spans, changed):
            streams = [Stream(spans=other), kept] if front else [kept, Stream(spans=other)]
            packed = pack(streams, model.modality_names)
            torch.manual_seed(0)
            # the torch forms need no compiler, for which somebody's first check would wait a minute
            with torch.no_grad(), forced("chunked"):
                hidden = model(packed)
            results.append(hidden[-kept.n :] if front else hidden[: kept.n])
        if not torch.equal(*results):
            off = float((results[0] - results[1]).abs().max())
            side = "before" if front else "after"
            raise CheckFailure(f"changing the sample {side} it changed a sample of the same batch by {off:.1e}")


def _with_other_content(spans: Sequence[Span], others: Sequence[Span], modality: str) -> tuple[Span, ...]:
    """The same spans with the other item's data, repeated to fit: every count and place stays."""
    data = torch.cat([span.data for span in others if span.modality == modality])
    changed = []
    for span in spans:
        if span.modality == modality:
            rows = (torch.arange(span.n) * 7 + 1) % len(data)
            span = replace(span, data=data[rows])
        changed.append(span)
    return tuple(changed)


def _model(subject: Subject) -> Any:
    """A small dense model: experts regroup their rows with every batch, which alone changes the last bits."""
    from watersmeet.core.config import preset
    from watersmeet.core.model.model import Model

    config = preset("micro")
    config = config.replace(first_k_dense_replace=config.num_hidden_layers, output_modality="text")
    embedders: dict[str, nn.Module] = {}
    for name in {span.modality for one in subject.examples for span in one.spans} | {subject.spec.name, "text"}:
        if name == subject.spec.name:
            embedders[name] = subject.new_embedder(config.hidden_size)
        else:
            embedders[name] = subject.registry.embedder(name, config.hidden_size, {"vocab_size": config.vocab_size})
    torch.manual_seed(0)
    return Model(config, dict(sorted(embedders.items())))

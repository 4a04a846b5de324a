"""`watersmeet models new`: a small model to teach from nothing, with the vocabulary of the rows that it will be taught."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from watersmeet.cli.graft import check_names, modality_settings
from watersmeet.core.config import PRESETS
from watersmeet.core.errors import UsageError
from watersmeet.plugins.registry import get_registry


def new_command(
    out: Path,
    *,
    rows: Sequence[Path],
    shape: str,
    modality: str | None,
    assignments: Sequence[str],
    vocab: int,
    seed: int,
) -> str:
    """Write the model folder `out`, to be taught with `watersmeet finetune`; returns the closing line.

    rows: files of conversations, whose texts and symbols make the vocabulary. modality: names joined by commas. assignments:
    MODALITY.KEY=VALUE for their encoders. Raises UsageError for an unknown preset or modality, else what reading the rows and
    `new_model` raise.
    """
    from watersmeet.pipelines.finetune.rows import ROLES, Item, Row, Symbols, Text, parse_row
    from watersmeet.pipelines.finetune.sources import open_source
    from watersmeet.pipelines.models.fresh import new_model

    if shape not in PRESETS:
        raise UsageError(f"--preset is {shape!r}, expected one of {', '.join(PRESETS)}")
    registry = get_registry()
    names = [] if modality is None else check_names(registry, modality)
    if assignments and not names:
        raise UsageError("--set changes an encoder of a modality; name it with --modality")
    settings = modality_settings(names, assignments)
    kinds = [spec.name for spec in registry.modalities()]

    def every_row() -> Iterator[Row]:
        for path in rows:
            source = open_source(path)
            for index in range(len(source)):
                yield parse_row(source.line(index), source.where(index), kinds)

    texts: list[str] = []
    symbols = [f"<{role}>" for role in ROLES]
    for row in every_row():
        for part in (part for turn in row.turns for part in turn.parts):
            if isinstance(part, Text):
                texts.append(part.text)
            elif isinstance(part, Symbols):
                symbols += [name for name in part.names if name not in symbols]
            elif isinstance(part, Item) and not names:
                raise UsageError(
                    f"{row.where} holds {part.kind!r}, but the new model would read text alone; name what reads it with --modality"
                )
    model = new_model(out, texts=texts, symbols=symbols, modalities=settings, shape=shape, vocab_size=vocab, seed=seed)
    total = sum(parameter.numel() for parameter in model.parameters())
    reads = ", ".join(model.embedders)
    return (
        f"{out}: {shape}, {total:,} parameters, {model.config.vocab_size} ids, reads {reads}; it has learnt nothing yet"
    )

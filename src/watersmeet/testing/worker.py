"""What runs in a spawned process, and how spans are compared across processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from watersmeet.core.stream import Span

Print = tuple[bytes, bytes]
"""Digest of a span's columns, and its key."""


def columns(span: Span) -> bytes:
    """Digest of everything in a span but its key."""
    from watersmeet.core.stream import content_key

    return content_key(
        span.modality, span.data, span.coords, span.time_us, span.block, span.targets, span.weight, _plain(span.source)
    )


def prints(spans: Sequence[Span]) -> list[Print]:
    """Columns and keys, in order."""
    return [(columns(span), span.key) for span in spans]


def _plain(source: Any) -> Any:
    if isinstance(source, (list, tuple)):
        return [_plain(value) for value in source]
    return source if isinstance(source, (int, float, str, bytes, bool, type(None))) else repr(source)


def encode_there(modality: str, encoder: Any, items: Sequence[Any]) -> tuple[str, list[list[Print]]]:
    """In a worker: the package that brings the modality here, and the prints of all items."""
    return owner_of(modality)[1], [prints(encoder.encode(item)) for item in items]


def owner_of(modality: str) -> tuple[str, str]:
    """Plugin and package that bring a modality in this process."""
    from watersmeet.plugins.registry import get_registry

    record = get_registry().modality_owner(modality)
    return record.plugin, record.distribution


@dataclass(frozen=True)
class OwnersOf:
    """A data set whose samples are the owners of some modalities, as the worker that reads it sees them."""

    modalities: Sequence[str]

    def __len__(self) -> int:
        return len(self.modalities)

    def __getitem__(self, index: int) -> tuple[str, str]:
        return owner_of(self.modalities[index])

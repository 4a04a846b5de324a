"""What the classes named by a spec look like. Protocols only: a plugin need not inherit from anything here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch

    from watersmeet.core.stream import Span

Settings = Mapping[str, Any]
"""Plain values that can be written as JSON; a checkpoint keeps those of every modality it was trained with.

The key "files" is special: it maps file names to bytes that a checkpoint keeps beside the settings, and is given
back to the encoder when the checkpoint is loaded.
"""


@runtime_checkable
class Encoder(Protocol):
    """`Encoder(settings)`; turns one item into spans. Pure, on CPU, without weights, picklable.

    `settings` is the complete set with defaults filled in and without "files"; `files` are the bytes that belong to it
    (often empty). `Encoder({**settings, "files": files})` makes an equal encoder in another process.
    """

    settings: dict[str, Any]
    files: dict[str, bytes]

    def encode(self, item: Any) -> list[Span]:
        """Spans of one item. Raises DecodeError for bad media and nothing else."""
        ...


class Feed(Protocol):
    """An item that is still arriving. All spans that it gave, joined, are those of the whole item encoded at once.

    Columns are what is joined: spans come in other portions than `encode` gives them in, and a key is that of its portion.
    """

    def push(self, chunk: Any) -> list[Span]:
        """Take the next piece, of any size; give the tokens that are complete by now. Raises DecodeError for bad media."""
        ...

    def close(self) -> list[Span]:
        """There is no more: the tokens that were waiting for it. Nothing can be pushed afterwards."""
        ...


@runtime_checkable
class StreamingEncoder(Encoder, Protocol):
    """An encoder for items that arrive piece by piece: sound from a microphone, readings of a sensor. Optional."""

    def open(self) -> Feed:
        """A new item of which nothing has arrived yet. Feeds of one encoder know nothing of each other."""
        ...


@runtime_checkable
class Embedder(Protocol):
    """`Embedder(hidden_size, settings)`, a torch.nn.Module; turns the tokens of a segment into vectors."""

    def __call__(self, data: torch.Tensor, coords: torch.Tensor, time_us: torch.Tensor | None) -> torch.Tensor:
        """data [n, ...], coords [n, k] int64, time_us [n] int64 | None -> [n, hidden_size] in the weights' dtype.

        n == 0 must work and stay differentiable, so that every process of a sharded run touches every embedder.
        A token's vector must not depend on other items of the segment; on other tokens of its own item only where the
        modality is atomic and the coordinates tell where an item begins.
        """
        ...


@runtime_checkable
class Decoder(Protocol):
    """`Decoder(settings)`; turns ids that the model wrote back into an item."""

    def decode(self, ids: Sequence[int]) -> Any:
        """The whole item."""
        ...


Progress = Callable[[str, float], None]
"""Called with what is being done and the share done so far, 0 to 1."""


@runtime_checkable
class Pipeline(Protocol):
    """`Pipeline(settings)`; runs one task from input files to output files."""

    def run(self, inputs: Sequence[Any], model: Any, out_dir: Path, progress: Progress) -> Any:
        """Write the results below `out_dir` and return a `Result`. model: what the user named, or None with `own_model`."""
        ...

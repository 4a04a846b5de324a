"""A model without weights: what it answers comes from a function. Shapes: N streams, V vocabulary, n ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from watersmeet.core.errors import UsageError

if TYPE_CHECKING:
    import torch

    from watersmeet.core.stream import Packed

Reply = Callable[[str, Any], str]
"""From the prompt's text and the picture, if one was shown, to what the model shall answer."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """What a pipeline asked. picture: as it was shown, or None. max_tokens: how long an answer might be."""

    prompt: str
    picture: Any = None
    max_tokens: int = 0


@dataclass(kw_only=True)
class ScriptedModel:
    """Stands where a pipeline expects a model, whether a server's or a local one.

        model = ScriptedModel(reply=lambda prompt, picture: "yes" if "chart" in prompt else "no")

    `ask` and `ask_parts` are those of a model behind a server or one that holds conversations. `model` and `encoders` are those of a local
    one, for `watersmeet.generate`: the prompt is the text of its stream. calls: everything that was asked, in order.
    Answers are cut where the pipeline's limit cuts them.
    """

    reply: Reply
    name: str = "scripted"
    sees: bool = True
    files: dict[str, bytes] = field(init=False)
    stop_ids: tuple[int, ...] = field(init=False)
    calls: list[Call] = field(default_factory=list)
    official: None = None

    def ask(self, prompt: str, picture: Any = None, *, max_tokens: int = 8192) -> str:
        """The reply to a prompt about a picture. Raises UsageError when the function gives no text."""
        call = Call(prompt=prompt, picture=picture if self.sees else None, max_tokens=max_tokens)
        self.calls.append(call)
        text = self.reply(call.prompt, call.picture)
        if not isinstance(text, str):
            raise UsageError(f"the reply to {prompt[:40]!r} is a {type(text).__name__}, expected a text")
        return text

    def ask_parts(
        self, parts: Sequence[Any], *, max_tokens: int = 8192, schema: Mapping[str, Any] | None = None
    ) -> str:
        """The same for texts and pictures in any order: the texts, a line each, and the first picture."""
        texts = [part for part in parts if isinstance(part, str)]
        picture = next((part for part in parts if not isinstance(part, str)), None)
        return self.ask("\n".join(texts), picture, max_tokens=max_tokens)

    def __post_init__(self) -> None:
        # the built-in model's encoders are light, and everything but its weights is wanted
        from watersmeet.pipelines.models.reading import read_folder

        reading = read_folder("nano")
        self.encoders: Mapping[str, Any] = reading.encoders
        self.recipe = {"modalities": {name: dict(encoder.settings) for name, encoder in self.encoders.items()}}
        text = self.encoders["text"]
        self.files = dict(text.files)
        self.stop_ids = (text.eos_id,)
        self.model = _Trunk(self, text)


class _Trunk:
    """The few methods of a model that `generate` calls. The hidden state of a stream is its row in `_left`."""

    output = "text"

    def __init__(self, owner: ScriptedModel, encoder: Any) -> None:
        import torch

        from watersmeet.core.config import preset
        from watersmeet.plugins.registry import get_registry

        self._owner, self._encoder = owner, encoder
        self._decoder = get_registry().decoder(self.output, encoder.settings, files=encoder.files)
        self.config = preset("nano").replace(vocab_size=encoder.vocab_size, output_modality=self.output)
        self.modality_names = tuple(owner.encoders)
        self.lm_head = torch.nn.Linear(1, 1, bias=False)
        self._left: list[list[int]] = []

    @contextmanager
    def fused(self) -> Iterator[None]:
        """There is nothing to prepare."""
        yield

    def new_cache(self, num_streams: int) -> _Rows:
        """Which streams still write."""
        return _Rows(list(range(num_streams)))

    def prefill(self, cache: _Rows, packed: Packed, *, chunk: int = 2048) -> torch.Tensor:
        """Ask for the reply to every stream."""
        bounds = packed.cu_seqlens.tolist()
        segment = packed.segment(self.output)
        self._left = []
        for start, end in zip(bounds, bounds[1:], strict=False):
            ids: list[int] = []
            if segment is not None:
                inside = (segment.positions >= start) & (segment.positions < end)
                ids = [int(number) for number in segment.data[inside]]
            answer = self._owner.ask(self._decoder.decode(ids))
            written = [int(number) for span in self._encoder.encode(answer) for number in span.data]
            self._left.append([*written, self._encoder.eos_id])
        return self._next(cache)

    def step(self, x_N: torch.Tensor, cache: _Rows) -> torch.Tensor:
        """The next id of every stream that still writes."""
        for row in cache.rows:
            self._left[row] = self._left[row][1:] or [self._encoder.eos_id]
        return self._next(cache)

    def embed_ids(self, ids_n: torch.Tensor) -> torch.Tensor:
        """What was chosen changes nothing."""
        return ids_n

    def logits(self, hidden_N: torch.Tensor) -> torch.Tensor:
        """[N, V] float32, 0 for the next id and -30 for all others, so that sampling takes it too."""
        import torch

        logits_NV = torch.full((len(hidden_N), self._encoder.vocab_size), -30.0)
        return logits_NV.scatter(1, hidden_N[:, None], 0.0)

    def _next(self, cache: _Rows) -> torch.Tensor:
        import torch

        return torch.tensor([self._left[row][0] for row in cache.rows])


@dataclass
class _Rows:
    """The cache of a scripted model."""

    rows: list[int]

    def select(self, alive: list[int]) -> None:
        """Keep these."""
        self.rows = [self.rows[index] for index in alive]

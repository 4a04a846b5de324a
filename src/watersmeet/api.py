"""watersmeet from Python: `watersmeet.load("nano")` and what it can then be asked.

Nothing heavy is imported before `load` is called.
"""

from __future__ import annotations

import mimetypes
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from watersmeet.core.errors import DecodeError, UsageError

if TYPE_CHECKING:
    from PIL.Image import Image

    from watersmeet.core.stream import Span, Stream
    from watersmeet.pipelines.finetune.rows import Part, Turn
    from watersmeet.pipelines.models.local import LocalModel
    from watersmeet.pipelines.models.reading import Reading
    from watersmeet.pipelines.models.remote import RemoteModel
    from watersmeet.plugins.result import Result

Piece: TypeAlias = "str | os.PathLike[str] | Image | Mapping[str, Any]"
"""One part of a prompt: a text; a path, whose kind of file says what reads it; a picture; or {"type": T, T: value} as in a row of
training data, where T is "text", "symbols", "image", "video", "audio" or a modality, and the value a path, a data URI or whatever
the modality's encoder reads."""


@dataclass(frozen=True, kw_only=True)
class Completion:
    """What a model wrote. text: without ids that end it. ids: the same as ids. finished: it ended by itself, not for want of room.
    logprob: sum of the log probabilities of what was chosen, in nats."""

    text: str
    ids: tuple[int, ...]
    finished: bool
    logprob: float


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A model with the encoders that belong to it; `load` makes one.

    name: as it was asked for. opened: the loaded model (`opened.model` is the torch module), or a server.
    """

    name: str
    opened: LocalModel | RemoteModel

    # ---- reading ------------------------------------------------------------------------------------------------

    def encode(self, parts: Piece | Sequence[Piece]) -> Stream:
        """One part, or a list of them, as the stream that the model reads; nothing is added.

        Raises UsageError for a part that is of no known form or that the model does not read, DecodeError for media that cannot
        be read.
        """
        from watersmeet.core.stream import Stream

        spans = [span for part in self._parts(parts) for span in self._spans(part)]
        return Stream(spans=tuple(span for span in spans if span.n))

    def _parts(self, content: Any) -> tuple[Part, ...]:
        pieces = content if isinstance(content, (list, tuple)) else [content]
        return tuple(_read_part(piece, self._reading, f"part {i}") for i, piece in enumerate(pieces))

    def _spans(self, part: Part) -> Sequence[Span]:
        from watersmeet.pipelines.finetune.dataset import encode_item
        from watersmeet.pipelines.finetune.media import Media
        from watersmeet.pipelines.finetune.rows import Symbols, Text
        from watersmeet.pipelines.models.video import Sampling

        reading = self._reading
        if isinstance(part, Text):
            written: Sequence[Span] = reading.writer.encode(part.text)
            return written
        if isinstance(part, Symbols):
            return [reading.writer.encode_markup(part.names)]
        # whoever calls a function of Python may name any file
        anywhere = Media(root=Path(Path.cwd().anchor))
        return encode_item(part, reading, anywhere, Sampling.of(reading.recipe.get("video", {})))

    @property
    def _local(self) -> LocalModel:
        from watersmeet.pipelines.models.remote import RemoteModel

        if isinstance(self.opened, RemoteModel):
            raise UsageError(
                f"{self.name} is a server, which pipelines can ask with `run`; load a model folder for the rest"
            )
        return self.opened

    @property
    def _reading(self) -> Reading:
        from watersmeet.pipelines.models.reading import reading_of

        return reading_of(self._local)

    # ---- writing ------------------------------------------------------------------------------------------------

    def generate(
        self,
        parts: Piece | Sequence[Piece],
        *,
        max_new: int = 256,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int = 0,
    ) -> Completion:
        """Continue the parts as they stand; for a question to a model that was taught conversations, see `ask`.

        temperature: 0 takes the likeliest id each time. Raises what `encode` raises, and UsageError for parts that are empty.
        """
        stream = self.encode(parts)
        if not stream.n:
            raise UsageError("there is nothing to continue; give a text or something else that the model reads")
        writer = self._reading.writer
        ends = [*self._local.stop_ids, *([writer.eos_id] if writer.eos_id >= 0 else [])]
        return self._write(stream.spans, ends, max_new=max_new, temperature=temperature, top_p=top_p, seed=seed)

    def ask(
        self,
        content: Piece | Sequence[Piece],
        *,
        max_new: int = 256,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int = 0,
    ) -> Completion:
        """The answer to a question, or to a conversation, in the form that the model was taught.

        content: a part, a list of parts, or a list of messages {"role": ..., "content": parts}. Raises what `encode` raises, and
        UsageError for a model that was not taught a form of conversations.
        """
        how: dict[str, Any] = {"max_new": max_new, "temperature": temperature, "top_p": top_p, "seed": seed}
        messages: Any = content if _are_messages(content) else [{"role": "user", "content": content}]
        turns = [self._turn(message, i) for i, message in enumerate(messages)]
        if self._reading.writer.settings.get("tokenizer") == "tiktoken":
            return self._ask_official(turns, how)
        from watersmeet.pipelines.finetune.rows import Row
        from watersmeet.pipelines.finetune.turns import Delimiters, native_prompt

        form = self._reading.recipe.get("turns")
        if form is None:
            raise UsageError(
                f"{self.name} was not taught to answer; `watersmeet finetune` teaches it, `generate` continues texts"
            )
        writer = self._reading.writer
        delimiters = Delimiters.of(form, writer)
        spans = native_prompt(Row(where="the prompt", turns=tuple(turns)), delimiters, writer, self._spans)
        closing = delimiters.closing.get("assistant", ())[:1]
        ends = writer.encode_markup(closing).data.tolist() if closing else []
        return self._write(spans, [*self._local.stop_ids, *ends], **how)

    def _turn(self, message: Any, index: int) -> Turn:
        from watersmeet.pipelines.finetune.rows import ROLES, Turn

        if message.get("role") not in ROLES or set(message) != {"role", "content"}:
            raise UsageError(
                f"message {index} has role {message.get('role')!r} and the fields {', '.join(map(repr, message))}; expected 'role' "
                f"(one of {', '.join(ROLES)}) and 'content'"
            )
        return Turn(role=message["role"], parts=self._parts(message["content"]))

    def _ask_official(self, turns: Sequence[Turn], how: Mapping[str, Any]) -> Completion:
        from watersmeet.pipelines.finetune.dataset import picture_size
        from watersmeet.pipelines.finetune.rows import Item, Text

        reading = self._reading
        shown: list[Sequence[Span]] = []
        messages = []
        for turn in turns:
            content: list[dict[str, Any]] = []
            for part in turn.parts:
                if isinstance(part, Text):
                    content.append({"type": "text", "text": part.text})
                elif isinstance(part, Item):
                    spans = self._spans(part)
                    if not any(span.source for span in spans):
                        raise UsageError(f"the form of {self.name} has words for pictures, not for {part.kind!r}")
                    content.append({"type": "image", "image": len(shown), "size": picture_size(spans)})
                    shown.append(spans)
                else:
                    raise UsageError(f"the form of {self.name} writes its control tokens itself; leave symbols out")
            messages.append({"role": turn.role, "content": content})
        spans, parser, ends = reading.writer.chat().prompt(
            messages, reading.writer, lambda picture: shown[picture.source]
        )
        done = self._write(spans, [*self._local.stop_ids, *ends], **how)
        parser.feed(list(done.ids))
        parser.close()
        answer = str(parser.answer().content)
        return Completion(text=answer, ids=done.ids, finished=done.finished, logprob=done.logprob)

    def _write(
        self, spans: Sequence[Span], ends: Sequence[int], *, max_new: int, temperature: float, top_p: float, seed: int
    ) -> Completion:
        from watersmeet.core.generate import generate
        from watersmeet.core.stream import Stream
        from watersmeet.plugins.registry import get_registry

        local, output = self._local, self._reading.output
        [done] = generate(
            local.model,
            [Stream(spans=tuple(spans))],
            max_new_tokens=max_new,
            eos_id=tuple(dict.fromkeys(ends)),
            temperature=temperature,
            top_p=top_p,
            seed=seed,
        )
        decoder = get_registry().decoder(output, self._reading.settings[output], files=local.files)
        text = str(decoder.decode(done.ids))
        return Completion(text=text, ids=tuple(done.ids), finished=done.stopped, logprob=done.logprob)

    # ---- pipelines ----------------------------------------------------------------------------------------------

    def run(
        self,
        pipeline: str,
        *items: str | os.PathLike[str],
        out: str | os.PathLike[str] | None = None,
        progress: Callable[[str, float], None] | None = None,
        **named: Any,
    ) -> Result:
        """Run a pipeline on files, as `watersmeet run` does.

        items: the files. named: files by kind (`image=`, or a modality that reads such files), one or a list; every other name is
        a setting of the pipeline. out: folder for the results; without it, a new one in the system's folder for temporary files.
        progress: called with what is being done and the share done. Raises PluginError for an unknown pipeline, what the pipeline
        raises for settings it does not know, DecodeError for a file that is not there.
        """
        from watersmeet.plugins.registry import get_registry

        registry = get_registry()
        spec = registry.pipeline(pipeline)
        kinds = {media.partition("/")[0] for media in spec.inputs}
        kinds |= {one.name for one in registry.modalities() if set(one.media_types) & set(spec.inputs)}
        files: list[Any] = list(items)
        for name in [name for name in named if name in kinds]:
            value = named.pop(name)
            files += value if isinstance(value, (list, tuple)) else [value]
        for index, file in enumerate(files):
            if not isinstance(file, (str, os.PathLike)):
                raise UsageError(f"input {index} of {pipeline} is a {type(file).__name__}, expected the path of a file")
            if "://" not in str(file) and not Path(file).exists():
                raise DecodeError(f"there is no file {file}")
        made = registry.resolve_pipeline(pipeline)(named)
        folder = Path(tempfile.mkdtemp(prefix="watersmeet-")) if out is None else Path(out)
        result: Result = made.run(
            [str(file) for file in files],
            None if spec.own_model else self.opened,
            folder,
            progress or (lambda what, share: None),
        )
        return result


def load(model: str | os.PathLike[str] = "nano", *, dtype: str = "float32", device: str = "cpu") -> Engine:
    """Open a model: "nano", which comes with the package, a model folder of either layout, or openai:NAME@URL.

    dtype: "float32" or "bfloat16". Raises CheckpointError for a model that is not there or cannot be loaded, UsageError for
    another dtype.
    """
    from watersmeet.pipelines.models import open_model

    name = os.fspath(model)
    if dtype not in ("float32", "bfloat16"):
        raise UsageError(f"dtype is {dtype!r}, expected 'float32' or 'bfloat16'")
    if name.startswith("openai:"):
        return Engine(name=name, opened=open_model(name))
    import torch

    from watersmeet.pipelines.models.local import load_local

    return Engine(name=name, opened=load_local(name, dtype=getattr(torch, dtype), device=device))


def _are_messages(content: Any) -> bool:
    return (
        isinstance(content, (list, tuple))
        and bool(content)
        and all(isinstance(item, Mapping) and "role" in item for item in content)
    )


def _read_part(piece: Any, reading: Reading, where: str) -> Part:
    """A piece as a part of a row. Raises UsageError for what is of no known form."""
    from watersmeet.pipelines.finetune.rows import GENERIC, Item, Symbols, Text
    from watersmeet.pipelines.models.prompt import file_modality

    if isinstance(piece, str):
        return Text(text=piece)
    if isinstance(piece, os.PathLike):
        path = str(_there(piece))
        sort = (mimetypes.guess_type(path)[0] or "").partition("/")[0]
        if sort not in GENERIC:
            sort = file_modality(path, tuple(reading.settings), reading.settings)
        return Item(kind=sort, value=path, is_file=True)
    if not isinstance(piece, Mapping):
        if hasattr(piece, "getbands"):  # a picture of Pillow, which need not be imported to know
            return Item(kind="image", value=piece, is_file=False)
        raise UsageError(
            f"{where} is a {type(piece).__name__}, expected a text, a path, a picture or {{'type': T, T: value}} with T one of "
            f"{', '.join(reading.settings)}"
        )
    kind = piece.get("type")
    if not isinstance(kind, str) or set(piece) != {"type", kind}:
        raise UsageError(
            f"{where} has the fields {', '.join(map(repr, piece))}, expected 'type' and one of the type's own name"
        )
    value = piece[kind]
    if kind == "text":
        if not isinstance(value, str):
            raise UsageError(f"{where} is a text but holds a {type(value).__name__}")
        return Text(text=value)
    if kind == "symbols":
        return Symbols(names=tuple([value] if isinstance(value, str) else value))
    if kind not in (*GENERIC, *reading.settings):
        raise UsageError(f"{where} is of type {kind!r}, but {reading.name} reads {', '.join(reading.settings)}")
    if isinstance(value, str) and value.startswith("data:"):
        return Item(kind=kind, value=value, is_file=True)
    is_file = isinstance(value, (str, os.PathLike, bytes))
    return Item(
        kind=kind, value=value if not is_file or isinstance(value, bytes) else str(_there(value)), is_file=is_file
    )


def _there(path: str | os.PathLike[str]) -> Path:
    found = Path(path).expanduser().absolute()
    if not found.is_file():
        raise DecodeError(f"there is no file {path}")
    return found

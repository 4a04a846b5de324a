"""`watersmeet generate`: continue a text on the terminal, or lists of ids as one JSON document; conversations are in
`talk.py`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from watersmeet.cli.console import show_progress
from watersmeet.cli.models import DTYPES, read_ids, vocabulary_size
from watersmeet.core.errors import UsageError

if TYPE_CHECKING:
    from watersmeet.core.generate import GenerateResult
    from watersmeet.core.stream import Span
    from watersmeet.pipelines.models.local import LocalModel

DEFAULT_NEW = 256


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the command line asked for; None where it said nothing."""

    model: str
    prompt: str | None = None
    ids: Path | None = None
    messages: Path | None = None
    max_new: int = DEFAULT_NEW
    greedy: bool = False
    temperature: float | None = None
    top_p: float | None = None
    seed: int = 0
    chat: bool = False
    system: str | None = None
    thinking: bool | None = None
    effort: str | None = None
    ignore_eos: bool = False
    as_json: bool = False
    dtype: str = "float32"
    device: str = "cpu"
    packed: bool = False


def generate_command(request: Request) -> None:
    """Run one request; text goes to stdout as it is written, reasoning, progress and warnings to stderr.

    Raises UsageError for options that contradict each other, DecodeError for a file that cannot be read, before the model
    is loaded; then what loading and the chat form raise.
    """
    from watersmeet.cli.talk import answer, read_messages
    from watersmeet.cli.turns import answer_in_turns, own_turns, read_asked

    _check(request)
    lists = None if request.ids is None else read_ids(request.ids)
    turns = own_turns(request.model) if request.chat or request.messages is not None else None
    asked = None if turns is None else read_asked(request)
    talk = None if request.messages is None or asked is not None else read_messages(request.messages)
    import torch

    from watersmeet.pipelines.models.local import find_local, load_local

    folder = find_local(request.model)
    if request.ids is not None:
        # the weights take long to read
        lists = read_ids(request.ids, vocabulary_size(folder))
    with show_progress() as progress:
        progress(f"loading model {request.model}", 0.0)
        local = load_local(
            request.model,
            dtype=getattr(torch, request.dtype),
            device=request.device,
            packed_experts=request.packed,
        )
    if lists is not None:
        _continue_ids(request, local, lists)
    elif turns is not None and asked is not None:
        answer_in_turns(request, local, turns, asked)
    elif request.chat or talk is not None:
        answer(request, local, talk)
    else:
        _continue_text(request, local)


def _check(request: Request) -> None:
    if request.model.startswith("openai:"):
        raise UsageError(f"generate runs models from folders; {request.model} is a server, which takes requests itself")
    given = [name for name, value in _SOURCES.items() if getattr(request, value) is not None]
    if len(given) != 1:
        found = " and ".join(given) or "nothing"
        raise UsageError(f"generate got {found} to continue, expected one of {', '.join(_SOURCES)}")
    if request.greedy and (request.temperature or request.top_p not in (None, 1.0)):
        raise UsageError("--greedy contradicts --temperature and --top-p; leave either out")
    if request.dtype not in DTYPES:
        raise UsageError(f"--dtype is {request.dtype}, expected one of {', '.join(DTYPES)}")
    talking = request.chat or request.messages is not None
    for name, value in (("--system", request.system), ("--thinking", request.thinking), ("--effort", request.effort)):
        if value is not None and not talking:
            raise UsageError(f"{name} belongs to a conversation; add --chat")
    if request.ids is not None and talking:
        raise UsageError("--ids are continued as they stand; leave --chat and --messages out")
    if request.messages is not None and request.system is not None:
        raise UsageError("--system contradicts --messages; write the system message into the file")


_SOURCES = {"a prompt": "prompt", "--ids FILE": "ids", "--messages FILE": "messages"}


# ---- choosing ids -------------------------------------------------------------------------------------------------


def sampling(request: Request, files: Mapping[str, bytes]) -> tuple[float, float]:
    """(temperature, top_p): the command line's, else those of the checkpoint's generation_config.json, else 1 and 1."""
    if request.greedy:
        return 0.0, 1.0
    try:
        advised = json.loads(files.get("generation_config.json", b"{}"))
    except ValueError:
        advised = {}
    advised = advised if isinstance(advised, dict) else {}

    def pick(given: float | None, name: str) -> float:
        value = advised.get(name) if given is None else given
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 1.0

    return pick(request.temperature, "temperature"), pick(request.top_p, "top_p")


def write_ids(
    request: Request,
    local: LocalModel,
    ids: Sequence[int],
    stop_ids: Sequence[int],
    on_id: Callable[[int], None] | None = None,
) -> GenerateResult:
    """Continue one list of ids as the request says."""
    import torch

    from watersmeet.core.stream import Span, content_key

    data = torch.tensor(list(ids), dtype=torch.int64)
    span = Span(modality=local.model.config.output_modality, data=data, key=content_key("ids", data))
    return write_after(request, local, [span], stop_ids, on_id)


def write_after(
    request: Request,
    local: LocalModel,
    spans: Sequence[Span],
    stop_ids: Sequence[int],
    on_id: Callable[[int], None] | None = None,
) -> GenerateResult:
    """Continue one prompt of spans as the request says; `on_id` is told of every new id."""
    from watersmeet.core.generate import generate
    from watersmeet.core.stream import Stream

    temperature, top_p = sampling(request, local.files)
    [result] = generate(
        local.model,
        [Stream(spans=tuple(spans))],
        max_new_tokens=request.max_new,
        eos_id=() if request.ignore_eos else stop_ids,
        temperature=temperature,
        top_p=top_p,
        seed=request.seed,
        on_token=None if on_id is None else lambda _, index: on_id(index),
    )
    return result


def whole(result: GenerateResult) -> list[int]:
    """What the model wrote, the id that stopped it included, as other programs count it."""
    return [*result.ids, *([] if result.stop_id is None else [result.stop_id])]


def print_json(document: Mapping[str, Any]) -> None:
    print(json.dumps(document, ensure_ascii=False), flush=True)


def settings(request: Request, local: LocalModel, stop_ids: Sequence[int]) -> dict[str, Any]:
    temperature, top_p = sampling(request, local.files)
    return {
        "model": request.model,
        "dtype": request.dtype,
        "max_new": request.max_new,
        "temperature": temperature,
        "top_p": top_p,
        "seed": request.seed,
        "stop_ids": [] if request.ignore_eos else list(stop_ids),
    }


# ---- ids and texts --------------------------------------------------------------------------------------------------


def _continue_ids(request: Request, local: LocalModel, lists: Sequence[Sequence[int]]) -> None:
    """Every list by itself, so that no result depends on the others."""
    stop_ids = local.stop_ids
    results = []
    with show_progress() as progress:
        for number, ids in enumerate(lists):
            progress(f"continuing list {number + 1} of {len(lists)}", number / len(lists))
            results.append(write_ids(request, local, ids, stop_ids))
    if not request.as_json:
        for result in results:
            print(" ".join(map(str, whole(result))), flush=True)
        return
    print_json(
        {
            "ids": [whole(result) for result in results],
            "prompt_lengths": [len(ids) for ids in lists],
            "stopped_by": [result.stop_id for result in results],
            "logprobs": [result.logprob for result in results],
            **settings(request, local, stop_ids),
        }
    )


def text_encoder(local: LocalModel) -> Any:
    encoder = local.encoders.get(local.model.config.output_modality)
    if encoder is None:
        raise UsageError(
            f"{local.name} has no tokenizer beside its weights, so it reads ids only; give --ids FILE, or put the "
            "checkpoint's tiktoken.model there"
        )
    return encoder


class Shown:
    """Writes ids as text while they come; a control symbol as its name, since nothing else would show it."""

    def __init__(self, encoder: Any, out: Callable[[str], None]) -> None:
        import codecs

        self._vocabulary, self._out = encoder.vocabulary, out
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._names = {index: name for name, index in self._vocabulary.symbols.items()}

    def __call__(self, index: int) -> None:
        if index in self._names:
            self.close()
            self._utf8.reset()
            self._out(self._names[index])
        else:
            self._out(self._utf8.decode(self._vocabulary.bytes_of([index])))

    def close(self) -> None:
        """Write what is left of a character that was never completed."""
        self._out(self._utf8.decode(b"", final=True))


def to_stdout(text: str) -> None:
    if text:
        sys.stdout.write(text)
        sys.stdout.flush()


def shown_while_written(
    request: Request,
    encoder: Any,
    stop_ids: Sequence[int],
    write: Callable[[Callable[[int], None]], GenerateResult],
) -> tuple[str, GenerateResult]:
    """Run `write`, which is given what to call with every id, and show the text on the terminal as it comes.

    With `--json` nothing is shown and the text is returned; ids that end an output are no text.
    """
    parts: list[str] = []
    shown = Shown(encoder, parts.append if request.as_json else to_stdout)

    def on_id(index: int) -> None:
        if request.ignore_eos or index not in stop_ids:
            shown(index)

    try:
        result = write(on_id)
    finally:
        shown.close()
        if not request.as_json:
            to_stdout("\n")
    return "".join(parts), result


def _continue_text(request: Request, local: LocalModel) -> None:
    encoder = text_encoder(local)
    ids = encoder.encode_ids(request.prompt)
    if not ids:
        if encoder.bos_id < 0:
            raise UsageError("the prompt is empty and this model has no id that begins a text; give some words")
        ids = [encoder.bos_id]
    # a base model ends a text with the tokenizer's own id, whichever one the configuration names for messages
    stop_ids = tuple(dict.fromkeys([*local.stop_ids, *([encoder.eos_id] if encoder.eos_id >= 0 else [])]))
    text, result = shown_while_written(
        request, encoder, stop_ids, lambda on_id: write_ids(request, local, ids, stop_ids, on_id)
    )
    if request.as_json:
        document = {
            "text": text,
            "prompt_ids": list(ids),
            "ids": whole(result),
            "stopped_by": result.stop_id,
        }
        print_json({**document, "logprob": result.logprob, **settings(request, local, stop_ids)})

"""Conversations of `watersmeet generate`: a prompt or a file of messages, answered while it is parsed."""

from __future__ import annotations

import base64
import binascii
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from watersmeet.cli.generate import Request, print_json, settings, text_encoder, to_stdout, whole, write_after
from watersmeet.core.errors import DecodeError, UsageError

if TYPE_CHECKING:
    from watersmeet.core.generate import GenerateResult
    from watersmeet.core.stream import Span
    from watersmeet.pipelines.models.local import LocalModel
    from watersmeet.tokenizers.chat.chat import Chat
    from watersmeet.tokenizers.chat.options import ChatOptions
    from watersmeet.tokenizers.chat.parsing import Answer, StreamParser


def read_messages(path: Path) -> Any:
    """The conversation in a JSON file: a list of OpenAI-style messages, or an object with `messages` and `tools`.

    Raises DecodeError for a file that is no JSON, UsageError for messages that are none.
    """
    from watersmeet.tokenizers.chat.messages import conversation

    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise DecodeError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"{path}: not JSON ({error})") from error
    if isinstance(found, dict):
        if unknown := sorted(set(found) - {"messages", "tools"}):
            raise DecodeError(f"{path}: has a field {unknown[0]!r}, expected messages and tools")
        return conversation(found.get("messages"), found.get("tools"))
    return conversation(found)


def answer(request: Request, local: LocalModel, talk: Any) -> None:
    """Answer a conversation, or the request's prompt, on the terminal or as one JSON document."""
    from watersmeet.tokenizers.chat.chat import chat_of
    from watersmeet.tokenizers.chat.messages import conversation
    from watersmeet.tokenizers.chat.options import ChatOptions
    from watersmeet.tokenizers.chat.pieces import spans_of

    encoder = text_encoder(local)
    chat = chat_of(encoder)
    if talk is None:
        system = [] if request.system is None else [{"role": "system", "content": request.system}]
        talk = conversation([*system, {"role": "user", "content": request.prompt}])
    thinks = request.thinking is not False
    options = ChatOptions(thinking=request.thinking, effort=request.effort or (chat.default_effort if thinks else None))
    talk, spans_by_picture = with_pictures(local, talk)
    # in the ids, one pad stands for each vector of a picture, as engines see it
    prompt = chat.encode(talk, options, lambda picture: sum(span.n for span in spans_by_picture[picture.source])).ids
    spans, _ = spans_of(chat.pieces(talk, options), encoder, lambda picture: spans_by_picture[picture.source])
    stop_ids = tuple(dict.fromkeys([*local.stop_ids, chat.end_id]))
    parser = chat.parser(options, prompt=prompt)
    told = _Told(quiet=request.as_json)

    def on_id(index: int) -> None:
        told(parser.feed(index))

    try:
        result = write_after(request, local, spans, stop_ids, on_id)
    finally:
        told(parser.close())
        told.close()
    _finish_chat(request, local, parser, prompt, result, options, chat)


def with_pictures(local: LocalModel, talk: Any) -> tuple[Any, dict[Any, list[Span]]]:
    """(conversation, spans by a picture's source): every picture read by the one modality of the model that reads such,
    and its size filled in where the message does not say it.

    A source is a path or a data: address. Raises UsageError where no or more than one modality reads pictures,
    DecodeError for a picture that cannot be read.
    """
    from watersmeet.tokenizers.chat.messages import Picture

    pictures = [part for message in talk.messages for part in message.content if isinstance(part, Picture)]
    if not pictures:
        return talk, {}
    from watersmeet.pipelines.models.asked import picture_modality
    from watersmeet.tokenizers.image.decode import load_image

    reader = picture_modality(local)
    if reader is None:
        raise UsageError(
            f"a message holds a picture, but {local.name} reads none; `watersmeet graft` gives a model a modality that does"
        )
    found_spans: dict[Any, list[Span]] = {}
    sizes: dict[Any, tuple[int, int]] = {}
    for picture in pictures:
        if picture.source not in found_spans:
            image, _ = load_image(picture_file(picture.source))
            sizes[picture.source] = image.size
            found_spans[picture.source] = local.encoders[reader].encode(picture_file(picture.source))
    messages = tuple(
        replace(
            message,
            content=tuple(
                replace(part, size=part.size or sizes[part.source]) if isinstance(part, Picture) else part
                for part in message.content
            ),
        )
        for message in talk.messages
    )
    return replace(talk, messages=messages), found_spans


def picture_file(source: Any) -> Path | bytes:
    """The file that a message names: a path, or the bytes of a data: address. Nothing is ever fetched."""
    if not isinstance(source, str):
        raise DecodeError(f"a picture is given as {type(source).__name__}, expected a path or a data: address")
    if source.startswith("data:"):
        head, _, body = source.partition(",")
        if not head.endswith(";base64"):
            raise DecodeError(f"a picture's address begins {head[:40]!r}, expected data:…;base64,")
        try:
            return base64.b64decode(body, validate=True)
        except binascii.Error as error:
            raise DecodeError(f"a picture's data: address holds no base64 ({error})") from error
    if "://" in source:
        raise DecodeError(
            f"the picture {source} is on the network, from where nothing is fetched; save it and give its path"
        )
    return Path(source)


def _finish_chat(
    request: Request,
    local: LocalModel,
    parser: StreamParser,
    prompt: Sequence[int],
    result: GenerateResult,
    options: ChatOptions,
    chat: Chat,
) -> None:
    answer = parser.answer()
    message = openai_answer(answer)
    if request.as_json:
        stop_ids = tuple(dict.fromkeys([*local.stop_ids, chat.end_id]))
        document = {"message": message, "finished": answer.finished, "prompt_ids": list(prompt), "ids": whole(result)}
        document |= {"stopped_by": result.stop_id, "logprob": result.logprob, "thinking": options.thinking}
        print_json({**document, "effort": options.effort, **settings(request, local, stop_ids)})
        return
    for call in message.get("tool_calls", []):
        print_json(call)
    for fault in answer.faults:
        print(f"warning: {fault.reason}: {fault.text[:80]!r}", file=sys.stderr)
    if not answer.finished:
        where = {"call": "inside a tool call", "between": "between two parts"}.get(str(answer.open_in), answer.open_in)
        print(f"warning: cut after {len(whole(result))} ids, {where}; --max-new gives it more", file=sys.stderr)


def openai_answer(answer: Answer) -> dict[str, Any]:
    """An answer as an OpenAI-style message; only complete calls are in it."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.content}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.calls:
        message["tool_calls"] = [
            {
                "id": call.id or f"call_{index}",
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": call.arguments
                    if isinstance(call.arguments, str)
                    else json.dumps(call.arguments, ensure_ascii=False),
                },
            }
            for index, call in enumerate(answer.calls)
        ]
    return message


class _Told:
    """Shows events while they come: the answer on stdout, the reasoning on stderr."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._reasoned = self._answered = False

    def __call__(self, events: Sequence[Any]) -> None:
        from watersmeet.tokenizers.chat.parsing import Content, Reasoning

        for event in events:
            if self._quiet:
                continue
            if isinstance(event, Reasoning):
                sys.stderr.write(event.text)
                sys.stderr.flush()
                self._reasoned = True
            elif isinstance(event, Content):
                self._end_reasoning()
                to_stdout(event.text)
                self._answered = True

    def _end_reasoning(self) -> None:
        if self._reasoned:
            sys.stderr.write("\n")
            sys.stderr.flush()
            self._reasoned = False

    def close(self) -> None:
        """End the last line."""
        self._end_reasoning()
        if self._answered:
            to_stdout("\n")

"""Conversations of `watersmeet generate`: a prompt or a file of messages, answered while it is parsed."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from watersmeet.cli.generate import Request, print_json, settings, text_encoder, to_stdout, whole, write_ids
from watersmeet.core.errors import DecodeError

if TYPE_CHECKING:
    from watersmeet.core.generate import GenerateResult
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

    chat = chat_of(text_encoder(local))
    if talk is None:
        system = [] if request.system is None else [{"role": "system", "content": request.system}]
        talk = conversation([*system, {"role": "user", "content": request.prompt}])
    thinks = request.thinking is not False
    options = ChatOptions(thinking=request.thinking, effort=request.effort or (chat.default_effort if thinks else None))
    prompt = chat.encode(talk, options).ids
    stop_ids = tuple(dict.fromkeys([*local.stop_ids, chat.end_id]))
    parser = chat.parser(options, prompt=prompt)
    told = _Told(quiet=request.as_json)

    def on_id(index: int) -> None:
        told(parser.feed(index))

    try:
        result = write_ids(request, local, prompt, stop_ids, on_id)
    finally:
        told(parser.close())
        told.close()
    _finish_chat(request, local, parser, prompt, result, options, chat)


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

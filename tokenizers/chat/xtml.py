"""K3's form of a conversation: elements whose brackets are control tokens and whose words are text.

    <|open|>message role="user"<|sep|>TEXT<|close|>message<|sep|><|end_of_msg|>

Only the four brackets are control ids; tags, keys and quotes are text, and every piece is encoded by itself: ` role`,
`="`, the value, `"`. An attribute's value escapes `&` first and then `"`; bodies are not escaped, since no text can
become a bracket. (Kimi K3 technical report, appendix F)
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from watersmeet.core.errors import UsageError
from watersmeet.tokenizers.chat.messages import Conversation, Message, Picture, ToolCall
from watersmeet.tokenizers.chat.options import ChatOptions
from watersmeet.tokenizers.chat.pieces import Media, Piece, Pieces
from watersmeet.tokenizers.chat.wording import Wording

OPEN, CLOSE, SEP, END = "<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"


def escape(value: str) -> str:
    """An attribute's value; `&` goes first, or the escapes themselves would be escaped."""
    return value.replace("&", "&amp;").replace('"', "&quot;")


def unescape(value: str) -> str:
    """The inverse of `escape`, in the opposite order."""
    return value.replace("&quot;", '"').replace("&amp;", "&")


def value_type(value: Any) -> str:
    """The name that the form has for the type of a JSON value."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    if isinstance(value, (int, float)):
        return "number"
    if value is None:
        return "null"
    return "object" if isinstance(value, Mapping) else "array"


def opened(tag: str, **attributes: str) -> Pieces:
    """The opening of an element; attributes in the order given."""
    out: Pieces = [Piece(OPEN, control=True), Piece(tag)]
    for key, value in attributes.items():
        out += [Piece(f" {key}"), Piece('="'), Piece(escape(value)), Piece('"')]
    return [*out, Piece(SEP, control=True)]


def closed(tag: str) -> Pieces:
    """The closing of an element."""
    return [Piece(CLOSE, control=True), Piece(tag), Piece(SEP, control=True)]


def render(talk: Conversation, options: ChatOptions, wording: Wording) -> Pieces:
    """Pieces of a conversation: declared tools, thinking effort, messages, one-time options, opening of the answer.

    options.thinking None counts as True. Raises ConfigError when a sentence is needed that the checkpoint does not
    bring, UsageError for messages that the form cannot hold.
    """
    thinking = options.thinking is not False
    out: Pieces = []
    if talk.tools:
        out += _system("tool-declare", wording.say("tools", _list(talk.tools)))
    if options.effort is not None and thinking:
        if options.effort not in wording.efforts:
            known = ", ".join(sorted(wording.efforts))
            raise UsageError(
                f"chat: thinking effort {options.effort!r} is unknown to this model, expected one of {known}"
            )
        out += _system("thinking-effort", wording.say("effort", options.effort).strip())
    calls: tuple[ToolCall, ...] = ()
    answered = 0
    for index, message in enumerate(in_call_order(talk.messages)):
        if message.tools:
            out += _system("tool-declare", wording.say("late tools", _list(message.tools)))
            continue
        attributes = {"role": message.role}
        if message.role == "tool":
            answered += 1
            by_order = calls[answered - 1].name if answered <= len(calls) else None
            name = message.name or by_order
            if name is None:
                raise UsageError(
                    f"chat: message {index} (tool) answers no call of an assistant before it and has no name; "
                    "give it the tool_call_id of a call, or a name"
                )
            attributes |= {"tool": name, "index": str(answered)}
        elif message.name:
            attributes["name"] = message.name
        out += opened("message", **attributes)
        if message.role == "assistant":
            calls, answered = message.calls, 0
            out += [*_answer(message, thinking), *_learn([*closed("message"), Piece(END, control=True)])]
        else:
            out += [*_content(message), *closed("message"), Piece(END, control=True)]
    if options.tool_choice in ("required", "none"):
        out += _system("tool-choice", wording.say(options.tool_choice).strip())
    if options.format_type == "json_object":
        out += _system("response-format", wording.say("json_object").strip())
    elif options.format_type == "json_schema":
        out += _system("response-format", wording.say("json_schema", _compact(_sorted(options.schema))).strip())
    if options.generate:
        out += [*opened("message", role="assistant"), *opened("think" if thinking else "response")]
    return out


def _learn(pieces: Pieces) -> Pieces:
    return [piece if isinstance(piece, Media) else replace(piece, learn=True) for piece in pieces]


def _system(kind: str, body: str) -> Pieces:
    return [*opened("message", role="system", type=kind), Piece(body), *closed("message"), Piece(END, control=True)]


def _content(message: Message) -> Pieces:
    out: Pieces = []
    for part in message.content:
        if not isinstance(part, Picture):
            out.append(Piece(part.text))
            continue
        if part.size is None:
            raise UsageError("chat: a picture has no size, which K3's form says before it; give its width and height")
        words = f"image {part.size[0]}x{part.size[1]}"
        out += [Piece("<|media_begin|>", control=True), Piece(words), Piece("<|media_content|>", control=True)]
        out += [Media(part), Piece("<|media_end|>", control=True)]
    return out


def _answer(message: Message, thinking: bool) -> Pieces:
    """The body of an assistant's message, all of it learnt but for arguments that the model would never write so."""
    out: Pieces = []
    if thinking:
        # structural: there even when there was no reasoning
        out += [*opened("think"), *([Piece(message.reasoning)] if message.reasoning else []), *closed("think")]
    out = _learn([*out, *opened("response"), *_content(message), *closed("response")])
    if not message.calls:
        return out
    out += _learn(opened("tools"))
    for number, call in enumerate(message.calls, start=1):
        out += _learn(opened("call", tool=call.name, index=str(number)))
        if isinstance(call.arguments, str):
            out += [*opened("json", type="object"), Piece(call.arguments), *closed("json")]
        else:
            for key, value in call.arguments.items():
                body = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                element = [*opened("argument", key=key, type=value_type(value)), Piece(body), *closed("argument")]
                out += _learn(element)
        out += _learn(closed("call"))
    return [*out, *_learn(closed("tools"))]


def in_call_order(messages: Sequence[Message]) -> list[Message]:
    """The messages with every run of tool results in the order of the calls that they answer, and named after them.

    A run with a result that matches no call of the last assistant message stays as it is.
    """
    out: list[Message] = []
    places: dict[str, tuple[int, str]] = {}
    index = 0
    while index < len(messages):
        message = messages[index]
        if message.role != "tool":
            if message.role == "assistant":
                places = {}
                for place, call in enumerate(message.calls):
                    if call.id is not None:
                        places.setdefault(call.id, (place, call.name))
            out.append(message)
            index += 1
            continue
        stop = index
        while stop < len(messages) and messages[stop].role == "tool":
            stop += 1
        run = list(messages[index:stop])
        if all(result.call_id in places for result in run):
            run.sort(key=lambda result: places[str(result.call_id)][0])
            run = [replace(result, name=places[str(result.call_id)][1]) for result in run]
        out += run
        index = stop
    return out


def _sorted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, (list, tuple)) else value


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _list(tools: Sequence[Mapping[str, Any]]) -> str:
    return _compact(_sorted(list(tools)))

"""One typed model of a conversation, read strictly from OpenAI-style objects."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from watersmeet.core.errors import UsageError

ROLES = ("system", "user", "assistant", "tool")

_FIELDS = {
    "system": {"role", "content", "name", "tools"},
    "user": {"role", "content", "name"},
    "assistant": {"role", "content", "name", "reasoning_content", "reasoning", "tool_calls"},
    "tool": {"role", "content", "name", "tool_call_id"},
}
# fields of other servers' answers that say nothing about the conversation; kept ones would be lost without a word
_EMPTY_ONLY = {
    "refusal",
    "audio",
    "function_call",
    "annotations",
    "tool_calls",
    "reasoning_content",
    "reasoning",
    "tools",
}


@dataclass(frozen=True, kw_only=True)
class Text:
    """A run of text."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A picture inside a message. `source` is whatever the caller uses to find it, e.g. a path or an address; `size` is
    its width and height in pixels before any resizing, where the format wants them said."""

    source: Any
    size: tuple[int, int] | None = None


Part = Text | Picture


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """A call that the model made. `arguments` is the object of its arguments, or text that is no JSON at all."""

    name: str
    arguments: Mapping[str, Any] | str
    id: str | None = None


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message. `tools` (of a system message): declared from here on. `call_id` (of a tool message): the call that it
    answers; None means the next one in order."""

    role: str
    content: tuple[Part, ...] = ()
    name: str | None = None
    reasoning: str | None = None
    calls: tuple[ToolCall, ...] = ()
    call_id: str | None = None
    tools: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """Messages in order and the tools that are declared before the first of them."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()


def conversation(messages: Any, tools: Any = None) -> Conversation:
    """Read OpenAI-style messages and tools.

    Content is a text, null, or a list of parts of type "text", "image" or "image_url". Raises UsageError that names the
    message by its position and what is wrong with it; nothing is dropped silently.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)):
        raise UsageError(f"chat: messages are a {type(messages).__name__}, expected a list of objects")
    if not messages:
        raise UsageError("chat: there are no messages; give at least one")
    return Conversation(
        messages=tuple(_message(message, f"message {index}") for index, message in enumerate(messages)),
        tools=_tools(tools, "tools"),
    )


def _message(values: Any, where: str) -> Message:
    if not isinstance(values, Mapping):
        raise UsageError(f"chat: {where} is a {type(values).__name__}, expected an object")
    role = values.get("role")
    if role not in ROLES:
        hint = "; write it as 'system'" if role == "developer" else ""
        raise UsageError(f"chat: {where} has role {role!r}, expected one of {', '.join(ROLES)}{hint}")
    where = f"{where} ({role})"
    for field, value in values.items():
        if field not in _FIELDS[role] and not (field in _EMPTY_ONLY and not value):
            raise UsageError(
                f"chat: {where} has a field {field!r}, expected only {', '.join(sorted(_FIELDS[role]))}; leave it out"
            )
    reasoning = _text_or_none(values, "reasoning_content", where) or _text_or_none(values, "reasoning", where)
    message = Message(
        role=role,
        content=_content(values.get("content"), where),
        name=_text_or_none(values, "name", where),
        reasoning=reasoning if reasoning and reasoning.strip() else None,
        calls=_calls(values.get("tool_calls"), where),
        call_id=_text_or_none(values, "tool_call_id", where),
        tools=_tools(values.get("tools"), f"{where}: tools"),
    )
    if message.tools and message.content:
        raise UsageError(f"chat: {where} has both content and tools; declare tools in a system message of their own")
    return message


def _text_or_none(values: Mapping[str, Any], field: str, where: str) -> str | None:
    value = values.get(field)
    if value is not None and not isinstance(value, str):
        raise UsageError(f"chat: {where} has {field} {value!r}, expected a text")
    return value


def _content(value: Any, where: str) -> tuple[Part, ...]:
    if value is None or value == "":
        return ()
    if isinstance(value, str):
        return (Text(text=value),)
    if not isinstance(value, Sequence):
        raise UsageError(f"chat: {where} has content {type(value).__name__}, expected a text or a list of parts")
    return tuple(_part(part, f"{where} part {index}") for index, part in enumerate(value))


def _part(value: Any, where: str) -> Part:
    kind = value.get("type") if isinstance(value, Mapping) else type(value).__name__
    if kind == "text" and isinstance(value.get("text"), str):
        return Text(text=value["text"])
    if kind in ("image", "image_url"):
        source = value.get(kind, value.get("image"))
        size = value.get("size")
        if source is None:
            raise UsageError(f"chat: {where} is an {kind} without {kind!r}, expected where the picture is")
        if size is not None:
            fits = isinstance(size, Sequence) and len(size) == 2 and all(type(n) is int and n > 0 for n in size)
            if not fits:
                raise UsageError(f"chat: {where} has size {size!r}, expected [width, height] in pixels")
            size = (size[0], size[1])
        return Picture(source=source.get("url") if isinstance(source, Mapping) else source, size=size)
    raise UsageError(f"chat: {where} is of type {kind!r}, expected a text part with 'text', or an image")


def _calls(value: Any, where: str) -> tuple[ToolCall, ...]:
    if value is None:
        return ()
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise UsageError(f"chat: {where} has tool_calls {type(value).__name__}, expected a list")
    return tuple(_call(call, f"{where} tool call {index}") for index, call in enumerate(value))


def _call(value: Any, where: str) -> ToolCall:
    if not isinstance(value, Mapping):
        raise UsageError(f"chat: {where} is a {type(value).__name__}, expected an object")
    function = value.get("function", value)
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not name:
        raise UsageError(f"chat: {where} has no function name; expected {{'function': {{'name', 'arguments'}}}}")
    identity = value.get("id")
    if identity is not None and not isinstance(identity, str):
        raise UsageError(f"chat: {where} has id {identity!r}, expected a text")
    return ToolCall(name=name, arguments=read_arguments(function.get("arguments"), where), id=identity)


def read_arguments(value: Any, where: str) -> Mapping[str, Any] | str:
    """Arguments as an object, given as one, as JSON text, or absent; text that is no JSON stays text.

    Raises UsageError for JSON that is no object: no form of a call could hold it.
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        return {}
    if isinstance(value, str):
        try:
            value = json.loads(value, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            return str(value)
    if not isinstance(value, Mapping):
        raise UsageError(f"chat: {where} has arguments of type {type(value).__name__}, expected an object")
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"chat: {where} has arguments that are no JSON ({error})") from error
    if odd := next((key for key in value if not isinstance(key, str)), None):
        raise UsageError(f"chat: {where} has an argument called {odd!r}, expected a text")
    return dict(value)


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is no JSON")


def _tools(value: Any, where: str) -> tuple[Mapping[str, Any], ...]:
    if value is None:
        return ()
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise UsageError(f"chat: {where} are a {type(value).__name__}, expected a list of declarations")
    for index, tool in enumerate(value):
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise UsageError(f"chat: {where}[{index}] has no function name, expected a tool declaration")
        try:
            json.dumps(tool, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"chat: {where}[{index}] is no JSON ({error})") from error
    return tuple(value)


def openai_messages(talk: Conversation) -> list[dict[str, Any]]:
    """The messages as OpenAI-style objects, e.g. for a template; the inverse of `conversation` for what it keeps."""
    out: list[dict[str, Any]] = []
    for message in talk.messages:
        values: dict[str, Any] = {"role": message.role, "content": _plain(message.content)}
        if message.name is not None:
            values["name"] = message.name
        if message.reasoning is not None:
            values["reasoning_content"] = message.reasoning
        if message.calls:
            values["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in message.calls
            ]
        if message.call_id is not None:
            values["tool_call_id"] = message.call_id
        if message.tools:
            values["tools"] = list(message.tools)
        out.append(values)
    return out


def _plain(content: tuple[Part, ...]) -> Any:
    if all(isinstance(part, Text) for part in content):
        return "".join(part.text for part in content if isinstance(part, Text))
    return [
        {"type": "text", "text": part.text} if isinstance(part, Text) else {"type": "image", "image": part.source}
        for part in content
    ]

"""The form of Kimi K2, K2.5 and Kimi Linear, for checkpoints that bring no template of their own.

    <|im_user|>user<|im_middle|>TEXT<|im_end|>
    <|im_assistant|>assistant<|im_middle|>TEXT<|im_end|>

Tools are a first system message `tool_declare` with the JSON list. Calls stand in a section at the end of an assistant's
message, their ids are `functions.NAME:INDEX` with the index counted over the whole conversation; a result is a message
under the system token that names the id. No words are added that are not part of the form: a default system prompt is
official wording and comes from a checkpoint's template (`template.py`) or not at all.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from watersmeet.core.errors import ConfigError, UsageError
from watersmeet.tokenizers.chat.messages import Conversation, Message, Picture, ToolCall
from watersmeet.tokenizers.chat.options import ChatOptions
from watersmeet.tokenizers.chat.pieces import Media, Piece, Pieces

SECTION_BEGIN, SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL_BEGIN, CALL_ARGUMENTS, CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
THINK, THINK_END = "<think>", "</think>"
MIDDLE, END = "<|im_middle|>", "<|im_end|>"
_TOKENS = {"system": "<|im_system|>", "tool": "<|im_system|>", "user": "<|im_user|>", "assistant": "<|im_assistant|>"}


def call_id(name: str, index: int) -> str:
    """The only form of an id that the model was trained on."""
    return f"functions.{name}:{index}"


def with_official_ids(talk: Conversation) -> Conversation:
    """Every call renumbered over the whole conversation, and every result pointed at its call.

    Other ids in the history make the model answer with empty turns. A result finds its call by its old id among the
    calls of the last assistant message, then of earlier ones; without an id it takes the next unanswered call. Raises
    UsageError for a result of no call.
    """
    count = 0
    renamed: dict[str, str] = {}
    latest: dict[str, str] = {}
    waiting: list[str] = []
    out: list[Message] = []
    for index, message in enumerate(talk.messages):
        if message.role == "assistant":
            fresh: list[ToolCall] = []
            latest = {}
            for call in message.calls:
                official = call_id(call.name, count)
                if call.id is not None:
                    latest.setdefault(call.id, official)
                fresh.append(replace(call, id=official))
                count += 1
            if fresh:
                waiting = [str(call.id) for call in fresh]
                renamed.update(latest)
            message = replace(message, calls=tuple(fresh))
        elif message.role == "tool":
            if message.call_id is None:
                found = waiting[0] if waiting else None
            else:
                found = latest.get(message.call_id) or renamed.get(message.call_id)
            if found is None:
                raise UsageError(
                    f"chat: message {index} (tool) answers call {message.call_id!r}, which no assistant message before "
                    "it made; give it the tool_call_id of a call"
                )
            if found in waiting:
                waiting.remove(found)
            message = replace(message, call_id=found)
        out.append(message)
    return replace(talk, messages=tuple(out))


def render(talk: Conversation, options: ChatOptions) -> Pieces:
    """Pieces of a conversation.

    options.thinking: None for models that do not reason (no think pair anywhere), True or False for those that do. Raises
    ConfigError for what this form has no words for, UsageError for messages it cannot hold.
    """
    if options.effort is not None or options.format_type != "text" or options.tool_choice not in (None, "auto"):
        raise ConfigError(
            "chat: the K2 form has no message for thinking effort, tool choice or response format; leave them out"
        )
    talk = with_official_ids(talk)
    out: Pieces = []
    if talk.tools:
        _message(out, "system", "tool_declare", [Piece(json.dumps(list(talk.tools), **_COMPACT))])
    # reasoning belongs to the turn that is still going on: what follows the last answer that called no tool
    answered = max((i for i, m in enumerate(talk.messages) if m.role == "assistant" and not m.calls), default=-1)
    for index, message in enumerate(talk.messages):
        if message.tools:
            raise ConfigError("chat: the K2 form declares tools before the first message only; move them there")
        keep = options.keep_reasoning or index > answered
        _message(out, message.role, message.name or message.role, _body(message, options.thinking, keep))
    if options.generate:
        out += [Piece(_TOKENS["assistant"], control=True), Piece("assistant"), Piece(MIDDLE, control=True)]
        if options.thinking is not None:
            out.append(Piece(THINK, control=True))
        if options.thinking is False:
            out.append(Piece(THINK_END, control=True))
    return out


_COMPACT: dict[str, Any] = {"ensure_ascii": False, "separators": (",", ":")}


def _message(out: Pieces, role: str, name: str, body: Pieces) -> None:
    out += [Piece(_TOKENS[role], control=True), Piece(name), Piece(MIDDLE, control=True)]
    learnt = role == "assistant"
    # neighbouring texts are one text to the encoder, as they are in a template's output
    for piece in [*body, Piece(END, control=True)]:
        if isinstance(piece, Media):
            out.append(piece)
            continue
        last = out[-1]
        if isinstance(last, Piece) and not last.control and not piece.control:
            out[-1] = replace(last, text=last.text + piece.text)
        elif piece.text:
            out.append(replace(piece, learn=learnt))


def _body(message: Message, thinking: bool | None, keep: bool) -> Pieces:
    out: Pieces = []
    if message.role == "tool":
        out.append(Piece(f"## Return of {message.call_id}\n"))
    if message.role == "assistant" and thinking is not None:
        out.append(Piece(THINK, control=True))
        if keep and message.reasoning:
            out.append(Piece(message.reasoning))
        out.append(Piece(THINK_END, control=True))
    for part in message.content:
        if isinstance(part, Picture):
            out += [Piece("<|media_begin|>", control=True), Piece("image"), Piece("<|media_content|>", control=True)]
            out += [Media(part), Piece("<|media_end|>", control=True)]
        else:
            out.append(Piece(part.text))
    if message.calls:
        out.append(Piece(SECTION_BEGIN, control=True))
        for call in message.calls:
            out += [Piece(CALL_BEGIN, control=True), Piece(str(call.id)), Piece(CALL_ARGUMENTS, control=True)]
            text = call.arguments
            out.append(Piece(text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)))
            out.append(Piece(CALL_END, control=True))
        out.append(Piece(SECTION_END, control=True))
    return out


def learnt(ids: list[int], assistant: int, middle: int, end: int) -> list[float]:
    """Weights of ids in this form: 1 after an assistant's opening up to and including the end of its message."""
    weights, state = [], "outside"
    for index in ids:
        weights.append(float(state == "inside"))
        if index == assistant:
            state = "opening"
        elif index == middle and state == "opening":
            state = "inside"
        elif index == end:
            state = "outside"
    return weights

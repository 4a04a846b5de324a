"""One row of fine-tuning data, read strictly: what is not as described is an error that names file, row and field.

A row is an object {"messages": [...], "tools": [...]}. A message is OpenAI's: a role and a content, which is a text or a
list of parts. A part has a type and, under the name of its type, a value:

    {"type": "text", "text": "What is this?"}
    {"type": "image", "image": "pictures/7.png"}            also "image_url": {"url": ...}; "video", "audio"
    {"type": MODALITY, MODALITY: "file" or any JSON value}  any modality that a plugin brings
    {"type": "symbols", "symbols": ["<layout>"]}            control symbols of the vocabulary, which no text can become

Messages and parts may carry a "weight" (0: read but not learnt). What a person wrote is never searched for anything.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from watersmeet.core.errors import WatersmeetError

ROLES = ("system", "user", "assistant", "tool")
GENERIC = ("image", "video", "audio")
"""Types that say what something is without saying which modality of a model reads it."""

_URL_FORMS = {"image_url": "image", "video_url": "video", "audio_url": "audio"}
_MESSAGE_FIELDS = {
    "system": {"role", "content", "name", "weight", "tools"},
    "user": {"role", "content", "name", "weight"},
    "assistant": {"role", "content", "name", "weight", "reasoning_content", "tool_calls"},
    "tool": {"role", "content", "name", "weight", "tool_call_id"},
}
_ROW_FIELDS = {"messages", "tools", "id"}
# of other programs; empty ones say nothing and are no reason to refuse a row
_EMPTY_ONLY = {"refusal", "audio", "function_call", "annotations", "tool_calls", "reasoning_content", "tools", "name"}


class RowError(WatersmeetError):
    """A row of fine-tuning data is not as described; the message names file, row and field."""


@dataclass(frozen=True, kw_only=True)
class Text:
    """A run of text."""

    text: str
    weight: float | None = None


@dataclass(frozen=True, kw_only=True)
class Symbols:
    """Control symbols by name."""

    names: tuple[str, ...]
    weight: float | None = None


@dataclass(frozen=True, kw_only=True)
class Item:
    """Something for a modality. kind: one of `GENERIC` or a modality's name. value: a path, a data URI, an address or bytes
    (`is_file`), or whatever the modality's encoder reads."""

    kind: str
    value: Any
    is_file: bool
    weight: float | None = None


Part = Text | Symbols | Item


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One message. extra: fields that only some forms of a conversation can hold (tools, calls, reasoning, names)."""

    role: str
    parts: tuple[Part, ...]
    weight: float | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """All texts joined."""
        return "".join(part.text for part in self.parts if isinstance(part, Text))


@dataclass(frozen=True, kw_only=True)
class Row:
    """where: file and row for messages to people."""

    where: str
    turns: tuple[Turn, ...]
    tools: tuple[Any, ...] = ()


def parse_row(line: bytes, where: str, kinds: Collection[str]) -> Row:
    """The row in one line of a file. Raises RowError."""
    try:
        values = json.loads(line.decode("utf-8"), parse_constant=_no_constant, object_pairs_hook=_no_repeats)
    except UnicodeDecodeError as error:
        raise RowError(f"{where}: is not UTF-8 (byte {error.start} of the row)") from error
    except (ValueError, RecursionError) as error:
        raise RowError(f"{where}: is not JSON ({error}); expected one object on the line") from error
    return read_row(values, where, kinds)


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is no JSON")


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(n for n in names if names.count(n) > 1)!r} stands twice in one object")
    return out


def read_row(values: Any, where: str, kinds: Collection[str]) -> Row:
    """A row from plain values; kinds: names of modalities that parts may have besides `GENERIC`.

    Raises RowError for unknown or missing fields, wrong types, and rows from which nothing could be learnt.
    """
    if not isinstance(values, dict):
        raise RowError(f"{where}: is a {_named(values)}, expected an object with 'messages'")
    if unknown := sorted(set(values) - _ROW_FIELDS):
        raise RowError(f"{where}: has a field {unknown[0]!r}, expected only {', '.join(sorted(_ROW_FIELDS))}")
    messages = values.get("messages")
    if not isinstance(messages, list) or not messages:
        found = "has no messages" if not messages else f"messages is a {_named(messages)}"
        raise RowError(f"{where}: {found}, expected a list of at least one")
    tools = values.get("tools") or []
    if not isinstance(tools, list):
        raise RowError(f"{where}: tools is a {_named(tools)}, expected a list of declarations")
    turns = tuple(_turn(message, f"{where}: messages[{i}]", kinds) for i, message in enumerate(messages))
    return Row(where=where, turns=turns, tools=tuple(tools))


def _turn(values: Any, where: str, kinds: Collection[str]) -> Turn:
    if not isinstance(values, dict):
        raise RowError(f"{where} is a {_named(values)}, expected an object with 'role' and 'content'")
    role = values.get("role")
    if role not in ROLES:
        raise RowError(f"{where}.role is {role!r}, expected one of {', '.join(ROLES)}")
    for name, value in values.items():
        if name not in _MESSAGE_FIELDS[role] and not (name in _EMPTY_ONLY and not value):
            known = ", ".join(sorted(_MESSAGE_FIELDS[role]))
            raise RowError(f"{where}.{name} is unknown for role {role!r}, expected only {known}")
    extra = {k: v for k, v in values.items() if k not in ("role", "content", "weight") and v not in (None, "", [], {})}
    for name in ("name", "reasoning_content", "tool_call_id"):
        if not isinstance(extra.get(name, ""), str):
            raise RowError(f"{where}.{name} is a {_named(extra[name])}, expected a text")
    for name in ("tool_calls", "tools"):
        if not isinstance(extra.get(name, []), list):
            raise RowError(f"{where}.{name} is a {_named(extra[name])}, expected a list")
    parts = _parts(values.get("content"), f"{where}.content", kinds)
    empty = all(isinstance(part, Text) and not part.text.strip() for part in parts)
    if empty and role == "assistant" and not extra.get("tool_calls"):
        raise RowError(f"{where}.content of the assistant is empty, so there is nothing to learn; leave the row out")
    if empty and role == "user":
        raise RowError(f"{where}.content of the user is empty; leave the message out")
    return Turn(role=role, parts=parts, weight=_weight(values, where), extra=extra)


def _parts(value: Any, where: str, kinds: Collection[str]) -> tuple[Part, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        return (Text(text=value),) if value else ()
    if not isinstance(value, list):
        raise RowError(f"{where} is a {_named(value)}, expected a text or a list of parts")
    return tuple(_part(part, f"{where}[{i}]", kinds) for i, part in enumerate(value))


def _part(values: Any, where: str, kinds: Collection[str]) -> Part:
    if not isinstance(values, dict):
        raise RowError(f"{where} is a {_named(values)}, expected an object with 'type'")
    written = values.get("type")
    if not isinstance(written, str):
        raise RowError(f"{where}.type is {written!r}, expected a text")
    kind = _URL_FORMS.get(written, written)
    own = {"text", "symbols", *GENERIC}
    # `in` asks the plugins that may have the name; a list of all names would load every plugin there is
    if kind not in own and kind not in kinds:
        known = {*own, *kinds}
        near = get_close_matches(kind, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(sorted(known))}"
        raise RowError(f"{where}.type is {written!r}; {hint}")
    if written not in values:
        raise RowError(f"{where} is of type {written!r} but has no field {written!r}")
    if unknown := sorted(set(values) - {"type", "weight", written}):
        raise RowError(f"{where}.{unknown[0]} is unknown, expected only 'type', {written!r} and 'weight'")
    value, weight = values[written], _weight(values, where)
    where = f"{where}.{written}"
    if kind == "text":
        if not isinstance(value, str):
            raise RowError(f"{where} is a {_named(value)}, expected a text")
        return Text(text=value, weight=weight)
    if kind == "symbols":
        if not isinstance(value, list) or not value or not all(isinstance(name, str) for name in value):
            raise RowError(f"{where} is {value!r}, expected a list of names")
        return Symbols(names=tuple(value), weight=weight)
    return _item(kind, value, weight, where)


def _item(kind: str, value: Any, weight: float | None, where: str) -> Item:
    if isinstance(value, dict) and "bytes" in value and set(value) <= {"bytes", "path"}:
        value = value["bytes"]  # as parquet files hold media
    elif isinstance(value, dict) and set(value) in ({"url"}, {"path"}, {"url", "detail"}):
        value = value.get("url", value.get("path"))
        if not isinstance(value, str):
            raise RowError(f"{where} names no file but a {_named(value)}, expected a text")
    is_file = isinstance(value, (str, bytes))
    if is_file and not value:
        raise RowError(f"{where} is empty, expected where the file is")
    if not is_file and kind in GENERIC:
        raise RowError(f"{where} is a {_named(value)}, expected a path, a data URI or {{'url': ...}}")
    if value is None:
        raise RowError(f"{where} is null, expected something to read")
    return Item(kind=kind, value=value, is_file=is_file, weight=weight)


def _weight(values: Mapping[str, Any], where: str) -> float | None:
    weight = values.get("weight")
    if weight is None:
        return None
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 <= weight < math.inf:
        raise RowError(f"{where}.weight is {weight!r}, expected a number of at least 0")
    return float(weight)


def _named(value: Any) -> str:
    names = {dict: "object", list: "list", str: "text", bool: "truth value", type(None): "null"}
    return names.get(type(value), "number" if isinstance(value, (int, float)) else type(value).__name__)

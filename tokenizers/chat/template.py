"""A checkpoint's own Jinja template, rendered in a sandbox, without its text becoming control tokens.

A template returns one text in which its control tokens and the words of people look alike. So every control name inside
a message is replaced by a word that occurs nowhere, and put back as text after the result has been cut at the control
names that are left, which are the template's own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from watersmeet.core.errors import CheckpointError, UsageError
from watersmeet.tokenizers.chat.messages import Conversation, Picture, openai_messages
from watersmeet.tokenizers.chat.options import ChatOptions
from watersmeet.tokenizers.chat.pieces import Media, Piece, Pieces

FILE = "chat_template.jinja"
PAD = "<|media_pad|>"
_MOST_CHARACTERS = 1_000_000


class _Refused(Exception):
    """What a template says about messages that it cannot render."""


def find_template(files: Mapping[str, bytes]) -> str | None:
    """The chat template among a checkpoint's files: chat_template.jinja, or the entry of tokenizer_config.json.

    Raises CheckpointError for one that is no text.
    """
    if FILE in files:
        try:
            return files[FILE].decode("utf-8")
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{FILE}: is not UTF-8 ({error})") from error
    try:
        found = json.loads(files.get("tokenizer_config.json", b"{}")).get("chat_template")
    except (ValueError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"tokenizer_config.json: no JSON object ({error})") from error
    if isinstance(found, list):
        named = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, dict)}
        found = named.get("default")
    if found is not None and not isinstance(found, str):
        raise CheckpointError(f"tokenizer_config.json: chat_template is a {type(found).__name__}, expected a text")
    return found


class Template:
    """A compiled template. Raises CheckpointError when it is no Jinja template."""

    def __init__(self, source: str) -> None:
        import jinja2
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        if len(source) > _MOST_CHARACTERS:
            raise CheckpointError(f"chat template: {len(source)} characters are too many for a template")
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        self._source = source
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise CheckpointError(f"chat template: no Jinja template ({error})") from error

    def render(self, talk: Conversation, options: ChatOptions, names: Mapping[str, int]) -> Pieces:
        """Pieces of a conversation; `names` are the control names of the vocabulary.

        Raises UsageError with the template's own words when it refuses the messages.
        """
        pictures = [part for message in talk.messages for part in message.content if isinstance(part, Picture)]
        messages, tools = openai_messages(talk), list(talk.tools)
        said = json.dumps([messages, tools], default=str, ensure_ascii=False)
        hide, restore = _mask(self._source + said, names)
        context: dict[str, Any] = {"messages": hide(messages), "tools": hide(tools) or None}
        context |= {"add_generation_prompt": options.generate, "preserve_thinking": options.keep_reasoning}
        if options.thinking is not None:
            context |= {"thinking": options.thinking, "enable_thinking": options.thinking}
        context |= {"bos_token": "[BOS]", "eos_token": "[EOS]", "pad_token": "[PAD]"}
        try:
            text = self._template.render(context)
        except Exception as error:  # a template is a program of others and can fail in any way
            raise UsageError(f"chat: the checkpoint's template refuses these messages: {error}") from error
        return _cut(text, names, restore, pictures)


def _to_json(value: Any, **options: Any) -> str:
    # Jinja's own filter escapes signs of HTML, which no model was trained on
    allowed = {key: options[key] for key in ("indent", "separators", "sort_keys", "ensure_ascii") if key in options}
    return json.dumps(value, **{"ensure_ascii": False, **allowed})


def _refuse(message: str) -> None:
    raise _Refused(message)


def _mask(haystack: str, names: Mapping[str, int]) -> tuple[Callable[[Any], Any], Callable[[str], str]]:
    """(hide, restore): control names in nested values replaced by words that `haystack` does not hold, and back in a text."""
    mark = "Q"
    while re.search(mark + r"\d+Z", haystack):
        mark += "Q"
    order = list(names)
    number = {name: f"{mark}{index}Z" for index, name in enumerate(order)}
    any_name = _any_of(names)

    def hide(value: Any) -> Any:
        if isinstance(value, str):
            return any_name.sub(lambda match: number[match.group()], value)
        if isinstance(value, Mapping):
            return {hide(key): hide(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [hide(item) for item in value]
        return value

    masked = re.compile(mark + r"(\d+)Z")
    return hide, lambda text: masked.sub(lambda match: order[int(match.group(1))], text)


def _any_of(names: Mapping[str, int]) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(name) for name in sorted(names, key=len, reverse=True)))


def _cut(text: str, names: Mapping[str, int], restore: Callable[[str], str], pictures: list[Picture]) -> Pieces:
    out: Pieces = []
    rest = list(pictures)
    position = 0
    for match in _any_of(names).finditer(text):
        if match.start() > position:
            out.append(Piece(restore(text[position : match.start()])))
        if match.group() == PAD:
            if not rest:
                raise UsageError("chat: the checkpoint's template has more places for pictures than there are pictures")
            out.append(Media(rest.pop(0)))
        else:
            out.append(Piece(match.group(), control=True))
        position = match.end()
    if position < len(text):
        out.append(Piece(restore(text[position:])))
    if rest:
        raise UsageError(f"chat: the checkpoint's template has no place for {len(rest)} of {len(pictures)} pictures")
    return out

"""What a model's answer is made of, as it comes and as a whole. The forms are in `k2_parser.py` and `xtml_parser.py`.

A parser is fed ids or text in pieces of any size; how it is cut never changes what comes out, apart from where one run
of text is cut into several events (`joined` undoes that).
"""

from __future__ import annotations

import codecs
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from watersmeet.core.errors import UsageError
from watersmeet.tokenizers.chat.messages import ToolCall
from watersmeet.tokenizers.tiktoken.vocabulary import TiktokenVocabulary


@dataclass(frozen=True, kw_only=True)
class Reasoning:
    """Text of the reasoning."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Content:
    """Text of the answer."""

    text: str


@dataclass(frozen=True, kw_only=True)
class CallStart:
    """A call begins. `index` counts the calls of this answer from 0; `id` is the one that the model wrote, if any."""

    index: int
    name: str
    id: str | None = None


@dataclass(frozen=True, kw_only=True)
class CallArguments:
    """More of the JSON text of a call's arguments; the texts of one call joined are the whole."""

    index: int
    text: str


@dataclass(frozen=True, kw_only=True)
class CallEnd:
    """A call is complete. `call.arguments` is text when what the model wrote is no JSON object."""

    index: int
    call: ToolCall


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Something that the form does not allow, as it was written; nothing of an answer disappears without a word."""

    text: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The model ended its message."""


Event = Reasoning | Content | CallStart | CallArguments | CallEnd | Fault | Finished


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A whole answer. `finished` is False when the output was cut; `open_in` then says where: "reasoning", "content",
    "call", "between". `unfinished` is the call that was being written, with the text of its arguments so far; such a
    call is never among `calls`."""

    reasoning: str
    content: str
    calls: tuple[ToolCall, ...]
    faults: tuple[Fault, ...]
    finished: bool
    open_in: str | None = None
    unfinished: ToolCall | None = None


def joined(events: Iterable[Event]) -> list[Event]:
    """Events with neighbouring texts of one kind put together."""
    out: list[Event] = []
    for event in events:
        last = out[-1] if out else None
        if (
            isinstance(event, (Reasoning, Content, CallArguments))
            and isinstance(last, (Reasoning, Content, CallArguments))
            and replace(last, text="") == replace(event, text="")
        ):
            out[-1] = replace(last, text=last.text + event.text)
        else:
            out.append(event)
    return out


class Scanner:
    """Finds control names in text that comes in pieces; what could be the beginning of one is held back."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = sorted(names)
        self._any = re.compile("|".join(map(re.escape, self._names))) if self._names else None
        self._longest = max(map(len, self._names), default=0)
        self._held = ""

    def push(self, text: str) -> Iterator[tuple[str, bool]]:
        """(text or name, whether it is a name) for all that is certain now."""
        held = self._held + text
        position = 0
        if self._any is not None:
            for match in self._any.finditer(held):
                if match.start() > position:
                    yield held[position : match.start()], False
                yield match.group(), True
                position = match.end()
        # the longest end of the text that begins a name; names overlap nowhere, so one look is enough
        keep = next(
            (n for n in range(min(self._longest - 1, len(held) - position), 0, -1) if self._begins(held[-n:])), 0
        )
        self._held = held[len(held) - keep :]
        if len(held) - keep > position:
            yield held[position : len(held) - keep], False

    def flush(self) -> str:
        """What was held back, now that no more will come."""
        held, self._held = self._held, ""
        return held

    def _begins(self, end: str) -> bool:
        return any(name.startswith(end) for name in self._names)


class StreamParser(ABC):
    """Base of both forms: turns what is fed into control names and texts, and collects events.

    vocabulary: None when text with control names in it is fed; then the text of a message cannot be told from a control
    name that it spells. With a vocabulary ids are fed, control tokens count by their ids, and only names for which it
    has no id are looked for in text.
    """

    NAMES: tuple[str, ...] = ()
    """Every control name of the form."""
    ENDS: tuple[str, ...] = ()
    """Names, of those and of general ones, that end the message."""

    def __init__(self, vocabulary: TiktokenVocabulary | None) -> None:
        self._vocabulary = vocabulary
        known = () if vocabulary is None else vocabulary.specials
        self._scanner = Scanner(name for name in self.NAMES if name not in known)
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._new: list[Event] = []
        self._all: list[Event] = []
        self._calls = 0
        self._running: CallStart | None = None
        self._arguments: list[str] = []
        self._stray_text, self._stray_reason = "", ""
        self._finished = self._closed = False

    # ---- feeding --------------------------------------------------------------------------------------------------

    def feed(self, piece: str | Sequence[int] | int) -> list[Event]:
        """Events that are certain now. What follows the end of the message is not read.

        Raises UsageError for text where ids are wanted, the reverse, or anything after `close`; ConfigError for an id
        outside the vocabulary.
        """
        if self._closed:
            raise UsageError("chat: this parser was closed; make a new one for every answer")
        if isinstance(piece, str):
            if self._vocabulary is not None:
                raise UsageError("chat: this parser reads ids; make it with text=True to feed text")
            self._scan(piece)
        else:
            if self._vocabulary is None:
                raise UsageError("chat: this parser reads text; make it without text=True to feed ids")
            for index in [piece] if isinstance(piece, int) else piece:
                self._id(int(index), self._vocabulary)
        return self._taken()

    def close(self) -> list[Event]:
        """Events that were held back, at the end of the output."""
        if not self._closed:
            self._scan(self._utf8.decode(b"", final=True))
            self._rest()
            self._closed = True
            if not self._finished:
                self._tell_stray()
                self._at_end()
        return self._taken()

    def _id(self, index: int, vocabulary: TiktokenVocabulary) -> None:
        if self._finished:
            return
        if not vocabulary.is_special(index):
            self._scan(self._utf8.decode(vocabulary.token_bytes[index]))
            return
        self._scan(self._utf8.decode(b"", final=True))
        self._utf8.reset()
        self._rest()
        self._control_name(vocabulary.name(index))

    def _scan(self, text: str) -> None:
        for item, control in self._scanner.push(text):
            if self._finished:
                return
            if control:
                self._control_name(item)
            else:
                self._text(item)

    def _rest(self) -> None:
        if (held := self._scanner.flush()) and not self._finished:
            self._text(held)

    def _control_name(self, name: str) -> None:
        if self._finished:
            return
        self._tell_stray()
        if name in self.ENDS:
            self._at_end()
            self._finished = True
            self._emit(Finished())
        elif name in self.NAMES:
            self._control(name)
        else:
            self._emit(Fault(text=name, reason="a control token that has no place in an answer"))

    # ---- what a form fills in -------------------------------------------------------------------------------------

    @abstractmethod
    def _control(self, name: str) -> None:
        """A control token of this form."""

    @abstractmethod
    def _text(self, text: str) -> None:
        """Text between control tokens, cut anywhere."""

    @abstractmethod
    def _at_end(self) -> None:
        """The message or the output ends here."""

    @abstractmethod
    def _where(self) -> str:
        """Where the answer stands: "reasoning", "content", "call" or "between"."""

    def _stray(self, text: str, reason: str) -> None:
        """Text where the form has none: kept until the next control token, since white space alone means nothing."""
        self._stray_text += text
        self._stray_reason = reason

    def _tell_stray(self) -> None:
        if self._stray_text.strip():
            self._emit(Fault(text=self._stray_text, reason=self._stray_reason))
        self._stray_text = ""

    # ---- events ---------------------------------------------------------------------------------------------------

    def _emit(self, event: Event) -> None:
        self._new.append(event)

    def _taken(self) -> list[Event]:
        new, self._new = self._new, []
        self._all += new
        return new

    def _start(self, name: str, identity: str | None) -> None:
        self._running = CallStart(index=self._calls, name=name, id=identity)
        self._arguments = []
        self._calls += 1
        self._emit(self._running)

    def _more(self, text: str) -> None:
        if self._running is not None and text:
            self._arguments.append(text)
            self._emit(CallArguments(index=self._running.index, text=text))

    def _end_call(self) -> None:
        if self._running is not None:
            call = self._call_so_far(self._running)
            self._emit(CallEnd(index=self._running.index, call=call))
            self._running = None

    def _drop_call(self, reason: str) -> None:
        """A call that will not be completed: said, and never reported as a call."""
        if self._running is not None:
            self._emit(Fault(text="".join(self._arguments), reason=f"call of {self._running.name!r} {reason}"))
            self._running = None

    def _call_so_far(self, start: CallStart) -> ToolCall:
        text = "".join(self._arguments)
        return ToolCall(name=start.name, arguments=_object_or_text(text), id=start.id)

    def answer(self) -> Answer:
        """Everything so far, put together. Complete after `close`."""
        events = [*self._all, *self._new]
        running = self._running
        return Answer(
            reasoning="".join(event.text for event in events if isinstance(event, Reasoning)),
            content="".join(event.text for event in events if isinstance(event, Content)),
            calls=tuple(event.call for event in events if isinstance(event, CallEnd)),
            faults=tuple(event for event in events if isinstance(event, Fault)),
            finished=self._finished,
            open_in=None if self._finished else self._where(),
            unfinished=None
            if running is None
            else ToolCall(name=running.name, arguments="".join(self._arguments), id=running.id),
        )


def _object_or_text(text: str) -> dict[str, Any] | str:
    try:
        value = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text

"""Answers in the form of Kimi K2, K2.5 and Kimi Linear."""

from __future__ import annotations

import re

from watersmeet.tokenizers.chat import k2
from watersmeet.tokenizers.chat.parsing import Content, Fault, Reasoning, StreamParser
from watersmeet.tokenizers.tiktoken.vocabulary import TiktokenVocabulary

# models write the section's name in both numbers; only the plural has ids
_SECTION_BEGINS = (k2.SECTION_BEGIN, "<|tool_call_section_begin|>")
_SECTION_ENDS = (k2.SECTION_END, "<|tool_call_section_end|>")
_HEADER = re.compile(r"\s*(?:functions\.)?(?P<name>[\w.-]+?)(?::(?P<index>\d+))?\s*")


class K2Parser(StreamParser):
    """thinking: the prompt opened the reasoning (`<think>`), so the answer begins inside it."""

    NAMES = (
        *_SECTION_BEGINS,
        *_SECTION_ENDS,
        k2.CALL_BEGIN,
        k2.CALL_ARGUMENTS,
        k2.CALL_END,
        k2.THINK,
        k2.THINK_END,
        k2.END,
    )
    ENDS = (k2.END, "[EOS]", "[EOT]")

    def __init__(self, vocabulary: TiktokenVocabulary | None, *, thinking: bool = False) -> None:
        super().__init__(vocabulary)
        self._state = "reasoning" if thinking else "content"
        self._in_section = False
        self._header = ""

    def _where(self) -> str:
        return {"reasoning": "reasoning", "content": "content", "section": "between"}.get(self._state, "call")

    def _text(self, text: str) -> None:
        if self._state == "reasoning":
            self._emit(Reasoning(text=text))
        elif self._state == "content":
            self._emit(Content(text=text))
        elif self._state == "header":
            self._header += text
        elif self._state == "arguments":
            self._more(text)
        else:
            self._stray(text, "text between calls" if self._state == "section" else "arguments of no tool")

    def _control(self, name: str) -> None:
        if name == k2.THINK and self._state == "content":
            self._state = "reasoning"
        elif name == k2.THINK_END and self._state == "reasoning":
            self._state = "content"
        elif name in _SECTION_BEGINS and self._state in ("reasoning", "content"):
            # a section inside the reasoning ends it, whether the model closed it or not
            self._state = "section"
        elif name in _SECTION_ENDS and self._state not in ("reasoning", "content"):
            self._leave_call("was not closed before its section")
            self._state = "content"
        elif name == k2.CALL_BEGIN:
            self._leave_call("was not closed before the next one")
            self._state, self._header = "header", ""
        elif name == k2.CALL_ARGUMENTS and self._state == "header":
            self._begin()
        elif name == k2.CALL_END and self._state == "arguments":
            self._end_call()
            self._state = "section"
        elif name == k2.CALL_END and self._state in ("header", "refused"):
            self._leave_call("")
            self._state = "section"
        else:
            self._emit(Fault(text=name, reason="a control token out of place"))

    def _begin(self) -> None:
        match = _HEADER.fullmatch(self._header)
        if match is None:
            self._emit(Fault(text=self._header, reason="no name of a tool"))
            self._state, self._header = "refused", ""
            return
        self._start(match["name"], self._header.strip())
        self._state = "arguments"

    def _leave_call(self, reason: str) -> None:
        if self._state == "header":
            self._emit(Fault(text=self._header, reason="a call without arguments"))
        self._drop_call(reason)

    def _at_end(self) -> None:
        if self._state == "header" and self._header:
            self._emit(Fault(text=self._header, reason="the output ends in the name of a call"))

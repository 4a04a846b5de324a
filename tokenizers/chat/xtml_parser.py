"""Answers in K3's XTML."""

from __future__ import annotations

import json
import re

from watersmeet.tokenizers.chat import xtml
from watersmeet.tokenizers.chat.parsing import Content, Fault, Reasoning, StreamParser
from watersmeet.tokenizers.tiktoken.vocabulary import TiktokenVocabulary

_TAG = re.compile(r"\s*([\w.:-]+)((?:\s+[\w.:-]+=\"[^\"]*\")*)\s*")
_ATTRIBUTE = re.compile(r"([\w.:-]+)=\"([^\"]*)\"")
_CHANNELS = ("think", "response", "tools")


class XtmlParser(StreamParser):
    """thinking: which channel the prompt opened, `think` or `response`."""

    NAMES = (xtml.OPEN, xtml.CLOSE, xtml.SEP, xtml.END)
    ENDS = (xtml.END, "[EOS]", "[EOT]")

    def __init__(self, vocabulary: TiktokenVocabulary | None, *, thinking: bool = True) -> None:
        super().__init__(vocabulary)
        # elements that are open, the innermost last; the prompt opened the first two
        self._open = ["message", "think" if thinking else "response"]
        self._bracket: str | None = None
        self._header = ""
        self._keys: set[str] = set()
        self._type = ""
        self._body: list[str] = []

    def _where(self) -> str:
        if "call" in self._open:
            return "call"
        inner = self._open[-1] if self._open else ""
        return {"think": "reasoning", "response": "content"}.get(inner, "between")

    # ---- brackets -------------------------------------------------------------------------------------------------

    def _text(self, text: str) -> None:
        inner = self._open[-1] if self._open else ""
        if self._bracket is not None:
            self._header += text
        elif inner == "think":
            self._emit(Reasoning(text=text))
        elif inner == "response":
            self._emit(Content(text=text))
        elif inner == "argument" and self._type == "string":
            self._more(json.dumps(text, ensure_ascii=False)[1:-1])
        elif inner in ("argument", "json"):
            self._body.append(text)
        else:
            self._stray(text, f"text outside a channel, in {inner or 'nothing'}")

    def _control(self, name: str) -> None:
        if name == xtml.SEP and self._bracket is not None:
            header, bracket = self._header, self._bracket
            self._bracket, self._header = None, ""
            if bracket == xtml.OPEN:
                self._opened(header)
            else:
                self._closed_tag(header.strip())
        elif name == xtml.SEP:
            self._emit(Fault(text=name, reason="a control token out of place"))
        else:
            self._give_up_header()
            self._bracket = name

    def _give_up_header(self) -> None:
        if self._bracket is not None:
            self._emit(Fault(text=self._bracket + self._header, reason="a tag that never ends"))
        self._bracket, self._header = None, ""

    def _opened(self, header: str) -> None:
        match = _TAG.fullmatch(header)
        if match is None:
            self._emit(Fault(text=header, reason="no tag"))
            return
        tag = match[1]
        attributes = {key: xtml.unescape(value) for key, value in _ATTRIBUTE.findall(match[2])}
        if tag == "message":
            # an answer may repeat the opening that the prompt made
            self._leave_until("")
        elif tag in _CHANNELS:
            # a channel opened inside another ends it: tools inside the reasoning are tools
            self._leave_until("message")
        elif tag == "call":
            self._leave_until("tools", "message")
            name = attributes.get("tool")
            if not name:
                self._emit(Fault(text=header, reason="a call without the name of a tool"))
                tag = "refused"
            else:
                self._start(name, attributes.get("id"))
                self._keys = set()
        elif tag in ("argument", "json") and self._running is not None:
            self._leave_until("call")
            if not self._value_opened(tag, attributes, header):
                tag = "refused"
        else:
            self._emit(Fault(text=header, reason="a tag that has no place here"))
            tag = "refused"
        self._open.append(tag)

    def _closed_tag(self, tag: str) -> None:
        if tag in self._open:
            self._leave_until(tag)
            self._leave(complete=True)
        elif "refused" in self._open:
            self._leave_until("refused")
            self._open.pop()
        else:
            self._emit(Fault(text=tag, reason="closes what is not open"))

    def _leave_until(self, *tags: str) -> None:
        """Leave elements until one of `tags` is the innermost; an empty one leaves them all."""
        while self._open and self._open[-1] not in tags:
            self._leave(complete=False)

    def _leave(self, *, complete: bool) -> None:
        tag = self._open.pop()
        if tag in ("argument", "json"):
            self._value_closed(tag, complete)
        elif tag == "call":
            if complete:
                self._more("{}" if not self._keys and not self._arguments else "}" if self._keys else "")
                self._end_call()
            else:
                self._drop_call("was not closed")

    # ---- arguments ------------------------------------------------------------------------------------------------

    def _value_opened(self, tag: str, attributes: dict[str, str], header: str) -> bool:
        self._body = []
        self._type = "json" if tag == "json" else attributes.get("type", "string")
        if tag == "json":
            if self._keys or self._arguments:
                self._emit(Fault(text=header, reason="JSON beside other arguments"))
                return False
            return True
        key = attributes.get("key")
        if key is None or key in self._keys or (self._arguments and not self._keys):
            self._emit(Fault(text=header, reason="an argument without a name" if key is None else "an argument twice"))
            return False
        self._more(("{" if not self._keys else ", ") + json.dumps(key, ensure_ascii=False) + ": ")
        self._keys.add(key)
        if self._type == "string":
            self._more('"')
        return True

    def _value_closed(self, tag: str, complete: bool) -> None:
        if not complete:
            # what was written stays visible, as text: it may be half a value
            if self._type != "string":
                self._more("".join(self._body))
            return
        if self._type == "string":
            self._more('"')
            return
        text = "".join(self._body)
        if tag == "json":
            self._more(text)
            return
        try:
            value = json.loads(text)
            fits = xtml.value_type(value) == self._type
        except (ValueError, RecursionError):
            fits = False
        if not fits:
            self._emit(Fault(text=text, reason=f"no value of type {self._type!r}"))
            # the text itself is the only thing that is certain
            text = json.dumps(text, ensure_ascii=False)
        self._more(text)

    def _at_end(self) -> None:
        self._give_up_header()
        if self._running is not None and self._open and self._open[-1] in ("argument", "json") and self._body:
            self._more("".join(self._body))
            self._body = []

"""The JSON object in what a large model answered: also behind prose, in a fence, or cut off at the end.

Nothing is believed here; `checked.py` looks at what is inside.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

FIELDS = ("screens", "steps", "features", "patterns", "open_questions")
_TRIES = 64  # braces at which an object may begin
_DIGITS = 18  # of a whole number; longer ones are no frame and no time


def find_object(answer: str) -> tuple[dict[str, Any], bool] | None:
    """The object that has fields of a specification, and whether the answer ends before it does; None if there is none.

    Numbers that are none (NaN, Infinity, endless digits) are None in it.
    """
    text = re.sub(r"<think>.*?</think>", " ", answer, flags=re.DOTALL)
    for found in _objects(text):
        for one in (found, *found.values()):
            if isinstance(one, dict) and any(name in one for name in FIELDS):
                return one, False
    begin = re.search(r"\{\s*\"", text)
    completed = None if begin is None else _completed(text[begin.start() :])
    mended = None if completed is None else next(_objects(completed), None)
    if mended is not None and any(name in mended for name in FIELDS):
        return mended, True
    return None


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """Objects from left to right, those within others left out."""
    decoder = json.JSONDecoder(parse_constant=lambda name: None, parse_int=_whole, parse_float=float)
    at = text.find("{")
    for _ in range(_TRIES):
        if at < 0:
            return
        end = at + 1
        try:
            found, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict):
            yield found
        at = text.find("{", end)


def _whole(digits: str) -> int | None:
    return int(digits) if len(digits) <= _DIGITS else None


def _completed(text: str) -> str | None:
    """An object that was cut off, up to its last whole element, with what is open closed; None if nothing is whole."""
    open_, quoted, escaped, best = "", False, False, None
    for at, letter in enumerate(text):
        if quoted:
            quoted, escaped = escaped or letter != '"', not escaped and letter == "\\"
        elif letter == '"':
            quoted = True
        elif letter in "{[":
            open_ += letter
        elif letter in "}]":
            open_ = open_[:-1]
            if not open_:
                return text[: at + 1]
            if len(open_) <= 2:  # an element of a list of the outermost object, or such a list
                best = at + 1, open_
    if best is None:
        return None
    end, left = best
    return text[:end] + "".join("}" if letter == "{" else "]" for letter in reversed(left))

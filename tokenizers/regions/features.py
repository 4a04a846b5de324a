"""Columns of a region token: every measured value as a small integer.

Legend: n regions, F columns.
"""

import math
import zlib
from collections.abc import Mapping
from typing import Any

WORDS = 6
COLUMNS: dict[str, int] = {
    "type": 2,  # text, shape
    "kind": 6,  # text, fill, outline, picture, rule, unknown
    "red": 17,
    "green": 17,
    "blue": 17,
    "red2": 17,  # second colour: paper of a text, border of a shape; the last value is "none"
    "green2": 17,
    "blue2": 17,
    "width": 64,
    "height": 64,
    "size": 32,  # font size, or corner radius
    "stroke": 8,  # weight, or border width
    "looks": 16,  # what kind of string
    "first": 6,
    "last": 8,
    "letters": 24,
    "words": 10,
    "depth": 10,
    "parent": 161,  # frame it lies in, one more than the index in its list; 0 for none
}
"""Column names with the number of values each takes; word hashes and the reference index follow them."""

FEATURES = len(COLUMNS) + WORDS + 1  # F
SHAPE_KINDS = ("fill", "outline", "picture", "rule")


def log_bin(value: float, steps: float, count: int) -> int:
    """Bin of a length on a logarithmic scale, `steps` bins an octave, 0 for lengths up to 1."""
    return min(count - 1, max(0, round(steps * math.log2(max(1.0, value)))))


def _color(value: Any) -> tuple[int, int, int]:
    if value is None:
        return 16, 16, 16
    r, g, b = (min(15, max(0, int(v) >> 4)) for v in value)
    return r, g, b


def _char_class(char: str) -> int:
    if char.isupper():
        return 1
    if char.isdigit():
        return 2
    if char.isalpha():
        return 3
    return 4


_LAST = {".": 4, ":": 5, "?": 6, "!": 6, "…": 7, "›": 7, "»": 7, "→": 7}


def looks(text: str) -> int:
    """What kind of string: number, price, date or time, address, capitals, title, sentence..."""
    letters = sum(c.isalpha() for c in text)
    digits = sum(c.isdigit() for c in text)
    words = text.split()
    if "@" in text and "." in text and " " not in text:
        return 1
    if any(mark in text for mark in ("://", "www.", ".com", ".org")):
        return 2
    if digits and not letters:
        if any(mark in text for mark in "$€£¥"):
            return 3
        if "%" in text:
            return 4
        if any(mark in text for mark in ":/") or text.count("-") == 2:
            return 5
        return 6
    if not letters:
        return 7  # signs only
    if any(mark in text for mark in ("()", "{", "};", "</", "=>", "==", "::")):
        return 8
    if letters > 1 and text.upper() == text:
        return 9
    if len(words) > 6:
        return 10
    if words and all(word[0].isupper() for word in words if word[0].isalpha()):
        return 11 if len(words) > 1 else 12
    if text[0].isupper():
        return 13 if len(words) > 1 else 14
    return 15


def word_hashes(text: str, buckets: int) -> list[int]:
    """The first `WORDS` words as stable bucket numbers 1..buckets-1; 0 where there is no word."""
    words = ["".join(c for c in word if c.isalnum()) or word for word in text.lower().split()]
    ids = [1 + zlib.crc32(word.encode()) % (buckets - 1) for word in words[:WORDS]]
    return ids + [0] * (WORDS - len(ids))


def text_row(record: Mapping[str, Any], depth: int, parent: int, index: int, buckets: int) -> list[int]:
    """Columns of one text region."""
    text, box = record["text"], record["box"]
    width, height = box["x1"] - box["x0"], box["y1"] - box["y0"]
    last = text[-1]
    return [
        0,
        0,
        *_color(record["color"]),
        *_color(record["background"]),
        log_bin(width, 5, 64),
        log_bin(height, 7, 64),
        log_bin(record["font_size"] / 4, 6, 32),
        0 if record["weight"] < 600 else 1,
        looks(text),
        _char_class(text[0]),
        _LAST.get(last, _char_class(last) if last.isalnum() else 0),
        log_bin(len(text), 3, 24),
        min(9, len(text.split())),
        min(9, depth),
        parent,
        *word_hashes(text, buckets),
        index,
    ]


def shape_row(record: Mapping[str, Any], depth: int, parent: int, index: int) -> list[int]:
    """Columns of one shape region."""
    box = record["box"]
    width, height = box["x1"] - box["x0"], box["y1"] - box["y0"]
    kind = record["kind"]
    return [
        1,
        1 + SHAPE_KINDS.index(kind) if kind in SHAPE_KINDS else 5,
        *_color(record["color"]),
        *_color(record["border_color"]),
        log_bin(width, 5, 64),
        log_bin(height, 7, 64),
        log_bin(record["radius"] + 1, 5, 32),
        min(7, 2 + round(record["border_width"])) if record["border_width"] else 2,
        0,
        0,
        0,
        0,
        0,
        min(9, depth),
        parent,
        *([0] * WORDS),
        index,
    ]

"""How wide a line of text is, and how tall its letters stand, before any browser has looked.

Chromium on Linux lays Arial, Times New Roman and Courier New out with the metric-compatible Liberation faces and, for
plain text without hinting, scales advances linearly with the size. So one face opened at a large size answers for every
size. Ascent and descent are rounded to whole pixels one by one, as Chromium does before it places a baseline.
"""

import os
import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from PIL import ImageFont, features

_UNITS = 2048  # the design size of all faces below: widths come out in font units

FAMILIES: dict[str, str] = {
    "sans": 'Arial, "Liberation Sans", Helvetica, sans-serif',
    "serif": '"Times New Roman", "Liberation Serif", Times, serif',
    "mono": '"Courier New", "Liberation Mono", monospace',
    "wide": '"DejaVu Sans", Verdana, sans-serif',
    "wide-serif": '"DejaVu Serif", Georgia, serif',
    "narrow": '"Liberation Sans Narrow", "Arial Narrow", Arial, sans-serif',
}
_STEMS = {
    "sans": "LiberationSans",
    "serif": "LiberationSerif",
    "mono": "LiberationMono",
    "narrow": "LiberationSansNarrow",
    "wide": "DejaVuSans",
    "wide-serif": "DejaVuSerif",
}
_FOLDERS = ("/usr/share/fonts", "/usr/local/share/fonts", "~/.fonts", "~/.local/share/fonts", "/Library/Fonts")


@dataclass(frozen=True, kw_only=True, slots=True)
class Font:
    """A face at a size: `family` is a key of `FAMILIES`, `size` in px."""

    family: str = "sans"
    size: float = 16.0
    weight: int = 400
    italic: bool = False

    @property
    def bold(self) -> bool:
        """Whether the bold face is drawn: Liberation has no weights between regular and bold."""
        return self.weight >= 600


@lru_cache(maxsize=1)
def _files() -> dict[str, Path]:
    found: dict[str, Path] = {}
    for folder in _FOLDERS:
        for root, _dirs, names in os.walk(Path(folder).expanduser()):
            for name in names:
                if name.endswith(".ttf") and name.startswith(("Liberation", "DejaVu")):
                    found.setdefault(name.removesuffix(".ttf"), Path(root, name))
    return found


@lru_cache(maxsize=32)
def _face(family: str, bold: bool, italic: bool) -> Any:
    """The opened face, or None where it is not installed."""
    style = {(False, False): "Regular", (True, False): "Bold", (False, True): "Italic", (True, True): "BoldItalic"}
    name = f"{_STEMS[family]}-{style[bold, italic]}"
    if name.startswith("DejaVu"):
        slanted = "Italic" if family == "wide-serif" else "Oblique"
        name = _STEMS[family] + ("-" + "Bold" * bold + slanted * italic if bold or italic else "")
        name = name if family != "wide-serif" or name in _files() else _STEMS[family]
    path = _files().get(name)
    return None if path is None else ImageFont.truetype(str(path), _UNITS)


def installed(family: str = "sans") -> bool:
    """Whether widths of `family` are exact here; otherwise they are guesses and must not be fitted to."""
    return _face(family, False, False) is not None


@lru_cache(maxsize=16384)
def _has(family: str, bold: bool, char: str) -> bool:
    face = _face(family, bold, False)
    if face is None:
        return False
    small = _probe(family, bold)
    mask = small.getmask(char)
    missing = small.getmask("\uffff")
    return (mask.size, bytes(mask)) != (missing.size, bytes(missing))


@lru_cache(maxsize=32)
def _probe(family: str, bold: bool) -> Any:
    return _face(family, bold, False).font_variant(size=24)


@lru_cache(maxsize=65536)
def _units(text: str, family: str, bold: bool, italic: bool, ligatures: bool) -> float:
    face = _face(family, bold, italic) or _face(family, bold, False)
    if face is None:
        return 0.5 * _UNITS * len(text)
    if text.isascii() and text.isprintable():
        return float(_length(face, text, ligatures))
    # Other scripts: runs the face cannot draw come from the fallback face, or count as one em a letter.
    total, run = 0.0, ""
    for char in text:
        if char.isspace() or _has(family, bold, char):
            run += char
            continue
        total += float(_length(face, run, ligatures)) if run else 0.0
        run = ""
        if family != "wide" and _has("wide", bold, char):
            total += float(_length(_face("wide", bold, False), char, ligatures))
        elif not _joins(char):
            total += _UNITS
    return total + (float(_length(face, run, ligatures)) if run else 0.0)


def _length(face: Any, text: str, ligatures: bool) -> float:
    if ligatures or not features.check("raqm"):
        return float(face.getlength(text))
    return float(face.getlength(text, features=["-liga", "-clig"]))


def _joins(char: str) -> bool:
    """Whether a character adds no width of its own (joiners, variation selectors, combining marks)."""
    return unicodedata.category(char) in ("Mn", "Me", "Cf", "Cc") or "\U0001f3fb" <= char <= "\U0001f3ff"


def text_width(text: str, font: Font, *, ligatures: bool = True) -> float:
    """Width in px of `text` on one line, without letter-spacing. White space counts as it stands."""
    return _units(text, font.family, font.bold, font.italic, ligatures) * font.size / _UNITS


def clusters(text: str) -> int:
    """How many times letter-spacing is added to `text`: once a character that has a width."""
    return sum(not _joins(c) for c in text)


@lru_cache(maxsize=4096)
def metrics(font: Font) -> tuple[int, int]:
    """Ascent and descent in whole px: their sum is the height of a text rectangle in the browser."""
    face = _face(font.family, font.bold, font.italic) or _face(font.family, font.bold, False)
    ascent, descent = face.getmetrics() if face is not None else (0.905 * _UNITS, 0.212 * _UNITS)
    return _round(ascent * font.size / _UNITS), _round(descent * font.size / _UNITS)


def _round(value: float) -> int:
    return int(value + 0.5)

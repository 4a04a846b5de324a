"""Words of a command line as the spans of one mixed prompt."""

from __future__ import annotations

import json
import mimetypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from watersmeet.core.errors import DecodeError, UsageError
from watersmeet.core.stream import Span, content_key
from watersmeet.pipelines.models.local import LocalModel
from watersmeet.pipelines.models.video import Sampling, read_clip, reads_clips
from watersmeet.plugins.registry import get_registry

IDS = "ids"


def read_prompt(local: LocalModel, words: Sequence[str]) -> list[tuple[int, Span]]:
    """The spans of `words` in order, each with the index of its word.

    text:WORDS       text as it stands; nothing is added and nothing becomes a control token
    ids:FILE.json    a list of ids, e.g. of a chat prompt with its control tokens
    MODALITY:FILE    a file for a modality that the model reads
    FILE             the same where the kind of file leaves only one; a text file gives its text

    Raises UsageError for a word of no such form, DecodeError for a file that cannot be read.
    """
    spans: list[tuple[int, Span]] = []
    for index, word in enumerate(words):
        spans += [(index, span) for span in _read(local, word) if span.n]
    if not spans:
        raise UsageError("the prompt is empty; give text:WORDS or files")
    return spans


def _read(local: LocalModel, word: str) -> list[Span]:
    output = str(local.model.config.output_modality)
    names = tuple(local.model.embedders)
    name, colon, rest = word.partition(":")
    if colon and name == IDS:
        return [_ids(local, Path(rest), output)]
    if colon and name == output:
        return _encode(local, name, rest)
    if not colon or name not in names:
        if not Path(word).is_file():
            forms = ", ".join([f"{output}:WORDS", f"{IDS}:FILE.json", *(f"{n}:FILE" for n in names if n != output)])
            raise UsageError(f"there is no file {word}; an input is a file or one of {forms}")
        name, rest = file_modality(word, names, local.recipe["modalities"]), word
    if not Path(rest).is_file():
        raise DecodeError(f"there is no file {rest}")
    if name == output:
        return _encode(local, name, _text(Path(rest)))
    kinds = get_registry().modality(name).media_types
    if _media_type(rest).startswith("video/") and not any(kind.startswith("video/") for kind in kinds):
        # what reads pictures gets frames, by the settings that the model was trained with
        return _encode(local, name, read_clip(Path(rest), Sampling.of(local.recipe.get("video", {}))).frames)
    return _encode(local, name, rest)


def _media_type(file: str) -> str:
    return mimetypes.guess_type(file)[0] or "unknown"


def file_modality(file: str, names: Sequence[str], settings: Mapping[str, Mapping[str, Any]]) -> str:
    """The one modality of `names` that reads files of this kind, by the ending of the name. Raises UsageError for none or several."""
    media, registry = _media_type(file), get_registry()
    fitting = [name for name in names if media in registry.modality(name).media_types]
    if not fitting and media.startswith("video/"):
        fitting = [name for name in names if reads_clips(name, settings)]
    if len(fitting) != 1:
        found = f"{' and '.join(fitting)} read" if fitting else "no modality of this model reads"
        raise UsageError(
            f"{file}: {found} files of type {media}; write MODALITY:FILE with one of {', '.join(fitting or names)}"
        )
    return fitting[0]


def _encode(local: LocalModel, name: str, item: Any) -> list[Span]:
    encoder = local.encoders.get(name)
    if encoder is None:
        raise UsageError(
            f"the model {local.name} has no tokenizer files, so it cannot read {name!r}; give {IDS}:FILE.json instead"
        )
    spans: list[Span] = encoder.encode(item)
    return spans


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DecodeError(f"{path}: cannot be read as UTF-8 text ({error})") from error


def _ids(local: LocalModel, path: Path, output: str) -> Span:
    """A span of ids from a JSON file: one list, or a list of one list."""
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise DecodeError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise DecodeError(f"{path}: not JSON ({error})") from error
    if isinstance(found, list) and len(found) == 1 and isinstance(found[0], list):
        found = found[0]
    size = local.model.config.vocab_size
    if not isinstance(found, list) or not all(type(i) is int and 0 <= i < size for i in found):
        raise DecodeError(f"{path}: expected one list of ids from 0 to {size - 1}")
    return Span(modality=output, data=torch.tensor(found, dtype=torch.int64), key=content_key(IDS, found))

"""Other people's files as rows of ours, strictly: a row that does not fit is an error with its number, never a guess.

ShareGPT and LLaVA: {"conversations": [{"from": "human", "value": "<image>\\nWhat?"}, ...], "image": "a.png"}, as JSON lines or
one JSON array. Media stand where the text says `<image>` or `<video>`, and there must be as many of them as media: a user who
typed the word would otherwise move every picture behind it.

Parquet: a column `messages` (or `conversations`), and media as {"bytes": ..., "path": ...} in it or in `image`, `images`,
`video`, `videos`. Read one group of rows at a time.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from watersmeet.core.errors import ConfigError, UsageError
from watersmeet.pipelines.finetune.media import keep_file
from watersmeet.pipelines.finetune.rows import RowError, read_row
from watersmeet.plugins.registry import get_registry

_SPEAKERS = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "system": "system",
}
_PLACE = re.compile(r"(<image>|<video>)")
_MEDIA = {"image": ("image", "images"), "video": ("video", "videos")}
_IDLE = {"id", "model", "source", "category", "width_list", "height_list", "width", "height"}


def convert(source: Path, out: Path) -> int:
    """Write the rows of `source` to `out` as JSON lines; bytes of media go to a folder beside it. Returns how many.

    `out` appears when it is complete. Raises RowError for the first row that does not fit.
    """
    if out.suffix != ".jsonl":
        raise UsageError(f"{out}: expected a name that ends in .jsonl")
    kinds = [spec.name for spec in get_registry().modalities()]
    beside = out.with_name(f".{out.name}.{os.getpid()}.partial")
    out.parent.mkdir(parents=True, exist_ok=True)
    store, count = out.with_suffix(".media"), 0
    try:
        with beside.open("w", encoding="utf-8") as file:
            for number, values in _read(source):
                where = f"{source} row {number}"
                row = from_other(values, where)
                read_row(row, where, kinds)
                file.write(json.dumps(_with_files(row, store, out.parent), ensure_ascii=False) + "\n")
                count += 1
            file.flush()
            os.fsync(file.fileno())
        if not count:
            raise RowError(f"{source}: holds no rows")
        beside.rename(out)
    finally:
        beside.unlink(missing_ok=True)
    return count


def _read(source: Path) -> Iterator[tuple[int, Any]]:
    if source.suffix == ".parquet":
        yield from _parquet(source)
        return
    try:
        if source.suffix == ".json":
            found = json.loads(source.read_bytes())
            if not isinstance(found, list):
                raise RowError(f"{source}: is a {type(found).__name__}, expected a list of rows")
            yield from enumerate(found, 1)
        elif source.suffix in (".jsonl", ".ndjson"):
            with source.open("rb") as file:
                for number, line in enumerate(file, 1):
                    if line.strip():
                        try:
                            yield number, json.loads(line)
                        except ValueError as error:
                            raise RowError(f"{source} row {number}: is not JSON ({error})") from error
        else:
            raise UsageError(f"{source}: expected a file that ends in .json, .jsonl or .parquet")
    except OSError as error:
        raise RowError(f"{source}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise RowError(f"{source}: is not JSON ({error})") from error


def _parquet(source: Path) -> Iterator[tuple[int, Any]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError("parquet files need the package pyarrow: pip install 'watersmeet[data]'") from error
    number = 0
    try:
        with pyarrow.parquet.ParquetFile(source) as file:
            for batch in file.iter_batches(batch_size=64):
                for values in batch.to_pylist():
                    number += 1
                    # a column that other rows need stands in every row, and says nothing where it is null
                    yield number, _without_null(values)
    except (pyarrow.ArrowException, OSError) as error:
        raise RowError(f"{source}: cannot be read as parquet after row {number} ({error})") from error


def _without_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_null(item) for key, item in value.items() if item is not None}
    return [_without_null(item) for item in value] if isinstance(value, list) else value


def from_other(values: Any, where: str) -> dict[str, Any]:
    """A row of ours from a row of any form above, or from one of ours. Raises RowError."""
    if not isinstance(values, Mapping):
        raise RowError(f"{where}: is a {type(values).__name__}, expected an object")
    media: dict[str, list[Any]] = {}
    for kind, names in _MEDIA.items():
        both = [name for name in names if values.get(name) not in (None, [])]
        if len(both) > 1:
            raise RowError(f"{where}: has both {both[0]!r} and {both[1]!r}; which come first is not said")
        found = values[both[0]] if both else []
        media[kind] = list(found) if isinstance(found, list) else [found]
    known = {"messages", "conversations", "tools", *_IDLE, *(name for names in _MEDIA.values() for name in names)}
    if unknown := sorted(set(values) - known):
        raise RowError(f"{where}: has a field {unknown[0]!r}, expected only {', '.join(sorted(known))}")
    if ("messages" in values) == ("conversations" in values):
        raise RowError(f"{where}: expected one of 'messages' and 'conversations'")
    if "messages" in values:
        messages = [
            _placed(m, f"{where}: messages[{i}]", media) for i, m in enumerate(_list(values["messages"], where))
        ]
    else:
        said = _list(values["conversations"], where)
        messages = [_said(m, f"{where}: conversations[{i}]", media) for i, m in enumerate(said)]
    left = {kind: len(items) for kind, items in media.items() if items}
    if left:
        kind = next(iter(left))
        raise RowError(f"{where}: {left[kind]} more {kind}(s) than the texts have places <{kind}> for")
    return {"messages": messages} | ({"tools": values["tools"]} if values.get("tools") else {})


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise RowError(f"{where}: the conversation is {value!r}, expected a list of messages")
    return value


def _said(message: Any, where: str, media: dict[str, list[Any]]) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("value"), str):
        raise RowError(f"{where} is {message!r}, expected an object with 'from' and a text 'value'")
    if unknown := sorted(set(message) - {"from", "value", "weight"}):
        raise RowError(f"{where}.{unknown[0]} is unknown, expected 'from', 'value' and 'weight'")
    role = _SPEAKERS.get(message.get("from"))  # type: ignore[arg-type]
    if role is None:
        raise RowError(f"{where}.from is {message.get('from')!r}, expected one of {', '.join(_SPEAKERS)}")
    kept = {"weight": message["weight"]} if "weight" in message else {}
    return {"role": role, "content": _content(message["value"], where, media), **kept}


def _placed(message: Any, where: str, media: dict[str, list[Any]]) -> Any:
    """A message of ours whose media may stand in columns of their own, as some hubs have it."""
    if not isinstance(message, Mapping):
        return message
    content = message.get("content")
    # without columns of media the word <image> in a text is a word
    if isinstance(content, str) and any(media.values()):
        return {**message, "content": _content(content, where, media)}
    if isinstance(content, list):
        parts = []
        for index, part in enumerate(content):
            bare = isinstance(part, Mapping) and set(part) == {"type"} and part["type"] in media
            if bare and not media[part["type"]]:
                raise RowError(f"{where}.content[{index}]: there is no {part['type']} left for it")
            parts.append({**part, part["type"]: media[part["type"]].pop(0)} if bare else part)
        return {**message, "content": parts}
    return dict(message)


def _content(text: str, where: str, media: dict[str, list[Any]]) -> Any:
    parts: list[dict[str, Any]] = []
    pieces = _PLACE.split(text)
    if len(pieces) == 1:
        return text
    for piece in pieces:
        if not _PLACE.fullmatch(piece):
            if piece.strip("\n"):
                # the line break beside a place belongs to the notation
                parts.append({"type": "text", "text": piece.strip("\n")})
            continue
        kind = piece.strip("<>")
        if not media[kind]:
            raise RowError(f"{where}: the text says {piece} but there is no {kind} left; are there fewer than places?")
        parts.append({"type": kind, kind: media[kind].pop(0)})
    return parts


def _with_files(row: dict[str, Any], store: Path, root: Path) -> dict[str, Any]:
    """The row with bytes of media written to `store`, named by their content, and their paths in the place of the bytes."""
    for message in row["messages"]:
        if isinstance(message.get("content"), list):
            for part in message["content"]:
                kind = part.get("type")
                value = part.get(kind)
                if isinstance(value, Mapping) and isinstance(value.get("bytes"), bytes):
                    part[kind] = keep_file(value["bytes"], store, root)
                elif isinstance(value, bytes):
                    part[kind] = keep_file(value, store, root)
                elif isinstance(value, Mapping) and set(value) == {"path"}:
                    part[kind] = value["path"]
    return row

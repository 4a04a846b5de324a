"""Rows of conversations as a data set of the trainer: read by index, encoded as the model will be used, never cut."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from watersmeet.core.errors import ConfigError, DecodeError, UsageError, WatersmeetError
from watersmeet.core.stream import Span, Stream
from watersmeet.pipelines.finetune.fetch import Fetcher
from watersmeet.pipelines.finetune.media import Media
from watersmeet.pipelines.finetune.rows import Item, Row, RowError, Symbols, Text, parse_row
from watersmeet.pipelines.finetune.sources import Source, open_source
from watersmeet.pipelines.finetune.turns import (
    DEFAULT_ROLES,
    Delimiters,
    Lesson,
    default_delimiters,
    native_lesson,
    turn_weight,
)
from watersmeet.pipelines.models.reading import Reading, modality_for, read_folder
from watersmeet.pipelines.models.video import Sampling, read_clip
from watersmeet.plugins.registry import get_registry

_SHOWN = 10


class TooLong(WatersmeetError):
    """A sample has more tokens than a batch; samples are never cut."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How rows are read.

    root            folder of the media; None: the folder of the file
    urls            read https addresses; url_bytes, url_seconds: limits of one file
    max_tokens      tokens of a batch, which a sample must fit into; too_long: "error" or "drop" (dropped ones are counted)
    roles           weight of a role's messages
    turns           see `Delimiters`; None: what the checkpoint says, else the default
    video           see `Sampling`; None: the same
    reasoning       official forms: "auto" (as each row has it), "on" or "off"
    """

    root: str | None = None
    urls: bool = False
    url_bytes: int = 32_000_000
    url_seconds: float = 20.0
    max_tokens: int = 4096
    too_long: str = "error"
    roles: Mapping[str, float] | None = None
    turns: Mapping[str, Any] | None = None
    video: Mapping[str, Any] | None = None
    reasoning: str = "auto"

    def __post_init__(self) -> None:
        for name, allowed in (("too_long", ("error", "drop")), ("reasoning", ("auto", "on", "off"))):
            if getattr(self, name) not in allowed:
                raise ConfigError(f"data option {name} is {getattr(self, name)!r}, expected {' or '.join(allowed)}")
        for name, value in (self.roles or {}).items():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
                raise ConfigError(f"weight of {name!r} is {value!r}, expected a number of at least 0")
        if wrong := sorted(set(self.roles or {}) - set(DEFAULT_ROLES)):
            raise ConfigError(f"weight for a role {wrong[0]!r}, expected {', '.join(DEFAULT_ROLES)}")


class Conversations:
    """The data set. All rows are checked when it is opened; media are read when a sample is.

    Raises RowError that lists the first wrong rows, ConfigError for options that do not fit the model.
    """

    def __init__(self, path: str | os.PathLike[str], reading: Reading, options: Options) -> None:
        self.source: Source = open_source(path)
        self.reading, self.options = reading, options
        self.kinds = get_registry().modality_names(without=reading.output)
        self.roles = DEFAULT_ROLES | {name: float(value) for name, value in (options.roles or {}).items()}
        root = Path(options.root) if options.root is not None else Path(path).parent
        self._fetcher = Fetcher(max_bytes=options.url_bytes, seconds=options.url_seconds)
        self.media = Media(root=root, fetch=self._fetcher if options.urls else None)
        self.video = Sampling.of(_agreed("video", options.video, reading))
        self.official = reading.writer.settings.get("tokenizer") == "tiktoken"
        self.delimiters = None if self.official else self._delimiters()
        self._note: Path | None = None
        self._quarantined: set[tuple[str, int]] = set()
        self._check_rows()

    def work_in(self, folder: Path) -> None:
        """Keep what is made on the way below `folder`: quarantine.jsonl, with a line for every row whose media cannot be
        read, and media/, what was fetched."""
        self._fetcher.cache = folder / "media"
        self._note = folder / "quarantine.jsonl"
        self._quarantined = _quarantined(self._note)

    # ---- what the trainer and checkpoints want to know ----------------------------------------------------------

    def __len__(self) -> int:
        return len(self.source)

    @property
    def modalities(self) -> dict[str, dict[str, Any]]:
        """Settings of all modalities of the model, whether rows hold them or not."""
        return {name: dict(values) for name, values in self.reading.settings.items()}

    @property
    def vocab_size(self) -> int:
        """Of the model."""
        return self.reading.vocab_size

    @property
    def output_modality(self) -> str:
        """Of the model."""
        return self.reading.output

    @property
    def processor(self) -> dict[str, Any]:
        """What a checkpoint keeps besides settings of modalities, so that use reads as training did."""
        kept: dict[str, Any] = {"video": vars(self.video).copy()}
        if self.delimiters is not None:
            kept["turns"] = self.delimiters.to_dict()
        return kept

    def _delimiters(self) -> Delimiters:
        given = _agreed("turns", self.options.turns, self.reading)
        return Delimiters.of(given, self.reading.writer) if given else default_delimiters(self.reading.writer)

    # ---- rows ---------------------------------------------------------------------------------------------------

    def row(self, index: int) -> Row:
        """Row `index`, read and checked."""
        return parse_row(self.source.line(index), self.source.where(index), self.kinds)

    def _check_rows(self) -> None:
        """Read every row once. Media are left alone: decoding a large set takes hours."""
        wrong: list[str] = []
        count = 0
        known: dict[str, str] = {}
        for index in range(len(self.source)):
            try:
                row = self.row(index)
                for turn in row.turns:
                    for part in turn.parts:
                        if isinstance(part, Item) and part.kind not in known:
                            known[part.kind] = modality_for(part.kind, self.reading)
                if not any(turn_weight(row, i, self.roles) > 0 or _part_learnt(t) for i, t in enumerate(row.turns)):
                    raise RowError(f"{row.where}: nothing in it is learnt; every message has weight 0")
            except (RowError, UsageError) as error:
                text = str(error)
                count += 1
                if len(wrong) < _SHOWN:
                    wrong.append(
                        text if text.startswith(str(self.source.path)) else f"{self.source.where(index)}: {text}"
                    )
        if wrong:
            more = f" (and {count - len(wrong)} more rows)" if count > len(wrong) else ""
            raise RowError(f"{count} of {len(self.source)} rows are not as described: {'; '.join(wrong)}{more}")

    # ---- samples ------------------------------------------------------------------------------------------------

    def lesson(self, index: int) -> Lesson:
        """Row `index` as spans and weights. Raises DecodeError for media that cannot be read."""
        row = self.row(index)

        def encode(part: Item) -> list[Span]:
            return self.encode(part, index)

        writer = self.reading.writer
        if self.delimiters is not None:
            return native_lesson(row, self.delimiters, writer, encode, self.roles)
        try:
            return self._official_lesson(row, encode)
        except (UsageError, ConfigError) as error:
            raise RowError(f"{row.where}: {error}") from error

    def encode(self, part: Item, index: int) -> list[Span]:
        """Spans of a part. Raises DecodeError naming what is wrong with it."""
        return encode_item(part, self.reading, self.media, self.video, lambda member: self.source.member(index, member))

    def _official_lesson(self, row: Row, encode: Any) -> Lesson:
        messages: list[dict[str, Any]] = []
        spans_of: list[list[Span]] = []
        parts: list[list[tuple[str, float]] | None] = []
        for index, turn in enumerate(row.turns):
            content: list[dict[str, Any]] = []
            for place, part in enumerate(turn.parts):
                where = f"messages[{index}].content[{place}]"
                if isinstance(part, Text):
                    content.append({"type": "text", "text": part.text})
                elif isinstance(part, Symbols):
                    raise UsageError(f"{where}: the official form writes its control tokens itself; leave symbols out")
                elif part.kind == "image" or modality_for("image", self.reading) == part.kind:
                    spans = encode(part)
                    content.append({"type": "image", "image": len(spans_of), "size": picture_size(spans)})
                    spans_of.append(spans)
                else:
                    raise UsageError(f"{where}: the official form has no words for {part.kind!r}")
            own = turn_weight(row, index, self.roles)
            texts = [(p.text, own if p.weight is None else p.weight) for p in turn.parts if isinstance(p, Text)]
            mixed = any(weight != own for _, weight in texts)
            messages.append({"role": turn.role, "content": content, **turn.extra})
            parts.append([(text, weight) for text, weight in texts if text] if mixed else None)
        spans, weights = self.reading.writer.chat().lesson(
            messages,
            self.reading.writer,
            media=lambda picture: spans_of[picture.source],
            weights=[turn_weight(row, i, self.roles) for i in range(len(row.turns))],
            parts=parts,
            tools=list(row.tools),
            thinking=self._thinking(row),
        )
        return Lesson(spans=tuple(spans), weights=tuple(weights))

    def _thinking(self, row: Row) -> bool | None:
        quiet = None if self.reading.writer.vocabulary.generation == "k2" else False
        how = self.options.reasoning
        if how == "auto":
            return True if any("reasoning_content" in turn.extra for turn in row.turns) else quiet
        return True if how == "on" else quiet

    def sample(self, index: int, rng: np.random.Generator) -> Stream:
        """The stream of row `index`.

        Raises DecodeError for media that cannot be read, after a line in the quarantine file; TooLong where long samples
        are errors.
        """
        index = int(index)
        try:
            stream = self.lesson(index).stream()
        except DecodeError as error:
            self._quarantine(index, str(error))
            raise DecodeError(f"{self.source.where(index)}: {error}") from error
        if stream.n > self.options.max_tokens and self.options.too_long == "error":
            counts = Counter[str]()
            for span in stream.spans:
                counts[span.modality] += span.n
            shares = ", ".join(f"{n:,} of {name}" for name, n in counts.most_common())
            raise TooLong(
                f"{self.source.where(index)}: has {stream.n:,} tokens ({shares}) but a batch has "
                f"{self.options.max_tokens:,}; raise --batch-tokens, or drop such rows with --too-long drop"
            )
        return stream

    def _quarantine(self, index: int, reason: str) -> None:
        place = (str(self.source.file(index)), self.source.number(index))
        if self._note is None or place in self._quarantined:
            return
        self._quarantined.add(place)
        self._note.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps({"file": place[0], "row": place[1], "reason": reason}, ensure_ascii=False)
        # one write of one line, so that processes of one run can share the file
        with self._note.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def encode_item(
    part: Item,
    reading: Reading,
    media: Media,
    video: Sampling,
    member: Callable[[str], bytes | None] = lambda name: None,
) -> list[Span]:
    """Spans of something for a modality, the same for rows that are learnt and conversations that are answered."""
    name = modality_for(part.kind, reading)
    item: Any = part.value
    if part.is_file:
        item = media.find(item, member)
        kinds = get_registry().modality(name).media_types
        if part.kind == "video" and not any(kind.startswith("video/") for kind in kinds):
            item = read_clip(item, video).frames
    spans: list[Span] = reading.encoders[name].encode(item)
    return spans


def _part_learnt(turn: Any) -> bool:
    return any(part.weight for part in turn.parts)


def picture_size(spans: Sequence[Span]) -> list[int]:
    """Width and height of a picture as its encoder saw it: the last box ends there."""
    boxes = [box for span in spans for box in span.source]
    return [max(box[2] for box in boxes), max(box[3] for box in boxes)]


def _agreed(name: str, given: Mapping[str, Any] | None, reading: Reading) -> Mapping[str, Any]:
    """A setting that checkpoints keep. Raises ConfigError when data and checkpoint say different things."""
    kept = reading.recipe.get(name)
    if given is None:
        return kept or {}
    changed = [key for key, value in given.items() if kept is not None and kept.get(key) != value]
    if changed:
        raise ConfigError(
            f"data option {name}.{changed[0]} is {given[changed[0]]!r} but {reading.name} was trained with "
            f"{(kept or {}).get(changed[0])!r}; leave the option out"
        )
    return {**(kept or {}), **given}


def _quarantined(path: Path) -> set[tuple[str, int]]:
    if not path.is_file():
        return set()
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
    return {(line["file"], line["row"]) for line in lines}


def open_conversations(
    split: str,
    *,
    path: str,
    model: str,
    fingerprint: str | None = None,
    val_path: str | None = None,
    val_fingerprint: str | None = None,
    **options: Any,
) -> Conversations:
    """The set of a recipe: `path` for "train", `val_path` for "val".

    model: the folder whose encoders read it. fingerprint: of the content that the run began with; a file that was changed
    since is refused, because the run would go on with other rows. val_fingerprint: the same of the held-out rows, which a run
    may change; it then forgets how the old ones judged.
    """
    if split != "train" and val_path is None:
        raise ConfigError("val_options name no val_path, expected a file of rows that are held out")
    names = set(Options.__dataclass_fields__)
    if unknown := sorted(set(options) - names):
        raise ConfigError(f"dataset_options has an unknown key {unknown[0]!r}; keys are {', '.join(sorted(names))}")
    chosen, known = (path, fingerprint) if split == "train" else (val_path, val_fingerprint)
    found = Conversations(str(chosen), read_folder(model), Options(**options))
    if known is not None and found.source.fingerprint != known:
        raise ConfigError(
            f"{chosen}: has changed since this run began; bring the old file back, or start anew with --fresh"
        )
    return found

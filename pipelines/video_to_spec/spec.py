"""The specification that a recording turns into, `spec.json`: types that cannot hold a claim without evidence.

Times are seconds from the first frame; boxes are (left, top, right, bottom) in px of the upright picture with square
pixels. Reading is strict: an unknown field, a number in quotes or a time beyond the end is an error that names the
field. `spec.schema.json` beside this module is `json_schema()`, published for other programs.
"""

import json
from collections.abc import Iterator
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from watersmeet.core.errors import DecodeError

Action = Literal["click", "type", "scroll", "navigate", "hover", "key", "wait"]
ACTIONS: tuple[str, ...] = get_args(Action)
WITH_TEXT = ("type", "scroll", "key")
SCHEMA_FILE = "spec.schema.json"
MAX_BYTES = 64 * 2**20

_STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
_SLACK = 1e-6  # s, of sums of decimals

Seconds = Annotated[float, Field(ge=0)]
Words = Annotated[str, StringConstraints(min_length=1, pattern=r"\S")]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Corners = tuple[float, float, float, float]


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Evidence:
    """A frame that shows a claim: its time and its number, counted from 0 in the order of showing."""

    t_s: Seconds
    frame: Annotated[int, Field(ge=0)]


Proof = Annotated[tuple[Evidence, ...], Field(min_length=1)]
"""One piece of evidence or more; an empty one is refused when a claim is made."""


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Source:
    """The recording. width, height: px of the upright picture with square pixels. frames: as decoded."""

    path: Words
    duration_s: Annotated[float, Field(gt=0)]
    frames: Annotated[int, Field(ge=1)]
    width: Annotated[int, Field(ge=1)]
    height: Annotated[int, Field(ge=1)]


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Screen:
    """A page of the product; scrolling, open menus and other tabs of a panel make no new one."""

    id: Name
    title: Words
    first_seen_s: Seconds
    thumbnail: Annotated[str, StringConstraints(pattern=r"^frames/[A-Za-z0-9_-]{1,80}\.png$")]


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Step:
    """One action of the user, from its press to the settled page; `index` counts from 1.

    `target` is the visible text of what was acted on, as it read before (of a field its label or placeholder); None for
    an icon or nothing. `text` is what went in: the final text of `type` (what was added, where text stood and stays), the
    name of the key of `key`, the direction of `scroll` ("down", "up", "left", "right"); None otherwise or if unreadable.
    """

    index: Annotated[int, Field(ge=1)]
    start_s: Seconds
    end_s: Seconds
    action: Action
    target: Words | None
    text: Annotated[str, StringConstraints(min_length=1)] | None
    box: Corners | None
    from_screen: Name
    to_screen: Name
    evidence: Proof
    confidence: Annotated[float, Field(ge=0, le=1)]

    def __post_init__(self) -> None:
        if self.end_s < self.start_s:
            raise ValueError(f"end_s is {self.end_s}, before start_s, which is {self.start_s}")
        if self.text is not None and self.action not in WITH_TEXT:
            raise ValueError(f"text is {self.text!r}, but a step of action {self.action} has none")


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Claim:
    """A feature of the product or a pattern of interaction, with the frames that show it."""

    name: Words
    description: Words
    evidence: Proof


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Spec:
    """A whole specification. Screens are in order of first sight, steps in order of start."""

    source: Source
    screens: tuple[Screen, ...]
    steps: tuple[Step, ...]
    features: tuple[Claim, ...]
    patterns: tuple[Claim, ...]
    open_questions: tuple[Words, ...]

    def __post_init__(self) -> None:
        for fault in self._faults():
            raise ValueError(fault)

    def proofs(self) -> Iterator[tuple[str, tuple[Evidence, ...]]]:
        """(field, evidence) of every claim."""
        for i, step in enumerate(self.steps):
            yield f"steps[{i}].evidence", step.evidence
        for name, claims in (("features", self.features), ("patterns", self.patterns)):
            for i, claim in enumerate(claims):
                yield f"{name}[{i}].evidence", claim.evidence

    def _faults(self) -> Iterator[str]:
        yield from self._screen_faults()
        known = {screen.id for screen in self.screens}
        last = 0.0
        for i, step in enumerate(self.steps):
            at = f"steps[{i}]"
            if step.index != i + 1:
                yield f"{at}.index is {step.index}, expected {i + 1}"
            if step.start_s < last:
                yield f"{at}.start_s is {step.start_s}, before the step above; steps are in order of start"
            last = step.start_s
            yield from self._late(f"{at}.end_s", step.end_s)
            for name in ("from_screen", "to_screen"):
                if getattr(step, name) not in known:
                    yield f"{at}.{name} is {getattr(step, name)!r}, which is no screen of this specification"
            yield from self._box_faults(at, step.box)
        yield from self._proof_faults()

    def _screen_faults(self) -> Iterator[str]:
        seen: set[str] = set()
        last = 0.0
        for i, screen in enumerate(self.screens):
            if screen.id in seen:
                yield f"screens[{i}].id is {screen.id!r}, which another screen has already"
            seen.add(screen.id)
            if screen.first_seen_s < last:
                yield f"screens[{i}].first_seen_s is {screen.first_seen_s}, before the screen above"
            last = screen.first_seen_s
            yield from self._late(f"screens[{i}].first_seen_s", screen.first_seen_s)

    def _late(self, name: str, time_s: float) -> Iterator[str]:
        if time_s > self.source.duration_s + _SLACK:
            yield f"{name} is {time_s}, but the recording is {self.source.duration_s} s long"

    def _box_faults(self, at: str, box: Corners | None) -> Iterator[str]:
        if box is None:
            return
        width, height = self.source.width, self.source.height
        if not (0 <= box[0] < box[2] <= width and 0 <= box[1] < box[3] <= height):
            yield f"{at}.box is {list(box)}, expected left < right <= {width} and top < bottom <= {height}, from 0"

    def _proof_faults(self) -> Iterator[str]:
        cited: list[tuple[int, float, str]] = []
        for name, proof in self.proofs():
            for k, one in enumerate(proof):
                yield from self._late(f"{name}[{k}].t_s", one.t_s)
                if one.frame >= self.source.frames:
                    yield f"{name}[{k}].frame is {one.frame}, but the recording has {self.source.frames} frames"
                cited.append((one.frame, one.t_s, f"{name}[{k}]"))
        cited.sort()
        for (frame, t_s, _), (other, later, name) in pairwise(cited):
            if later < t_s or (frame == other and later > t_s):
                yield f"{name} puts frame {other} at {later} s, but elsewhere frame {frame} is at {t_s} s"


_ADAPTER = TypeAdapter(Spec)


def json_schema() -> dict[str, Any]:
    """The JSON schema (2020-12) of `spec.json`, made from the types."""
    made = _ADAPTER.json_schema(mode="validation")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "watersmeet spec.json"} | {
        key: value for key, value in made.items() if key != "title"
    }


def published_schema() -> dict[str, Any]:
    """The schema file that comes with the package."""
    text = resources.files("watersmeet.pipelines.video_to_spec").joinpath(SCHEMA_FILE).read_text("utf-8")
    return json.loads(text)


def to_json(spec: Spec) -> dict[str, Any]:
    """Plain values, as they stand in the file."""
    return _ADAPTER.dump_python(spec, mode="json")


def write_spec(spec: Spec, path: Path) -> None:
    """Write `spec` as UTF-8 JSON."""
    path.write_text(json.dumps(to_json(spec), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_spec(path: Path) -> Spec:
    """Read a `spec.json`. Raises DecodeError naming the first field that is not as it should be."""
    return parse_spec(read_limited(path), str(path))


def read_limited(path: Path) -> bytes:
    """The bytes of a file of at most `MAX_BYTES`. Raises DecodeError for a larger one, or one that cannot be read."""
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise DecodeError(f"{path}: is {size:,} bytes large, more than the {MAX_BYTES:,} of a specification")
        return path.read_bytes()
    except OSError as error:
        raise DecodeError(f"{path}: cannot be read ({error.strerror or error})") from error


def parse_spec(text: str | bytes, name: str = "the specification") -> Spec:
    """A specification from JSON. Raises DecodeError naming the first field that is not as it should be."""
    try:
        return _ADAPTER.validate_json(text)
    except ValidationError as error:
        raise DecodeError(f"{name}: {first_fault(error)}") from error


def first_fault(error: ValidationError) -> str:
    """The first thing wrong, after the field that it is about."""
    first = error.errors(include_url=False)[0]
    message = first["msg"].removeprefix("Value error, ")
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
    found = first.get("input")
    shown = (
        ""
        if first["type"] in ("missing", "value_error") or isinstance(found, (dict, list, tuple))
        else f", found {found!r:.80}"
    )
    return f"{where}: {message}{shown}" if where else f"{message}{shown}"

"""What a large model says about a recording, checked: only claims whose times and frames exist become part of it.

An element that is not as asked for is dropped or mended, and counted. What comes out is a `Spec` whatever went in.
"""

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from unicodedata import category

from watersmeet.pipelines.video_to_spec.score import CITED_S, is_shown
from watersmeet.pipelines.video_to_spec.spec import (
    ACTIONS,
    WITH_TEXT,
    Claim,
    Corners,
    Evidence,
    Screen,
    Source,
    Spec,
    Step,
)

MOST = {"screens": 200, "steps": 1000, "features": 200, "patterns": 200, "open_questions": 100}
LONGEST = 2000  # characters of a text
MOST_PROOF = 12  # frames for one claim
NO_FRAME = "cite a time or a frame that the recording does not have"
NO_EVIDENCE = "are without evidence"
NO_FORM = "are not of the form that was asked for"
TOO_MANY = "are more than can be shown"
_UNSURE = 0.5  # confidence where none is said
_SHOWN_PLACES = 5

ItemT = TypeVar("ItemT")


@dataclass(frozen=True, kw_only=True)
class Checked:
    """claims: how many steps, features, patterns and screens the model named. kept: of those, how many are in the specification.
    invented: how many were dropped because they cite a time or a frame that there is not. dropped: all that was, questions too.
    mended: how often something was."""

    spec: Spec
    claims: int
    kept: int
    invented: int
    dropped: int
    mended: int
    warnings: tuple[str, ...]


class _Drop(Exception):
    """An element that cannot be kept; the message is the reason."""


def checked(answer: dict[str, Any], source: Source, times_us: Sequence[int], *, scale: float = 1.0) -> Checked:
    """A specification from plain values of any kind.

    times_us: when each frame is shown. scale: px of the picture for each px in which the boxes are given.
    """
    return _Check(answer, source, times_us, scale).run()


class _Check:
    def __init__(self, answer: dict[str, Any], source: Source, times_us: Sequence[int], scale: float) -> None:
        self.answer, self.source, self.times_us, self.scale = answer, source, times_us, scale
        self.dropped: dict[str, list[str]] = defaultdict(list)
        self.mended: dict[str, list[str]] = defaultdict(list)
        self.claims = self.kept = 0
        self.names: dict[str, str] = {}

    def run(self) -> Checked:
        screens = self._screens()
        steps = self._steps(screens)
        spec = Spec(
            source=self.source,
            screens=screens,
            steps=steps,
            features=tuple(self._all("features", self._claim)),
            patterns=tuple(self._all("patterns", self._claim)),
            open_questions=tuple(self._all("open_questions", self._question)),
        )
        return Checked(
            spec=spec,
            claims=self.claims,
            kept=self.kept,
            invented=len(self.dropped[NO_FRAME]),
            dropped=sum(map(len, self.dropped.values())),
            mended=sum(map(len, self.mended.values())),
            warnings=tuple(self._warnings()),
        )

    def _all(self, field: str, make: Callable[[str, Any], ItemT]) -> Iterator[ItemT]:
        """What can be made of the elements of a list; those of which nothing can are counted."""
        found = self.answer.get(field, [])
        if not isinstance(found, list):
            self.dropped[NO_FORM].append(field)
            return
        is_claim = field != "open_questions"
        for i, item in enumerate(found):
            self.claims += is_claim
            try:
                if i >= MOST[field]:
                    raise _Drop(TOO_MANY)
                made = make(f"{field}[{i}]", item)
            except _Drop as reason:
                self.dropped[str(reason)].append(f"{field}[{i}]")
                continue
            self.kept += is_claim
            yield made

    # ---- elements ------------------------------------------------------------------------------------------------

    def _screens(self) -> tuple[Screen, ...]:
        found: dict[str, tuple[float, str]] = {}

        def make(place: str, item: Any) -> None:
            fields = _fields(item)
            name, title = _text(fields.get("id")), _text(fields.get("title"))
            if name is None or title is None or name in found:
                raise _Drop(NO_FORM)
            found[name] = self._frame_time(fields.get("first_seen_s")), title

        for _ in self._all("screens", make):
            pass
        if not found:
            self.mended["no screen was named, so the first frame is one"].append("screens")
            found[""] = self.times_us[0] / 1e6, "Screen 1"
        screens: list[Screen] = []
        # renamed, so that a name can be that of a file
        for name, (seen_s, title) in sorted(found.items(), key=lambda one: one[1][0]):
            own = self.names[name] = f"s{len(screens) + 1}"
            screens.append(Screen(id=own, title=title, first_seen_s=seen_s, thumbnail=f"frames/{own}.png"))
        return tuple(screens)

    def _steps(self, screens: Sequence[Screen]) -> tuple[Step, ...]:
        found = list(self._all("steps", self._step))
        order = sorted(found, key=lambda one: one[1]["start_s"])
        if order != found:
            self.mended["steps were put in order of start"].append("steps")
        steps: list[Step] = []
        here = screens[0].id
        for place, values in order:
            come = self._screen(place, "from_screen", values.pop("from_screen"), here)
            here = self._screen(place, "to_screen", values.pop("to_screen"), come)
            steps.append(Step(index=len(steps) + 1, from_screen=come, to_screen=here, **values))
        return tuple(steps)

    def _step(self, place: str, item: Any) -> tuple[str, dict[str, Any]]:
        """The values of a step but for its number; the screens as they were named."""
        fields = _fields(item)
        action = fields.get("action")
        if action not in ACTIONS:
            raise _Drop(NO_FORM)
        start_s = _number(fields.get("start_s"))
        if start_s is None:
            raise _Drop(NO_FORM)
        if not 0 <= start_s <= self.source.duration_s:
            raise _Drop(NO_FRAME)
        evidence = self._proof(place, fields.get("evidence"))
        confidence = _number(fields.get("confidence"))
        if confidence is None or not 0 <= confidence <= 1:
            self.mended[f"a confidence that is none was taken as {_UNSURE}"].append(place)
            confidence = _UNSURE
        return place, {
            "start_s": start_s,
            "end_s": self._end(place, fields.get("end_s"), start_s),
            "action": action,
            "target": self._optional(place, "target", fields.get("target")),
            "text": self._went_in(place, action, fields.get("text")),
            "box": self._box(place, fields.get("box")),
            "from_screen": fields.get("from_screen"),
            "to_screen": fields.get("to_screen"),
            "evidence": evidence,
            "confidence": confidence,
        }

    def _claim(self, place: str, item: Any) -> Claim:
        fields = _fields(item)
        name, description = _text(fields.get("name")), _text(fields.get("description"))
        if name is None or description is None:
            raise _Drop(NO_FORM)
        return Claim(name=name, description=description, evidence=self._proof(place, fields.get("evidence")))

    def _question(self, place: str, item: Any) -> str:
        text = _text(item)
        if text is None:
            raise _Drop(NO_FORM)
        return text

    # ---- times and frames ----------------------------------------------------------------------------------------

    def _proof(self, place: str, found: Any) -> tuple[Evidence, ...]:
        """All that is cited. Raises _Drop where one piece of it does not exist."""
        if not isinstance(found, list) or not found:
            raise _Drop(NO_EVIDENCE)
        proof: list[Evidence] = []
        for one in found:
            fields = one if isinstance(one, dict) else {}
            t_s, frame = _number(fields.get("t_s")), fields.get("frame")
            if t_s is None or t_s < 0 or isinstance(frame, bool) or not isinstance(frame, int) or frame < 0:
                raise _Drop(NO_FRAME)
            if not is_shown(Evidence(t_s=t_s, frame=frame), self.times_us):
                raise _Drop(NO_FRAME)
            proof.append(Evidence(t_s=self.times_us[frame] / 1e6, frame=frame))
        proof = list(dict.fromkeys(proof))
        if len(proof) > MOST_PROOF:
            self.mended[f"of the frames for one claim the first {MOST_PROOF} were taken"].append(place)
        return tuple(proof[:MOST_PROOF])

    def _frame_time(self, value: Any) -> float:
        """The time of the frame that is shown from there on. Raises _Drop if there is none."""
        t_s = _number(value)
        if t_s is None:
            raise _Drop(NO_FORM)
        at = bisect_left(self.times_us, (t_s - CITED_S) * 1e6)
        if at == len(self.times_us) or abs(self.times_us[at] / 1e6 - t_s) > CITED_S:
            raise _Drop(NO_FRAME)
        return self.times_us[at] / 1e6

    def _end(self, place: str, value: Any, start_s: float) -> float:
        end_s = _number(value)
        if end_s is None:
            self.mended["an end that is no time was taken as the start"].append(place)
            return start_s
        if not start_s <= end_s <= self.source.duration_s:
            self.mended["an end before the start, or after the recording, was moved there"].append(place)
        return min(max(end_s, start_s), self.source.duration_s)

    # ---- what is mended ------------------------------------------------------------------------------------------

    def _screen(self, place: str, field: str, value: Any, instead: str) -> str:
        known = self.names.get(value) if isinstance(value, str) else None
        if known is None:
            self.mended["a screen that is not listed was taken as the one before"].append(f"{place}.{field}")
        return known or instead

    def _optional(self, place: str, field: str, value: Any) -> str | None:
        text = _text(value)
        if text is None and value is not None and value != "":
            self.mended["a text that is none was left out"].append(f"{place}.{field}")
        return text

    def _went_in(self, place: str, action: str, value: Any) -> str | None:
        text = self._optional(place, "text", value)
        if text is not None and action not in WITH_TEXT:
            self.mended["the text of an action that has none was left out"].append(place)
            return None
        return text

    def _box(self, place: str, value: Any) -> Corners | None:
        if value is None:
            return None
        edges = [_number(edge) for edge in value] if isinstance(value, list) and len(value) == 4 else []
        if not edges or None in edges:
            self.mended["a box that is none was left out"].append(place)
            return None
        x0, y0, x1, y1 = (float(edge) * self.scale for edge in edges if edge is not None)
        width, height = self.source.width, self.source.height
        box = min(max(x0, 0.0), width), min(max(y0, 0.0), height), min(max(x1, 0.0), width), min(max(y1, 0.0), height)
        # what was rounded to whole px of a smaller picture may stick out by one of them
        if max(-x0, -y0, x1 - width, y1 - height) > max(1.0, self.scale):
            self.mended["a box beyond the picture was cut at its edge, or left out"].append(place)
        if box[0] >= box[2] or box[1] >= box[3]:
            self.mended["an empty box was left out"].append(place)
            return None
        return box

    def _warnings(self) -> Iterator[str]:
        for reason, places in self.dropped.items():
            if places:
                yield f"dropped from the model's answer, since they {reason}: {_listed(places)}"
        for what, places in self.mended.items():
            yield f"mended in the model's answer, {what}: {_listed(places)}"


def _listed(places: Sequence[str]) -> str:
    more = "" if len(places) <= _SHOWN_PLACES else ", …"
    return f"{len(places)} ({', '.join(places[:_SHOWN_PLACES])}{more})"


def _fields(item: Any) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise _Drop(NO_FORM)
    return item


def _number(value: Any) -> float | None:
    """A finite number; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def _text(value: Any) -> str | None:
    """A text that can be written to a file and is not blank; None for anything else."""
    if not isinstance(value, str):
        return None
    # half of a pair of surrogates cannot be written, and control characters are in no picture
    whole = value[:LONGEST].encode("utf-8", "replace").decode("utf-8")
    text = "".join(letter for letter in whole if letter in "\t\n" or category(letter) != "Cc")
    return text if text.strip() else None

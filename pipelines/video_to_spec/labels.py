"""What a model should write about each turn of a recording of which everything is known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

from watersmeet.pipelines.video_to_spec.markup import AFTER, CAN, DO, GO, IS, KEY, NEW, SHOWS, WAY, added, box_of
from watersmeet.pipelines.video_to_spec.observed import END, LAST_END, LAST_PRESS, PRESS, Observed
from watersmeet.pipelines.video_to_spec.score import same_text
from watersmeet.pipelines.video_to_spec.sentences import feature_kind
from watersmeet.pipelines.video_to_spec.spec import Claim, Screen, Spec, Step

_NEAR_S = 0.45  # between a step's start and the moment that stands for it
_SEEN_S = 0.2  # the same for what came by itself
_MISREAD = 0.72  # likeness of a text to what a reader made of it
_MIN_IOU = 0.25


def labels(spec: Spec, turns: Sequence[Observed]) -> list[list[str]]:
    """Markup for each turn, references into its own `Observed`; what nothing observed supports is left out."""
    return _Labels(spec, turns).write()


class _Labels:
    def __init__(self, spec: Spec, turns: Sequence[Observed]) -> None:
        self.spec, self.turns = spec, turns
        self.screens = {screen.id: screen for screen in spec.screens}
        self.known: dict[str, int] = {}
        self.here = spec.steps[0].from_screen if spec.steps else spec.screens[0].id

    def write(self) -> list[list[str]]:
        placed: dict[int, list[tuple[Step, int]]] = {}
        for step in self.spec.steps:
            found = self._turn_of(step)
            if found is not None:
                placed.setdefault(found[0], []).append((step, found[1]))
        claims = self._claims()
        out: list[list[str]] = []
        for number, turn in enumerate(self.turns):
            written = self._declare(self.here, turn, 0) if number == 0 else []
            for step, slot in placed.get(number, []):
                if step.from_screen != self.here:
                    written += self._go(step.from_screen, turn, slot)
                written += self._step(step, turn, slot)
            out.append(written + ([] if number == 0 else claims.get(number, [])))
        return out

    # ------------------------------------------------------------------ times

    def _turn_of(self, step: Step) -> tuple[int, int] | None:
        """(turn, moment that is the step's start), None if nothing was seen of it."""
        best: tuple[float, int, int] | None = None
        for number, turn in enumerate(self.turns):
            for far, slot in _starts(step, turn):
                if far <= _NEAR_S and (best is None or far < best[0]):
                    best = (far, number, slot)
        return best and best[1:]

    def _end(self, step: Step, turn: Observed, slot: int) -> int:
        moments = turn.moments
        later = [
            i
            for i in range(len(moments))
            if i not in (PRESS, LAST_PRESS, LAST_END) and moments[i].time_us >= moments[slot].time_us
        ]
        # of moments at one time the one that is always the end
        return min(later, key=lambda i: (abs(moments[i].t_s - step.end_s), i != END, i), default=slot)

    # ------------------------------------------------------------------ words

    def _text(self, text: str, turn: Observed, *, came_first: bool = False) -> list[str]:
        order = _came_first(turn) if came_first else range(len(turn.texts))
        for i in order:
            if same_text(turn.texts[i].text, text):
                return [f"<t{i}>"]
        likeness = [(_likeness(turn.texts[i].text, text), -k, i) for k, i in enumerate(order)]
        best = max(likeness, default=(0.0, 0, 0))
        return [f"<t{best[2]}>"] if best[0] >= _MISREAD else []

    def _typed(self, text: str, turn: Observed) -> list[str]:
        if whole := [i for i in _came_first(turn) if same_text(turn.texts[i].text, text)]:
            return [IS, f"<t{whole[0]}>"]
        # a longer line is like what was added to it, too: the nearest reading of both kinds counts
        found = [(_likeness(turn.texts[i].text, text), -k, [IS, f"<t{i}>"]) for k, i in enumerate(_came_first(turn))]
        for i, one in enumerate(turn.texts):
            for k, other in enumerate(turn.texts):
                rest = added(one.text, other.text) if one.came and not other.came else None
                if rest is not None:
                    found.append((_likeness(rest.strip(), text.strip()), 1, [IS, f"<t{i}>", AFTER, f"<t{k}>"]))
        best = max(found, key=lambda one: one[:2], default=(0.0, 0, []))
        return best[2] if best[0] >= _MISREAD else []

    def _place(self, step: Step, turn: Observed) -> list[str]:
        if step.box is None or not turn.boxes:
            return []
        box = box_of(step.box)
        best = max(range(len(turn.boxes)), key=lambda i: (turn.boxes[i].iou(box), -i))
        return [f"<s{best}>"] if turn.boxes[best].iou(box) >= _MIN_IOU else []

    # ------------------------------------------------------------------ sentences

    def _declare(self, name: str, turn: Observed, slot: int) -> list[str]:
        screen: Screen = self.screens[name]
        self.known[name] = len(self.known)
        self.here = name
        return [NEW, f"<m{slot}>", *self._text(screen.title, turn, came_first=True)]

    def _go(self, name: str, turn: Observed, slot: int) -> list[str]:
        self.here = name
        if name in self.known:
            return [GO, f"<v{self.known[name]}>"]
        return [GO, *self._declare(name, turn, slot)]

    def _step(self, step: Step, turn: Observed, slot: int) -> list[str]:
        end = self._end(step, turn, slot)
        out = [DO[step.action], f"<m{slot}>", f"<m{end}>"]
        if step.action == "key" and step.text in KEY:
            out.append(KEY[step.text])
        if step.action == "scroll" and step.text in WAY:
            out.append(WAY[step.text])
        if step.target is not None:
            out += self._text(step.target, turn)
        out += self._place(step, turn)
        if step.action == "type" and step.text is not None:
            out += self._typed(step.text, turn)
        if step.to_screen != step.from_screen:
            seen = self.screens[step.to_screen].first_seen_s
            moments = [i for i in range(len(turn.moments)) if i not in (PRESS, LAST_PRESS, LAST_END)]
            out += self._go(
                step.to_screen, turn, min(moments, key=lambda i: abs(turn.moments[i].t_s - seen), default=end)
            )
        return out

    def _claims(self) -> dict[int, list[str]]:
        out: dict[int, list[str]] = {}
        for claim in self.spec.patterns:
            if claim.name in SHOWS:
                for number, slot in self._seen(claim):
                    out.setdefault(number, []).extend([SHOWS[claim.name], f"<m{slot}>"])
        for claim in self.spec.features:
            kind = feature_kind(claim.name, claim.description)
            if kind is None:
                continue
            for number, slot in self._seen(claim):
                if text := self._text(claim.name, self.turns[number]):
                    out.setdefault(number, []).extend([CAN[kind], *text, f"<m{slot}>"])
        return out

    def _seen(self, claim: Claim) -> Iterator[tuple[int, int]]:
        """(turn, moment) of each of its evidence."""
        done: set[int] = set()
        for one in claim.evidence:
            near = [
                (abs(moment.shown_us / 1e6 - one.t_s), i == PRESS, number, i)
                for number, turn in enumerate(self.turns)
                for i, moment in enumerate(turn.moments)
                if i not in (PRESS, LAST_PRESS, LAST_END)
            ]
            far, _, number, slot = min(near, default=(9.0, False, 0, 0))
            if far <= _SEEN_S and number not in done:
                done.add(number)
                yield number, slot


def _starts(step: Step, turn: Observed) -> Iterator[tuple[float, int]]:
    """(how far from the step, moment) of the moments that could be its start."""
    moments = turn.moments
    if len(moments) <= LAST_END:
        return
    presses = [PRESS, *range(LAST_END + 1, len(moments), 2)]
    if step.action == "wait":
        arrival = min(abs(moments[i].t_s - step.end_s) for i in (1, *range(LAST_END + 2, len(moments), 2)))
        slot = min((LAST_END, LAST_PRESS), key=lambda i: abs(moments[i].t_s - step.start_s))
        if abs(moments[slot].t_s - step.start_s) <= 2 * _NEAR_S:
            yield arrival, slot
        return
    for press in presses:
        slot = press + 1 if step.action == "hover" else press
        yield abs(moments[slot].t_s - step.start_s), slot


def _came_first(turn: Observed) -> list[int]:
    """Numbers of the texts of a turn, those that came first."""
    return sorted(range(len(turn.texts)), key=lambda i: not turn.texts[i].came)


def _likeness(a: str, b: str) -> float:
    if not a or not b or abs(len(a) - len(b)) > 0.5 * max(len(a), len(b)):
        return 0.0
    return SequenceMatcher(None, a.lower(), b.lower(), autojunk=False).ratio()

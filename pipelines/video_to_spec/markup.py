"""Step markup: the compact language in which a model writes what happens in a recording.

A list of symbols. Times are moments (`<m3>`), texts what was read (`<t7>`), places boxes that changed (`<s2>`) or four
bins; nothing else can be said, so nothing can be misspelt or made up. It begins with the first screen; a step names its
action, start, end, target and place, for typing what went in, and where it leads:

    <new> <m0> <t0>                                    the first screen, first seen at m0, titled t0
    <do-type> <m3> <m9> <t4> <s1> <is> <t9>            t9 is typed into the field called t4
    <do-type> <m3> <m9> <t4> <s1> <is> <t9> <after> <t4>    only what follows t4 in t9 is typed
    <do-click> <m12> <m14> <t6> <s3> <go> <new> <m14> <t11>    a press on t6 leads to a new screen
    <do-click> <m17> <m18> <t2> <go> <v0> <or> <do-key>    back to the first screen; or was it a key?
    <do-key> <m20> <m21> <key-Escape>
    <is-dropdown> <m12> <m15>                          a pattern, seen at these moments
    <can-submit> <t6> <m14>                            a feature that the page calls t6

`<t>`, `<s>`, `<x>` and `<y>` are the symbols of the layout markup, with the same limits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from watersmeet.core.errors import DecodeError
from watersmeet.core.geometry import Box
from watersmeet.pipelines.layout.markup import BINS, MAX_SHAPES, MAX_TEXTS, box_symbols
from watersmeet.pipelines.video_to_spec.observed import Observed
from watersmeet.pipelines.video_to_spec.score import same_text
from watersmeet.pipelines.video_to_spec.sentences import (
    FEATURES,
    NO_POINTER,
    PATTERNS,
    doubt,
    doubted,
    feature,
    feature_kind,
)
from watersmeet.pipelines.video_to_spec.spec import ACTIONS, Claim, Corners, Evidence, Screen, Source, Spec, Step

OPEN = "<video>"
MAX_MOMENTS = 256
MAX_SCREENS = 32
KEYS = (
    "Enter", "Escape", "Tab", "Space", "Backspace", "Delete", "ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "Home",
    "End", "PageUp", "PageDown", "Control+k", "Control+a", "Control+c", "Control+v", "Control+z", "Control+s", "Control+f",
)  # fmt: skip
DIRECTIONS = ("down", "up", "left", "right")
NEW, GO, IS, AFTER, OR, BLIND = "<new>", "<go>", "<is>", "<after>", "<or>", "<no-pointer>"
DO = {action: f"<do-{action}>" for action in ACTIONS}
KEY = {name: f"<key-{name}>" for name in KEYS}
WAY = {name: f"<way-{name}>" for name in DIRECTIONS}
SHOWS = {name: f"<is-{name.replace(' ', '-')}>" for name in PATTERNS}
CAN = {kind: f"<can-{kind}>" for kind in FEATURES}

_MIN_IOU = 0.6
_UNSURE = 0.5  # confidence of a step of which two readings are left


def own_symbols() -> list[str]:
    """The symbols that the layout markup does not have, in the order in which a tokenizer reserves them."""
    return [
        OPEN, NEW, GO, IS, AFTER, OR, BLIND,
        *DO.values(), *KEY.values(), *WAY.values(), *SHOWS.values(), *CAN.values(),
        *(f"<m{i}>" for i in range(MAX_MOMENTS)), *(f"<v{i}>" for i in range(MAX_SCREENS)),
    ]  # fmt: skip


def symbols() -> list[str]:
    """Every symbol of the markup."""
    return own_symbols() + [
        f"<{letter}{i}>"
        for letter, count in (("t", MAX_TEXTS), ("s", MAX_SHAPES), ("x", BINS), ("y", BINS))
        for i in range(count)
    ]


# ---------------------------------------------------------------------- writing


def encode(spec: Spec, observed: Observed) -> list[str]:
    """The markup of `spec` with references into `observed`; what nothing observed supports is left out."""
    return _Writer(spec, observed).write()


class _Writer:
    def __init__(self, spec: Spec, observed: Observed) -> None:
        self.spec, self.observed = spec, observed
        self.screens = {screen.id: screen for screen in spec.screens}
        self.known: dict[str, int] = {}
        self.out: list[str] = []

    def write(self) -> list[str]:
        if not self.spec.screens:
            return []
        spec = self.spec
        if NO_POINTER in spec.open_questions:
            self.out.append(BLIND)
        here = spec.steps[0].from_screen if spec.steps else spec.screens[0].id
        self._declare(here)
        doubts = dict(found for question in spec.open_questions if (found := doubted(question)))
        for step in spec.steps:
            if step.from_screen != here:
                self._go(step.from_screen)
            self._step(step)
            here = step.to_screen
            if step.index in doubts:
                self.out += [OR, DO[doubts[step.index]]]
        for claim in spec.patterns:
            if claim.name in SHOWS:
                self.out += [SHOWS[claim.name], *self._moments(claim.evidence)]
        for claim in spec.features:
            kind, text = feature_kind(claim.name, claim.description), self._text(claim.name, None, None)
            if kind and text:
                self.out += [CAN[kind], *text, *self._moments(claim.evidence)]
        return self.out

    def _moment(self, t_s: float) -> str:
        return f"<m{self.observed.nearest(t_s)}>"

    def _moments(self, evidence: Sequence[Evidence]) -> list[str]:
        return [f"<m{i}>" for i in sorted({self.observed.nearest(one.t_s) for one in evidence})]

    def _declare(self, name: str) -> None:
        screen = self.screens[name]
        self.known[name] = len(self.known)
        self.out += [NEW, self._moment(screen.first_seen_s), *self._text(screen.title, None, screen.first_seen_s)]

    def _go(self, name: str) -> None:
        self.out.append(GO)
        if name in self.known:
            self.out.append(f"<v{self.known[name]}>")
        else:
            self._declare(name)

    def _step(self, step: Step) -> None:
        box = None if step.box is None else _box(step.box)
        self.out += [DO[step.action], self._moment(step.start_s), self._moment(step.end_s)]
        if step.action == "key":
            self.out += [KEY[step.text]] if step.text in KEY else []
        elif step.action == "scroll":
            self.out += [WAY[step.text]] if step.text in WAY else []
        if step.target is not None:
            self.out += self._text(step.target, box, step.start_s)
        if box is not None:
            self.out += self._place(box)
        if step.action == "type" and step.text is not None:
            self.out += self._typed(step.text, box, step.end_s)
        if step.to_screen != step.from_screen:
            self._go(step.to_screen)

    def _place(self, box: Box) -> list[str]:
        best = max(range(len(self.observed.boxes)), key=lambda i: self.observed.boxes[i].box.iou(box), default=None)
        if best is not None and best < MAX_SHAPES and self.observed.boxes[best].box.iou(box) >= _MIN_IOU:
            return [f"<s{best}>"]
        binned = box_symbols(box, self.observed.width, self.observed.height)
        return binned if binned[0][2:] != binned[2][2:] and binned[1][2:] != binned[3][2:] else []

    def _candidates(self, box: Box | None, t_s: float | None) -> list[int]:
        """Texts, the nearest to `box` first, and of those the nearest to a time."""
        texts = self.observed.texts[:MAX_TEXTS]

        def distance(i: int) -> tuple[float, float]:
            seen = texts[i]
            far = 0.0 if t_s is None else abs(self.observed.moments[seen.moment].time_us / 1e6 - t_s)
            if box is None:
                return 0.0, far
            (ax, ay), (bx, by) = seen.box.center, box.center
            return round(abs(ax - bx) + abs(ay - by)), far

        return sorted(range(len(texts)), key=distance)

    def _text(self, text: str, box: Box | None, t_s: float | None) -> list[str]:
        found = (i for i in self._candidates(box, t_s) if same_text(self.observed.texts[i].text, text))
        first = next(found, None)
        return [] if first is None else [f"<t{first}>"]

    def _typed(self, text: str, box: Box | None, t_s: float) -> list[str]:
        if whole := self._text(text, box, t_s):
            return [IS, *whole]
        order = self._candidates(box, t_s)
        for i in order:
            for k in order:
                if same_text(_added(self.observed.texts[i].text, self.observed.texts[k].text), text):
                    return [IS, f"<t{i}>", AFTER, f"<t{k}>"]
        return []


def _box(corners: Corners) -> Box:
    return Box(x0=corners[0], y0=corners[1], x1=corners[2], y1=corners[3])


def _added(whole: str, before: str) -> str | None:
    """What follows `before` in `whole`; None if it does not begin with it, or nothing follows."""
    rest = whole.removeprefix(before)
    return rest if before and rest.strip() and rest != whole else None


# ---------------------------------------------------------------------- reading


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """A specification read from markup, with what did not fit."""

    spec: Spec
    warnings: tuple[str, ...]


def decode(
    markup: Sequence[str], observed: Observed, source: Source, *, confidences: Sequence[float] | None = None
) -> Decoded:
    """Read markup into a specification whose times, texts and boxes come from `observed`.

    confidences: of the steps in order, 1 where there is none. References to what was not observed, and steps or claims
    that thereby have no time, are dropped with a warning. Raises DecodeError for a symbol that is not of the markup.
    """
    return _Reader(markup, observed, source, confidences or ()).read()


class _Reader:
    def __init__(self, markup: Sequence[str], observed: Observed, source: Source, confidences: Sequence[float]) -> None:
        self.markup, self.observed, self.source, self.confidences = markup, observed, source, confidences
        self.at = 0
        self.warnings: list[str] = []
        self.screens: list[Screen] = []
        self.steps: list[Step] = []
        self.features: list[Claim] = []
        self.patterns: list[Claim] = []
        self.questions: list[str] = []
        self.here = ""
        self._known = set(symbols())

    def read(self) -> Decoded:
        while self.at < len(self.markup):
            symbol = self._next()
            if symbol == BLIND:
                self.questions.append(NO_POINTER)
            elif symbol == NEW:
                self._screen()
            elif symbol == GO:
                self._move()
            elif symbol in _ACTION_OF:
                self._step(_ACTION_OF[symbol])
            elif symbol in _PATTERN_OF:
                self._pattern(_PATTERN_OF[symbol])
            elif symbol in _FEATURE_OF:
                self._feature(_FEATURE_OF[symbol])
            elif symbol in self._known:
                self.warnings.append(f"{symbol} outside of a step was dropped")
            else:
                raise DecodeError(f"position {self.at - 1} of the markup holds {symbol!r}, which is no symbol of it")
        return Decoded(
            spec=Spec(
                source=self.source,
                screens=tuple(self.screens),
                steps=tuple(self.steps),
                features=tuple(self.features),
                patterns=tuple(self.patterns),
                open_questions=tuple(self.questions),
            ),
            warnings=tuple(self.warnings),
        )

    def _next(self) -> str:
        self.at += 1
        return self.markup[self.at - 1]

    def _peek(self) -> str:
        return self.markup[self.at] if self.at < len(self.markup) else ""

    def _number(self, letter: str, count: int) -> int | None:
        """The reference that comes next if it is of this letter; None, with a warning, if there is no such thing."""
        symbol = self._peek()
        if not (symbol[1:2] == letter and symbol[2:-1].isdecimal()):
            return None
        self.at += 1
        number = int(symbol[2:-1])
        if number < count:
            return number
        self.warnings.append(f"{symbol} does not exist; there are {count}")
        return None

    def _moment(self) -> Evidence | None:
        number = self._number("m", len(self.observed.moments))
        return None if number is None else self.observed.moments[number].evidence

    def _text(self) -> str | None:
        number = self._number("t", len(self.observed.texts))
        return None if number is None else self.observed.texts[number].text

    def _screen(self) -> bool:
        seen, title = self._moment(), self._text()
        if seen is None or (self.screens and seen.t_s < self.screens[-1].first_seen_s):
            self.warnings.append("a screen without a time after the one before was dropped")
            return False
        name = f"s{len(self.screens) + 1}"
        self.screens.append(
            Screen(
                id=name,
                title=title if title and title.strip() else f"Screen {len(self.screens) + 1}",
                first_seen_s=seen.t_s,
                thumbnail=f"frames/{name}.png",
            )
        )
        self.here = name
        return True

    def _move(self) -> None:
        if self._peek() == NEW:
            self.at += 1
            self._screen()
            return
        number = self._number("v", len(self.screens))
        if number is not None:
            self.here = self.screens[number].id

    def _place(self) -> Corners | None:
        if self._peek()[1:2] == "s":
            number = self._number("s", len(self.observed.boxes))
            return None if number is None else self._corners(self.observed.boxes[number].box)
        bins = [self._number(letter, BINS) for letter in "xyxy"]
        if None in bins:
            return None
        x0, y0, x1, y1 = (b / (BINS - 1) for b in bins if b is not None)
        w, h = self.observed.width, self.observed.height
        return self._corners(Box(x0=min(x0, x1) * w, y0=min(y0, y1) * h, x1=max(x0, x1) * w, y1=max(y0, y1) * h))

    def _corners(self, box: Box) -> Corners | None:
        inside = box.clipped(self.source.width, self.source.height)
        return (inside.x0, inside.y0, inside.x1, inside.y1) if inside.area > 0 else None

    def _step(self, action: str) -> None:
        start, end = self._moment(), self._moment()
        text = _NAME_OF.get(self._peek())
        self.at += text is not None
        target = self._text()
        box = self._place()
        if self._peek() == IS:
            self.at += 1
            text = self._typed()
        came_from = self.here
        if self._peek() == GO:
            self.at += 1
            self._move()
        other = None
        if self._peek() == OR:
            self.at += 1
            other = _ACTION_OF.get(self._peek())
            self.at += other is not None
        if start is None or end is None or end.t_s < start.t_s or not came_from:
            self.warnings.append(f"a step of action {action} without a start, an end or a screen was dropped")
            return
        if self.steps and start.t_s < self.steps[-1].start_s:
            self.warnings.append(f"a step of action {action} that begins before the one above was dropped")
            return
        number = len(self.steps)
        step = Step(
            index=number + 1,
            start_s=start.t_s,
            end_s=end.t_s,
            action=action,  # type: ignore[arg-type]
            target=target if target and target.strip() else None,
            text=(text or None) if action in ("type", "key", "scroll") else None,
            box=box,
            from_screen=came_from,
            to_screen=self.here,
            evidence=tuple(dict.fromkeys((start, end))),
            confidence=self.confidences[number] if number < len(self.confidences) else 1.0,
        )
        if other is not None and other != action:
            step = replace(step, confidence=min(step.confidence, _UNSURE))
            self.questions.append(doubt(step, other))
        self.steps.append(step)

    def _typed(self) -> str | None:
        whole = self._text()
        if self._peek() != AFTER:
            return whole
        self.at += 1
        before = self._text()
        return _added(whole, before) if whole and before else whole

    def _proof(self) -> tuple[Evidence, ...]:
        found: list[Evidence] = []
        while self._peek()[1:2] == "m":
            one = self._moment()
            if one is not None and one not in found:
                found.append(one)
        return tuple(found)

    def _pattern(self, name: str) -> None:
        self._claim(self.patterns, name, PATTERNS[name])

    def _feature(self, kind: str) -> None:
        name = self._text()
        self._claim(self.features, name, feature(kind, name or ""))

    def _claim(self, claims: list[Claim], name: str | None, description: str) -> None:
        proof = self._proof()
        if not proof or not name or not name.strip():
            self.warnings.append("a claim without a name or a moment was dropped")
            return
        claims.append(Claim(name=name, description=description, evidence=proof))


_ACTION_OF = {symbol: action for action, symbol in DO.items()}
_PATTERN_OF = {symbol: name for name, symbol in SHOWS.items()}
_FEATURE_OF = {symbol: kind for kind, symbol in CAN.items()}
_NAME_OF = {symbol: name for names in (KEY, WAY) for name, symbol in names.items()}

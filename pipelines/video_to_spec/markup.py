"""Step markup: the compact language in which a model writes what happens in a recording.

A recording is a row of turns, one for each time at which something changed; for each the model writes symbols, none if
nobody did anything. Times are moments of the turn (`<m1>`), texts lines that were read (`<t7>`), places boxes (`<s2>`);
nothing else can be said, so nothing can be misspelt or made up. The first turn says the first screen. A step names its
action, start, end, target and place, for typing what went in, and where it leads:

    <new> <m0> <t0>                                    the first screen, first seen at m0, titled t0
    <do-type> <m0> <m2> <t1> <s0> <is> <t9>            t9 is typed into the field called t1
    <do-type> <m0> <m2> <t1> <s0> <is> <t9> <after> <t4>    only what follows t4 in t9 is typed
    <do-click> <m0> <m2> <t0> <s0> <go> <new> <m1> <t11>    a press on t0 leads to a new screen
    <do-click> <m0> <m2> <t0> <go> <v0>                and one back to the first screen
    <do-key> <m0> <m2> <key-Escape>
    <is-dropdown> <m1>                                 a pattern, seen at this moment
    <can-submit> <t0> <m2>                             a feature that the page calls t0

`<t>` are symbols of the layout markup, `<v>` number the screens in the order in which they were said.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

from watersmeet.core.errors import DecodeError
from watersmeet.core.geometry import Box
from watersmeet.pipelines.video_to_spec.observed import MAX_BOXES, MAX_MOMENTS, MAX_TEXTS, Moment, Observed
from watersmeet.pipelines.video_to_spec.sentences import FEATURES, NO_POINTER, PATTERNS, doubt, feature
from watersmeet.pipelines.video_to_spec.spec import ACTIONS, Claim, Corners, Evidence, Screen, Source, Spec, Step

OPEN = "<video>"
MAX_SCREENS = 32
KEYS = (
    "Enter", "Escape", "Tab", "Space", "Backspace", "Delete", "ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "Home",
    "End", "PageUp", "PageDown", "Control+k", "Control+a", "Control+c", "Control+v", "Control+z", "Control+s", "Control+f",
)  # fmt: skip
DIRECTIONS = ("down", "up", "left", "right")
NEW, GO, IS, AFTER, BLIND = "<new>", "<go>", "<is>", "<after>", "<no-pointer>"
DO = {action: f"<do-{action}>" for action in ACTIONS}
KEY = {name: f"<key-{name}>" for name in KEYS}
WAY = {name: f"<way-{name}>" for name in DIRECTIONS}
SHOWS = {name: f"<is-{name.replace(' ', '-')}>" for name in PATTERNS}
CAN = {kind: f"<can-{kind}>" for kind in FEATURES}
AT_POINTER, WAS, CAME, PLACES = "<at-pointer>", "<was>", "<came>", "<places>"
LEVELS = 16
"""Of the prompt: before the lines of each kind and the places, and measures in steps (`<level3>`)."""

UNSURE = 0.5  # confidence of a step of which two readings are left


def own_symbols() -> list[str]:
    """The symbols that the layout markup does not have, in the order in which a tokenizer reserves them."""
    return [
        OPEN, NEW, GO, IS, AFTER, BLIND, AT_POINTER, WAS, CAME, PLACES,
        *DO.values(), *KEY.values(), *WAY.values(), *SHOWS.values(), *CAN.values(),
        *(f"<m{i}>" for i in range(MAX_MOMENTS)), *(f"<v{i}>" for i in range(MAX_SCREENS)),
        *(f"<level{i}>" for i in range(LEVELS)),
    ]  # fmt: skip


def symbols() -> list[str]:
    """Every symbol of the markup and of its prompts."""
    return own_symbols() + [f"<t{i}>" for i in range(MAX_TEXTS)] + [f"<s{i}>" for i in range(MAX_BOXES)]


@dataclass(frozen=True, kw_only=True)
class Doubt:
    """The model gave another action of a step nearly the same probability."""

    step: int  # of the turn
    other: str


@dataclass(frozen=True, kw_only=True)
class Written:
    """What was written about one turn. confidences: of its steps in order, 1 where there is none."""

    observed: Observed
    markup: Sequence[str]
    confidences: Sequence[float] = ()
    doubts: Sequence[Doubt] = ()


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """A specification read from markup, with what did not fit."""

    spec: Spec
    warnings: tuple[str, ...]


def decode(turns: Iterable[Written], source: Source, *, blind: bool = False) -> Decoded:
    """Read the markup of all turns into a specification whose times, texts and boxes come from what was observed.

    blind: whether no pointer is shown, which becomes an open question. References to what was not observed, and steps
    or claims that thereby have no time, are dropped with a warning. Raises DecodeError for a symbol that is not of the
    markup.
    """
    reader = Reader(source, blind=blind)
    for turn in turns:
        reader.read(turn)
    return reader.done()


class Reader:
    """Reads turn by turn; `screens` so far, `here` the id of the one that is shown. blind: see `decode`."""

    def __init__(self, source: Source, *, blind: bool = False) -> None:
        self.source = source
        self.warnings: list[str] = []
        self.screens: list[Screen] = []
        self.steps: list[Step] = []
        self.questions = [NO_POINTER] if blind else []
        self.here = ""
        self._doubts: list[tuple[int, str]] = []
        self._patterns: dict[str, list[Evidence]] = {}
        self._features: dict[str, Claim] = {}

    def read(self, turn: Written) -> None:
        """Take in what was written about the next turn."""
        _Turn(self, turn).read()

    def done(self) -> Decoded:
        """The specification as far as it was read."""
        # a step may be said after one that begins later
        steps = sorted(self.steps, key=lambda step: step.start_s)
        numbers = {step.index: i + 1 for i, step in enumerate(steps)}
        steps = [replace(step, index=i + 1) for i, step in enumerate(steps)]
        patterns = [
            Claim(name=name, description=PATTERNS[name], evidence=tuple(dict.fromkeys(found)))
            for name, found in self._patterns.items()
        ]
        spec = Spec(
            source=self.source,
            screens=tuple(self.screens),
            steps=tuple(steps),
            features=tuple(self._features.values()),
            patterns=tuple(patterns),
            open_questions=(
                *self.questions,
                *(doubt(steps[numbers[index] - 1], other) for index, other in self._doubts),
            ),
        )
        return Decoded(spec=spec, warnings=tuple(self.warnings))

    def doubted(self, index: int, other: str) -> None:
        """Note that the step of this index could be another action."""
        self._doubts.append((index, other))

    def pattern(self, name: str, seen: Evidence) -> None:
        self._patterns.setdefault(name, []).append(seen)

    def feature(self, kind: str, name: str, seen: Evidence) -> None:
        if name not in self._features:
            self._features[name] = Claim(name=name, description=feature(kind, name), evidence=(seen,))


class _Turn:
    def __init__(self, reader: Reader, turn: Written) -> None:
        self.reader, self.turn, self.observed = reader, turn, turn.observed
        self.markup = list(turn.markup)
        self.at = 0
        self.count = 0

    def read(self) -> None:
        while self.at < len(self.markup):
            symbol = self._next()
            if symbol == NEW:
                self._screen()
            elif symbol == GO:
                self._move()
            elif symbol in _ACTION_OF:
                self._step(_ACTION_OF[symbol])
            elif symbol in _PATTERN_OF:
                self._pattern(_PATTERN_OF[symbol])
            elif symbol in _FEATURE_OF:
                self._feature(_FEATURE_OF[symbol])
            elif symbol in _KNOWN:
                self._warn(f"{symbol} outside of a step was dropped")
            else:
                raise DecodeError(f"position {self.at - 1} of the markup holds {symbol!r}, which is no symbol of it")

    def _warn(self, text: str) -> None:
        self.reader.warnings.append(text)

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
        self._warn(f"{symbol} does not exist; there are {count}")
        return None

    def _moment(self) -> Moment | None:
        number = self._number("m", len(self.observed.moments))
        return None if number is None else self.observed.moments[number]

    def _text(self) -> str | None:
        number = self._number("t", len(self.observed.texts))
        if number is None:
            return None
        text = self.observed.texts[number].text
        return text if text.strip() else None

    def _screen(self) -> None:
        reader = self.reader
        seen, title = self._moment(), self._text()
        if seen is None or (reader.screens and seen.evidence.t_s < reader.screens[-1].first_seen_s):
            self._warn("a screen without a time after the one before was dropped")
            return
        if len(reader.screens) >= MAX_SCREENS:
            self._warn(f"a screen beyond the {MAX_SCREENS} that can be told apart was dropped")
            return
        name = f"s{len(reader.screens) + 1}"
        reader.screens.append(
            Screen(
                id=name,
                title=title or f"Screen {len(reader.screens) + 1}",
                first_seen_s=seen.evidence.t_s,
                thumbnail=f"frames/{name}.png",
            )
        )
        reader.here = name

    def _move(self) -> None:
        if self._peek() == NEW:
            self.at += 1
            self._screen()
            return
        number = self._number("v", len(self.reader.screens))
        if number is not None:
            self.reader.here = self.reader.screens[number].id

    def _place(self) -> Corners | None:
        number = self._number("s", len(self.observed.boxes))
        if number is None:
            return None
        source = self.reader.source
        inside = self.observed.boxes[number].clipped(source.width, source.height)
        return (inside.x0, inside.y0, inside.x1, inside.y1) if inside.area > 0 else None

    def _step(self, action: str) -> None:
        reader = self.reader
        start, end = self._moment(), self._moment()
        text = _NAME_OF.get(self._peek())
        self.at += text is not None
        target = self._text()
        box = self._place()
        if self._peek() == IS:
            self.at += 1
            text = self._typed()
        came_from = reader.here
        if self._peek() == GO:
            self.at += 1
            self._move()
        number, self.count = self.count, self.count + 1
        if start is None or end is None or end.time_us < start.time_us or not came_from:
            self._warn(f"a step of action {action} without a start, an end or a screen was dropped")
            return
        other = next((one.other for one in self.turn.doubts if one.step == number and one.other != action), None)
        sure = self.turn.confidences[number] if number < len(self.turn.confidences) else 1.0
        step = Step(
            index=len(reader.steps) + 1,
            start_s=min(start.t_s, reader.source.duration_s),
            end_s=min(end.t_s, reader.source.duration_s),
            action=action,  # type: ignore[arg-type]
            target=target,
            text=(text or None) if action in ("type", "key", "scroll") else None,
            box=box,
            from_screen=came_from,
            to_screen=reader.here,
            evidence=tuple(dict.fromkeys((start.evidence, end.evidence))),
            confidence=sure if other is None else min(sure, UNSURE),
        )
        if other is not None:
            reader.doubted(step.index, other)
        reader.steps.append(step)

    def _typed(self) -> str | None:
        whole = self._text()
        if self._peek() != AFTER:
            return whole
        self.at += 1
        before = self._text()
        return added(whole, before) if whole and before else whole

    def _pattern(self, name: str) -> None:
        seen = self._moment()
        if seen is None:
            self._warn(f"the pattern {name} without a moment was dropped")
        else:
            self.reader.pattern(name, seen.evidence)

    def _feature(self, kind: str) -> None:
        name, seen = self._text(), self._moment()
        if seen is None or name is None:
            self._warn("a feature without a name or a moment was dropped")
        else:
            self.reader.feature(kind, name, seen.evidence)


def added(whole: str, before: str) -> str | None:
    """What follows `before` in `whole`; None if it does not begin with it, or nothing follows.

    A few letters of the beginning may be read in another way the second time.
    """
    if whole.startswith(before):
        rest = whole.removeprefix(before)
    elif len(before) >= 4 and SequenceMatcher(None, whole[: len(before)], before, autojunk=False).ratio() >= 0.75:
        blocks = SequenceMatcher(None, whole, before, autojunk=False).get_matching_blocks()
        ends = [block.a + block.size for block in blocks if block.size and block.b + block.size == len(before)]
        rest = whole[ends[-1] :] if ends else whole[len(before) :]
    else:
        return None
    return rest if before and rest.strip() and rest != whole else None


def box_of(corners: Corners) -> Box:
    """Corners as they stand in a specification, as a box."""
    return Box(x0=corners[0], y0=corners[1], x1=corners[2], y1=corners[3])


_KNOWN = frozenset(symbols())
_ACTION_OF: Mapping[str, str] = {symbol: action for action, symbol in DO.items()}
_PATTERN_OF: Mapping[str, str] = {symbol: name for name, symbol in SHOWS.items()}
_FEATURE_OF: Mapping[str, str] = {symbol: kind for kind, symbol in CAN.items()}
_NAME_OF: Mapping[str, str] = {symbol: name for names in (KEY, WAY) for name, symbol in names.items()}

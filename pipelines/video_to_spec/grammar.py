"""The step markup's grammar as a mask over the next token: what is written always parses, ends, and refers to what exists.

Beyond the context-free part: references exist; no step ends before it starts; a further screen is not first seen before
the one said last; what was typed is a text that came, and what it was added to one that did not; and when the token budget runs short only symbols that lead to the end are left.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from watersmeet.pipelines.layout.constrained import SymbolGrammar, SymbolMask, token_set
from watersmeet.pipelines.video_to_spec import markup
from watersmeet.pipelines.video_to_spec.observed import MAX_BOXES, MAX_MOMENTS, MAX_TEXTS, Observed

_RESERVE = 14  # tokens: the longest step and the end


def lark(ids: Mapping[str, int], *, first: bool) -> str:
    """The grammar in llguidance's Lark dialect over token ids; `ids` maps each symbol to its id. first: of the first turn."""

    def tokens(names: Sequence[str]) -> str:
        return token_set(ids, names)

    def numbered(letter: str, count: int) -> str:
        return tokens([f"<{letter}{i}>" for i in range(count)])

    others = [markup.DO[action] for action in ("click", "hover", "navigate", "wait")]
    return f"""
start: {"new" if first else "item*"}
item: (other | key | scroll | typing) move? | move | pattern | feature
other: {tokens(others)} m m t? s?
key: {tokens([markup.DO["key"]])} m m {tokens(list(markup.KEY.values()))}? t? s?
scroll: {tokens([markup.DO["scroll"]])} m m {tokens(list(markup.WAY.values()))}? t? s?
typing: {tokens([markup.DO["type"]])} m m t? s? value?
value: {tokens([markup.IS])} t ({tokens([markup.AFTER])} t)?
move: {tokens([markup.GO])} (v | new)
new: {tokens([markup.NEW])} m t?
pattern: {tokens(list(markup.SHOWS.values()))} m
feature: {tokens(list(markup.CAN.values()))} t m
m: {numbered("m", MAX_MOMENTS)}
t: {numbered("t", MAX_TEXTS)}
s: {numbered("s", MAX_BOXES)}
v: {numbered("v", markup.MAX_SCREENS)}
"""


class StepGrammar(SymbolGrammar):
    """The grammar compiled once for a vocabulary; `mask()` starts the decoding of one turn."""

    def __init__(self, ids: Mapping[str, int], vocab_size: int, eos_id: int) -> None:
        super().__init__(ids, vocab_size, eos_id, symbols=markup.symbols(), what="step")
        self.larks = {first: lark(ids, first=first) for first in (False, True)}

    def mask(self, observed: Observed, *, screens: Sequence[float] = ()) -> "StepMask":
        """A mask for a turn of which this was observed. screens: when those that were said already were first seen, in
        seconds; without any, the turn is the first."""
        return StepMask(self, observed, screens)


class StepMask(SymbolMask):
    """The state of one decoding: which tokens may come next."""

    def __init__(self, grammar: StepGrammar, observed: Observed, screens: Sequence[float]) -> None:
        super().__init__(grammar, grammar.larks[not screens])
        ids = grammar.ids
        self._observed, self._screens_s = observed, list(screens)
        self._moments = np.array([ids[f"<m{i}>"] for i in range(MAX_MOMENTS)])
        self._number = {int(token): i for i, token in enumerate(self._moments)}
        self._screens = np.array([ids[f"<v{i}>"] for i in range(markup.MAX_SCREENS)])
        self._new, self._go = ids[markup.NEW], ids[markup.GO]
        self._doing = {ids[symbol] for symbol in markup.DO.values()}
        self._exists = np.ones(grammar.vocab_size, dtype=bool)
        for letter, limit, count in (
            ("m", MAX_MOMENTS, len(observed.moments)),
            ("t", MAX_TEXTS, len(observed.texts)),
            ("s", MAX_BOXES, len(observed.boxes)),
        ):
            self._exists[[ids[f"<{letter}{i}>"] for i in range(count, limit)]] = False
        self._texts = {
            came: [ids[f"<t{i}>"] for i, t in enumerate(observed.texts) if t.came is came] for came in (True, False)
        }
        if not observed.texts:  # these need one
            self._exists[[ids[symbol] for symbol in markup.CAN.values()]] = False
        self._after = {ids[markup.IS]: "typed", ids[markup.AFTER]: "kept"}
        for token, came in ((ids[markup.IS], True), (ids[markup.AFTER], False)):
            self._exists[token] &= bool(self._texts[came])
        self._what = ""  # what the next moment is: "start", "end" or "screen", or the next text: "typed" or "kept"
        self._start = 0

    def allowed(self, remaining: int) -> np.ndarray:
        """Which ids may come next, bool `[vocab]`, when `remaining` tokens (this one included) may still be written.

        At least one id is always allowed, and following the allowed ids always reaches the end within the budget if
        the budget was at least 16 at the start.
        """
        out = self.allowed_by_grammar() & self._exists
        for number, moment in enumerate(self._observed.moments[:MAX_MOMENTS]):
            early = (self._what == "end" and moment.time_us < self._start) or (
                self._what == "screen" and bool(self._screens_s) and moment.shown_us / 1e6 < self._screens_s[-1]
            )
            if early:
                out[self._moments[number]] = False
        if self._what in ("typed", "kept"):
            out[self._texts[self._what == "kept"]] = False
        out[self._screens[len(self._screens_s) :]] = False
        if not self._may_be_new():
            out[self._new] = False
            if not self._screens_s:
                out[self._go] = False
        if remaining <= _RESERVE and out[self.grammar.eos_id]:
            return self.only(self.grammar.eos_id)
        return out

    def _may_be_new(self) -> bool:
        """Whether a further screen can be said, and some moment of this turn is late enough for it."""
        if len(self._screens_s) >= markup.MAX_SCREENS:
            return False
        return not self._screens_s or any(
            moment.shown_us / 1e6 >= self._screens_s[-1] for moment in self._observed.moments[:MAX_MOMENTS]
        )

    def accept(self, token: int) -> None:
        """Move past `token`. Raises DecodeError if the grammar does not allow it here."""
        if not self.consume(token):
            return
        if token in self._number:
            self._take(self._number[token])
        elif token in self._doing:
            self._what = "start"
        elif token == self._new:
            self._what = "screen"
        else:
            self._what = self._after.get(token, "" if self._what in ("typed", "kept") else self._what)

    def _take(self, number: int) -> None:
        moment = self._observed.moments[number]
        if self._what == "start":
            self._start, self._what = moment.time_us, "end"
            return
        if self._what == "screen":
            self._screens_s.append(moment.shown_us / 1e6)
        self._what = ""

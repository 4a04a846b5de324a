"""The step markup's grammar as a mask over the next token: what is written always parses, ends, and refers to what exists.

Beyond the context-free part: references exist; steps begin in order of time and end after they begin; screens are first
seen in order; a claim's moments rise; and when the token budget runs short only symbols that lead to the end are left.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from watersmeet.pipelines.layout.constrained import SymbolGrammar, SymbolMask, token_set
from watersmeet.pipelines.layout.markup import BINS, MAX_SHAPES, MAX_TEXTS
from watersmeet.pipelines.video_to_spec import markup
from watersmeet.pipelines.video_to_spec.observed import Observed

_RESERVE = 8  # tokens: `<go> <new> <m>` after a box of four bins, and the end


def lark(ids: Mapping[str, int]) -> str:
    """The grammar in llguidance's Lark dialect over token ids; `ids` maps each symbol to its id."""

    def tokens(names: Sequence[str]) -> str:
        return token_set(ids, names)

    def numbered(letter: str, count: int) -> str:
        return tokens([f"<{letter}{i}>" for i in range(count)])

    others = [markup.DO[action] for action in ("click", "hover", "navigate", "wait")]
    return f"""
start: {tokens([markup.BLIND])}? new item*
item: (other | key | scroll | typing) move? doubt? | move | pattern | feature
other: {tokens(others)} m m t? place?
key: {tokens([markup.DO["key"]])} m m {tokens(list(markup.KEY.values()))}? t? place?
scroll: {tokens([markup.DO["scroll"]])} m m {tokens(list(markup.WAY.values()))}? t? place?
typing: {tokens([markup.DO["type"]])} m m t? place? value?
value: {tokens([markup.IS])} t ({tokens([markup.AFTER])} t)?
move: {tokens([markup.GO])} (v | new)
doubt: {tokens([markup.OR])} {tokens(list(markup.DO.values()))}
new: {tokens([markup.NEW])} m t?
pattern: {tokens(list(markup.SHOWS.values()))} m+
feature: {tokens(list(markup.CAN.values()))} t m+
place: s | x y x y
m: {numbered("m", markup.MAX_MOMENTS)}
t: {numbered("t", MAX_TEXTS)}
s: {numbered("s", MAX_SHAPES)}
v: {numbered("v", markup.MAX_SCREENS)}
x: {numbered("x", BINS)}
y: {numbered("y", BINS)}
"""


class StepGrammar(SymbolGrammar):
    """The grammar compiled once for a vocabulary; `mask()` starts one decoding."""

    def __init__(self, ids: Mapping[str, int], vocab_size: int, eos_id: int) -> None:
        super().__init__(ids, vocab_size, eos_id, symbols=markup.symbols(), what="step")
        self.lark = lark(ids)

    def mask(self, observed: Observed) -> "StepMask":
        """A mask for a recording of which this was observed."""
        return StepMask(self, observed)


class StepMask(SymbolMask):
    """The state of one decoding: which tokens may come next."""

    def __init__(self, grammar: StepGrammar, observed: Observed) -> None:
        super().__init__(grammar, grammar.lark)
        ids = grammar.ids
        self._moments = np.array([ids[f"<m{i}>"] for i in range(markup.MAX_MOMENTS)])
        self._number = {int(token): i for i, token in enumerate(self._moments)}
        self._screens = [ids[f"<v{i}>"] for i in range(markup.MAX_SCREENS)]
        self._new, self._go = ids[markup.NEW], ids[markup.GO]
        self._doing = {ids[symbol] for symbol in markup.DO.values()}
        self._or = ids[markup.OR]
        self._claiming = {ids[symbol] for symbol in (*markup.SHOWS.values(), *markup.CAN.values())}
        self._exists = np.ones(grammar.vocab_size, dtype=bool)
        for letter, limit, count in (
            ("m", markup.MAX_MOMENTS, len(observed.moments)),
            ("t", MAX_TEXTS, len(observed.texts)),
            ("s", MAX_SHAPES, len(observed.boxes)),
        ):
            self._exists[[ids[f"<{letter}{i}>"] for i in range(count, limit)]] = False
        if not observed.texts:  # these need one
            self._exists[[ids[markup.IS], *(ids[symbol] for symbol in markup.CAN.values())]] = False
        self._last_start = self._last_screen = self._least = 0
        self._declared = 0
        self._what = ""  # what the next moments belong to: "start", "end", "screen" or "claim"
        self._previous = -1
        self._last_moment = min(len(observed.moments), markup.MAX_MOMENTS) - 1

    def allowed(self, remaining: int) -> np.ndarray:
        """Which ids may come next, bool `[vocab]`, when `remaining` tokens (this one included) may still be written.

        At least one id is always allowed, and following the allowed ids always reaches the end within the budget if
        the budget was at least 12 at the start.
        """
        out = self.allowed_by_grammar() & self._exists
        out[self._moments[: self._least]] = False
        out[self._screens[self._declared :]] = False
        if self._declared >= markup.MAX_SCREENS:
            out[self._new] = False
        if remaining <= _RESERVE and out[self.grammar.eos_id]:
            return self.only(self.grammar.eos_id)
        return out

    def accept(self, token: int) -> None:
        """Move past `token`. Raises DecodeError if the grammar does not allow it here."""
        if not self.consume(token):
            return
        before, self._previous = self._previous, token
        if token in self._number:
            self._take_moment(self._number[token])
        elif token in self._doing:
            if before != self._or:
                self._what, self._least = "start", self._last_start
        elif token == self._new:
            self._what, self._least = "screen", self._last_screen
        elif token in self._claiming:
            self._what, self._least = "claim", 0

    def _take_moment(self, number: int) -> None:
        if self._what == "start":
            self._last_start, self._what, self._least = number, "end", number
        elif self._what == "screen":
            self._last_screen, self._what, self._least = number, "", 0
            self._declared += 1
        elif self._what == "claim":
            # at the last moment there is no next, and nothing else asks for one
            self._least = number + 1
        else:
            self._what, self._least = "", 0

"""The markup's grammar as a mask over the next token: what is written always parses, closes, and refers once.

llguidance decides what the context-free grammar allows. Three things it cannot say are added here: a text or shape is
referred to at most once and only if the picture has it, nesting has a limit, and when the token budget runs short only
symbols that lead to the end are left.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from watersmeet.pipelines.layout import markup
from watersmeet.pipelines.layout.constrained import SymbolGrammar, SymbolMask, token_set
from watersmeet.pipelines.layout.tree import CONTAINERS, CONTROLS, PICTURES, TEXTS

MAX_DEPTH = 14
_LONGEST_UNIT = 6  # a control written with bins and its close: the most that one open node can still need


def lark(ids: Mapping[str, int]) -> str:
    """The grammar in llguidance's Lark dialect over token ids; `ids` maps each symbol to its id."""

    def tokens(names: Sequence[str]) -> str:
        return token_set(ids, names)

    kinds = {
        name: tokens([f"<{k}>" for k in group])
        for name, group in (
            ("container", [k for k in CONTAINERS if k != "page"]),
            ("text", TEXTS),
            ("control", CONTROLS),
            ("picture", PICTURES),
        )
    }
    x, y = (tokens([f"<{axis}{i}>" for i in range(markup.BINS)]) for axis in "xy")
    return f"""
start: node*
node: container | text | control | picture
container: {kinds["container"]} shape? node+ close | {kinds["container"]} shape close
text: {kinds["text"]} ref+
control: {kinds["control"]} (box ref* | ref+) picture* close
picture: {kinds["picture"]} box
box: shape | {x} {y} {x} {y}
shape: {tokens([f"<s{i}>" for i in range(markup.MAX_SHAPES)])}
ref: {tokens([f"<t{i}>" for i in range(markup.MAX_TEXTS)])}
close: <[{ids[markup.CLOSE]}]>
"""


class LayoutGrammar(SymbolGrammar):
    """The grammar compiled once for a vocabulary; `mask()` starts one decoding."""

    def __init__(self, ids: Mapping[str, int], vocab_size: int, eos_id: int) -> None:
        super().__init__(ids, vocab_size, eos_id, symbols=markup.symbols(), what="layout")
        self.lark = lark(ids)

    def mask(self, *, texts: int, shapes: int, text_offset: int = 0, shape_offset: int = 0) -> "LayoutMask":
        """A mask for a picture with so many texts and shapes, whose references start at the offsets (modulo the limits)."""
        return LayoutMask(self, texts, shapes, text_offset, shape_offset)


class LayoutMask(SymbolMask):
    """The state of one decoding: which tokens may come next."""

    def __init__(self, grammar: LayoutGrammar, texts: int, shapes: int, text_offset: int, shape_offset: int) -> None:
        super().__init__(grammar, grammar.lark)
        ids = grammar.ids
        self._free = np.ones(grammar.vocab_size, dtype=bool)
        for letter, limit, count, offset in (
            ("t", markup.MAX_TEXTS, texts, text_offset),
            ("s", markup.MAX_SHAPES, shapes, shape_offset),
        ):
            known = {(offset + i) % limit for i in range(min(count, limit))}
            self._free[[ids[f"<{letter}{i}>"] for i in range(limit) if i not in known]] = False
        self._refs = {ids[f"<t{i}>"] for i in range(markup.MAX_TEXTS)} | {
            ids[f"<s{i}>"] for i in range(markup.MAX_SHAPES)
        }
        self._text_refs = [ids[f"<t{i}>"] for i in range(markup.MAX_TEXTS)]
        self._shape_refs = [ids[f"<s{i}>"] for i in range(markup.MAX_SHAPES)]
        self._opens = [ids[f"<{k}>"] for k in CONTAINERS if k != "page"] + [ids[f"<{k}>"] for k in CONTROLS]
        self._texts = [ids[f"<{k}>"] for k in TEXTS]
        self._kinds = self._opens + self._texts + [ids[f"<{k}>"] for k in PICTURES]
        self._open_set = set(self._opens)
        self.depth = 0

    def allowed(self, remaining: int) -> np.ndarray:
        """Which ids may come next, bool `[vocab]`, when `remaining` tokens (this one included) may still be written.

        At least one id is always allowed, and following the allowed ids always reaches the end within the budget if
        the budget was at least 8 at the start.
        """
        bits = self.allowed_by_grammar()
        out = bits & self._free
        if not (bits[self._text_refs] & self._free[self._text_refs]).any() and not self._free[self._text_refs].any():
            out[self._texts] = False  # no text is left to refer to
        if self.depth >= MAX_DEPTH:
            out[self._opens] = False
        if remaining <= self.depth + 2 + _LONGEST_UNIT:
            out = self._towards_the_end(out)
        return out if out.any() else bits

    def _towards_the_end(self, out: np.ndarray) -> np.ndarray:
        eos, close = self.grammar.eos_id, self.grammar.ids[markup.CLOSE]
        for end in (eos, close):
            if out[end]:
                return self.only(end)
        short = out.copy()
        short[self._opens] = False
        return short if short.any() else out

    def accept(self, token: int) -> None:
        """Move past `token`. Raises DecodeError if the grammar does not allow it here."""
        if not self.consume(token):
            return
        if token in self._refs:
            self._free[token] = False
        elif token in self._open_set:
            self.depth += 1
        elif token == self.grammar.ids[markup.CLOSE]:
            self.depth -= 1

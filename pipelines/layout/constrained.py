"""Decoding under a grammar over symbols: what any markup of symbols needs before its own rules are added.

llguidance decides what a context-free grammar allows. Every symbol is one token, so no text is ever lexed.
"""

from collections.abc import Mapping, Sequence

import llguidance
import numpy as np
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from watersmeet.core.errors import ConfigError, DecodeError


def token_set(ids: Mapping[str, int], names: Sequence[str]) -> str:
    """Any one of the symbols `names`, in llguidance's Lark dialect over token ids."""
    return f"<[{','.join(_ranges(sorted(ids[name] for name in names)))}]>"


def _ranges(ids: list[int]) -> list[str]:
    out: list[list[int]] = []
    for i in ids:
        if out and i == out[-1][1] + 1:
            out[-1][1] = i
        else:
            out.append([i, i])
    return [str(a) if a == b else f"{a}-{b}" for a, b in out]


class _Vocabulary:
    """What llguidance wants to know of a tokenizer; every markup symbol is a special token of its own."""

    bos_token_id = None

    def __init__(self, ids: Mapping[str, int], vocab_size: int, eos_id: int) -> None:
        self.eos_token_id = eos_id
        names = {i: name for name, i in ids.items()}
        self.tokens = [names.get(i, f"<#{i}>").encode() for i in range(vocab_size)]
        self.special_token_ids = list(range(vocab_size))

    def __call__(self, text: bytes) -> list[int]:
        return []


class SymbolGrammar:
    """A grammar compiled once for a vocabulary. `ids` maps each symbol to its id, `lark` is the grammar over these ids.

    Raises ConfigError if the vocabulary lacks some of `symbols`; `what` is how errors call the markup.
    """

    def __init__(
        self, ids: Mapping[str, int], vocab_size: int, eos_id: int, *, symbols: Sequence[str], what: str
    ) -> None:
        missing = [s for s in symbols if s not in ids]
        if missing:
            raise ConfigError(
                f"the vocabulary lacks {len(missing)} {what} symbols, {missing[0]} first; use a tokenizer trained with them"
            )
        self.ids, self.vocab_size, self.eos_id, self.what = dict(ids), vocab_size, eos_id, what
        self.tokenizer = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(_Vocabulary(ids, vocab_size, eos_id)), n_vocab=vocab_size, slices=[]
        )


class SymbolMask:
    """The state of one decoding as far as the context-free grammar goes."""

    def __init__(self, grammar: SymbolGrammar, lark: str) -> None:
        self.grammar = grammar
        self.matcher = llguidance.LLMatcher(grammar.tokenizer, lark)
        if error := self.matcher.get_error():
            raise ConfigError(f"the {grammar.what} grammar does not compile: {error}")
        self._bits = allocate_token_bitmask(1, grammar.vocab_size)

    def allowed_by_grammar(self) -> np.ndarray:
        """Which ids may come next, bool `[vocab]`."""
        fill_next_token_bitmask(self.matcher, self._bits)
        return np.unpackbits(self._bits.view(np.uint8), bitorder="little")[: self.grammar.vocab_size].astype(bool)

    def consume(self, token: int) -> bool:
        """Move past `token`; False at the end. Raises DecodeError if the grammar does not allow it here."""
        if token == self.grammar.eos_id:
            return False
        if not self.matcher.consume_token(token):
            raise DecodeError(
                f"token {token} does not continue the {self.grammar.what} markup; sample only from `allowed`"
            )
        return True

    def only(self, token: int) -> np.ndarray:
        """A mask of nothing but `token`."""
        out = np.zeros(self.grammar.vocab_size, dtype=bool)
        out[token] = True
        return out

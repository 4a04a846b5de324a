# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Decoding on a GPU: a few tokens of every sequence, the state read once and written once.

Legend: H heads, K key channels, V value channels; PK the next power of two of K, BV channels of a tile.
"""

import triton
import triton.language as tl

from .triton_common import load_rows, store_rows


@triton.jit
def recurrent_steps(
    q, k, v, g, beta, initial, bounds, o, final, H, scale,
    K: tl.constexpr, V: tl.constexpr, PK: tl.constexpr, BV: tl.constexpr,
    HAS_INITIAL: tl.constexpr, NEED_FINAL: tl.constexpr,
):  # fmt: skip
    """All tokens of one sequence (rows from ``bounds``), one head and one tile of values; everything in float32."""
    c, sequence, head = tl.program_id(0) * BV + tl.arange(0, BV), tl.program_id(1) // H, tl.program_id(1) % H
    r = tl.arange(0, PK)
    own = (sequence.to(tl.int64) * H + head) * K * V
    if HAS_INITIAL:
        state = load_rows(initial, own, r, K, c, V, V)
    else:
        state = tl.zeros((PK, BV), tl.float32)
    for token in range(tl.load(bounds + sequence), tl.load(bounds + sequence + 1)):
        at = tl.cast(token, tl.int64) * H + head
        keys = tl.load(k + at * K + r, mask=r < K, other=0.0).to(tl.float32)
        queries = tl.load(q + at * K + r, mask=r < K, other=0.0).to(tl.float32)
        decay = tl.exp(tl.load(g + at * K + r, mask=r < K, other=0.0).to(tl.float32))
        values = tl.load(v + at * V + c, mask=c < V, other=0.0).to(tl.float32)
        state *= decay[:, None]
        write = (values - tl.sum(state * keys[:, None], 0)) * tl.load(beta + at).to(tl.float32)
        state += keys[:, None] * write[None, :]
        out = tl.sum(state * queries[:, None], 0) * scale
        tl.store(o + at * V + c, out.to(o.dtype.element_ty), mask=c < V)
    if NEED_FINAL:
        store_rows(final, own, r, K, c, V, V, state)

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Chunkwise KDA on a GPU, forward, in four kernels. The algebra is that of `chunked.py`, with beta in the solve:

    B_ij = k_i . k_j e^(G_i-G_j)  (i > j)      P_ij = q_i . k_j e^(G_i-G_j)  (i >= j)      L = (I + diag(beta) B)^-1
    W = L diag(beta) (e^G k)      U = L diag(beta) V      R = e^(G_C-G) k
    N = U - W S      O = scale ((e^G q) S + P N)      S' = e^(G_C) S + R^T N

`chunk_tiles` makes P and L, `chunk_rows` W, U, R, e^G q and e^(G_C), `chunk_states` walks over the chunks of a sequence,
`chunk_outputs` makes O. All but the third run for every chunk at once.

How B and P stay finite for any gate: a pair (i, j) belongs to the one level s = 1, 2, 4, .., C/2 where j lies in an even block
of s rows and i in the odd block after it. There the decay splits at the boundary between the two blocks into a factor of i and
a factor of j, both at most 1, and both products of gates that lie between them, so nothing large is formed, nothing is lost by
subtraction, and no row sees a later gate. Every level is one product of whole CxC tiles, masked. With gates of at least
-5 the levels below 16 become one: e^(+-80) still fits, more so when its middle, 40, is taken to both sides. (Only for bfloat16
operands; where float32 is asked for, the levels lose nothing.)

Legend: C = 2^LEVELS chunk rows, H heads, K key channels, V value channels; BK, BV channels of a tile.
"""

import triton
import triton.language as tl

from .triton_common import double, load_operand, load_rows, pairs, product, store_rows

HALF = tl.constexpr(2.3538526683702e17)  # e^40, half of what 16 gates of -5 come to
LEAST = tl.constexpr(3.3e-37)  # e^-84: a gate below the promised bound gives wrong but finite numbers


@triton.jit
def chunk_tiles(
    q, k, g, beta, table, P, L, H,
    K: tl.constexpr, BK: tl.constexpr, C: tl.constexpr, LEVELS: tl.constexpr, BOUNDED: tl.constexpr,
    OPERAND: tl.constexpr, PRECISION: tl.constexpr, FINE: tl.constexpr, EMULATE: tl.constexpr,
):  # fmt: skip
    """P and L [rows,H,C] of one chunk and head."""
    chunk, head = tl.program_id(0), tl.program_id(1)
    n = tl.load(table + 2 * chunk + 1)
    if n == 0:
        return
    first = tl.load(table + 2 * chunk).to(tl.int64) * H + head
    i = tl.arange(0, C)
    row, col = i[:, None], i[None, :]
    b = tl.load(beta + first + i * H, mask=i < n, other=0.0).to(tl.float32)
    a = tl.zeros((C, C), tl.float32)
    p = tl.zeros((C, C), tl.float32)
    own = tl.zeros((C,), tl.float32)
    for start in range(0, K, BK):
        c = start + tl.arange(0, BK)
        keys = load_rows(k, first * K, i, n, c, H * K, K)
        queries = load_rows(q, first * K, i, n, c, H * K, K)
        rise = tl.exp(load_rows(g, first * K, i, n, c, H * K, K))
        whole, fall = rise, tl.full((C, BK), 1.0, tl.float32)
        own += tl.sum(queries * keys, 1)
        if BOUNDED:
            for level in range(0, 4):
                rise, fall, whole = double(rise, fall, whole, row, 1 << level)
            late = 1.0 / (tl.maximum(rise, LEAST) * HALF)
            block = (row // 16 == col // 16) & (row > col)
            written = tl.trans(keys * late)
            a += tl.where(block, product(keys * rise * HALF, written, OPERAND, PRECISION, EMULATE), 0.0)
            p += tl.where(block, product(queries * rise * HALF, written, OPERAND, PRECISION, EMULATE), 0.0)
        # a real loop: unrolled, all levels would want their registers at once
        for level in range(4 if BOUNDED else 0, LEVELS):
            size = 1 << level
            both = keys * tl.where((row & size) != 0, rise, fall)
            written = tl.trans(both)
            pair = pairs(row, col, size)
            a += tl.where(pair, product(both, written, OPERAND, PRECISION, EMULATE), 0.0)
            p += tl.where(pair, product(queries * rise, written, OPERAND, PRECISION, EMULATE), 0.0)
            rise, fall, whole = double(rise, fall, whole, row, size)
    p += tl.where(row == col, own[:, None], 0.0)
    store_rows(P, first * C, i, n, i, H * C, C, p)

    # inverse of I + a by doubling blocks, which is substitution and as stable
    a *= b[:, None]
    inverse = tl.where(row == col, 1.0, 0.0) - tl.where(pairs(row, col, 1), a, 0.0)
    for level in range(1, LEVELS):
        part = tl.where(pairs(row, col, 1 << level), a, 0.0)
        known = product(part, inverse, tl.float32, FINE, EMULATE)
        inverse -= product(inverse, known, tl.float32, FINE, EMULATE)
    store_rows(L, first * C, i, n, i, H * C, C, inverse)


@triton.jit
def chunk_rows(
    q, k, v, g, beta, table, L, W, U, R, Q, D, H,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    OPERAND: tl.constexpr, PRECISION: tl.constexpr, EMULATE: tl.constexpr,
):  # fmt: skip
    """W, R, Q = e^G q [rows,H,K], U [rows,H,V] and D = e^(G_C) [chunks,H,K] of one chunk and head."""
    chunk, head = tl.program_id(0), tl.program_id(1)
    n = tl.load(table + 2 * chunk + 1)
    if n == 0:
        return
    first = tl.load(table + 2 * chunk).to(tl.int64) * H + head
    i = tl.arange(0, C)
    b = tl.load(beta + first + i * H, mask=i < n, other=0.0).to(tl.float32)
    solve = (load_rows(L, first * C, i, n, i, H * C, C) * b[None, :]).to(OPERAND)
    for start in range(0, K, BK):
        c = start + tl.arange(0, BK)
        keys = load_rows(k, first * K, i, n, c, H * K, K)
        log = load_rows(g, first * K, i, n, c, H * K, K)
        # the sum of later gates, not a difference of sums, which would lose small gates beside large ones
        later = load_rows(g, first * K + H * K, i, n - 1, c, H * K, K)
        rise = tl.exp(tl.cumsum(log, 0))
        store_rows(R, first * K, i, n, c, H * K, K, keys * tl.exp(tl.cumsum(later, 0, reverse=True)))
        store_rows(Q, first * K, i, n, c, H * K, K, load_rows(q, first * K, i, n, c, H * K, K) * rise)
        store_rows(W, first * K, i, n, c, H * K, K, product(solve, keys * rise, OPERAND, PRECISION, EMULATE))
        tl.store(D + (chunk.to(tl.int64) * H + head) * K + c, tl.exp(tl.sum(log, 0)), mask=c < K)
    for start in range(0, V, BV):
        c = start + tl.arange(0, BV)
        values = load_operand(v, first * V, i, n, c, H * V, V)
        store_rows(U, first * V, i, n, c, H * V, V, product(solve, values, OPERAND, PRECISION, EMULATE))


@triton.jit
def chunk_states(
    W, U, R, D, initial, table, bounds, N, S, final, H,
    K: tl.constexpr, V: tl.constexpr, PK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    HAS_INITIAL: tl.constexpr, NEED_FINAL: tl.constexpr,
    OPERAND: tl.constexpr, PRECISION: tl.constexpr, EMULATE: tl.constexpr,
):  # fmt: skip
    """N [rows,H,V] and the state entering every chunk, S [chunks,H,K,V], for one sequence, head and tile of values."""
    c, sequence, head = tl.program_id(0) * BV + tl.arange(0, BV), tl.program_id(1) // H, tl.program_id(1) % H
    i, r = tl.arange(0, C), tl.arange(0, PK)
    own = (sequence.to(tl.int64) * H + head) * K * V
    if HAS_INITIAL:
        state = load_rows(initial, own, r, K, c, V, V)
    else:
        state = tl.zeros((PK, BV), tl.float32)
    for chunk in range(tl.load(bounds + sequence), tl.load(bounds + sequence + 1)):
        n = tl.load(table + 2 * chunk + 1)
        first = tl.load(table + 2 * chunk).to(tl.int64) * H + head
        at = (tl.cast(chunk, tl.int64) * H + head) * K
        store_rows(S, at * V, r, K, c, V, V, state)
        w = load_operand(W, first * K, i, n, r, H * K, K)
        write = load_rows(U, first * V, i, n, c, H * V, V) - product(w, state, OPERAND, PRECISION, EMULATE)
        store_rows(N, first * V, i, n, c, H * V, V, write)
        keys = load_operand(R, first * K, i, n, r, H * K, K)
        decay = tl.load(D + at + r, mask=r < K, other=0.0)
        state = state * decay[:, None] + product(tl.trans(keys), write, OPERAND, PRECISION, EMULATE)
    if NEED_FINAL:
        store_rows(final, own, r, K, c, V, V, state)


@triton.jit
def chunk_outputs(
    Q, P, N, S, table, o, H, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    OPERAND: tl.constexpr, PRECISION: tl.constexpr, EMULATE: tl.constexpr,
):  # fmt: skip
    """O [rows,H,V] of one chunk, head and tile of values."""
    chunk, head = tl.program_id(0), tl.program_id(1)
    n = tl.load(table + 2 * chunk + 1)
    if n == 0:
        return
    first = tl.load(table + 2 * chunk).to(tl.int64) * H + head
    at = (chunk.to(tl.int64) * H + head) * K * V
    i, c = tl.arange(0, C), tl.program_id(2) * BV + tl.arange(0, BV)
    tile = load_operand(P, first * C, i, n, i, H * C, C)
    out = product(tile, load_operand(N, first * V, i, n, c, H * V, V), OPERAND, PRECISION, EMULATE)
    for start in range(0, K, BK):
        r = start + tl.arange(0, BK)
        queries = load_operand(Q, first * K, i, n, r, H * K, K)
        out += product(queries, load_operand(S, at, r, K, c, V, V), OPERAND, PRECISION, EMULATE)
    store_rows(o, first * V, i, n, c, H * V, V, out * scale)

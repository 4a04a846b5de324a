# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Chunkwise KDA on a GPU, backward, after `chunk_rows` and `chunk_states` of the forward have run again.

With X = diag(beta) (V - (e^G k) S), so that (I + diag(beta) B) N = X, and dO, dS' given:

    dN = scale P^T dO + R dS'        dS = e^(G_C) dS' + scale (e^G q)^T dO - W^T dN        (`value_grads`, `state_grads`)
    dX = L^T dN      dV = beta dX      dA = -dX N^T  (i > j)      dP = scale dO N^T  (i >= j)      (`solve_grads`)
    rho_i   = sum_j dA_ij e^(G_i-G_j) k_j - e^(G_i) (S dX_i)               of k_i as it reads, before its beta
    sigma_i = sum_j dP_ij e^(G_i-G_j) k_j + scale e^(G_i) (S dO_i)         of q_i
    omega_j = sum_i e^(G_i-G_j) (dP_ij q_i + beta_i dA_ij k_i) + e^(G_C-G_j) (dS' N_j)         of k_j as it writes

then dq = sigma, dk = omega + beta rho, dbeta = v . dX + k . rho, and a gate is in every later sum of gates:
dg = reverse running sum of (q sigma + beta k rho - k omega) + e^(G_C) rowsum(dS' S) + sum_j k_j e^(G_C-G_j) (dS' N_j)
(`key_grads`). The products over (i, j) go through the same levels as in the forward.

Legend: C = 2^LEVELS chunk rows, H heads, K key channels, V value channels; BK, BV channels of a tile.
"""

import triton
import triton.language as tl

from .triton_common import double, load_operand, load_rows, pairs, product, store_rows
from .triton_forward import HALF, LEAST


@triton.jit
def value_grads(
    P, N, do, table, dN, dP, H, scale,
    V: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    OPERAND: tl.constexpr, PRECISION: tl.constexpr, EMULATE: tl.constexpr,
):  # fmt: skip
    """scale P^T dO [rows,H,V] and dP [rows,H,C] of one chunk and head."""
    chunk, head = tl.program_id(0), tl.program_id(1)
    n = tl.load(table + 2 * chunk + 1)
    if n == 0:
        return
    first = tl.load(table + 2 * chunk).to(tl.int64) * H + head
    i = tl.arange(0, C)
    tile = load_operand(P, first * C, i, n, i, H * C, C)
    dp = tl.zeros((C, C), tl.float32)
    for start in range(0, V, BV):
        c = start + tl.arange(0, BV)
        d = load_operand(do, first * V, i, n, c, H * V, V)
        written = load_operand(N, first * V, i, n, c, H * V, V)
        dp += product(d, tl.trans(written), OPERAND, PRECISION, EMULATE)
        send = product(tl.trans(tile), d, OPERAND, PRECISION, EMULATE)
        store_rows(dN, first * V, i, n, c, H * V, V, send * scale)
    store_rows(dP, first * C, i, n, i, H * C, C, tl.where(i[:, None] >= i[None, :], dp * scale, 0.0))


@triton.jit
def state_grads(
    W, R, Q, D, do, dfinal, table, bounds, dN, dS, dinitial, H, scale,
    K: tl.constexpr, V: tl.constexpr, PK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    HAS_FINAL: tl.constexpr, NEED_INITIAL: tl.constexpr,
    OPERAND: tl.constexpr, PRECISION: tl.constexpr, EMULATE: tl.constexpr,
):  # fmt: skip
    """Adds R dS' to dN; dS [chunks,H,K,V] of the state that leaves each chunk; last chunk first."""
    c, sequence, head = tl.program_id(0) * BV + tl.arange(0, BV), tl.program_id(1) // H, tl.program_id(1) % H
    i, r = tl.arange(0, C), tl.arange(0, PK)
    own = (sequence.to(tl.int64) * H + head) * K * V
    if HAS_FINAL:
        grad = load_rows(dfinal, own, r, K, c, V, V)
    else:
        grad = tl.zeros((PK, BV), tl.float32)
    begin, end = tl.load(bounds + sequence), tl.load(bounds + sequence + 1)
    for back in range(0, end - begin):
        chunk = end - 1 - back
        n = tl.load(table + 2 * chunk + 1)
        first = tl.load(table + 2 * chunk).to(tl.int64) * H + head
        at = (tl.cast(chunk, tl.int64) * H + head) * K
        store_rows(dS, at * V, r, K, c, V, V, grad)
        keys = load_operand(R, first * K, i, n, r, H * K, K)
        dn = load_rows(dN, first * V, i, n, c, H * V, V) + product(keys, grad, OPERAND, PRECISION, EMULATE)
        store_rows(dN, first * V, i, n, c, H * V, V, dn)
        w = load_operand(W, first * K, i, n, r, H * K, K)
        decay = tl.load(D + at + r, mask=r < K, other=0.0)
        grad = grad * decay[:, None] - product(tl.trans(w), dn, OPERAND, PRECISION, EMULATE)
        queries = load_operand(Q, first * K, i, n, r, H * K, K)
        d = load_rows(do, first * V, i, n, c, H * V, V) * scale
        grad += product(tl.trans(queries), d, OPERAND, PRECISION, EMULATE)
    if NEED_INITIAL:
        store_rows(dinitial, own, r, K, c, V, V, grad)


@triton.jit
def solve_grads(
    L, N, v, beta, dN, table, dX, dv, dA, part, H,
    V: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    OPERAND: tl.constexpr, PRECISION: tl.constexpr, EMULATE: tl.constexpr,
):  # fmt: skip
    """dX, dv [rows,H,V], dA [rows,H,C] and v . dX [rows,H] of one chunk and head."""
    chunk, head = tl.program_id(0), tl.program_id(1)
    n = tl.load(table + 2 * chunk + 1)
    if n == 0:
        return
    first = tl.load(table + 2 * chunk).to(tl.int64) * H + head
    i = tl.arange(0, C)
    b = tl.load(beta + first + i * H, mask=i < n, other=0.0).to(tl.float32)
    solve = load_operand(L, first * C, i, n, i, H * C, C)
    da = tl.zeros((C, C), tl.float32)
    db = tl.zeros((C,), tl.float32)
    for start in range(0, V, BV):
        c = start + tl.arange(0, BV)
        dn = load_operand(dN, first * V, i, n, c, H * V, V)
        dx = product(tl.trans(solve), dn, OPERAND, PRECISION, EMULATE)
        store_rows(dX, first * V, i, n, c, H * V, V, dx)
        store_rows(dv, first * V, i, n, c, H * V, V, dx * b[:, None])
        db += tl.sum(dx * load_rows(v, first * V, i, n, c, H * V, V), 1)
        written = load_operand(N, first * V, i, n, c, H * V, V)
        da -= product(dx, tl.trans(written), OPERAND, PRECISION, EMULATE)
    store_rows(dA, first * C, i, n, i, H * C, C, tl.where(i[:, None] > i[None, :], da, 0.0))
    tl.store(part + first + i * H, db, mask=i < n)


@triton.jit
def key_grads(
    q, k, g, beta, N, S, do, dX, dS, dA, dP, D, table, dq, dk, dg, part, H, rows, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    LEVELS: tl.constexpr, BOUNDED: tl.constexpr,
    OPERAND: tl.constexpr, PRECISION: tl.constexpr, EMULATE: tl.constexpr,
):  # fmt: skip
    """dq, dk, dg [rows,H,K] and k . rho [tile of keys,rows,H] of one chunk, head and tile of keys."""
    chunk, head, tile = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    n = tl.load(table + 2 * chunk + 1)
    if n == 0:
        return
    first = tl.load(table + 2 * chunk).to(tl.int64) * H + head
    at = chunk.to(tl.int64) * H + head
    i, c = tl.arange(0, C), tile * BK + tl.arange(0, BK)
    row, col = i[:, None], i[None, :]

    keys = load_rows(k, first * K, i, n, c, H * K, K)
    queries = load_rows(q, first * K, i, n, c, H * K, K)
    b = tl.load(beta + first + i * H, mask=i < n, other=0.0).to(tl.float32)
    rho = tl.zeros((C, BK), tl.float32)
    sigma = tl.zeros((C, BK), tl.float32)
    omega = tl.zeros((C, BK), tl.float32)

    # inside the chunk
    rise = tl.exp(load_rows(g, first * K, i, n, c, H * K, K))
    whole, fall = rise, tl.full((C, BK), 1.0, tl.float32)
    if BOUNDED:
        for level in range(0, 4):
            rise, fall, whole = double(rise, fall, whole, row, 1 << level)
        late = 1.0 / (tl.maximum(rise, LEAST) * HALF)
        block = (row // 16 == col // 16) & (row > col)
        a = tl.where(block, load_operand(dA, first * C, i, n, i, H * C, C), 0.0)
        p = tl.where(block, load_operand(dP, first * C, i, n, i, H * C, C), 0.0)
        sent = product(tl.trans(p), queries * rise * HALF, OPERAND, PRECISION, EMULATE)
        sent += product(tl.trans(a), keys * rise * b[:, None] * HALF, OPERAND, PRECISION, EMULATE)
        omega += late * sent
        late = keys * late
        rho += rise * (product(a, late, OPERAND, PRECISION, EMULATE) * HALF)
        sigma += rise * (product(p, late, OPERAND, PRECISION, EMULATE) * HALF)
    # a real loop: unrolled, all levels would want their registers at once
    for level in range(4 if BOUNDED else 0, LEVELS):
        size = 1 << level
        pair = pairs(row, col, size)
        a = tl.where(pair, load_operand(dA, first * C, i, n, i, H * C, C), 0.0)
        p = tl.where(pair, load_operand(dP, first * C, i, n, i, H * C, C), 0.0)
        factor = tl.where((row & size) != 0, rise, fall)
        both = keys * factor
        rho += factor * product(a, both, OPERAND, PRECISION, EMULATE)
        sigma += factor * product(p, both, OPERAND, PRECISION, EMULATE)
        sent = product(tl.trans(p), queries * rise, OPERAND, PRECISION, EMULATE)
        sent += product(tl.trans(a), both * b[:, None], OPERAND, PRECISION, EMULATE)
        omega += factor * sent
        rise, fall, whole = double(rise, fall, whole, row, size)

    # through the states; by now the decays are those of the whole chunk
    read_key = tl.zeros((C, BK), tl.float32)
    read_query = tl.zeros((C, BK), tl.float32)
    write_key = tl.zeros((C, BK), tl.float32)
    last = tl.zeros((BK,), tl.float32)
    for start in range(0, V, BV):
        e = start + tl.arange(0, BV)
        state = load_operand(S, at * K * V, c, K, e, V, V)
        dstate = load_operand(dS, at * K * V, c, K, e, V, V)
        last += tl.sum(state.to(tl.float32) * dstate.to(tl.float32), 1)
        dx = load_operand(dX, first * V, i, n, e, H * V, V)
        read_key += product(dx, tl.trans(state), OPERAND, PRECISION, EMULATE)
        d = load_operand(do, first * V, i, n, e, H * V, V)
        read_query += product(d, tl.trans(state), OPERAND, PRECISION, EMULATE)
        written = load_operand(N, first * V, i, n, e, H * V, V)
        write_key += product(written, tl.trans(dstate), OPERAND, PRECISION, EMULATE)
    rho -= rise * read_key
    sigma += rise * scale * read_query
    write_key *= fall
    omega += write_key
    last = last * tl.load(D + at * K + c, mask=c < K, other=0.0) + tl.sum(keys * write_key, 0)

    dlog = queries * sigma + keys * (b[:, None] * rho - omega)
    dlog = tl.cumsum(dlog, 0, reverse=True) + last[None, :]
    store_rows(dg, first * K, i, n, c, H * K, K, dlog)
    # no decay between a row and itself
    own = tl.load(dP + first * C + i * (H * C + 1), mask=i < n, other=0.0).to(tl.float32)[:, None]
    store_rows(dq, first * K, i, n, c, H * K, K, sigma + own * keys)
    store_rows(dk, first * K, i, n, c, H * K, K, omega + b[:, None] * rho + own * queries)
    tl.store(part + tile.to(tl.int64) * rows * H + first + i * H, tl.sum(keys * rho, 1), mask=i < n)

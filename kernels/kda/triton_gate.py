# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""The decay gates on a GPU: log-decay from logits, and all gradients in one pass over z and dg.

Legend: H heads, K key channels, PK the next power of two of K, BT rows of a tile.
"""

import triton
import triton.language as tl

from .triton_common import load_rows, store_rows

GREATEST = tl.constexpr(3.4028234e38)  # a rate that stays finite: a slope of 0 times infinity would spoil the gradient


@triton.jit
def softplus(x):
    """log(1 + e^x) with full relative accuracy on both sides: large rates multiply it."""
    e = tl.exp(-tl.abs(x))
    u = 1.0 + e
    # log(u) / (u - 1) is right for the rounded u, and its error against e / log1p(e) is small
    small = tl.where(u == 1.0, e, tl.log(u) * (e / tl.where(u == 1.0, 1.0, u - 1.0)))
    return tl.maximum(x, 0.0) + small


@triton.jit
def gate_forward(
    z, A_log, dt_bias, g, H, rows, bound, K: tl.constexpr, PK: tl.constexpr, BT: tl.constexpr, BOUNDED: tl.constexpr
):
    """g [rows,H,K] float32 of one tile of rows and one head."""
    t, head = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT), tl.program_id(1)
    c = tl.arange(0, PK)
    rate = tl.minimum(tl.exp(tl.load(A_log + head).to(tl.float32)), GREATEST)
    x = load_rows(z, head * K, t, rows, c, H * K, K)
    x += tl.load(dt_bias + head * K + c, mask=c < K, other=0.0).to(tl.float32)[None, :]
    if BOUNDED:
        log = bound * tl.sigmoid(rate * x)
    else:
        log = -rate * softplus(x)
    store_rows(g, head * K, t, rows, c, H * K, K, log)


@triton.jit
def gate_backward(
    z, A_log, dt_bias, dg, dz, part_A, part_dt, H, rows, bound, steps,
    K: tl.constexpr, PK: tl.constexpr, BT: tl.constexpr, BOUNDED: tl.constexpr,
):  # fmt: skip
    """dz of ``steps`` tiles of rows and one head, and their sums for A_log [parts,H] and dt_bias [parts,H,K]."""
    part, head = tl.program_id(0), tl.program_id(1)
    c = tl.arange(0, PK)
    rate = tl.minimum(tl.exp(tl.load(A_log + head).to(tl.float32)), GREATEST)
    dt = tl.load(dt_bias + head * K + c, mask=c < K, other=0.0).to(tl.float32)[None, :]
    sum_dt = tl.zeros((PK,), tl.float32)
    sum_A = tl.zeros((PK,), tl.float32)
    for step in range(0, steps):
        t = (part.to(tl.int64) * steps + step) * BT + tl.arange(0, BT)
        x = load_rows(z, head * K, t, rows, c, H * K, K) + dt
        d = load_rows(dg, head * K, t, rows, c, H * K, K)
        if BOUNDED:
            slope = tl.sigmoid(rate * x) * tl.sigmoid(-rate * x)
            dx = d * bound * (slope * rate)
            sum_A += tl.sum(dx * x, 0)
        else:
            dx = -d * rate * tl.sigmoid(x)
            sum_A += tl.sum(d * (-rate * softplus(x)), 0)
        sum_dt += tl.sum(dx, 0)
        store_rows(dz, head * K, t, rows, c, H * K, K, dx)
    tl.store(part_dt + (part * H + head) * K + c, sum_dt, mask=c < K)
    tl.store(part_A + part * H + head, tl.sum(tl.where(c < K, sum_A, 0.0), 0))

"""KDA as matrix products over chunks of 64 tokens: the fast form, with a backward derived by hand.

With the writing key ``kappa = beta k`` the recurrence is ``S <- D S + kappa (v - (D S)^T k)^T``. Inside a chunk, with ``G`` the
cumulative log-decay and ``S`` the state that enters,

    A_ij = k_i . kappa_j e^(G_i-G_j)  (i > j)      P_ij = q_i . kappa_j e^(G_i-G_j)  (i >= j)      L = (I + A)^-1
    U = L V      W = L (e^G k)      N = U - W S   (what each token really writes)
    O = (e^G q) S + P N  =  Y S + P U       with Y = e^G q - P W
    S' = e^(G_C) S + (e^(G_C-G) kappa)^T N  =  M S + R^T U   with R = e^(G_C-G) kappa, M = diag(e^(G_C)) - R^T W

so the only sequential step is one product ``M S`` a chunk. (Kimi Linear report, arXiv:2510.26692, section on the chunkwise
form, and Kimi K3 report, arXiv:2607.24653, eq. 3-4, with beta moved from the solve into the key.)

The exponents ``G_i - G_j`` are never split at a late row. Blocks of ``base`` rows use their own start as reference; between
blocks the writing keys are decayed to the start of the reading block. Every factor between blocks is at most 1; inside a
base block the log-decay is floored so that ``base`` gates cannot overflow. A row therefore never depends on a later gate.

Legend: c chunks, H heads, X = c H, C chunk rows, b block rows, n blocks a chunk, K key channels, V value channels.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from .layout import Grid, grid

CHUNK = 64
# Rows of a base block, and the floor its gates need: exp(84) is still finite in float32 with room for sums. Gates known to
# be at least -5 may use 16 rows untouched. Without that promise blocks have 4 rows; e^-21 = 8e-10 is below float32 rounding.
BOUNDED_BASE, BOUNDED_FLOOR = 16, -5.25
FREE_BASE, FREE_FLOOR = 4, -21.0


@lru_cache(maxsize=16)
def _constants(base: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Running sum inside every base block of 16 rows, reverse running sum of a chunk, what lies above the diagonals."""
    inside = torch.block_diag(*[torch.ones(base, base).tril()] * (16 // base)).to(dtype)
    reverse = torch.ones(CHUNK, CHUNK, dtype=dtype).triu()
    later = torch.ones(base, base, dtype=torch.bool)
    return inside, reverse, torch.stack([later.triu(1), later.triu(0)])


def _spread(x: Tensor, layout: Grid, dtype: torch.dtype, blank: bool) -> Tensor:
    """[B,T,H,D] -> view [c,H,C,D] of the grid; filler rows are zero when ``blank``, else any finite numbers."""
    x = x.flatten(0, 1)
    if layout.rows is not None:
        x = x.index_select(0, layout.rows)
        if blank:
            x.index_fill_(0, layout.fillers, 0)
    return x.to(dtype).unflatten(0, (layout.chunks, CHUNK)).transpose(1, 2)


def _home(c: int, H: int, D: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A buffer in token order [c C,H,D] and its view in grid order [c,H,C,D], to be written by the last operation."""
    rows = torch.empty(c * CHUNK, H, D, dtype=dtype)
    return rows, rows.unflatten(0, (c, CHUNK)).transpose(1, 2)


def _collect(rows: Tensor, layout: Grid, like: Tensor) -> Tensor:
    """Drop the filler rows of a ``_home`` buffer, in the shape and dtype of ``like``."""
    if layout.tokens is not None:
        rows = rows.index_select(0, layout.tokens)
    return rows.to(like.dtype).view(like.shape)


@dataclass(kw_only=True, eq=False)
class Level:
    """One merge of four blocks of s rows into one: operands of the products between blocks. Y merged blocks."""

    F: Tensor  # [Y,4,2,s,K] q and k, decayed since the start of their block
    keys: list[Tensor]  # for block I = 1,2,3: [Y, I s, K] writing keys of earlier blocks, decayed to the start of I
    decay: Tensor  # [Y,4,K] decay over each block
    before: Tensor  # [Y,4,K] decay from the start of the merged block to the start of each block


def _merge(F: Tensor, T: Tensor, decay: Tensor, diag: Tensor) -> tuple[Level, Tensor, Tensor, Tensor, Tensor]:
    """F [Y,4,2,s,K], T [Y,4,s,K], decay [Y,4,K], diag [Y,4,2,s,s] -> level and, for the merged blocks, tile, F, T, decay."""
    Y, _, _, s, K = F.shape
    tile = F.new_empty(Y, 2, 4 * s, 4 * s)
    keys = []
    acc = T[:, 0]
    for block in range(4):
        rows = slice(block * s, (block + 1) * s)
        tile[:, :, rows, rows] = diag[:, block]
        tile[:, :, rows, (block + 1) * s :] = 0
        if block == 0:
            continue
        # decay over the block just passed brings the earlier keys from its start to its end
        keys.append(acc)
        between = torch.bmm(F[:, block].view(Y, 2 * s, K), acc.mT)
        tile[:, :, rows, : block * s] = between.view(Y, 2, s, block * s)
        longer = F.new_empty(Y, (block + 1) * s, K)
        torch.mul(acc, decay[:, block, None], out=longer[:, : block * s])
        longer[:, block * s :] = T[:, block]
        acc = longer
    before = torch.ones_like(decay)
    torch.cumprod(decay[:, :3], 1, out=before[:, 1:])
    F_next = F.new_empty(Y, 2, 4, s, K)
    torch.mul(F.transpose(1, 2), before[:, None, :, None], out=F_next)
    level = Level(F=F, keys=keys, decay=decay, before=before)
    return level, tile, F_next.view(Y, 2, 4 * s, K), acc, before[:, 3] * decay[:, 3]


def _merge_backward(level: Level, dtile: Tensor, dF_next: Tensor, dT_next: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of ``_merge`` for F [Y,4,2,s,K] and T [Y,4,s,K], without the part of ``diag``."""
    F, before = level.F, level.before
    Y, _, _, s, K = F.shape
    dF = torch.empty_like(F)
    torch.mul(dF_next.view(Y, 2, 4, s, K).transpose(1, 2), before[:, :, None, None], out=dF)
    dT = torch.empty_like(dT_next)
    reach = dT_next
    for block in (3, 2, 1):
        rows = slice(block * s, (block + 1) * s)
        dbetween = dtile[:, :, rows, : block * s].reshape(Y, 2 * s, block * s)
        dF[:, block] += torch.bmm(dbetween, level.keys[block - 1]).view(Y, 2, s, K)
        dT[:, rows] = reach[:, rows]
        earlier = reach[:, : block * s] * level.decay[:, block, None]
        reach = earlier.baddbmm_(dbetween.mT, F[:, block].view(Y, 2 * s, K))
    dT[:, :s] = reach
    return dF, dT.view(Y, 4, s, K)


def _inverse(A: Tensor) -> Tensor:
    """(I + A)^-1 for strictly lower triangular A [X,C,C], by forward substitution over tiles of 16 rows."""
    X, C, _ = A.shape
    s = 16
    diag = torch.stack([A[:, i : i + s, i : i + s] for i in range(0, C, s)], 1).view(-1, s, s)
    eye = torch.eye(s, dtype=A.dtype).expand_as(diag)
    diag = torch.linalg.solve_triangular(diag, eye, upper=False, unitriangular=True).view(X, C // s, s, s)
    L = torch.zeros_like(A)
    for i in range(C // s):
        rows = slice(i * s, (i + 1) * s)
        L[:, rows, rows] = diag[:, i]
        if i:
            known = torch.bmm(A[:, rows, : i * s], L[:, : i * s, : i * s])
            L[:, rows, : i * s] = torch.bmm(diag[:, i], known).neg_()
    return L


@dataclass(kw_only=True, eq=False)
class Saved:
    """What the backward reads besides the inputs."""

    layout: Grid
    rise: Tensor  # [X,n,b,K] decay since the start of the base block
    end: Tensor  # [X,n,K] decay over the base block
    inverse_keys: Tensor  # [X*n,b,K] kappa / rise
    levels: list[Level]
    F: Tensor  # [X,2,C,K] e^G q and e^G k
    R: Tensor  # [X,C,K]
    D: Tensor  # [X,K]
    P: Tensor
    L: Tensor
    U: Tensor
    W: Tensor
    M: Tensor
    Y: Tensor
    S: Tensor  # [X,K,V] the state that enters every chunk


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    scale: float,
    initial_state: Tensor | None,
    lengths: tuple[int, ...],
    bounded: bool,
    need_final: bool,
) -> tuple[Tensor, Tensor | None, Saved]:
    """o [B,T,H,V], final states [N,H,K,V] or None, and what the backward needs."""
    dtype = torch.promote_types(torch.float32, q.dtype)
    layout = grid(lengths, CHUNK)
    base, floor = (BOUNDED_BASE, BOUNDED_FLOOR) if bounded else (FREE_BASE, FREE_FLOOR)
    c, H, C, K, V = layout.chunks, q.shape[2], CHUNK, q.shape[3], v.shape[3]
    X, n = c * H, CHUNK // base
    inside, _, later = _constants(base, dtype)

    qs, ks, gs, bs = (_spread(x, layout, dtype, x is k or x is g) for x in (q, k, g, beta[..., None]))
    vs = _spread(v, layout, dtype, False)
    block = (c, H, n, base, K)
    log = q.new_empty(X * C // 16, 16, K, dtype=dtype)
    torch.clamp(gs, min=floor, out=log.view(c, H, C, K))
    log = torch.bmm(inside.expand(X * C // 16, 16, 16), log).view(block)
    end = log[:, :, :, -1].exp()
    rise = log.exp_()
    F = q.new_empty(c, H, n, 2, base, K, dtype=dtype)
    torch.mul(qs.unflatten(2, (n, base)), rise, out=F[:, :, :, 0])
    torch.mul(ks.unflatten(2, (n, base)), rise, out=F[:, :, :, 1])
    inverse_keys = torch.empty_like(rise)
    torch.mul(ks.unflatten(2, (n, base)), bs.unflatten(2, (n, base)), out=inverse_keys)
    inverse_keys.div_(rise)
    T = inverse_keys * end[:, :, :, None]
    inverse_keys = inverse_keys.view(X * n, base, K)
    diag = torch.bmm(F.view(X * n, 2 * base, K), inverse_keys.mT).view(X * n, 2, base, base).masked_fill_(later, 0)

    levels = []
    size, decay = base, end
    while size < C:
        Y = X * C // (4 * size)
        level, tile, F, T, decay = _merge(
            F.view(Y, 4, 2, size, K), T.view(Y, 4, size, K), decay.view(Y, 4, K), diag.view(Y, 4, 2, size, size)
        )
        levels.append(level)
        size *= 4
        diag = tile
    P, A = tile[:, 0], tile[:, 1]
    R, D = T, decay

    L = _inverse(A)
    U = torch.bmm(L, vs.reshape(X, C, V))
    W = torch.bmm(L, F[:, 1])
    Y_ = torch.baddbmm(F[:, 0], P, W, alpha=-1)
    M = torch.bmm(R.mT, W).neg_()
    M.diagonal(dim1=1, dim2=2).add_(D)
    add = torch.bmm(R.mT, U)
    S, final = _chain(M, add, initial_state, layout, H, need_final, len(lengths))
    o = torch.bmm(P, U).baddbmm_(Y_, S)
    out, out_grid = _home(c, H, V, dtype)
    torch.mul(o.view(c, H, C, V), scale, out=out_grid)
    saved = Saved(
        layout=layout, rise=rise, end=end, inverse_keys=inverse_keys, levels=levels, F=F, R=R, D=D,
        P=P, L=L, U=U, W=W, M=M, Y=Y_, S=S,
    )  # fmt: skip
    return _collect(out, layout, v), final, saved


def _chain(
    M: Tensor, add: Tensor, initial: Tensor | None, layout: Grid, H: int, need_final: bool, N: int
) -> tuple[Tensor, Tensor | None]:
    """``S' = M S + add`` from chunk to chunk: the state entering every chunk [X,K,V], and the last states [N,H,K,V]."""
    X, K, V = add.shape
    S = torch.empty_like(add)
    final = add.new_zeros(N * H, K, V) if need_final else None
    steps = layout.steps
    start = add.new_zeros(N * H, K, V) if initial is None else initial.to(add.dtype)
    if initial is not None:
        start = (start if layout.order is None else start.index_select(0, layout.order)).reshape(N * H, K, V)
    active = steps[0][1] * H if steps else 0
    S[:active] = start[:active]
    if final is not None:
        final[active:] = start[active:]  # sequences without a token keep their state
    for (first, count), (after, remaining) in zip(steps, (*steps[1:], (0, 0)), strict=True):
        a, m, r = first * H, count * H, remaining * H
        if r:
            torch.baddbmm(add[a : a + r], M[a : a + r], S[a : a + r], out=S[after * H : after * H + r])
        if final is not None and m > r:
            torch.baddbmm(add[a + r : a + m], M[a + r : a + m], S[a + r : a + m], out=final[r:m])
    if final is not None:
        final = final.view(N, H, K, V)
        if layout.order is not None:
            final = torch.empty_like(final).index_copy_(0, layout.order, final)
    return S, final


def _chain_backward(
    M: Tensor, add: Tensor, dfinal: Tensor | None, layout: Grid, H: int, N: int, need_initial: bool
) -> tuple[Tensor, Tensor | None]:
    """Backward of the chain: gradient of the state leaving every chunk [X,K,V] and of the initial states; ``add`` = Y^T dO."""
    X, K, V = add.shape
    dS = torch.empty_like(add)
    if dfinal is not None:
        if layout.order is not None:
            dfinal = dfinal.index_select(0, layout.order)
        dfinal = dfinal.reshape(N * H, K, V).to(add.dtype)
    steps = layout.steps
    following = (0, 0)
    for first, count in reversed(steps):
        a, m = first * H, count * H
        b, r = following[0] * H, following[1] * H
        if r:
            torch.baddbmm(add[b : b + r], M[b : b + r].mT, dS[b : b + r], out=dS[a : a + r])
        if m > r:
            dS[a + r : a + m] = 0 if dfinal is None else dfinal[r:m]
        following = (first, count)
    if not need_initial:
        return dS, None
    m = steps[0][1] * H if steps else 0
    dinitial = add.new_zeros(N * H, K, V)
    if dfinal is not None:
        dinitial[m:] = dfinal[m:]
    if m:
        torch.baddbmm(add[:m], M[:m].mT, dS[:m], out=dinitial[:m])
    dinitial = dinitial.view(N, H, K, V)
    if layout.order is not None:
        dinitial = torch.empty_like(dinitial).index_copy_(0, layout.order, dinitial)
    return dS, dinitial


def backward(
    saved: Saved,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    do: Tensor,
    dfinal: Tensor | None,
    *,
    scale: float,
    N: int,
    need_initial: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of q, k, v, g, beta and the initial states."""
    dtype = saved.P.dtype
    layout = saved.layout
    c, H, C, K, V = layout.chunks, q.shape[2], CHUNK, q.shape[3], v.shape[3]
    X = c * H
    n, base = saved.end.shape[2], saved.rise.shape[3]
    _, reverse, later = _constants(base, dtype)
    P, L, S, R = saved.P, saved.L, saved.S, saved.R

    # rows of dO above rows of -d(V - (e^G k) S): both meet the same right-hand sides below
    rows = torch.empty(X, 2, C, V, dtype=dtype)
    dO = rows[:, 0]
    torch.mul(_spread(do, layout, dtype, True), scale, out=dO.view(c, H, C, V))
    dS, dinitial = _chain_backward(saved.M, torch.bmm(saved.Y.mT, dO), dfinal, layout, H, N, need_initial)
    N_ = torch.baddbmm(saved.U, saved.W, S, alpha=-1)
    dN = torch.bmm(P.mT, dO).baddbmm_(R, dS)
    dV = torch.bmm(L.mT, dN)
    torch.neg(dV, out=rows[:, 1])
    rows = rows.view(X, 2 * C, V)
    dtile = torch.bmm(rows, N_.mT).view(X, 2, C, C)
    dF = torch.bmm(rows, S.mT).view(X, 2, C, K)
    dR = torch.bmm(N_, dS.mT)
    dend = torch.mul(R, dR).sum(1).addcmul_(saved.D, torch.mul(dS, S).sum(2))

    dT = dR
    for level in reversed(saved.levels):
        Y, _, _, s, _ = level.F.shape
        dtile = dtile.view(Y, 2, 4 * s, 4 * s)
        dF, dT = _merge_backward(level, dtile, dF.view(Y, 2, 4 * s, K), dT.view(Y, 4 * s, K))
        dtile = torch.stack([dtile[:, :, i : i + s, i : i + s] for i in range(0, 4 * s, s)], 1)  # [Y,4,2,s,s]
    ddiag = dtile.view(X * n, 2, base, base).masked_fill_(later, 0).view(X * n, 2 * base, base)
    F0 = saved.levels[0].F.view(X * n, 2 * base, K)
    dF = dF.view(X * n, 2 * base, K).baddbmm_(ddiag, saved.inverse_keys)
    dinv = torch.mul(dT.view(X * n, base, K), saved.end.view(X * n, 1, K)).baddbmm_(ddiag.mT, F0)

    F0 = F0.view(X * n, 2, base, K)
    dF = dF.view(X * n, 2, base, K)
    dG = torch.mul(F0[:, 0], dF[:, 0]).addcmul_(F0[:, 1], dF[:, 1]).addcmul_(saved.inverse_keys, dinv, value=-1)
    dG = dG.view(X, C, K)
    dG[:, -1] += dend
    dg = torch.bmm(reverse.expand(X, C, C), dG)

    block = (c, H, n, base, K)
    dF = dF.view(c, H, n, 2, base, K)
    dq, dq_grid = _home(c, H, K, dtype)
    torch.mul(dF[:, :, :, 0], saved.rise, out=dq_grid.unflatten(2, (n, base)))
    dkappa = dinv.view(block).div_(saved.rise).view(c, H, C, K)
    ks = _spread(k, layout, dtype, True)
    bs = _spread(beta[..., None], layout, dtype, False)
    dbeta = torch.mul(dkappa, ks).sum(-1, keepdim=True)
    dk, dk_grid = _home(c, H, K, dtype)
    torch.mul(dF[:, :, :, 1], saved.rise, out=dk_grid.unflatten(2, (n, base)))
    dk_grid.addcmul_(dkappa, bs)
    dv, dv_grid = _home(c, H, V, dtype)
    dv_grid.copy_(dV.view(c, H, C, V))
    dlog, dlog_grid = _home(c, H, K, dtype)
    dlog_grid.copy_(dg.view(c, H, C, K))
    db, db_grid = _home(c, H, 1, dtype)
    db_grid.copy_(dbeta)
    grads = (_collect(x, layout, like) for x, like in ((dq, q), (dk, k), (dv, v), (dlog, g), (db, beta)))
    return (*grads, dinitial)


class _KDA(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, g, beta, initial_state, scale, lengths, bounded, need_final):  # type: ignore[no-untyped-def]
        out, final, saved = forward(
            q, k, v, g, beta, scale=scale, initial_state=initial_state, lengths=lengths, bounded=bounded,
            need_final=need_final,
        )  # fmt: skip
        ctx.saved, ctx.scale, ctx.N = saved, scale, len(lengths)
        ctx.initial = None if initial_state is None else initial_state.dtype
        ctx.save_for_backward(q, k, v, g, beta)
        return out, final

    @staticmethod
    def backward(ctx, do, dfinal):  # type: ignore[no-untyped-def]
        *grads, dinitial = backward(
            ctx.saved, *ctx.saved_tensors, do, dfinal, scale=ctx.scale, N=ctx.N, need_initial=ctx.initial is not None
        )
        return *grads, None if dinitial is None else dinitial.to(ctx.initial), None, None, None, None


def kda_chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    scale: float,
    initial_state: Tensor | None,
    lengths: tuple[int, ...],
    bounded: bool = False,
    need_final: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """o [B,T,H,V] and the final states [N,H,K,V] of sequences of these lengths laid end to end."""
    out, final = _KDA.apply(q, k, v, g, beta, initial_state, scale, lengths, bounded, need_final)
    return out, final

"""KDA as matrix products over chunks of 64 tokens: the fast form, with a backward derived by hand.

With the writing key ``kappa = beta k`` the recurrence is ``S <- D S + kappa (v - (D S)^T k)^T``. Inside a chunk, with ``G`` the
cumulative log-decay and ``S`` the state that enters,

    A_ij = k_i . kappa_j e^(G_i-G_j)  (i > j)      P_ij = q_i . kappa_j e^(G_i-G_j)  (i >= j)      L = (I + A)^-1
    U = L V      W = L (e^G k)      N = U - W S   (what each token really writes)
    O = (e^G q) S + P N  =  Y S + P U            with Y = e^G q - P W
    S' = e^(G_C) S + R^T N  =  M S + R^T U       with R = e^(G_C-G) kappa, M = diag(e^(G_C)) - R^T W

so the only sequential step is one product ``M S`` a chunk (`chain.py`); how A and P are formed safely is in `tiles.py`.
(Kimi Linear report, arXiv:2510.26692, chunkwise form; Kimi K3 report, arXiv:2607.24653, eq. 3-4; here beta sits in the key
instead of in the solve.) The backward keeps L, P, M, Y, N and the states; it recomputes the decayed rows.

Legend: c chunks, H heads, X = c H, C chunk rows, b rows of a base block, n base blocks of a chunk, K key channels,
V value channels, N sequences.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from .chain import chain, chain_backward
from .layout import Grid, grid
from .tiles import Level, merge_backward, merge_rows, merge_tiles, unit_lower_inverse

CHUNK = 64
# Rows of a base block, and the floor its gates need: exp(84) is still finite in float32 with room for sums. Gates known to
# be at least -5 use 16 rows untouched. Without that promise blocks have 4 rows; e^-21 = 8e-10 is below float32 rounding.
BOUNDED_BASE, BOUNDED_FLOOR = 16, -5.25
FREE_BASE, FREE_FLOOR = 4, -21.0


@lru_cache(maxsize=16)
def _constants(base: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Running sum inside every base block of 16 rows, reverse running sum of a chunk, what lies above the diagonals."""
    inside = torch.block_diag(*[torch.ones(base, base).tril()] * (16 // base)).to(device, dtype)
    reverse = torch.ones(CHUNK, CHUNK, dtype=dtype, device=device).triu()
    later = torch.ones(base, base, dtype=torch.bool, device=device)
    return inside, reverse, torch.stack([later.triu(1), later.triu(0)])


def _spread(x: Tensor, layout: Grid, dtype: torch.dtype, blank: bool) -> Tensor:
    """[B,T,H,D] -> view [c,H,C,D] of the grid; filler rows are zero when ``blank``, else any finite numbers."""
    x = x.flatten(0, 1)
    if layout.rows is not None:
        x = x.index_select(0, layout.rows)
        if blank:
            x.index_fill_(0, layout.fillers, 0)
    return x.to(dtype).unflatten(0, (layout.chunks, CHUNK)).transpose(1, 2)


def _home(c: int, H: int, D: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """A buffer in token order [c C,H,D] and its view in grid order [c,H,C,D], to be written by the last operation."""
    rows = like.new_empty(c * CHUNK, H, D)
    return rows, rows.unflatten(0, (c, CHUNK)).transpose(1, 2)


def _collect(rows: Tensor, layout: Grid, like: Tensor) -> Tensor:
    """Drop the filler rows of a ``_home`` buffer, in the shape and dtype of ``like``."""
    if layout.tokens is not None:
        rows = rows.index_select(0, layout.tokens)
    return rows.to(like.dtype).view(like.shape)


@dataclass(kw_only=True, eq=False)
class Rows:
    """q, k and kappa with their decays, as the products read them."""

    rise: Tensor  # [c,H,n,b,K] decay since the start of the base block
    end: Tensor  # [c,H,n,K] decay over the base block
    inverse_keys: Tensor  # [X n,b,K] kappa / rise
    levels: list[Level]
    F: Tensor  # [X,2,C,K] e^G q and e^G k
    R: Tensor  # [X,C,K] e^(G_C-G) kappa
    D: Tensor  # [X,K] e^(G_C)


def _rows(q: Tensor, k: Tensor, g: Tensor, beta: Tensor, layout: Grid, base: int, floor: float) -> Rows:
    dtype = torch.promote_types(torch.float32, q.dtype)
    c, H, C, K = layout.chunks, q.shape[2], CHUNK, q.shape[3]
    X, n = c * H, CHUNK // base
    inside, _, _ = _constants(base, dtype, q.device)
    split = (n, base)
    qs, ks, gs, bs = (_spread(x, layout, dtype, x is k or x is g) for x in (q, k, g, beta[..., None]))
    log = q.new_empty(X * C // 16, 16, K, dtype=dtype)
    torch.clamp(gs, min=floor, out=log.view(c, H, C, K))
    log = torch.bmm(inside.expand(X * C // 16, 16, 16), log).view(c, H, n, base, K)
    end = log[:, :, :, -1].exp()
    rise = log.exp_()
    F = rise.new_empty(c, H, n, 2, base, K)
    torch.mul(qs.unflatten(2, split), rise, out=F[:, :, :, 0])
    torch.mul(ks.unflatten(2, split), rise, out=F[:, :, :, 1])
    inverse_keys = torch.empty_like(rise)
    torch.mul(ks.unflatten(2, split), bs.unflatten(2, split), out=inverse_keys)
    inverse_keys.div_(rise)
    T = inverse_keys * end[:, :, :, None]

    levels = []
    size, decay = base, end
    while size < C:
        Y = X * C // (4 * size)
        level, F, T, decay = merge_rows(F.view(Y, 4, 2, size, K), T.view(Y, 4, size, K), decay.view(Y, 4, K))
        levels.append(level)
        size *= 4
    return Rows(
        rise=rise, end=end, inverse_keys=inverse_keys.view(X * n, base, K), levels=levels, F=F, R=T, D=decay
    )  # fmt: skip


@dataclass(kw_only=True, eq=False)
class Saved:
    """Views of one flat buffer: what the backward reads besides the inputs."""

    tile: Tensor  # [X,2,C,C] P and A
    L: Tensor  # [X,C,C]
    M: Tensor  # [X,K,K]
    Y: Tensor  # [X,C,K]
    N: Tensor  # [X,C,V]
    S: Tensor  # [X,K,V]


def saved_size(T: int, N: int, H: int, K: int, V: int) -> int:
    """Numbers in the flat buffer: an upper bound from shapes alone, so that a compiler can know it."""
    return (T // CHUNK + N) * H * (3 * CHUNK * CHUNK + K * K + CHUNK * (K + V) + K * V)


def _views(buffer: Tensor, X: int, K: int, V: int) -> Saved:
    C = CHUNK
    shapes = {"tile": (2, C, C), "L": (C, C), "M": (K, K), "Y": (C, K), "N": (C, V), "S": (K, V)}
    views, at = {}, 0
    for name, shape in shapes.items():
        size = X * torch.Size(shape).numel()
        views[name] = buffer[at : at + size].view(X, *shape)
        at += size
    return Saved(**views)


def _base(bounded: bool) -> tuple[int, float]:
    return (BOUNDED_BASE, BOUNDED_FLOOR) if bounded else (FREE_BASE, FREE_FLOOR)


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None,
    *,
    scale: float,
    lengths: tuple[int, ...],
    bounded: bool,
    need_final: bool,
    need_saved: bool,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """o [B,T,H,V], final states [N,H,K,V] or None, and the flat buffer for the backward (stale unless ``need_saved``)."""
    base, floor = _base(bounded)
    layout = grid(lengths, CHUNK, q.device)
    rows = _rows(q, k, g, beta, layout, base, floor)
    dtype = rows.D.dtype
    c, H, C, K, V = layout.chunks, q.shape[2], CHUNK, q.shape[3], v.shape[3]
    X, n = c * H, CHUNK // base
    _, _, later = _constants(base, dtype, q.device)
    buffer = q.new_empty(saved_size(layout.total, len(lengths), H, K, V), dtype=dtype)
    saved = _views(buffer, X, K, V)

    diag = torch.bmm(rows.levels[0].F_Y42sK.view(X * n, 2 * base, K), rows.inverse_keys.mT).view(X * n, 2, base, base)
    diag.masked_fill_(later, 0)
    for level in rows.levels:
        Y, _, _, s, _ = level.F_Y42sK.shape
        tile = saved.tile if Y == X else diag.new_empty(Y, 2, 4 * s, 4 * s)
        merge_tiles(level, diag.view(Y, 4, 2, s, s), tile)
        diag = tile
    P, A = saved.tile[:, 0], saved.tile[:, 1]
    L = unit_lower_inverse(A, saved.L)

    Vs = q.new_empty(X, C, V, dtype=dtype)
    Vs.view(c, H, C, V).copy_(_spread(v, layout, dtype, False))
    U = torch.bmm(L, Vs)
    W = torch.bmm(L, rows.F[:, 1])
    torch.baddbmm(rows.F[:, 0], P, W, alpha=-1, out=saved.Y)
    torch.bmm(rows.R.mT, W, out=saved.M).neg_()
    saved.M.diagonal(dim1=1, dim2=2).add_(rows.D)
    add = torch.bmm(rows.R.mT, U)
    final = chain(saved.M, add, initial_state, layout, H, len(lengths), need_final, saved.S)
    o = torch.bmm(P, U, out=Vs).baddbmm_(saved.Y, saved.S)
    if need_saved:
        torch.baddbmm(U, W, saved.S, alpha=-1, out=saved.N)
    out, out_grid = _home(c, H, V, o)
    torch.mul(o.view(c, H, C, V), scale, out=out_grid)
    return _collect(out, layout, v), final, buffer


def backward(
    buffer: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    do: Tensor,
    dfinal: Tensor | None,
    *,
    scale: float,
    lengths: tuple[int, ...],
    bounded: bool,
    need_initial: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of q, k, v, g, beta and of the initial states."""
    base, floor = _base(bounded)
    layout = grid(lengths, CHUNK, q.device)
    rows = _rows(q, k, g, beta, layout, base, floor)
    dtype = rows.D.dtype
    c, H, C, K, V = layout.chunks, q.shape[2], CHUNK, q.shape[3], v.shape[3]
    X, n = c * H, CHUNK // base
    _, reverse, later = _constants(base, dtype, q.device)
    saved = _views(buffer, X, K, V)
    S = saved.S

    # rows of dO above rows of -d(V - (e^G k) S): both meet the same right-hand sides below
    left = rows.D.new_empty(X, 2, C, V)
    dO = left[:, 0]
    torch.mul(_spread(do, layout, dtype, True), scale, out=dO.view(c, H, C, V))
    dS, dinitial = chain_backward(
        saved.M, torch.bmm(saved.Y.mT, dO), dfinal, layout, H, len(lengths), need_initial
    )  # fmt: skip
    dN = torch.bmm(saved.tile[:, 0].mT, dO).baddbmm_(rows.R, dS)
    dV = torch.bmm(saved.L.mT, dN)
    torch.neg(dV, out=left[:, 1])
    left = left.view(X, 2 * C, V)
    dtile = torch.bmm(left, saved.N.mT)
    dF = torch.bmm(left, S.mT)
    dT = torch.bmm(saved.N, dS.mT)
    dend = torch.mul(rows.R, dT).sum(1).addcmul_(rows.D, torch.mul(dS, S).sum(2))

    for level in reversed(rows.levels):
        Y, _, _, s, _ = level.F_Y42sK.shape
        dtile = dtile.view(Y, 2, 4 * s, 4 * s)
        dF, dT = merge_backward(level, dtile, dF.view(Y, 2, 4 * s, K), dT.view(Y, 4 * s, K))
        dtile = torch.stack([dtile[:, :, i : i + s, i : i + s] for i in range(0, 4 * s, s)], 1)  # [Y,4,2,s,s]
    ddiag = dtile.view(X * n, 2, base, base).masked_fill_(later, 0).view(X * n, 2 * base, base)
    F = rows.levels[0].F_Y42sK.view(X * n, 2 * base, K)
    dF = dF.view(X * n, 2 * base, K).baddbmm_(ddiag, rows.inverse_keys)
    dinv = torch.mul(dT.view(X * n, base, K), rows.end.view(X * n, 1, K)).baddbmm_(ddiag.mT, F)

    # every use of G_i came with q_i or k_i and a plus, or with kappa_i and a minus; g_i is in all later G
    F, dF = F.view(X * n, 2, base, K), dF.view(X * n, 2, base, K)
    dG = torch.mul(F[:, 0], dF[:, 0]).addcmul_(F[:, 1], dF[:, 1]).addcmul_(rows.inverse_keys, dinv, value=-1)
    dG = dG.view(X, C, K)
    dG[:, -1] += dend
    dlog, dlog_grid = _home(c, H, K, dG)
    dlog_grid.copy_(torch.bmm(reverse.expand(X, C, C), dG).view(c, H, C, K))

    dF = dF.view(c, H, n, 2, base, K)
    dq, dq_grid = _home(c, H, K, dG)
    torch.mul(dF[:, :, :, 0], rows.rise, out=dq_grid.unflatten(2, (n, base)))
    dk, dk_grid = _home(c, H, K, dG)
    torch.mul(dF[:, :, :, 1], rows.rise, out=dk_grid.unflatten(2, (n, base)))
    dkappa = dinv.view(c, H, n, base, K).div_(rows.rise).view(c, H, C, K)
    dk_grid.addcmul_(dkappa, _spread(beta[..., None], layout, dtype, False))
    db, db_grid = _home(c, H, 1, dG)
    torch.sum(dkappa.mul_(_spread(k, layout, dtype, True)), -1, keepdim=True, out=db_grid)
    dv, dv_grid = _home(c, H, V, dG)
    dv_grid.copy_(dV.view(c, H, C, V))
    grads = tuple(_collect(x, layout, like) for x, like in ((dq, q), (dk, k), (dv, v), (dlog, g), (db, beta)))
    return (*grads, dinitial)  # type: ignore[return-value]

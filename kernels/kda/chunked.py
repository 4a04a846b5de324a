"""KDA as matrix products over chunks of 64 tokens (first version: plain torch with autograd).

Legend: R grid rows (chunks x C), C chunk rows, H heads, K key channels, V value channels, N sequences, X = chunks x H.
"""

import torch
from torch import Tensor

from .layout import Grid, grid

CHUNK = 64
BASE = 4
FLOOR = -21.0  # exp(-21) is 8e-10, far below float32 rounding; keeps exp of four gates finite


def _to_grid(x: Tensor, layout: Grid) -> Tensor:
    """[B,T,H,D] -> [X, C, D] float32."""
    x = x.flatten(0, 1).float()
    if layout.rows is not None:
        x = torch.nn.functional.pad(x, (0, 0, 0, 0, 0, 1)).index_select(0, layout.rows)
    return x.unflatten(0, (layout.chunks, CHUNK)).transpose(1, 2).flatten(0, 1)


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
) -> tuple[Tensor, Tensor]:
    B, T, H, K = q.shape
    V = v.shape[-1]
    N = len(lengths)
    layout = grid(lengths, CHUNK)
    C = CHUNK
    qs, ks, vs, gs = (_to_grid(x, layout) for x in (q * scale, k, v, g))
    bs = _to_grid(beta[..., None], layout)
    X = qs.shape[0]

    loc = gs.clamp(min=FLOOR).view(X, C // BASE, BASE, K).cumsum(2)
    end = loc[:, :, -1:]
    rise = loc.exp()
    kq = torch.stack([ks, qs], 1).view(X, 2, C // BASE, BASE, K)
    from_start = kq * rise[:, None]  # k, q decayed since the start of the block
    to_end = (ks.view(X, C // BASE, BASE, K) * (end - loc).exp())
    inverse = ks.view(X, C // BASE, BASE, K) * (-loc).exp()
    tiles = torch.einsum("xsbik,xbjk->xsbij", from_start, inverse)
    block_decay = end.squeeze(2).exp()  # [X, blocks, K]
    size = BASE
    while size < C:
        n = C // size
        f = from_start.view(X, 2, n // 2, 2, size, K)
        t = to_end.view(X, n // 2, 2, size, K)
        d = block_decay.view(X, n // 2, 2, K)
        off = torch.einsum("xsbik,xbjk->xsbij", f[:, :, :, 1], t[:, :, 0])
        pair = tiles.view(X, 2, n // 2, 2, size, size)
        top = torch.cat([pair[:, :, :, 0], torch.zeros_like(off)], -1)
        tiles = torch.cat([top, torch.cat([off, pair[:, :, :, 1]], -1)], -2)
        from_start = torch.stack([f[:, :, :, 0], f[:, :, :, 1] * d[:, None, :, 0, None]], 3)
        to_end = torch.stack([t[:, :, 0] * d[:, :, 1, None], t[:, :, 1]], 2)
        block_decay = d.prod(2)
        size *= 2
    tiles = tiles.view(X, 2, C, C)
    A = tiles[:, 0].tril(-1) * bs
    P = tiles[:, 1].tril()
    from_start = from_start.view(X, 2, C, K)
    to_end = to_end.view(X, C, K)
    Z = torch.cat([bs * vs, bs * from_start[:, 0]], -1)
    UW = torch.linalg.solve_triangular(A, Z, upper=False, unitriangular=True)
    PU = P @ UW
    KU = to_end.transpose(1, 2) @ UW
    Y = from_start[:, 1] - PU[..., V:]
    M = torch.diag_embed(block_decay.view(X, K)) - KU[..., V:]
    B_ = KU[..., :V]

    if initial_state is None:
        S = v.new_zeros(N, H, K, V, dtype=torch.float32)
    else:
        S = initial_state.float()
    if layout.order is not None:
        S = S[layout.order]
    seen, finals = [], []
    for first, active in layout.steps:
        if active < S.shape[0]:
            finals.append(S[active:])
            S = S[:active]
        seen.append(S.flatten(0, 1))
        rows = slice(first * H, (first + active) * H)
        S = torch.baddbmm(B_[rows], M[rows], S.flatten(0, 1)).view(active, H, K, V)
    finals.append(S)
    final = torch.cat(finals[::-1], 0)
    if layout.order is not None:
        final = torch.empty_like(final).index_copy(0, layout.order, final)
    o = PU[..., :V] + Y @ torch.cat(seen, 0) if seen else PU[..., :V]
    o = o.view(layout.chunks, H, C, V).transpose(1, 2).flatten(0, 1)
    if layout.tokens is not None:
        o = o.index_select(0, layout.tokens)
    return o.reshape(B, T, H, V).to(v.dtype), final

"""The only sequential part: ``S' = M S + add`` from chunk to chunk, all sequences and heads at once.

Legend: X chunks x heads in the grid's order, H heads, N sequences, K key channels, V value channels.
"""

import torch
from torch import Tensor

from .layout import Grid


def chain(
    M_XKK: Tensor,
    add_XKV: Tensor,
    initial_NHKV: Tensor | None,
    layout: Grid,
    H: int,
    N: int,
    need_final: bool,
    S: Tensor,
) -> Tensor | None:
    """Fill ``S`` [X,K,V] with the state entering every chunk; return the last states [N,H,K,V] when asked for."""
    _, K, V = add_XKV.shape
    start = add_XKV.new_zeros(N * H, K, V) if initial_NHKV is None else initial_NHKV.to(add_XKV.dtype)
    if initial_NHKV is not None:
        start = (start if layout.order is None else start.index_select(0, layout.order)).reshape(N * H, K, V)
    steps = layout.steps
    active = steps[0][1] * H if steps else 0
    S[:active] = start[:active]
    final = torch.empty_like(start) if need_final else None
    if final is not None:
        final[active:] = start[active:]  # a sequence without a token keeps its state
    for (first, count), (after, remaining) in zip(steps, (*steps, (0, 0))[1:], strict=True):
        a, m, r = first * H, count * H, remaining * H
        if r:
            b = after * H
            torch.baddbmm(add_XKV[a : a + r], M_XKK[a : a + r], S[a : a + r], out=S[b : b + r])
        if final is not None and m > r:
            torch.baddbmm(add_XKV[a + r : a + m], M_XKK[a + r : a + m], S[a + r : a + m], out=final[r:m])
    return None if final is None else _unsort(final, layout, H)


def chain_backward(
    M_XKK: Tensor, add_XKV: Tensor, dfinal_NHKV: Tensor | None, layout: Grid, H: int, N: int, need_initial: bool
) -> tuple[Tensor, Tensor | None]:
    """Gradients of the state leaving every chunk [X,K,V] and of the initial states; ``add`` is what each chunk's output
    sends to the state entering it."""
    _, K, V = add_XKV.shape
    dS = torch.empty_like(add_XKV)
    dfinal = None
    if dfinal_NHKV is not None:
        dfinal = dfinal_NHKV if layout.order is None else dfinal_NHKV.index_select(0, layout.order)
        dfinal = dfinal.reshape(N * H, K, V).to(add_XKV.dtype)
    steps = layout.steps
    b = r = 0
    for first, count in reversed(steps):
        a, m = first * H, count * H
        if r:
            torch.baddbmm(add_XKV[b : b + r], M_XKK[b : b + r].mT, dS[b : b + r], out=dS[a : a + r])
        if m > r:
            dS[a + r : a + m] = 0 if dfinal is None else dfinal[r:m]
        b, r = a, m
    if not need_initial:
        return dS, None
    dinitial = add_XKV.new_zeros(N * H, K, V)
    if dfinal is not None:
        dinitial[r:] = dfinal[r:]
    if r:
        torch.baddbmm(add_XKV[:r], M_XKK[:r].mT, dS[:r], out=dinitial[:r])
    return dS, _unsort(dinitial, layout, H)


def _unsort(states: Tensor, layout: Grid, H: int) -> Tensor:
    states = states.unflatten(0, (-1, H))
    return states if layout.order is None else torch.empty_like(states).index_copy_(0, layout.order, states)

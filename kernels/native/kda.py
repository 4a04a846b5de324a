"""KDA's native form, forwards and backwards, for any decay: what `kda` runs on a CPU wherever it fits.

Legend of shapes: T rows of all streams, N streams, H heads, K key width, V value width.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from .build import full, library, pointer, real

FEW_ROWS = 64
"""So few rows are not worth a second thread."""

SEGMENT = 256
"""Rows a state is kept for the backward once in; `kda_chunk.h` has the same number."""


def native_fits(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the native form can run: CPU, one dtype of float32 or bfloat16, widths of multiples of 16, a compiler."""
    return q.shape[-1] % 16 == 0 and v.shape[-1] % 16 == 0 and library(q, k, v) is not None


def matrix_units(lib: ctypes.CDLL) -> bool:
    """Whether this processor has matrix units for bfloat16 (AMX) and the system lets this process use them."""
    return bool(lib.kda_tiles())


def _form(lib: ctypes.CDLL, q: Tensor, v: Tensor) -> int:
    """0 for float32, 1 for bfloat16, 2 for bfloat16 whose products with states run on matrix units."""
    if q.dtype != torch.bfloat16:
        return 0
    return 2 if q.shape[-1] % 32 == 0 and v.shape[-1] % 32 == 0 and matrix_units(lib) else 1


def kept_shape(rows: int, heads: int, keys: int, values: int) -> tuple[int, int, int, int]:
    """Shape of the float32 states that a forward keeps for its backward: one in `SEGMENT` rows at most."""
    return rows // SEGMENT, heads, keys, values


def _threads(rows: int) -> int:
    return 1 if rows < FEW_ROWS else torch.get_num_threads()


def native_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    cu_seqlens: Tensor,
    initial_state: Tensor | None,
    *,
    scale: float,
    need_final: bool,
    need_kept: bool,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """o like v, the final states [N,H,K,V] float32 or None, and what `native_backward` wants kept (`kept_shape`).

    q, k, g: [..,H,K] and v: [..,H,V] of T rows in all, beta: [..,H]. cu_seqlens: [N+1] int32, already checked.
    Unless needed, nothing is kept, in a tensor of none.
    """
    lib = library(q)
    assert lib is not None
    q, k, v, g, beta = q.contiguous(), k.contiguous(), v.contiguous(), full(g), full(beta)
    (heads, keys), values, streams = q.shape[-2:], v.shape[-1], len(cu_seqlens) - 1
    o = torch.empty_like(v)
    start = None if initial_state is None else full(initial_state)
    final = torch.empty(streams, heads, keys, values) if need_final else None
    kept = torch.empty(kept_shape(beta.numel() // heads if need_kept and heads else 0, heads, keys, values))
    lib.kda_forward(
        _form(lib, q, v), pointer(q), pointer(k), pointer(v), pointer(g), pointer(beta), pointer(cu_seqlens), streams, heads,
        keys, values, real(scale), pointer(start), pointer(final), pointer(o), pointer(kept if need_kept else None),
        _threads(beta.numel() // max(heads, 1)),
    )  # fmt: skip
    return o, final, kept


def native_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    cu_seqlens: Tensor,
    initial_state: Tensor | None,
    kept: Tensor,
    d_o: Tensor,
    d_final: Tensor | None,
    *,
    scale: float,
    need_initial: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of q, k, v, g, beta in their dtypes, and of the initial states in float32 or None."""
    lib = library(q)
    assert lib is not None
    g_dtype, beta_dtype = g.dtype, beta.dtype
    q, k, v, g, beta = q.contiguous(), k.contiguous(), v.contiguous(), full(g), full(beta)
    d_o = d_o.to(v.dtype).contiguous()
    (heads, keys), values, streams = q.shape[-2:], v.shape[-1], len(cu_seqlens) - 1
    d_q, d_k, d_v, d_g, d_beta = (torch.empty_like(t) for t in (q, k, v, g, beta))
    start = None if initial_state is None else full(initial_state)
    end = None if d_final is None else full(d_final)
    d_start = torch.empty(streams, heads, keys, values) if need_initial else None
    lib.kda_backward(
        _form(lib, q, v), pointer(q), pointer(k), pointer(v), pointer(g), pointer(beta), pointer(cu_seqlens), streams, heads,
        keys, values, real(scale), pointer(start), pointer(kept), pointer(d_o), pointer(end), pointer(d_q), pointer(d_k),
        pointer(d_v), pointer(d_g), pointer(d_beta), pointer(d_start), _threads(beta.numel() // max(heads, 1)),
    )  # fmt: skip
    return d_q, d_k, d_v, d_g.to(g_dtype), d_beta.to(beta_dtype), d_start


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    cu_seqlens: Tensor,
    *,
    bounded: bool,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """`kda` of a packed batch without its axis of one.

    Args:
        q, k [T,H,K], v [T,H,V]: float32 or bfloat16, q and k of unit length. g [T,H,K], beta [T,H].
        cu_seqlens: [N+1] int32. bounded: the caller's word that g >= -5 everywhere.
        initial_state: [N,H,K,V] or None. output_final_state: return the states after the last tokens.

    Returns:
        o [T,H,V] in the dtype of ``v``, states [N,H,K,V] float32 or None.
    """
    from ..kda import kda  # only here: that module chooses this one's form

    o, final = kda(
        q[None], k[None], v[None], g[None], beta[None], initial_state=initial_state, cu_seqlens=cu_seqlens,
        output_final_state=output_final_state, gate_lower_bound=-5.0 if bounded else None,
    )  # fmt: skip
    return o[0], final

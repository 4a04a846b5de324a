"""KDA as one native operator: forwards for any decay, with gradients for bounded ones; other cases go to the torch form.

Legend of shapes: T tokens of a packed batch, N streams, H heads, K key width, V value width.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..kda import kda
from .build import full, half, library, pointer, real

BOUND = -5.0
"""Lowest log decay of a token: over a chunk of 16 the factor e^80 still fits float32."""


class _Delta(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, g, beta, cu_seqlens, scale):  # type: ignore[no-untyped-def,override]
        q, k, v, g, beta = (
            q.contiguous(),
            k.contiguous(),
            v.contiguous(),
            g.float().contiguous(),
            beta.float().contiguous(),
        )
        o, _ = delta_rule_forward(q, k, v, g, beta, cu_seqlens, scale, None, False)
        ctx.save_for_backward(q, k, v, g, beta, cu_seqlens)
        ctx.scale = scale
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx, d_o):  # type: ignore[no-untyped-def,override]
        q, k, v, g, beta, cu_seqlens = ctx.saved_tensors
        lib = library(q)
        assert lib is not None
        d_o = d_o.contiguous()
        d_q, d_k, d_v, d_g, d_beta = (torch.empty_like(t) for t in (q, k, v, g, beta))
        heads, keys, values = q.shape[1], q.shape[2], v.shape[2]
        lib.kda_backward(
            half(q), pointer(q), pointer(k), pointer(v), pointer(g), pointer(beta), pointer(cu_seqlens),
            len(cu_seqlens) - 1, heads, keys, values, real(ctx.scale), pointer(d_o), pointer(d_q), pointer(d_k),
            pointer(d_v), pointer(d_g), pointer(d_beta), torch.get_num_threads(),
        )  # fmt: skip
        return d_q, d_k, d_v, d_g, d_beta, None, None


def delta_rule_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    cu_seqlens: Tensor,
    scale: float,
    initial_state: Tensor | None,
    output_final_state: bool,
) -> tuple[Tensor, Tensor | None]:
    """Native forward without a graph; contiguous inputs, g and beta float32."""
    lib = library(q)
    assert lib is not None
    heads, keys, values, streams = q.shape[1], q.shape[2], v.shape[2], len(cu_seqlens) - 1
    o = torch.empty_like(v)
    start = None if initial_state is None else full(initial_state)
    final = torch.empty(streams, heads, keys, values) if output_final_state else None
    lib.kda_forward(
        half(q), pointer(q), pointer(k), pointer(v), pointer(g), pointer(beta), pointer(cu_seqlens), streams, heads,
        keys, values, real(scale), pointer(start), pointer(final), pointer(o),
        1 if len(q) < 64 else torch.get_num_threads(),
    )  # fmt: skip
    return o, final


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
    """`kda` of a packed batch.

    Args:
        q, k [T,H,K], v [T,H,V]: float32 or bfloat16, q and k of unit length. g [T,H,K], beta [T,H].
        cu_seqlens: [N+1] int32. bounded: the caller's word that g >= -5 everywhere, which the native gradients need.
        initial_state: [N,H,K,V] or None. output_final_state: return the states after the last tokens.

    Returns:
        o [T,H,V] in the dtype of ``v``, states [N,H,K,V] float32 or None.
    """
    fits = q.shape[-1] % 16 == 0 and v.shape[-1] % 16 == 0 and cu_seqlens.dtype == torch.int32
    learning = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v, g, beta))
    stateful = initial_state is not None or output_final_state
    if not fits or (learning and (stateful or not bounded)) or library(q, k, v) is None:
        o, final = kda(
            q[None], k[None], v[None], g[None], beta[None],
            initial_state=initial_state, cu_seqlens=cu_seqlens, output_final_state=output_final_state,
        )  # fmt: skip
        return o[0], final
    scale, cu_seqlens = q.shape[-1] ** -0.5, cu_seqlens.contiguous()
    if learning:
        return _Delta.apply(q, k, v, g, beta, cu_seqlens, scale), None
    inputs = (q.contiguous(), k.contiguous(), v.contiguous(), g.float().contiguous(), beta.float().contiguous())
    return delta_rule_forward(*inputs, cu_seqlens, scale, initial_state, output_final_state)

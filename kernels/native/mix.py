"""Residual add, Attention Residuals mix and RMSNorm as one operator.

Legend of shapes: T rows, D width, n sources.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..attnres import attnres
from .build import full, half, library, pointer, pointers, real, size, threads


def mix_norm_torch(
    sources: list[Tensor],
    update: Tensor | None,
    query: Tensor | None,
    gain: Tensor | None,
    norm: Tensor,
    *,
    eps: float,
    norm_eps: float,
) -> tuple[Tensor, Tensor]:
    """The definition: add, mix, normalise; see `mix_norm`."""
    run = sources[-1] if update is None else sources[-1] + update
    mixed = run if query is None or gain is None else attnres(torch.stack([*sources[:-1], run]), query, gain, eps=eps)
    wide = mixed.to(torch.promote_types(mixed.dtype, torch.float32))
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + norm_eps)
    return (wide * scale * norm.to(wide.dtype)).to(mixed.dtype), run


def _run(sources, update, qg, weight, eps, norm_eps):  # type: ignore[no-untyped-def]
    """The native forward: contiguous sources and update, float32 `query * gain` and norm -> (h, run or None)."""
    lib, last = library(sources[-1]), sources[-1]
    assert lib is not None
    rows, width = last.numel() // last.shape[-1], last.shape[-1]
    h = torch.empty_like(last)
    run = None if update is None else torch.empty_like(last)
    lib.mix_norm_forward(
        half(last), pointers(sources), len(sources), pointer(update), pointer(qg), pointer(weight), pointer(run),
        pointer(h), size(rows), size(width), real(eps), real(norm_eps), threads(rows),
    )  # fmt: skip
    return h, run


class _MixNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, update, query, gain, norm, eps, norm_eps, *sources):  # type: ignore[no-untyped-def,override]
        sources = tuple(s.contiguous() for s in sources)
        update = None if update is None else update.contiguous()
        qg = None if query is None else full(query) * full(gain)
        weight = full(norm)
        h, run = _run(sources, update, qg, weight, eps, norm_eps)
        # the sum replaces its two terms in what backward needs
        kept = sources if run is None else (*sources[:-1], run)
        ctx.save_for_backward(query, gain, norm, qg, weight, *kept)
        ctx.eps, ctx.norm_eps, ctx.updated = eps, norm_eps, update is not None
        ctx.set_materialize_grads(False)
        return (h, run) if run is not None else (h, None)

    @staticmethod
    @once_differentiable
    def backward(ctx, d_h, d_run):  # type: ignore[no-untyped-def,override]
        query, gain, norm, qg, weight, *sources = ctx.saved_tensors
        lib = library(*sources)
        assert lib is not None
        last = sources[-1]
        d_h = torch.zeros_like(last) if d_h is None else d_h.contiguous()
        d_run = None if d_run is None else d_run.contiguous()
        rows, width = last.numel() // last.shape[-1], last.shape[-1]
        d_sources = [torch.empty_like(last) for _ in sources]
        sums = torch.empty(2, width)
        lib.mix_norm_backward(
            half(last), pointers(sources), len(sources), pointer(None), pointer(qg), pointer(weight), pointer(d_h),
            pointer(d_run), pointers(d_sources), pointer(sums), size(rows), size(width), real(ctx.eps),
            real(ctx.norm_eps), threads(rows),
        )  # fmt: skip
        d_query = d_gain = None
        if query is not None:
            d_query, d_gain = (sums[0] * gain).to(query.dtype), (sums[0] * query).to(gain.dtype)
        d_update = d_sources[-1] if ctx.updated else None
        return d_update, d_query, d_gain, sums[1].to(norm.dtype), None, None, *d_sources


def mix_norm(
    sources: list[Tensor],
    update: Tensor | None,
    query: Tensor | None,
    gain: Tensor | None,
    norm: Tensor,
    *,
    eps: float,
    norm_eps: float,
) -> tuple[Tensor, Tensor]:
    """What a sublayer reads, and the running sum it will add to.

    ``run = sources[-1] + update``; ``m = sum_i softmax_i(query . RMSNorm(source_i)) source_i`` over the sources with
    the last replaced by ``run``; the result is ``norm * m / rms(m)``. float32 inside; ``run`` and ``m`` are rounded.

    Args:
        sources: n tensors [..., D] of one dtype. update: [..., D] or None for no addition.
        query, gain: [D] of the mix; both None when there is one source and nothing to mix. norm: [D].

    Returns:
        (normalised mix, run), both [..., D].
    """
    if library(*sources, update) is None:
        return mix_norm_torch(sources, update, query, gain, norm, eps=eps, norm_eps=norm_eps)
    if torch.is_grad_enabled():
        h, run = _MixNorm.apply(update, query, gain, norm, eps, norm_eps, *sources)
    else:  # generation calls this for single rows, where building a graph node would be most of the time
        qg = None if query is None or gain is None else full(query) * full(gain)
        held = None if update is None else update.contiguous()
        h, run = _run([s.contiguous() for s in sources], held, qg, full(norm), eps, norm_eps)
    return h, sources[-1] if run is None else run

"""The sigmoid router, and routed experts from latent to latent: gather, grouped GLU, weighted sum, norm.

Legend of shapes: T tokens, D hidden width, E experts, k picked, L latent width, I inner width, M rows in expert order.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..dispatch import form
from ..experts import expert_glu, situ_glu, swi_glu
from .build import bfloat16_units, full, half, library, pointer, real, size, threads
from .glu import situ_rows, situ_rows_backward

SMALL_GROUP = 32
"""Groups are filled up to this many rows. Below about a dozen rows, float32 matrix products add in another order, and
a token's result would then depend on how many later tokens chose the same expert."""

GROUP_STEP = 64
"""Larger groups are filled up to a multiple of this: a matrix product of a size not met before costs the time of many,
since its kernel is made first, and the sizes of groups would otherwise never repeat."""

FEW_EXPERTS = 64
"""Up to this many experts the native router, which searches the best ones by comparison, is the faster form."""


class _Route(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, k, scaling):  # type: ignore[no-untyped-def,override]
        lib = library(x)
        assert lib is not None
        x, w, b = x.contiguous(), full(weight), full(bias)
        rows, width, experts = len(x), x.shape[1], len(w)
        score, cutoff = torch.empty(rows, experts), torch.empty(rows)
        picked, share = torch.empty(rows, k, dtype=torch.int64), torch.empty(rows, k)
        lib.route_forward(
            half(x), pointer(x), pointer(w), pointer(b), pointer(score), pointer(picked), pointer(share),
            pointer(cutoff), size(rows), size(width), experts, k, real(scaling), threads(rows),
        )  # fmt: skip
        ctx.save_for_backward(x, w, score, picked, weight)
        ctx.k, ctx.scaling = k, scaling
        ctx.mark_non_differentiable(picked, score, cutoff)
        return picked, share, score, cutoff

    @staticmethod
    @once_differentiable
    def backward(ctx, _p, d_share, _s, _c):  # type: ignore[no-untyped-def,override]
        x, w, score, picked, weight = ctx.saved_tensors
        lib = library(x)
        assert lib is not None
        d_x, d_w = torch.empty_like(x), torch.empty_like(w)
        lib.route_backward_(
            half(x), pointer(x), pointer(w), pointer(score), pointer(picked), pointer(d_share.float().contiguous()),
            pointer(d_x), pointer(d_w), size(len(x)), size(x.shape[1]), len(w), ctx.k, real(ctx.scaling), threads(len(x)),
        )  # fmt: skip
        return d_x, d_w.to(weight.dtype), None, None, None


def route_torch(
    x_TD: Tensor, weight: Tensor, bias: Tensor, *, k: int, scaling: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The definition; see `route`."""
    wide = torch.promote_types(x_TD.dtype, torch.float32)
    score_TE = torch.sigmoid(x_TD.to(wide) @ weight.to(wide).T)
    # a stable sort, because equal scores must go to the lower index
    best, order = (score_TE.detach() + bias).sort(dim=-1, descending=True, stable=True)
    picked_Tk = order[:, :k]
    chosen_Tk = score_TE.gather(1, picked_Tk)
    share_Tk = chosen_Tk / (chosen_Tk.sum(-1, keepdim=True) + 1e-20) * scaling
    return picked_Tk, share_Tk, score_TE.detach(), best[:, k]


def route(
    x_TD: Tensor, weight: Tensor, bias: Tensor, *, k: int, scaling: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Pick k experts for every token by ``sigmoid(x W^T) + bias``; weigh them by the sigmoid alone.

    Args:
        x_TD: [T,D]. weight: [E,D]. bias: [E], only picks. scaling: factor of the weights after they are normalised.

    Returns:
        picked [T,k] int64, best first, equal values to the lower index; their weights [T,k] float32, differentiable;
        all raw scores [T,E] and the (k+1)-th largest biased score [T], both without a gradient.
    """
    if len(weight) > FEW_EXPERTS or library(x_TD) is None:
        return route_torch(x_TD, weight, bias, k=k, scaling=scaling)
    return _Route.apply(x_TD, weight, bias, k, scaling)  # type: ignore[no-any-return]


def _filled(count: int) -> int:
    """The rows that a group of `count` rows is filled up to; an expert without rows stays without."""
    if count <= SMALL_GROUP:
        return SMALL_GROUP if count else 0
    return -(-count // GROUP_STEP) * GROUP_STEP


@dataclass(frozen=True)
class Order:
    """Rows in expert order: `source` [M] token of each row, `at` [T * k] row of each choice, `offsets` of the groups."""

    source: Tensor
    at: Tensor
    offsets: list[int]

    @classmethod
    def of(cls, picked_Tk: Tensor, experts: int) -> Order:
        """Sort choices by expert, stably; groups are filled up with copies of token 0 that nobody reads."""
        flat, k = picked_Tk.reshape(-1), picked_Tk.shape[1]
        counts = torch.bincount(flat, minlength=experts).tolist()
        order = flat.argsort(stable=True)
        sizes = [_filled(count) for count in counts]
        offsets = [0]
        for one in sizes:
            offsets.append(offsets[-1] + one)
        if sizes == counts:
            places = torch.arange(len(flat), device=flat.device)
        else:
            pieces = [torch.arange(a, a + count) for a, count in zip(offsets[:-1], counts, strict=True)]
            places = torch.cat(pieces).to(flat.device)
        at = torch.empty_like(order)
        at[order] = places
        source = flat.new_zeros(offsets[-1])
        source[places] = order // k
        return cls(source, at, offsets)


def order_in_place(picked_Tk: Tensor, experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """(source, at, offsets [E+1]) of an `Order` whose groups are not filled up, without waiting for the device."""
    flat, k = picked_Tk.reshape(-1), picked_Tk.shape[1]
    order = flat.argsort(stable=True)
    offsets = torch.searchsorted(flat[order], torch.arange(experts + 1, device=flat.device))
    at = torch.empty_like(order)
    at[order] = torch.arange(len(flat), device=flat.device)
    return order // k, at, offsets


def _combine(
    z: Tensor, out: Tensor, at: Tensor, share: Tensor, gain: Tensor | None, eps: float
) -> Tensor:  # fmt: skip
    """The way back from expert order: weighted sums and their norm, [T, L]."""
    lib = library(z)
    assert lib is not None
    h = torch.empty_like(z)
    lib.combine_forward(
        half(z), pointer(out), pointer(at), pointer(share), pointer(gain), pointer(h), size(len(z)), share.shape[1],
        size(z.shape[1]), real(eps), threads(len(z)),
    )  # fmt: skip
    return h


def _inferred(
    z: Tensor, share: Tensor, picked: Tensor, w13: Tensor, w2: Tensor, norm: Tensor | None, curves: tuple[float, float],
    eps: float,
) -> Tensor:  # fmt: skip
    """`_Routed` without a graph, one native call for the products of all experts."""
    lib = library(z)
    assert lib is not None
    z, picked = z.contiguous(), picked.contiguous()
    source, at = torch.empty_like(picked).view(-1), torch.empty_like(picked).view(-1)
    offsets, out = picked.new_empty(len(w2) + 1), z.new_empty(picked.numel(), z.shape[1])
    lib.expert_order(
        pointer(picked), size(picked.numel()), size(picked.shape[1]), size(len(w2)), pointer(source), pointer(at),
        pointer(offsets),
    )  # fmt: skip
    lib.grouped_experts(
        half(z), pointer(z), pointer(source), pointer(offsets), pointer(w13), pointer(w2), pointer(out), size(len(w2)),
        size(z.shape[1]), size(w2.shape[2]), real(curves[0]), real(curves[1]),
        threads(len(out)),
    )  # fmt: skip
    return _combine(z, out, at, full(share), None if norm is None else full(norm), eps)


class _Routed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z, share, w13, w2, norm, order, betas, eps):  # type: ignore[no-untyped-def,override]
        lib = library(z)
        assert lib is not None
        rows = z.index_select(0, order.source)
        gate_up = rows.new_empty(len(rows), w13.shape[1])
        out = torch.empty_like(rows)
        groups = [
            (e, a, b) for e, (a, b) in enumerate(zip(order.offsets[:-1], order.offsets[1:], strict=True)) if a < b
        ]
        for e, a, b in groups:
            torch.mm(rows[a:b], w13[e].t(), out=gate_up[a:b])
        y = situ_rows(gate_up, *betas)
        for e, a, b in groups:
            torch.mm(y[a:b], w2[e].t(), out=out[a:b])
        share, gain = full(share), None if norm is None else full(norm)
        h = _combine(z, out, order.at, share, gain, eps)
        ctx.save_for_backward(rows, gate_up, out, share, w13, w2, norm, gain)
        ctx.order, ctx.groups, ctx.betas, ctx.eps = order, groups, betas, eps
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx, d_h):  # type: ignore[no-untyped-def,override]
        rows, gate_up, out, share, w13, w2, norm, gain = ctx.saved_tensors
        lib = library(rows)
        assert lib is not None
        order, d_h = ctx.order, d_h.contiguous()
        tokens, k, width = len(d_h), share.shape[1], rows.shape[1]
        # rows that fill up a group are read by no token: their gradient is zero
        d_out = torch.empty_like(out) if len(out) == tokens * k else torch.zeros_like(out)
        d_share, d_gain = torch.empty_like(share), None if gain is None else torch.empty_like(gain)
        lib.combine_backward_(
            half(rows), pointer(out), pointer(order.at), pointer(share), pointer(gain), pointer(d_h), pointer(d_out),
            pointer(d_share), pointer(d_gain), size(tokens), k, size(width), real(ctx.eps), threads(tokens),
        )  # fmt: skip
        d_y = rows.new_empty(len(rows), w2.shape[2])
        for e, a, b in ctx.groups:
            torch.mm(d_out[a:b], w2[e], out=d_y[a:b])
        d_gate_up, y = situ_rows_backward(gate_up, d_y, *ctx.betas)
        used = len(ctx.groups) == len(w2)
        d_w13, d_w2 = (torch.empty_like(w) if used else torch.zeros_like(w) for w in (w13, w2))
        d_rows = torch.empty_like(rows)
        for e, a, b in ctx.groups:
            torch.mm(d_out[a:b].t(), y[a:b], out=d_w2[e])
            torch.mm(d_gate_up[a:b], w13[e], out=d_rows[a:b])
            torch.mm(d_gate_up[a:b].t(), rows[a:b], out=d_w13[e])
        d_z = rows.new_empty(tokens, width)
        lib.gather_sum_(
            half(rows), pointer(d_rows), pointer(order.at), pointer(d_z), size(tokens), k, size(width), threads(tokens)
        )
        return (
            d_z,
            d_share,
            d_w13,
            d_w2,
            None if norm is None or d_gain is None else d_gain.to(norm.dtype),
            None,
            None,
            None,
        )


def routed_experts_torch(
    z_TL: Tensor,
    share_Tk: Tensor,
    picked_Tk: Tensor,
    w13: Tensor,
    w2: Tensor,
    norm: Tensor | None,
    *,
    betas: tuple[float, float | None] | None,
    eps: float,
) -> Tensor:
    """The definition; see `routed_experts`."""
    if form("expert_glu", z_TL) == "triton":  # its tiles add alike whatever the sizes of groups are
        source, at, offsets = order_in_place(picked_Tk, len(w2))
    else:
        order = Order.of(picked_Tk, len(w2))
        source, at, offsets = order.source, order.at, torch.tensor(order.offsets, device=z_TL.device)
    gate, up = w13.chunk(2, dim=1)
    act, (beta, linear_beta) = (swi_glu, (1.0, None)) if betas is None else (situ_glu, betas)
    out = expert_glu(z_TL[source], offsets, gate, up, w2, act=act, beta=beta, linear_beta=linear_beta)
    wide = torch.promote_types(out.dtype, torch.float32)
    picked = out[at].view(*picked_Tk.shape, -1).to(wide)
    mixed = (picked * share_Tk[:, :, None]).sum(1)
    if norm is not None:
        mixed = mixed * torch.rsqrt(mixed.square().mean(-1, keepdim=True) + eps) * norm.to(wide)
    return mixed.to(z_TL.dtype)


def routed_experts(
    z_TL: Tensor,
    share_Tk: Tensor,
    picked_Tk: Tensor,
    w13: Tensor,
    w2: Tensor,
    norm: Tensor | None,
    *,
    betas: tuple[float, float | None] | None,
    eps: float,
) -> Tensor:
    """``RMSNorm(sum_j share_j E_j(z))``, the sum and the norm in float32; without ``norm`` the plain sum.

    Args:
        z_TL: [T,L]. share_Tk: [T,k] float32. picked_Tk: [T,k] int64. w13: [E,2I,L], gate half first. w2: [E,L,I].
        norm: [L] or None. betas: of SiTU-GLU; None for SwiGLU. eps: of the norm.

    Returns:
        [T,L] in the dtype of ``z_TL``. A token's result does not depend on other tokens, not even in its last bit.
    """
    if library(z_TL, w13, w2) is None:
        return routed_experts_torch(z_TL, share_Tk, picked_Tk, w13, w2, norm, betas=betas, eps=eps)
    curves = (0.0, 0.0) if betas is None else (betas[0], betas[1] or 0.0)
    w13, w2 = w13.contiguous(), w2.contiguous()
    # bfloat16 products are torch's where the processor has units for them; without, torch takes four times as long
    own = z_TL.dtype == torch.float32 or not bfloat16_units()
    if own and not torch.is_grad_enabled():
        return _inferred(z_TL, share_Tk, picked_Tk, w13, w2, norm, curves, eps)
    order = Order.of(picked_Tk, len(w2))
    return _Routed.apply(z_TL, share_Tk, w13, w2, norm, order, curves, eps)  # type: ignore[no-any-return]

"""MLA decoding in matrix products, with its gradient, as operators that the compiler knows.

Legend: N streams, S slots, H heads, A own and P shared channels of a key, R latent width, V value width.
"""

from typing import Any

import torch
from torch import Tensor


def _query(q: Tensor, w_key: Tensor) -> Tensor:
    """[N,H,R+P]: the key matrix absorbed, so that the cache itself is the key."""
    own = w_key.shape[1]
    latent = torch.bmm(q[..., :own].transpose(0, 1), w_key.to(q.dtype)).transpose(0, 1)
    return torch.cat([latent, q[..., own:]], dim=-1)


def _weights(query: Tensor, cache: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Softmax over the slots [N,H,S], float32 or float64."""
    wide = torch.promote_types(torch.float32, query.dtype)
    scores = torch.bmm(query, cache.transpose(1, 2)).to(wide) * scale
    return (scores if mask is None else scores + mask[:, None].to(wide)).softmax(-1)


@torch.library.custom_op("watersmeet::mla_decode", mutates_args=())
def mla_decode_op(
    q: Tensor, cache: Tensor, w_key: Tensor, w_value: Tensor, mask: Tensor | None, scale: float
) -> Tensor:
    """o [N,H,V]; arguments as in ``watersmeet.kernels.mla_decode``."""
    cache, rank = cache.to(q.dtype), w_key.shape[2]
    p = _weights(_query(q, w_key), cache, mask, scale).to(q.dtype)
    mixed_HNR = torch.bmm(p, cache[..., :rank]).transpose(0, 1)
    return torch.bmm(mixed_HNR, w_value.to(q.dtype).transpose(1, 2)).transpose(0, 1).contiguous()


@mla_decode_op.register_fake
def _(q, cache, w_key, w_value, mask, scale):  # type: ignore[no-untyped-def]
    return q.new_empty(q.shape[0], q.shape[1], w_value.shape[1])


@torch.library.custom_op("watersmeet::mla_decode_backward", mutates_args=())
def _backward_op(
    do: Tensor, q: Tensor, cache: Tensor, w_key: Tensor, w_value: Tensor, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, cache, w_key and w_value, in float32 inside."""
    wide, (own, rank) = torch.promote_types(torch.float32, q.dtype), w_key.shape[1:]
    do, x, c, wk, wv = (t.to(wide) for t in (do, q, cache, w_key, w_value))
    query = _query(x, wk)
    p = _weights(query, c, mask, scale)
    mixed_HNR, do_HNV = torch.bmm(p, c[..., :rank]).transpose(0, 1), do.transpose(0, 1)
    dwv = torch.bmm(do_HNV.transpose(1, 2), mixed_HNR)
    dmixed_NHR = torch.bmm(do_HNV, wv).transpose(0, 1)
    dp = torch.bmm(dmixed_NHR, c[..., :rank].transpose(1, 2))
    ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * scale
    dcache = torch.bmm(ds.transpose(1, 2), query)
    dcache[..., :rank] += torch.bmm(p.transpose(1, 2), dmixed_NHR)
    dquery = torch.bmm(ds, c)
    dlatent_HNR = dquery[..., :rank].transpose(0, 1)
    dq = torch.cat([torch.bmm(dlatent_HNR, wk.transpose(1, 2)).transpose(0, 1), dquery[..., rank:]], dim=-1)
    dwk = torch.bmm(x[..., :own].permute(1, 2, 0), dlatent_HNR)
    return dq.to(q.dtype), dcache.to(cache.dtype), dwk.to(w_key.dtype), dwv.to(w_value.dtype)


@_backward_op.register_fake
def _(do, q, cache, w_key, w_value, mask, scale):  # type: ignore[no-untyped-def]
    return tuple(x.new_empty(x.shape) for x in (q, cache, w_key, w_value))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, do: Tensor) -> tuple[Any, ...]:
    return *_backward_op(do, *ctx.saved_tensors, ctx.scale), None, None


mla_decode_op.register_autograd(_backward, setup_context=_setup)

"""The Attention Residuals mix one source at a time: no float32 copy of all sources, forwards or backwards.

Legend: n sources, T rows (all leading dimensions flattened), D width. With p = query * norm_weight:
e_i = r_i p.x_i, r_i = rsqrt(mean x_i^2 + eps), a = softmax(e), y = sum_i a_i x_i.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class AttnRes(torch.autograd.Function):
    """Inputs: sources [n,T,D], query [D], norm_weight [D], eps. Output [T,D] in the dtype of ``sources``."""

    @staticmethod
    def forward(ctx: Any, sources_nTD: Tensor, query_D: Tensor, norm_weight_D: Tensor, eps: float) -> Tensor:  # type: ignore[override]
        dtype = torch.promote_types(torch.float32, sources_nTD.dtype)
        n, T, D = sources_nTD.shape
        p_D = query_D.to(dtype) * norm_weight_D.to(dtype)
        r_nT = torch.empty(n, T, dtype=dtype, device=sources_nTD.device)
        s_nT = torch.empty_like(r_nT)
        for i in range(n):
            x_TD = sources_nTD[i].to(dtype)
            r_nT[i] = torch.rsqrt(x_TD.square().mean(-1) + eps)
            s_nT[i] = x_TD @ p_D
        a_nT = torch.softmax(r_nT * s_nT, dim=0)
        y_TD = torch.zeros(T, D, dtype=dtype, device=sources_nTD.device)
        for i in range(n):
            y_TD.addcmul_(sources_nTD[i].to(dtype), a_nT[i, :, None])
        ctx.save_for_backward(sources_nTD, query_D, norm_weight_D, a_nT, r_nT, s_nT)
        return y_TD.to(sources_nTD.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_TD: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        sources_nTD, query_D, norm_weight_D, a_nT, r_nT, s_nT = ctx.saved_tensors
        dtype = a_nT.dtype
        n, _, D = sources_nTD.shape
        dy_TD = dy_TD.to(dtype)
        p_D = query_D.to(dtype) * norm_weight_D.to(dtype)
        da_nT = torch.stack([(sources_nTD[i] * dy_TD).sum(-1) for i in range(n)])
        de_nT = a_nT * (da_nT - (a_nT * da_nT).sum(0))
        along_nT = de_nT * r_nT  # how much of p goes into dx_i, and of x_i into dp
        back_nT = along_nT * s_nT * r_nT.square() / D  # what the norm takes back along x_i
        dsources = torch.empty_like(sources_nTD)
        dp_D = torch.zeros_like(p_D)
        for i in range(n):
            x_TD = sources_nTD[i].to(dtype)
            dp_D += along_nT[i] @ x_TD
            dx_TD = torch.outer(along_nT[i], p_D)
            dx_TD.addcmul_(dy_TD, a_nT[i, :, None]).addcmul_(x_TD, back_nT[i, :, None], value=-1)
            dsources[i] = dx_TD
        dquery = (dp_D * norm_weight_D.to(dtype)).to(query_D.dtype)
        return dsources, dquery, (dp_D * query_D.to(dtype)).to(norm_weight_D.dtype), None

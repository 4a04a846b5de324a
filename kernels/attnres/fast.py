"""The Attention Residuals mix one source at a time: no float32 copy of all sources, forwards or backwards.

Legend: n sources, T rows (all leading dimensions flattened), D width. With p = query * norm_weight:
e_i = r_i s_i, r_i = rsqrt(mean x_i^2 + eps), s_i = p.x_i, a = softmax(e), y = sum_i a_i x_i. Only r and s are kept.
"""

import torch
from torch import Tensor


def mix_forward(sources_nTD: Tensor, p_D: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """y [T,D] in the dtype of the sources, r and s [n,T] in p's dtype (float32 or float64)."""
    n, T, D = sources_nTD.shape
    r_nT = torch.empty(n, T, dtype=p_D.dtype, device=p_D.device)
    s_nT = torch.empty_like(r_nT)
    for i in range(n):
        x_TD = sources_nTD[i].to(p_D.dtype)
        r_nT[i] = torch.rsqrt(x_TD.square().mean(-1) + eps)
        s_nT[i] = x_TD @ p_D
    a_nT = torch.softmax(r_nT * s_nT, dim=0)
    y_TD = torch.zeros(T, D, dtype=p_D.dtype, device=p_D.device)
    for i in range(n):
        y_TD.addcmul_(sources_nTD[i].to(p_D.dtype), a_nT[i, :, None])
    return y_TD.to(sources_nTD.dtype), r_nT, s_nT


def mix_backward(dy_TD: Tensor, sources_nTD: Tensor, p_D: Tensor, r_nT: Tensor, s_nT: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the sources (their dtype) and of p."""
    n, _, D = sources_nTD.shape
    dy_TD = dy_TD.to(p_D.dtype)
    a_nT = torch.softmax(r_nT * s_nT, dim=0)
    da_nT = torch.stack([(sources_nTD[i] * dy_TD).sum(-1) for i in range(n)])
    de_nT = a_nT * (da_nT - (a_nT * da_nT).sum(0))
    along_nT = de_nT * r_nT  # how much of p goes into dx_i, and of x_i into dp
    back_nT = along_nT * s_nT * r_nT.square() / D  # what the norm takes back along x_i
    dsources_nTD = torch.empty_like(sources_nTD)
    dp_D = torch.zeros_like(p_D)
    for i in range(n):
        x_TD = sources_nTD[i].to(p_D.dtype)
        dp_D += along_nT[i] @ x_TD
        dx_TD = torch.outer(along_nT[i], p_D)
        dx_TD.addcmul_(dy_TD, a_nT[i, :, None]).addcmul_(x_TD, back_nT[i, :, None], value=-1)
        dsources_nTD[i] = dx_TD
    return dsources_nTD, dp_D

"""The definition of the Attention Residuals mix (arXiv:2603.15031; Kimi K3 report eq. 8-10)."""

import torch
from torch import Tensor


def attnres_reference(sources: Tensor, query_D: Tensor, norm_weight_D: Tensor, *, eps: float) -> Tensor:
    """sources [n,...,D] -> [...,D]: softmax over the n sources of query . RMSNorm(source), applied to the raw sources."""
    dtype = torch.promote_types(torch.float32, sources.dtype)
    x = sources.to(dtype)
    normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * norm_weight_D.to(dtype)
    weights = torch.softmax(normed @ query_D.to(dtype), dim=0)
    return (weights[..., None] * x).sum(0).to(sources.dtype)

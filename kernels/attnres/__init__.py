"""Attention Residuals: a softmax mix over the snapshots a token left at earlier depths (arXiv:2603.15031)."""

from torch import Tensor

from ..dispatch import form
from .fast import AttnRes
from .reference import attnres_reference

__all__ = ["attnres"]


def attnres(sources: Tensor, query: Tensor, norm_weight: Tensor, *, eps: float) -> Tensor:
    """Mix n sources of every token with weights ``softmax_i(query . RMSNorm(source_i))``; a zero query gives the mean.

    Args:
        sources: [n,...,D]. query: [D]. norm_weight: [D] gain of the RMSNorm. eps: inside the root.

    Returns:
        [...,D] in the dtype of ``sources``; float32 inside. (Kimi K3 report, eq. 8-10.)
    """
    D = query.shape[-1]
    if sources.dim() < 2 or query.shape != (D,) or norm_weight.shape != (D,) or sources.shape[-1] != D:
        raise ValueError(
            f"attnres got sources {tuple(sources.shape)}, query {tuple(query.shape)}, norm_weight "
            f"{tuple(norm_weight.shape)}; expected [n,...,D], [D] and [D]"
        )
    if form("attnres", sources, triton=False) == "reference":
        return attnres_reference(sources, query, norm_weight, eps=eps)
    flat = sources.reshape(sources.shape[0], -1, D)
    return AttnRes.apply(flat, query, norm_weight, eps).view(sources.shape[1:])

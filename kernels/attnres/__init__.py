"""Attention Residuals: a softmax mix over the snapshots a token left at earlier depths (arXiv:2603.15031)."""

from torch import Tensor

from .reference import attnres_reference

__all__ = ["attnres"]


def attnres(sources: Tensor, query: Tensor, norm_weight: Tensor, *, eps: float) -> Tensor:
    """Mix n sources of every token with weights ``softmax_i(query . RMSNorm(source_i))``; a zero query gives the mean.

    Args:
        sources: [n,...,D]. query: [D]. norm_weight: [D] gain of the RMSNorm. eps: inside the root.

    Returns:
        [...,D] in the dtype of ``sources``; float32 inside.
    """
    return attnres_reference(sources, query, norm_weight, eps=eps)

"""Attention Residuals: a softmax mix over the snapshots a token left at earlier depths (arXiv:2603.15031)."""

from torch import Tensor

from ..checks import same_place
from ..dispatch import form
from .ops import attnres_op
from .reference import attnres_reference

__all__ = ["attnres"]


def attnres(sources: Tensor, query: Tensor, norm_weight: Tensor, *, eps: float) -> Tensor:
    """Mix n sources of every token with weights ``softmax_i(query . RMSNorm(source_i))``; a zero query gives the mean.

    Args:
        sources: [n,...,D]. query: [D]. norm_weight: [D] gain of the RMSNorm. eps: inside the root.

    Returns:
        [...,D] in the dtype of ``sources``; float32 inside. (Kimi K3 report, eq. 8-10.) Backwards the
        sources are read again; no float32 copy of them is kept.

    Raises:
        ValueError: shapes or devices do not fit together. TypeError: a dtype that is not floating.
    """
    D = query.shape[-1]
    if sources.dim() < 2 or query.shape != (D,) or norm_weight.shape != (D,) or sources.shape[-1] != D:
        raise ValueError(
            f"attnres got sources {tuple(sources.shape)}, query {tuple(query.shape)}, norm_weight "
            f"{tuple(norm_weight.shape)}; expected [n,...,D], [D] and [D]"
        )
    if len(sources) == 0:
        raise ValueError("attnres got no sources; expected at least one")
    same_place("attnres", sources=sources, query=query, norm_weight=norm_weight)
    if form("attnres", sources) == "reference":
        return attnres_reference(sources, query, norm_weight, eps=eps)
    y, _, _ = attnres_op(sources.reshape(sources.shape[0], -1, D), query, norm_weight, eps)
    return y.view(sources.shape[1:])  # type: ignore[no-any-return]

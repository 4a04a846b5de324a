"""Decoding with multi-head latent attention: one query a stream against a cache of latents."""

from torch import Tensor

from ..checks import same_place
from ..dispatch import form
from .ops import mla_decode_op
from .reference import mla_decode_reference

__all__ = ["mla_decode"]


def mla_decode(
    q: Tensor, cache: Tensor, w_key: Tensor, w_value: Tensor, *, scale: float, mask: Tensor | None = None
) -> Tensor:
    """Attend from one new token of every stream to its cached latents, key and value matrices absorbed.

    ``o_h = (sum_s p_s c_s) W_value,h^T`` with ``p = softmax_s(scale * (q_own,h W_key,h . c_s + q_shared,h . k_s))``: keys
    and values of single tokens are never formed (Kimi Linear report; DeepSeek-V2, arXiv:2405.04434, section 2.1).

    Args:
        q: [N,H,A+P] queries, A channels of the head's own and P that meet the shared key.
        cache: [N,S,R+P] latents c and shared keys k of all tokens, the new one included.
        w_key: [H,A,R]. w_value: [H,V,R]. scale: factor of the scores, ``(A + P) ** -0.5`` in these models.
        mask: [N,S] added to the scores, 0 for a token and -inf for an empty slot; None when all slots are in use.

    Returns:
        o [N,H,V] in q's dtype; scores and softmax are float32.

    Raises:
        ValueError: shapes or devices do not fit together. TypeError: a dtype that is not floating.
    """
    dims = (q.dim(), cache.dim(), w_key.dim(), w_value.dim())
    fits = dims == (3, 3, 3, 3) and len(q) == len(cache) and len(w_key) == len(w_value) == q.shape[1]
    if fits:
        own, rank = w_key.shape[1:]
        fits = w_value.shape[2] == rank and q.shape[2] - own == cache.shape[2] - rank >= 0 and cache.shape[1] > 0
    if not fits or (mask is not None and mask.shape != cache.shape[:2]):
        raise ValueError(
            f"mla_decode got q {tuple(q.shape)}, cache {tuple(cache.shape)}, w_key {tuple(w_key.shape)}, w_value "
            f"{tuple(w_value.shape)}, mask {None if mask is None else tuple(mask.shape)}; expected [N,H,A+P], [N,S,R+P] with "
            "S > 0, [H,A,R], [H,V,R] and [N,S] or None"
        )
    same_place("mla_decode", q=q, cache=cache, w_key=w_key, w_value=w_value, mask=mask)
    if form("mla_decode", q, triton=False) == "reference":
        return mla_decode_reference(q, cache, w_key, w_value, scale=scale, mask=mask)
    o: Tensor = mla_decode_op(q, cache, w_key, w_value, mask, scale)
    return o

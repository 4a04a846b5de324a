"""The definition of MLA decoding: keys and values of every head written out, softmax attention in float64.

Legend: N streams, S slots, H heads, A own and P shared channels of a key, R latent width, V value width.
"""

import torch
from torch import Tensor


def mla_decode_reference(
    q_NHK: Tensor, cache_NSC: Tensor, w_key_HAR: Tensor, w_value_HVR: Tensor, *, scale: float, mask: Tensor | None
) -> Tensor:
    """o [N,H,V] in q's dtype."""
    rank = w_key_HAR.shape[2]
    latent, shared = cache_NSC.double().split([rank, cache_NSC.shape[2] - rank], dim=-1)
    own_NSHA = torch.einsum("nsr,har->nsha", latent, w_key_HAR.double())
    key_NSHK = torch.cat([own_NSHA, shared[:, :, None].expand(-1, -1, own_NSHA.shape[2], -1)], dim=-1)
    value_NSHV = torch.einsum("nsr,hvr->nshv", latent, w_value_HVR.double())
    scores_NHS = torch.einsum("nhk,nshk->nhs", q_NHK.double(), key_NSHK) * scale
    if mask is not None:
        scores_NHS = scores_NHS + mask[:, None].double()
    return torch.einsum("nhs,nshv->nhv", scores_NHS.softmax(-1), value_NSHV).to(q_NHK.dtype)

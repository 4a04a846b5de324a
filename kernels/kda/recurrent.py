"""A few tokens with a state, as in decoding: the recurrence with one batched product a line. Legend: N sequences, T tokens."""

import torch
from torch import Tensor

MAX_TOKENS = 4


def kda_recurrent(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *, scale: float, initial_state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """q, k, g [N,T,H,K], v [N,T,H,V], beta [N,T,H] -> o [N,T,H,V] and the states [N,H,K,V]."""
    N, T, H, K = q.shape
    V = v.shape[3]
    dtype = torch.promote_types(torch.float32, q.dtype)
    fall = g.to(dtype).exp().transpose(1, 2).reshape(N * H, T, K, 1)
    qs = (q.to(dtype) * scale).transpose(1, 2).reshape(N * H, T, 1, K)
    ks = k.to(dtype).transpose(1, 2).reshape(N * H, T, 1, K)
    writes = (k.to(dtype) * beta.to(dtype)[..., None]).transpose(1, 2).reshape(N * H, T, K, 1)
    vs = v.to(dtype).transpose(1, 2).reshape(N * H, T, 1, V)
    S = v.new_zeros(N * H, K, V, dtype=dtype) if initial_state is None else initial_state.to(dtype).reshape(N * H, K, V)
    rows = []
    for t in range(T):
        S = S * fall[:, t]
        residual = torch.baddbmm(vs[:, t], ks[:, t], S, alpha=-1)
        S = torch.baddbmm(S, writes[:, t], residual)
        rows.append(torch.bmm(qs[:, t], S))
    o = torch.cat(rows, 1).view(N, H, T, V).transpose(1, 2)
    return o.to(v.dtype), S.view(N, H, K, V)

"""The definition of Kimi Delta Attention: the recurrence, one token at a time.

Legend: B batch, T tokens, H heads, K key channels, V value channels, N sequences.
Source: Kimi Linear report (arXiv:2510.26692) and Kimi K3 report (arXiv:2607.24653), eq. 1 and 5.
"""

import torch
from torch import Tensor


def kda_reference(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    g_BTHK: Tensor,
    beta_BTH: Tensor,
    *,
    scale: float,
    initial_state_NHKV: Tensor | None = None,
    cu_seqlens: list[int] | None = None,
) -> tuple[Tensor, Tensor]:
    """o [B,T,H,V] in v's dtype and the final states [N,H,K,V]; computes in float32, or float64 for float64 inputs."""
    dtype = torch.promote_types(torch.float32, q_BTHK.dtype)
    q, k, v, g, beta = (x.to(dtype) for x in (q_BTHK, k_BTHK, v_BTHV, g_BTHK, beta_BTH))
    if cu_seqlens is None:
        sequences = [(q, k, v, g, beta)]
    else:
        bounds = list(zip(cu_seqlens[:-1], cu_seqlens[1:], strict=True))
        sequences = [
            (q[:, start:stop], k[:, start:stop], v[:, start:stop], g[:, start:stop], beta[:, start:stop])
            for start, stop in bounds
        ]

    outputs, finals = [], []
    for index, (q, k, v, g, beta) in enumerate(sequences):
        if initial_state_NHKV is None:
            S = v.new_zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3])
        elif cu_seqlens is None:
            S = initial_state_NHKV.to(dtype)
        else:
            S = initial_state_NHKV[index : index + 1].to(dtype)
        rows = []
        for t in range(q.shape[1]):
            S = g[:, t].exp()[..., None] * S  # decay first
            r_BHV = v[:, t] - torch.einsum("bhkv,bhk->bhv", S, k[:, t])  # what the decayed state does not know yet
            S = S + torch.einsum("bh,bhk,bhv->bhkv", beta[:, t], k[:, t], r_BHV)
            rows.append(scale * torch.einsum("bhkv,bhk->bhv", S, q[:, t]))  # read after the update
        outputs.append(torch.stack(rows, 1) if rows else torch.zeros_like(v))
        finals.append(S)
    return torch.cat(outputs, 1).to(v_BTHV.dtype), torch.cat(finals, 0)


def kda_gate_reference(z: Tensor, A_log: Tensor, dt_bias: Tensor, *, lower_bound: float | None) -> Tensor:
    """Log-decay [..,H,K]: ``bound * sigmoid(exp(A) (z + dt))``, or ``-exp(A) softplus(z + dt)`` without a bound."""
    dtype = torch.promote_types(torch.float32, z.dtype)
    rate_H1 = A_log.to(dtype).exp()[:, None]
    z = z.to(dtype) + dt_bias.to(dtype).view(z.shape[-2:])
    if lower_bound is not None:
        return lower_bound * torch.sigmoid(rate_H1 * z)
    return -rate_H1 * torch.nn.functional.softplus(z)

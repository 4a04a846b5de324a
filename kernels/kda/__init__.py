"""Kimi Delta Attention: the gated delta rule with one decay per key channel (arXiv:2510.26692, arXiv:2607.24653)."""

from torch import Tensor

from ..checks import int_vector, same_place
from ..dispatch import form
from .gate import gate_op
from .ops import kda_chunked, native_fits, sequence_lengths
from .recurrent import MAX_TOKENS, kda_recurrent
from .reference import kda_gate_reference, kda_reference

__all__ = ["kda", "kda_gate"]


def kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    output_final_state: bool = False,
    gate_lower_bound: float | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Read and update an associative memory ``S`` [K,V] for every head, one token after the other.

    For each token: ``S = exp(g) S; S = S + beta k (v - S^T k)^T; o = scale S^T q``. The caller L2-normalises q and k.

    Args:
        q, k: [B,T,H,K]. v: [B,T,H,V]. float32 or bfloat16; inside everything is float32.
        g: [B,T,H,K] natural logarithm of the decay, at most 0; any size is allowed.
        beta: [B,T,H], usually in (0,1).
        scale: factor of the output, ``K ** -0.5`` when None.
        initial_state: [N,H,K,V] state before the first token of each sequence, zero when None.
        cu_seqlens: [N+1] int32 boundaries of packed sequences, needs B == 1; the state restarts at every boundary.
        gate_lower_bound: a promise that no value of g is below this; -5.0 or more saves time in the Triton and torch
            forms. A broken promise costs accuracy, never finiteness.
        output_final_state: also return the states after the last token of each sequence, [N,H,K,V] float32.

    Returns:
        o [B,T,H,V] in v's dtype, and the final states or None. Everything is differentiable, the states too.

    Raises:
        ValueError: shapes, devices or bounds do not fit together. TypeError: a dtype that is not floating.
    """
    B, T, _, K = q.shape
    if k.shape != q.shape or g.shape != q.shape or v.shape[:3] != q.shape[:3] or beta.shape != q.shape[:3]:
        raise ValueError(
            f"kda got q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}, g {tuple(g.shape)}, "
            f"beta {tuple(beta.shape)}; expected q, k, g [B,T,H,K], v [B,T,H,V], beta [B,T,H]"
        )
    same_place("kda", q=q, k=k, v=v, g=g, beta=beta, initial_state=initial_state)
    if cu_seqlens is not None:
        int_vector("kda", "cu_seqlens", cu_seqlens)
    state = (B if cu_seqlens is None else cu_seqlens.shape[0] - 1, *q.shape[2:], v.shape[3])
    if initial_state is not None and initial_state.shape != state:
        raise ValueError(f"kda got initial_state {tuple(initial_state.shape)}; expected [N,H,K,V], here {state}")
    scale = K**-0.5 if scale is None else float(scale)
    chosen = form("kda", q, k, v, g, beta)
    if chosen == "reference":
        lengths = sequence_lengths(B, T, cu_seqlens)
        bounds = None if cu_seqlens is None else [sum(lengths[:n]) for n in range(len(lengths) + 1)]
        o, final = kda_reference(q, k, v, g, beta, scale=scale, initial_state_NHKV=initial_state, cu_seqlens=bounds)
        return o, final if output_final_state else None
    bounded = gate_lower_bound is not None and gate_lower_bound >= -5.0
    if chosen == "triton":
        from .triton_ops import kda_triton, supports  # only here: a machine without triton has the other forms

        if supports(q, v):
            return kda_triton(
                q, k, v, g, beta, scale=scale, initial_state=initial_state, cu_seqlens=cu_seqlens, bounded=bounded,
                need_final=output_final_state,
            )  # fmt: skip
    few = T // (1 if cu_seqlens is None else max(1, cu_seqlens.shape[0] - 1)) <= MAX_TOKENS
    if initial_state is not None and few and not native_fits(q, k, v):
        # a decoding step: as many tokens for every sequence, and few
        lengths = sequence_lengths(B, T, cu_seqlens)
        if lengths and 0 < min(lengths) == max(lengths) <= MAX_TOKENS:
            rows = [x.view(len(lengths), lengths[0], *x.shape[2:]) for x in (q, k, v, g, beta)]
            o, final = kda_recurrent(*rows, scale=scale, initial_state=initial_state)
            return o.reshape(v.shape), final if output_final_state else None
    return kda_chunked(
        q, k, v, g, beta, scale=scale, initial_state=initial_state, cu_seqlens=cu_seqlens, bounded=bounded,
        need_final=output_final_state,
    )  # fmt: skip


def kda_gate(z: Tensor, A_log: Tensor, dt_bias: Tensor, *, lower_bound: float | None = None) -> Tensor:
    """Log-decay of KDA from its logits.

    Args:
        z: [..,H,K] logits. A_log: [H]. dt_bias: [H,K] or [H*K].
        lower_bound: -5.0 for the bounded gate of Kimi K3, ``lower_bound * sigmoid(exp(A) (z + dt))``;
            None for the gate of Kimi Linear, ``-exp(A) softplus(z + dt)``.

    Returns:
        g [..,H,K] float32, at most 0.
    """
    H, K = z.shape[-2:]
    if A_log.shape != (H,) or dt_bias.numel() != H * K:
        raise ValueError(
            f"kda_gate got z {tuple(z.shape)}, A_log {tuple(A_log.shape)}, dt_bias {tuple(dt_bias.shape)}; "
            f"expected [..,H,K], [H] and H*K numbers"
        )
    if form("kda_gate", z) == "reference":
        return kda_gate_reference(z, A_log, dt_bias, lower_bound=lower_bound)
    return gate_op(z, A_log, dt_bias.reshape(H, K), lower_bound)

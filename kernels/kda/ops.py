"""The chunked form as differentiable operations: a Function for eager use, an opaque operator for ``torch.compile``."""

from typing import Any

import torch
from torch import Tensor

from .chunked import backward, forward, saved_size


def sequence_lengths(B: int, T: int, cu_seqlens: Tensor | None) -> tuple[int, ...]:
    """Lengths of the sequences laid end to end in the flattened [B*T] rows; checks the bounds."""
    if cu_seqlens is None:
        return (T,) * B
    bounds = cu_seqlens.tolist()
    lengths = tuple(b - a for a, b in zip(bounds[:-1], bounds[1:], strict=True))
    if B != 1 or not bounds or bounds[0] != 0 or bounds[-1] != T or min(lengths, default=0) < 0:
        raise ValueError(
            f"got B={B}, T={T}, cu_seqlens {bounds}; packed input needs B=1 and bounds that rise from 0 to T"
        )
    return lengths


class _KDA(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        initial_state: Tensor | None,
        options: dict[str, Any],
        need_final: bool,
    ) -> tuple[Tensor, Tensor | None]:
        out, final, buffer = forward(
            q, k, v, g, beta, initial_state, **options, need_final=need_final, need_saved=any(ctx.needs_input_grad)
        )
        ctx.options = options
        ctx.initial_dtype = None if initial_state is None else initial_state.dtype
        ctx.save_for_backward(buffer, q, k, v, g, beta)
        return out, final

    @staticmethod
    def backward(ctx: Any, do: Tensor, dfinal: Tensor | None) -> tuple[Any, ...]:  # type: ignore[override]
        need = ctx.needs_input_grad[5]
        # the checker cannot count what a star brings
        whole: Any = backward
        *grads, dinitial = whole(*ctx.saved_tensors, do, dfinal, **ctx.options, need_initial=need)
        return *grads, dinitial.to(ctx.initial_dtype) if need else None, None, None


@torch.library.custom_op("watersmeet::kda", mutates_args=())
def _kda_op(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    scale: float,
    bounded: bool,
    need_final: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    lengths = sequence_lengths(q.shape[0], q.shape[1], cu_seqlens)
    out, final, buffer = forward(
        q, k, v, g, beta, initial_state, scale=scale, lengths=lengths, bounded=bounded, need_final=need_final,
        need_saved=True,
    )  # fmt: skip
    return out, buffer.new_empty(0) if final is None else final, buffer


@_kda_op.register_fake
def _(q, k, v, g, beta, initial_state, cu_seqlens, scale, bounded, need_final):  # type: ignore[no-untyped-def]
    B, T, H, K = q.shape
    V = v.shape[3]
    N = B if cu_seqlens is None else cu_seqlens.shape[0] - 1
    dtype = torch.promote_types(torch.float32, q.dtype)
    final = q.new_empty((N, H, K, V) if need_final else (0,), dtype=dtype)
    return (
        v.new_empty(v.shape),
        final,
        q.new_empty((saved_size(B * T, N, H, K, V),), dtype=dtype),
    )


@torch.library.custom_op("watersmeet::kda_backward", mutates_args=())
def _kda_backward_op(
    buffer: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    do: Tensor,
    dfinal: Tensor,
    cu_seqlens: Tensor | None,
    scale: float,
    bounded: bool,
    need_final: bool,
    need_initial: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    lengths = sequence_lengths(q.shape[0], q.shape[1], cu_seqlens)
    *grads, dinitial = backward(
        buffer, q, k, v, g, beta, do, dfinal if need_final else None, scale=scale, lengths=lengths, bounded=bounded,
        need_initial=need_initial,
    )  # fmt: skip
    return *grads, buffer.new_empty(0) if dinitial is None else dinitial  # type: ignore[return-value]


@_kda_backward_op.register_fake
def _(buffer, q, k, v, g, beta, do, dfinal, cu_seqlens, scale, bounded, need_final, need_initial):  # type: ignore[no-untyped-def]
    N = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    shape = (N, q.shape[2], q.shape[3], v.shape[3]) if need_initial else (0,)
    return *(x.new_empty(x.shape) for x in (q, k, v, g, beta)), buffer.new_empty(shape)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, g, beta, initial_state, cu_seqlens, ctx.scale, ctx.bounded, ctx.need_final = inputs
    ctx.initial_dtype = None if initial_state is None else initial_state.dtype
    ctx.save_for_backward(output[2], q, k, v, g, beta, cu_seqlens)


def _backward(ctx: Any, do: Tensor, dfinal: Tensor, _: Tensor) -> tuple[Any, ...]:
    buffer, q, k, v, g, beta, cu_seqlens = ctx.saved_tensors
    need = ctx.initial_dtype is not None
    *grads, dinitial = _kda_backward_op(
        buffer, q, k, v, g, beta, do, dfinal, cu_seqlens, ctx.scale, ctx.bounded, ctx.need_final, need
    )
    return *grads, dinitial.to(ctx.initial_dtype) if need else None, None, None, None, None


_kda_op.register_autograd(_backward, setup_context=_setup)


def kda_chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    scale: float,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    bounded: bool,
    need_final: bool,
) -> tuple[Tensor, Tensor | None]:
    """o [B,T,H,V] and the final states [N,H,K,V] or None."""
    if torch.compiler.is_compiling():
        out, final, _ = _kda_op(q, k, v, g, beta, initial_state, cu_seqlens, scale, bounded, need_final)
        return out, final if need_final else None
    lengths = sequence_lengths(q.shape[0], q.shape[1], cu_seqlens)
    options = {"scale": scale, "lengths": lengths, "bounded": bounded}
    result: tuple[Tensor, Tensor | None] = _KDA.apply(q, k, v, g, beta, initial_state, options, need_final)
    return result

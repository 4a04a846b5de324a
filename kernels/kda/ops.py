"""KDA's CPU forms as differentiable operations: a Function for eager use, an opaque operator for ``torch.compile``.

The native form runs wherever it fits, the torch form (`chunked.py`) everywhere else; a saved buffer of four axes says that the
native one ran, which keeps a state now and then.
"""

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


def native_fits(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the native form can run on these tensors."""
    from ..native.kda import native_fits  # only here: that room builds on this one

    return native_fits(q, k, v)


def _native_bounds(lengths: tuple[int, ...], cu_seqlens: Tensor | None) -> Tensor:
    if cu_seqlens is not None:
        return cu_seqlens.to(torch.int32).contiguous()
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)


def _run(
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
    need_saved: bool,
) -> tuple[Tensor, Tensor | None, Tensor]:
    lengths = sequence_lengths(q.shape[0], q.shape[1], cu_seqlens)
    if native_fits(q, k, v):
        from ..native.kda import native_forward

        return native_forward(
            q, k, v, g, beta, _native_bounds(lengths, cu_seqlens), initial_state, scale=scale, need_final=need_final,
            need_kept=need_saved,
        )  # fmt: skip
    return forward(
        q, k, v, g, beta, initial_state, scale=scale, lengths=lengths, bounded=bounded, need_final=need_final,
        need_saved=need_saved,
    )  # fmt: skip


def _run_backward(
    buffer: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None,
    do: Tensor,
    dfinal: Tensor | None,
    cu_seqlens: Tensor | None,
    scale: float,
    bounded: bool,
    need_initial: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    lengths = sequence_lengths(q.shape[0], q.shape[1], cu_seqlens)
    if buffer.dim() == 4 and native_fits(q, k, v):
        from ..native.kda import native_backward

        return native_backward(
            q, k, v, g, beta, _native_bounds(lengths, cu_seqlens), initial_state, buffer, do, dfinal,
            scale=scale, need_initial=need_initial,
        )  # fmt: skip
    if buffer.dim() == 4:  # another form was forced meanwhile
        _, _, buffer = forward(
            q, k, v, g, beta, initial_state, scale=scale, lengths=lengths, bounded=bounded, need_final=False,
            need_saved=True,
        )  # fmt: skip
    return backward(
        buffer, q, k, v, g, beta, do, dfinal, scale=scale, lengths=lengths, bounded=bounded, need_initial=need_initial
    )


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
        cu_seqlens: Tensor | None,
        scale: float,
        bounded: bool,
        need_final: bool,
    ) -> tuple[Tensor, Tensor | None]:
        learning = any(ctx.needs_input_grad)
        out, final, buffer = _run(
            q, k, v, g, beta, initial_state, cu_seqlens, scale, bounded, need_final, need_saved=learning
        )
        if learning:
            ctx.save_for_backward(buffer, q, k, v, g, beta, initial_state)
            # the bounds themselves, because a caller may lay the next batch's over them
            ctx.cu_seqlens = None if cu_seqlens is None else cu_seqlens.clone()
            ctx.scale, ctx.bounded, ctx.need_final = scale, bounded, need_final
        return out, final

    @staticmethod
    def backward(ctx: Any, do: Tensor, dfinal: Tensor | None) -> tuple[Any, ...]:  # type: ignore[override]
        need = ctx.needs_input_grad[5]
        saved = ctx.saved_tensors
        # the checker cannot count what a star brings
        whole: Any = _run_backward
        *grads, dinitial = whole(
            *saved, do, dfinal if ctx.need_final else None, ctx.cu_seqlens, ctx.scale, ctx.bounded, need
        )
        return *grads, dinitial.to(saved[6].dtype) if need else None, None, None, None, None


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
    out, final, buffer = _run(q, k, v, g, beta, initial_state, cu_seqlens, scale, bounded, need_final, need_saved=True)
    return out, buffer.new_empty(0) if final is None else final, buffer


@_kda_op.register_fake
def _(q, k, v, g, beta, initial_state, cu_seqlens, scale, bounded, need_final):  # type: ignore[no-untyped-def]
    B, T, H, K = q.shape
    V = v.shape[3]
    N = B if cu_seqlens is None else cu_seqlens.shape[0] - 1
    dtype = torch.promote_types(torch.float32, q.dtype)
    saved: tuple[int, ...] = (saved_size(B * T, N, H, K, V),)
    if native_fits(q, k, v):
        from ..native.kda import kept_shape

        saved = kept_shape(B * T, H, K, V)
    final = q.new_empty((N, H, K, V) if need_final else (0,), dtype=dtype)
    return v.new_empty(v.shape), final, q.new_empty(saved, dtype=dtype)


@torch.library.custom_op("watersmeet::kda_backward", mutates_args=())
def _kda_backward_op(
    buffer: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None,
    do: Tensor,
    dfinal: Tensor,
    cu_seqlens: Tensor | None,
    scale: float,
    bounded: bool,
    need_final: bool,
    need_initial: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    *grads, dinitial = _run_backward(
        buffer, q, k, v, g, beta, initial_state, do, dfinal if need_final else None, cu_seqlens, scale, bounded,
        need_initial,
    )  # fmt: skip
    return *grads, buffer.new_empty(0) if dinitial is None else dinitial  # type: ignore[return-value]


@_kda_backward_op.register_fake
def _(  # type: ignore[no-untyped-def]
    buffer, q, k, v, g, beta, initial_state, do, dfinal, cu_seqlens, scale, bounded, need_final, need_initial
):
    N = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    shape = (N, q.shape[2], q.shape[3], v.shape[3]) if need_initial else (0,)
    return *(x.new_empty(x.shape) for x in (q, k, v, g, beta)), buffer.new_empty(shape)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, g, beta, initial_state, cu_seqlens, ctx.scale, ctx.bounded, ctx.need_final = inputs
    ctx.save_for_backward(output[2], q, k, v, g, beta, initial_state, cu_seqlens)


def _backward(ctx: Any, do: Tensor, dfinal: Tensor, _: Tensor) -> tuple[Any, ...]:
    *saved, cu_seqlens = ctx.saved_tensors
    need = ctx.needs_input_grad[5]
    *grads, dinitial = _kda_backward_op(
        *saved, do, dfinal, cu_seqlens, ctx.scale, ctx.bounded, ctx.need_final, need
    )  # fmt: skip
    return *grads, dinitial.to(saved[6].dtype) if need else None, None, None, None, None


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
    result: tuple[Tensor, Tensor | None] = _KDA.apply(
        q, k, v, g, beta, initial_state, cu_seqlens, scale, bounded, need_final
    )
    return result

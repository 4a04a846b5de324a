"""The Triton form of KDA as operators that the compiler knows; imported only where that form is chosen.

Legend: B batch, T tokens, N sequences, H heads, K key channels, V value channels, C rows of a chunk.
"""

import weakref
from typing import Any

import torch
from torch import Tensor

from ..checks import bounds as check_bounds
from .ops import sequence_lengths
from .triton import backward, forward, recurrent, saved_shape, supports

RECURRENT_TOKENS = 16
"""Up to this many tokens a sequence, with a state and without gradients, the recurrence itself is the faster form."""

__all__ = ["decode_op", "kda_op", "kda_triton", "packed_lengths", "supports"]

_seen: dict[int, tuple[weakref.ref[Tensor], int, tuple[int, ...]]] = {}


def packed_lengths(B: int, T: int, cu_seqlens: Tensor | None) -> tuple[int, ...]:
    """`sequence_lengths`, waiting for the device once a tensor of bounds, however many layers pass it."""
    if cu_seqlens is None or cu_seqlens.is_inference():
        return sequence_lengths(B, T, cu_seqlens)
    key = id(cu_seqlens)
    known = _seen.get(key)
    if known is not None and known[0]() is cu_seqlens and known[1] == cu_seqlens._version and B == 1:
        if sum(known[2]) == T:
            return known[2]
    lengths = sequence_lengths(B, T, cu_seqlens)
    _seen[key] = (weakref.ref(cu_seqlens, lambda _: _seen.pop(key, None)), cu_seqlens._version, lengths)
    return lengths


def _state_count(q: Tensor, cu_seqlens: Tensor | None) -> int:
    return q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1


@torch.library.custom_op("watersmeet::kda_triton", mutates_args=())
def kda_op(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, initial_state: Tensor | None, cu_seqlens: Tensor | None,
    scale: float, bounded: bool, need_final: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """o [B,T,H,V], final states [N,H,K,V] or empty, and what the backward reads besides the inputs, [2,B,T,H,C]."""
    lengths = packed_lengths(q.shape[0], q.shape[1], cu_seqlens)
    o, final, saved = forward(
        q, k, v, g, beta, initial_state, scale=scale, lengths=lengths, bounded=bounded, need_final=need_final
    )
    return o, q.new_empty(0, dtype=torch.float32) if final is None else final, saved


@kda_op.register_fake
def _(q, k, v, g, beta, initial_state, cu_seqlens, scale, bounded, need_final):  # type: ignore[no-untyped-def]
    _, _, H, K = q.shape
    shape = (_state_count(q, cu_seqlens), H, K, v.shape[3]) if need_final else (0,)
    operand = torch.bfloat16 if q.dtype == torch.bfloat16 else torch.float32
    return (
        v.new_empty(v.shape),
        q.new_empty(shape, dtype=torch.float32),
        q.new_empty(saved_shape(q), dtype=operand),
    )


@torch.library.custom_op("watersmeet::kda_triton_backward", mutates_args=())
def _backward_op(
    saved: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, initial_state: Tensor | None,
    do: Tensor, dfinal: Tensor | None, cu_seqlens: Tensor | None, scale: float, bounded: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    lengths = packed_lengths(q.shape[0], q.shape[1], cu_seqlens)
    *grads, dinitial = backward(
        saved, q, k, v, g, beta, initial_state, do, dfinal, scale=scale, lengths=lengths, bounded=bounded,
        need_initial=initial_state is not None,
    )  # fmt: skip
    if initial_state is None or dinitial is None:
        return *grads, q.new_empty(0, dtype=torch.float32)  # type: ignore[return-value]
    return *grads, dinitial.to(initial_state.dtype)  # type: ignore[return-value]


@_backward_op.register_fake
def _(saved, q, k, v, g, beta, initial_state, do, dfinal, cu_seqlens, scale, bounded):  # type: ignore[no-untyped-def]
    state = q.new_empty(0, dtype=torch.float32) if initial_state is None else initial_state
    return tuple(x.new_empty(x.shape) for x in (q, k, v, g, beta, state))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.scale, ctx.bounded, ctx.need_final = inputs[7:]
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[2], *inputs[:7])


def _backward(ctx: Any, do: Tensor | None, dfinal: Tensor | None, _: Tensor | None) -> tuple[Any, ...]:
    saved, q, k, v, g, beta, initial_state, cu_seqlens = ctx.saved_tensors
    *grads, dinitial = _backward_op(
        saved, q, k, v, g, beta, initial_state, torch.zeros_like(v) if do is None else do,
        dfinal if ctx.need_final else None, cu_seqlens, ctx.scale, ctx.bounded,
    )  # fmt: skip
    return *grads, None if initial_state is None else dinitial, None, None, None, None


kda_op.register_autograd(_backward, setup_context=_setup)


@torch.library.custom_op("watersmeet::kda_decode", mutates_args=())
def decode_op(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, initial_state: Tensor | None, cu_seqlens: Tensor | None,
    scale: float, need_final: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """o [B,T,H,V] and the final states [N,H,K,V] or empty, token by token, without a gradient."""
    B, T = q.shape[:2]
    if cu_seqlens is None:
        bounds = torch.arange(0, (B + 1) * T, T, dtype=torch.int32, device=q.device) if T else q.new_zeros(B + 1).int()
    else:
        check_bounds("kda", "cu_seqlens", cu_seqlens, B * T)
        bounds = cu_seqlens.to(q.device, torch.int32)
    o, final = recurrent(q, k, v, g, beta, initial_state, bounds, scale=scale, need_final=need_final)
    return o, q.new_empty(0, dtype=torch.float32) if final is None else final


@decode_op.register_fake
def _(q, k, v, g, beta, initial_state, cu_seqlens, scale, need_final):  # type: ignore[no-untyped-def]
    shape = (_state_count(q, cu_seqlens), q.shape[2], q.shape[3], v.shape[3]) if need_final else (0,)
    return v.new_empty(v.shape), q.new_empty(shape, dtype=torch.float32)


def kda_triton(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *, scale: float, initial_state: Tensor | None,
    cu_seqlens: Tensor | None, bounded: bool, need_final: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """o [B,T,H,V] and the final states [N,H,K,V] or None."""
    B, T = q.shape[:2]
    learning = torch.is_grad_enabled() and any(
        x is not None and x.requires_grad for x in (q, k, v, g, beta, initial_state)
    )
    if initial_state is not None and not learning and _few(B, T, cu_seqlens):
        o, final = decode_op(q, k, v, g, beta, initial_state, cu_seqlens, scale, need_final)
    else:
        o, final, _ = kda_op(q, k, v, g, beta, initial_state, cu_seqlens, scale, bounded, need_final)
    return o, final if need_final else None


def _few(B: int, T: int, cu_seqlens: Tensor | None) -> bool:
    """A decoding step: a few tokens for every sequence."""
    if cu_seqlens is None:
        return T <= RECURRENT_TOKENS
    if 2 * (cu_seqlens.shape[0] - 1) >= T:
        return True  # without waiting for the device to tell the lengths
    return not torch.compiler.is_compiling() and max(packed_lengths(B, T, cu_seqlens), default=0) <= RECURRENT_TOKENS

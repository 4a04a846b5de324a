"""The short convolution on a GPU. Sums before the activation are made again backwards instead of kept.

Legend: T tokens of a sequence, C channels, W taps, N sequences, R rows of all sequences laid end to end, S = W - 1 tokens
of a window; BT rows and BC channels of a tile.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..compile_check import Case

CONFIGS: dict[str, dict[str, int]] = {
    "forward": {"BT": 16, "BC": 128, "num_warps": 4},
    "backward": {"BT": 16, "BC": 64, "num_warps": 8},
    "window": {"BC": 128, "num_warps": 2},
}
PARTS = 512
"""Most pieces of rows whose sums for the weight's gradient are kept apart; they are added in a fixed order."""


@triton.jit
def sequence_of(row, seq_ptr, cu_ptr, T, rows, PACKED: tl.constexpr):
    """Sequence, its first row and its end, of every row."""
    if PACKED:
        n = tl.load(seq_ptr + row, mask=(row >= 0) & (row < rows), other=0)
        return n, tl.load(cu_ptr + n), tl.load(cu_ptr + n + 1)
    else:
        n = row // T
        return n, n * T, n * T + T


@triton.jit
def tap_input(
    x_ptr, state_ptr, row, n, start, real, c, C, SHIFT: tl.constexpr, W: tl.constexpr, HAS_STATE: tl.constexpr
):  # fmt: skip
    """What lies SHIFT tokens before each row of its sequence, float32 [BT,BC]; ``real``: rows that exist."""
    there = real & (row - SHIFT >= start)
    in_width = (c < C)[None, :]
    value = tl.load(
        x_ptr + (row - SHIFT)[:, None].to(tl.int64) * C + c[None, :], mask=there[:, None] & in_width, other=0.0
    )
    value = value.to(tl.float32)
    if HAS_STATE and SHIFT > 0:
        place = W - 1 + row - start - SHIFT
        before = real & (row - SHIFT < start)
        at = (n[:, None].to(tl.int64) * C + c[None, :]) * (W - 1) + place[:, None]
        value += tl.load(state_ptr + at, mask=before[:, None] & in_width, other=0.0).to(tl.float32)
    return value


@triton.jit
def before_activation(
    x_ptr, w_ptr, state_ptr, row, n, start, real, c, C, W: tl.constexpr, HAS_STATE: tl.constexpr
):  # fmt: skip
    """The sum over taps, [BT,BC]."""
    total = tl.zeros((row.shape[0], c.shape[0]), tl.float32)
    for shift in tl.static_range(W):
        tap = tl.load(w_ptr + c * W + (W - 1 - shift), mask=c < C, other=0.0).to(tl.float32)
        total += tap[None, :] * tap_input(x_ptr, state_ptr, row, n, start, real, c, C, shift, W, HAS_STATE)
    return total


@triton.jit
def before_activation_grad(
    dy_ptr, x_ptr, w_ptr, state_ptr, row, n, start, real, c, C,
    W: tl.constexpr, HAS_STATE: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Gradient of the sum over taps, [BT,BC]; zero in rows that do not exist."""
    mask = real[:, None] & (c < C)[None, :]
    d = tl.load(dy_ptr + row[:, None].to(tl.int64) * C + c[None, :], mask=mask, other=0.0).to(tl.float32)
    if ACTIVATION:
        y = before_activation(x_ptr, w_ptr, state_ptr, row, n, start, real, c, C, W, HAS_STATE)
        s = tl.sigmoid(y)
        d *= s * (1 + y * (1 - s))
    return d


@triton.jit
def conv_rows(
    x_ptr, w_ptr, state_ptr, y_ptr, seq_ptr, cu_ptr, T, C, rows,
    W: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr,
    PACKED: tl.constexpr, HAS_STATE: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """y of BT rows and BC channels."""
    row = tl.program_id(0) * BT + tl.arange(0, BT)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    real = row < rows
    n, start, _ = sequence_of(row, seq_ptr, cu_ptr, T, rows, PACKED)
    y = before_activation(x_ptr, w_ptr, state_ptr, row, n, start, real, c, C, W, HAS_STATE)
    if ACTIVATION:
        y *= tl.sigmoid(y)
    at = row[:, None].to(tl.int64) * C + c[None, :]
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=real[:, None] & (c < C)[None, :])


@triton.jit
def conv_window(
    x_ptr, state_ptr, final_ptr, cu_ptr, T, C,
    W: tl.constexpr, BC: tl.constexpr, PACKED: tl.constexpr, HAS_STATE: tl.constexpr,
):  # fmt: skip
    """The last S raw inputs of one sequence, BC channels."""
    n = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    start, stop = n * T, n * T + T
    if PACKED:
        start, stop = tl.load(cu_ptr + n).to(tl.int64), tl.load(cu_ptr + n + 1).to(tl.int64)
    for j in tl.static_range(W - 1):
        row = stop - (W - 1) + j
        value = tl.load(x_ptr + row * C + c, mask=(c < C) & (row >= start), other=0.0).to(tl.float32)
        if HAS_STATE:
            at = (n * C + c) * (W - 1) + (W - 1 + row - start)
            value += tl.load(state_ptr + at, mask=(c < C) & (row < start), other=0.0).to(tl.float32)
        tl.store(final_ptr + (n * C + c) * (W - 1) + j, value.to(final_ptr.dtype.element_ty), mask=c < C)


@triton.jit
def conv_step(
    x_ptr, w_ptr, state_ptr, y_ptr, final_ptr, C,
    W: tl.constexpr, BC: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """One token for one sequence, BC channels: y and the window moved on by one, in one pass."""
    n = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    mask = c < C
    now = tl.load(x_ptr + n * C + c, mask=mask, other=0.0)
    y = tl.load(w_ptr + c * W + (W - 1), mask=mask, other=0.0).to(tl.float32) * now.to(tl.float32)
    window = (n * C + c) * (W - 1)
    for shift in tl.static_range(1, W):
        seen = tl.load(state_ptr + window + (W - 1 - shift), mask=mask, other=0.0).to(tl.float32)
        y += tl.load(w_ptr + c * W + (W - 1 - shift), mask=mask, other=0.0).to(tl.float32) * seen
        if shift < W - 1:
            tl.store(final_ptr + window + (W - 2 - shift), seen.to(final_ptr.dtype.element_ty), mask=mask)
    if W > 1:
        tl.store(final_ptr + window + (W - 2), now, mask=mask)
    if ACTIVATION:
        y *= tl.sigmoid(y)
    tl.store(y_ptr + n * C + c, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def conv_row_grads(
    dy_ptr, dfinal_ptr, x_ptr, w_ptr, state_ptr, dx_ptr, part_ptr, seq_ptr, cu_ptr, T, C, rows, steps,
    W: tl.constexpr, PW: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr,
    PACKED: tl.constexpr, HAS_STATE: tl.constexpr, HAS_FINAL: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """dx of ``steps`` tiles of rows, and their part of the weight's gradient, [parts,W,C] float32; PW >= W, a power of two."""
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    in_width = (c < C)[None, :]
    part = tl.program_id(0)
    tap_index = tl.arange(0, PW)
    dw = tl.zeros((tap_index.shape[0], BC), tl.float32)
    for step in range(steps):
        row = (part * steps + step) * BT + tl.arange(0, BT)
        real = row < rows
        n, start, stop = sequence_of(row, seq_ptr, cu_ptr, T, rows, PACKED)
        dx = tl.zeros((BT, BC), tl.float32)
        for shift in tl.static_range(W):
            # the row that reads this one with tap W - 1 - shift
            d = before_activation_grad(
                dy_ptr, x_ptr, w_ptr, state_ptr, row + shift, n, start, real & (row + shift < stop), c, C,
                W, HAS_STATE, ACTIVATION,
            )  # fmt: skip
            tap = tl.load(w_ptr + c * W + (W - 1 - shift), mask=c < C, other=0.0).to(tl.float32)
            dx += tap[None, :] * d
            if shift == 0:
                for back in tl.static_range(W):
                    seen = tap_input(x_ptr, state_ptr, row, n, start, real, c, C, back, W, HAS_STATE)
                    dw += tl.where(tap_index[:, None] == W - 1 - back, tl.sum(d * seen, 0)[None, :], 0.0)
        if HAS_FINAL:
            place = row - stop + (W - 1)
            at = (n[:, None].to(tl.int64) * C + c[None, :]) * (W - 1) + place[:, None]
            dx += tl.load(dfinal_ptr + at, mask=(real & (place >= 0))[:, None] & in_width, other=0.0).to(tl.float32)
        at = row[:, None].to(tl.int64) * C + c[None, :]
        tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), mask=real[:, None] & in_width)
    at = (part.to(tl.int64) * W + tap_index[:, None]) * C + c[None, :]
    tl.store(part_ptr + at, dw, mask=(tap_index < W)[:, None] & in_width)


@triton.jit
def conv_window_grads(
    dy_ptr, dfinal_ptr, x_ptr, w_ptr, state_ptr, dstate_ptr, cu_ptr, T, C,
    W: tl.constexpr, BC: tl.constexpr, PACKED: tl.constexpr, HAS_FINAL: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Gradient of one sequence's first window, BC channels: the first S tokens read it, and short sequences pass it on."""
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    one = tl.program_id(0) + tl.zeros((1,), tl.int32)
    start, stop = one * T, one * T + T
    if PACKED:
        start, stop = tl.load(cu_ptr + one), tl.load(cu_ptr + one + 1)
    for place in tl.static_range(W - 1):
        total = tl.zeros((1, BC), tl.float32)
        for age in tl.static_range(place + 1):
            row = start + age
            d = before_activation_grad(
                dy_ptr, x_ptr, w_ptr, state_ptr, row, one, start, row < stop, c, C, W, True, ACTIVATION
            )
            total += d * tl.load(w_ptr + c * W + (place - age), mask=c < C, other=0.0).to(tl.float32)[None, :]
        window = (one[:, None].to(tl.int64) * C + c[None, :]) * (W - 1)
        if HAS_FINAL:
            later = place - (stop - start)
            mask = (later >= 0)[:, None] & (c < C)[None, :]
            total += tl.load(dfinal_ptr + window + later[:, None], mask=mask, other=0.0).to(tl.float32)
        tl.store(dstate_ptr + window + place, total.to(dstate_ptr.dtype.element_ty), mask=(c < C)[None, :])


def _common(x: Tensor, weight: Tensor, cu_seqlens: Tensor | None) -> tuple[dict[str, Any], int, int]:
    """Arguments that all kernels take, the number of rows and of sequences."""
    B, T, C = x.shape
    shared: dict[str, Any] = {"cu_ptr": x, "T": T, "C": C, "W": weight.shape[1], "PACKED": cu_seqlens is not None}
    if cu_seqlens is None:
        return shared, B * T, B
    shared["cu_ptr"] = cu_seqlens.to(x.device, torch.int32).contiguous()
    return shared, B * T, len(cu_seqlens) - 1


def _sequence_index(x: Tensor, cu: Any, packed: bool, rows: int) -> Tensor:
    """[R] int32, the sequence of every row; anything when rows are not packed."""
    if not packed:
        return x
    return torch.repeat_interleave(
        torch.arange(len(cu) - 1, dtype=torch.int32, device=x.device), cu.diff(), output_size=rows
    )


def conv_forward(
    x: Tensor, weight: Tensor, cu_seqlens: Tensor | None, state: Tensor | None, need_final: bool, activation: bool
) -> tuple[Tensor, Tensor | None]:
    """Arguments and results as in ``watersmeet.kernels.short_conv``; x contiguous."""
    weight, state = weight.contiguous(), None if state is None else state.contiguous()
    shared, rows, N = _common(x, weight, cu_seqlens)
    C, W = weight.shape
    y = torch.empty_like(x)
    final = torch.empty(N, C, W - 1, dtype=x.dtype, device=x.device) if need_final else None
    window, tile = CONFIGS["window"], CONFIGS["forward"]
    with_state = {"state_ptr": x if state is None else state, "HAS_STATE": state is not None}
    if x.shape[1] == 1 and cu_seqlens is None and state is not None and final is not None and W > 1 and N:
        conv_step[(N, triton.cdiv(C, window["BC"]))](
            x, weight, state, y, final, C, W=W, ACTIVATION=activation, **window
        )
        return y, final
    if rows:
        seq = _sequence_index(x, shared["cu_ptr"], shared["PACKED"], rows)
        conv_rows[(triton.cdiv(rows, tile["BT"]), triton.cdiv(C, tile["BC"]))](
            x_ptr=x,
            w_ptr=weight,
            y_ptr=y,
            seq_ptr=seq,
            rows=rows,
            ACTIVATION=activation,
            **with_state,
            **shared,
            **tile,
        )
    if final is not None and N and W > 1:
        conv_window[(N, triton.cdiv(C, window["BC"]))](x_ptr=x, final_ptr=final, **with_state, **shared, **window)
    return y, final


def conv_backward(
    dy: Tensor,
    dfinal: Tensor | None,
    x: Tensor,
    weight: Tensor,
    cu_seqlens: Tensor | None,
    state: Tensor | None,
    activation: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of x, weight and the state (None without one), each in its dtype."""
    w, dy = weight.contiguous(), dy.contiguous()
    held, dfinal = None if state is None else state.contiguous(), None if dfinal is None else dfinal.contiguous()
    shared, rows, N = _common(x, w, cu_seqlens)
    C, W = w.shape
    tile, window = CONFIGS["backward"], CONFIGS["window"]
    pointers = {"dy_ptr": dy, "dfinal_ptr": x if dfinal is None else dfinal, "x_ptr": x, "w_ptr": w}
    pointers["state_ptr"] = x if held is None else held
    options = {"HAS_FINAL": dfinal is not None and W > 1, "ACTIVATION": activation}
    dx = torch.empty_like(x)
    dw = torch.zeros_like(w, dtype=torch.float32)
    if rows:
        tiles = triton.cdiv(rows, tile["BT"])
        steps = triton.cdiv(tiles, PARTS)
        parts = torch.empty(triton.cdiv(tiles, steps), W, C, dtype=torch.float32, device=x.device)
        seq = _sequence_index(x, shared["cu_ptr"], shared["PACKED"], rows)
        conv_row_grads[(len(parts), triton.cdiv(C, tile["BC"]))](
            dx_ptr=dx, part_ptr=parts, PW=triton.next_power_of_2(W), seq_ptr=seq, rows=rows, steps=steps, HAS_STATE=held is not None,
            **pointers, **options, **shared, **tile,
        )  # fmt: skip
        dw = parts.sum(0).t()
    dstate = None
    if state is not None and held is not None:
        dstate = torch.empty(held.shape, dtype=held.dtype, device=held.device)
        if N and W > 1:
            conv_window_grads[(N, triton.cdiv(C, window["BC"]))](
                dstate_ptr=dstate, **pointers, **options, **shared, **window
            )
    return dx, dw.to(weight.dtype).contiguous(), dstate


def compile_cases() -> list[Case]:
    """All kernels for the widths that models have: W = 4, activations in both dtypes, packed and with a state or neither."""
    ints = {"T": "i32", "C": "i32"}
    cases = []
    for name, kind in (("bf16", "*bf16"), ("fp32", "*fp32")):
        for full in (True, False):
            rest = {"PACKED": full, "HAS_STATE": full, "HAS_FINAL": full, "ACTIVATION": True, "W": 4, "PW": 4}
            label = f"{name}{' packed' if full else ''}"
            x = {"x_ptr": kind, "w_ptr": "*fp32", "state_ptr": kind}
            where = {"seq_ptr": "*i32", "cu_ptr": "*i32"}
            grads = {"dy_ptr": kind, "dfinal_ptr": kind}

            def case(title: str, kernel: Any, arguments: dict[str, str], config: str) -> Case:
                tile = dict(CONFIGS[config])
                warps = tile.pop("num_warps")
                return Case(
                    name=f"{title} {label}", kernel=kernel, arguments=arguments, num_warps=warps, aligned=("C",),  # noqa: B023
                    constants={key: value for key, value in (rest | tile).items() if key in kernel.arg_names},  # noqa: B023
                    quick=label == "bf16 packed" and title in ("conv_rows", "conv_row_grads"),  # noqa: B023
                )  # fmt: skip

            cases += [
                case("conv_rows", conv_rows, {**x, **where, **ints, "y_ptr": kind, "rows": "i32"}, "forward"),
                case("conv_window", conv_window,
                     {"x_ptr": kind, "state_ptr": kind, "final_ptr": kind, "cu_ptr": "*i32", **ints}, "window"),
                case("conv_row_grads", conv_row_grads,
                     {**x, **grads, **where, **ints, "dx_ptr": kind, "part_ptr": "*fp32", "rows": "i32", "steps": "i32"},
                     "backward"),
                case("conv_window_grads", conv_window_grads,
                     {**x, **grads, **ints, "dstate_ptr": kind, "cu_ptr": "*i32"}, "window"),
            ]  # fmt: skip
            if full:
                arguments = {**x, "y_ptr": kind, "final_ptr": kind, "C": "i32"}
                cases.append(case("conv_step", conv_step, arguments, "window"))
    return cases

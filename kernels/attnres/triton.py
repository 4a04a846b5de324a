"""The Attention Residuals mix on a GPU: one pass over the sources forwards, two backwards, all in registers.

Legend: n sources, T rows, D width, BD >= D and BN >= n powers of two. Formulas and names are those of ``fast.py``.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..compile_check import Case

WIDEST = 8192
"""Wider rows take the torch form: they do not fit the registers of a block backwards."""
MOST_SOURCES = 256
PARTS = 512
"""Most pieces of rows whose sums for the gradient of p are kept apart; they are added in a fixed order."""

CONFIGS = {1024: 2, 2048: 4, 4096: 8, 8192: 16}
"""Warps by the greatest BD; a thread then holds 16 numbers of a row."""


def warps(BD: int) -> int:
    return next(count for widest, count in CONFIGS.items() if widest >= BD)


@triton.jit
def mix_rows(
    x_ptr, p_ptr, y_ptr, r_ptr, s_ptr, n, T, D, eps, BD: tl.constexpr
):  # fmt: skip
    """One row: the softmax runs along with the sources, so each is read once."""
    t = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, BD)
    mask = d < D
    p = tl.load(p_ptr + d, mask=mask, other=0.0)
    y = tl.zeros((BD,), tl.float32)
    greatest = -float("inf")
    total = 0.0
    for i in range(n):
        x = tl.load(x_ptr + (i * T.to(tl.int64) + t) * D + d, mask=mask, other=0.0).to(tl.float32)
        r = tl.rsqrt(tl.sum(x * x, 0) / D + eps)
        s = tl.sum(x * p, 0)
        tl.store(r_ptr + i * T.to(tl.int64) + t, r)
        tl.store(s_ptr + i * T.to(tl.int64) + t, s)
        now = tl.maximum(greatest, r * s)
        old = tl.exp(greatest - now)
        new = tl.exp(r * s - now)
        y = y * old + x * new
        total = total * old + new
        greatest = now
    tl.store(y_ptr + t * D + d, (y / total).to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def mix_row_grads(
    dy_ptr, x_ptr, p_ptr, r_ptr, s_ptr, dx_ptr, part_ptr, n, T, D, steps, BD: tl.constexpr, BN: tl.constexpr
):  # fmt: skip
    """``steps`` rows: gradients of all sources, and their part of the gradient of p, [parts,D] float32."""
    part = tl.program_id(0)
    rows = T.to(tl.int64)
    d, index = tl.arange(0, BD), tl.arange(0, BN)
    mask, there = d < D, index < n
    p = tl.load(p_ptr + d, mask=mask, other=0.0)
    dp = tl.zeros((BD,), tl.float32)
    for step in range(steps):
        t = part.to(tl.int64) * steps + step
        if t < rows:
            dy = tl.load(dy_ptr + t * D + d, mask=mask, other=0.0).to(tl.float32)
            r = tl.load(r_ptr + index * rows + t, mask=there, other=0.0)
            s = tl.load(s_ptr + index * rows + t, mask=there, other=0.0)
            e = tl.where(there, r * s, -float("inf"))
            a = tl.exp(e - tl.max(e, 0))
            a = a / tl.sum(a, 0)
            da = tl.zeros((BN,), tl.float32)
            for i in range(n):
                x = tl.load(x_ptr + (i * rows + t) * D + d, mask=mask, other=0.0).to(tl.float32)
                da = tl.where(index == i, tl.sum(x * dy, 0), da)
            along = a * (da - tl.sum(a * da, 0)) * r
            back = along * s * r * r / D
            for i in range(n):
                at = (i * rows + t) * D + d
                x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
                mine = index == i
                a_i, along_i = tl.sum(tl.where(mine, a, 0.0), 0), tl.sum(tl.where(mine, along, 0.0), 0)
                dx = a_i * dy + along_i * p - tl.sum(tl.where(mine, back, 0.0), 0) * x
                dp += along_i * x
                tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), mask=mask)
    tl.store(part_ptr + part.to(tl.int64) * D + d, dp, mask=mask)


def mix_forward(sources_nTD: Tensor, p_D: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """As the function of this name in ``fast.py``."""
    n, T, D = sources_nTD.shape
    y_TD = torch.empty(T, D, dtype=sources_nTD.dtype, device=sources_nTD.device)
    r_nT = torch.empty(n, T, dtype=torch.float32, device=sources_nTD.device)
    s_nT = torch.empty_like(r_nT)
    if T:
        BD = triton.next_power_of_2(D)
        mix_rows[(T,)](sources_nTD, p_D, y_TD, r_nT, s_nT, n, T, D, eps, BD=BD, num_warps=warps(BD))
    return y_TD, r_nT, s_nT


def mix_backward(dy_TD: Tensor, sources_nTD: Tensor, p_D: Tensor, r_nT: Tensor, s_nT: Tensor) -> tuple[Tensor, Tensor]:
    """As the function of this name in ``fast.py``."""
    n, T, D = sources_nTD.shape
    dx_nTD = torch.empty_like(sources_nTD)
    if not T:
        return dx_nTD, torch.zeros_like(p_D)
    BD, BN, steps = triton.next_power_of_2(D), triton.next_power_of_2(n), triton.cdiv(T, PARTS)
    parts = torch.empty(triton.cdiv(T, steps), D, dtype=torch.float32, device=p_D.device)
    mix_row_grads[(len(parts),)](
        dy_TD, sources_nTD, p_D, r_nT, s_nT, dx_nTD, parts, n, T, D, steps, BD=BD, BN=BN, num_warps=warps(BD)
    )
    return dx_nTD, parts.sum(0)


def compile_cases() -> list[Case]:
    """Every width class, both dtypes, and as many sources as the deepest model has."""
    cases = []
    for name, kind in (("bf16", "*bf16"), ("fp32", "*fp32")):
        for BD in CONFIGS:
            rows = {"x_ptr": kind, "p_ptr": "*fp32", "r_ptr": "*fp32", "s_ptr": "*fp32"}
            ints = {"n": "i32", "T": "i32", "D": "i32"}
            shared: dict[str, Any] = {"num_warps": warps(BD), "aligned": ("D",), "quick": name == "bf16" and BD == 8192}
            cases += [
                Case(
                    name=f"mix_rows {name} {BD}", kernel=mix_rows, constants={"BD": BD},
                    arguments={**rows, **ints, "y_ptr": kind, "eps": "fp32"}, **shared,
                ),
                Case(
                    name=f"mix_row_grads {name} {BD}", kernel=mix_row_grads, constants={"BD": BD, "BN": 16},
                    arguments={**rows, **ints, "dy_ptr": kind, "dx_ptr": kind, "part_ptr": "*fp32", "steps": "i32"},
                    **shared,
                ),
            ]  # fmt: skip
    return cases

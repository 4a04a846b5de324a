"""The grouped feed-forward of experts on a GPU: rows sorted by expert, no padding of groups, no work for idle experts.

Legend: M rows, E experts, L width of a row, I inner width; BM rows of a tile, all of one expert, BN columns of the result,
BK of the sum. Weights may be packed MXFP4: two codes a byte along the last axis, low half first, one power of two for 32
columns; they are decoded in registers on their way into the product.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..compile_check import CHIPS, Case
from ..dispatch import interpreting

# kind of numbers -> rows of a tile -> tile and launch options. BK is one number a kind: a row's sums are added in the
# same order whatever the size of its group. On ROCm one stage less is kept in the smaller shared memory.
CONFIGS: dict[str, dict[int, dict[str, int]]] = {
    "half": {
        16: {"BN": 64, "BK": 64, "num_warps": 4, "num_stages": 4},
        32: {"BN": 64, "BK": 64, "num_warps": 4, "num_stages": 4},
        64: {"BN": 64, "BK": 64, "num_warps": 4, "num_stages": 3},
        128: {"BN": 64, "BK": 64, "num_warps": 8, "num_stages": 3},
    },
    "full": {
        16: {"BN": 32, "BK": 32, "num_warps": 4, "num_stages": 2},
        32: {"BN": 32, "BK": 32, "num_warps": 4, "num_stages": 2},
        64: {"BN": 64, "BK": 32, "num_warps": 8, "num_stages": 2},
    },
}
SUMMED_ROWS = {"half": 64, "full": 32}
"""Rows of a step of the sum that makes a weight's gradient."""
MOST_PACKED = {"half": 64, "full": 32}
"""Rows of a tile for packed weights: decoding takes the registers that a larger one would need."""


@triton.jit
def tanh(x):
    """Full relative accuracy also near zero, where the quotient of exponentials has none."""
    e = tl.exp(-2.0 * tl.abs(x))
    far = (1.0 - e) / (1.0 + e)
    y = x * x
    near = x * (1.0 + y * (-0.33333334 + y * (0.13333334 + y * (-0.053968254 + y * 0.021869488))))
    return tl.where(tl.abs(x) < 0.3, near, tl.where(x < 0, -far, far))


@triton.jit
def gated(gate, up, beta, linear_beta, SITU: tl.constexpr, LINEAR: tl.constexpr):
    """SiTU-GLU or SwiGLU. LINEAR: the up branch is not bounded."""
    s = tl.sigmoid(gate)
    if SITU:
        left = beta * tanh(gate / beta) * s
        if LINEAR:
            return left * up
        else:
            return left * linear_beta * tanh(up / linear_beta)
    else:
        return gate * s * up


@triton.jit
def gated_grads(d, gate, up, beta, linear_beta, SITU: tl.constexpr, LINEAR: tl.constexpr):
    """Gradients of gate and up, and the value again."""
    s = tl.sigmoid(gate)
    if SITU:
        t = tanh(gate / beta)
        left = beta * t * s
        slope = s * ((1.0 - t * t) + beta * t * (1.0 - s))
        if LINEAR:
            return d * up * slope, d * left, left * up
        else:
            u = tanh(up / linear_beta)
            right = linear_beta * u
            return d * right * slope, d * left * (1.0 - u * u), left * right
    else:
        return d * up * s * (1.0 + gate * (1.0 - s)), d * gate * s, gate * s * up


@triton.jit
def product(a, b, total, PRECISION: tl.constexpr):
    """total + a @ b with sums in float32. Triton's interpreter cannot multiply bfloat16, so there it is widened first."""
    if PRECISION == "emulated":
        return tl.dot(a.to(tl.float32), b.to(tl.float32), total, input_precision="ieee")
    else:
        return tl.dot(a, b, total, input_precision=PRECISION)


@triton.jit
def code_value(code):
    """E2M1: sign bit 3, then 0, 0.5, 1, 1.5, 2, 3, 4, 6; built from the bits of a float32."""
    magnitude = (code & 7).to(tl.int32)
    normal = ((magnitude >> 1) + 126) << 23 | (magnitude & 1) << 22
    bits = tl.where(magnitude < 2, magnitude * 0x3F000000, normal)
    return (bits | (code & 8).to(tl.int32) << 28).to(tl.float32, bitcast=True)


@triton.jit
def scale_value(byte):
    """E8M0: 2^(byte - 127); the least one is no normal float32, and 255 is NaN."""
    b = byte.to(tl.int32)
    bits = tl.where(b == 0, 0x00400000, tl.where(b == 255, 0x7FC00000, b << 23))
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def weight_tile(
    w_ptr, scale_ptr, e, row, first_column, rows, columns, stride_e, stride_row,
    BC: tl.constexpr, PACKED: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """Rows ``row`` and BC columns of expert e's matrix [rows, columns], zero outside, as TYPE."""
    base = e.to(tl.int64) * stride_e + row[:, None].to(tl.int64) * stride_row
    here = (row < rows)[:, None]
    if PACKED:
        half = first_column // 2 + tl.arange(0, BC // 2)
        byte = tl.load(w_ptr + base + half[None, :], mask=here & (half < columns // 2)[None, :], other=0)
        value = tl.reshape(tl.join(code_value(byte & 15), code_value(byte >> 4)), (row.shape[0], BC))
        block = first_column // 32 + tl.arange(0, BC // 32)
        # scales are laid out as the weights are, a sixteenth as wide as bytes of two codes
        scale = scale_value(
            tl.load(scale_ptr + base // 16 + block[None, :], mask=here & (block < columns // 32)[None, :], other=127)
        )
        wide = tl.broadcast_to(scale[:, :, None], (row.shape[0], BC // 32, 32))
        return (value * tl.reshape(wide, (row.shape[0], BC))).to(TYPE)
    else:
        column = first_column + tl.arange(0, BC)
        return tl.load(w_ptr + base + column[None, :], mask=here & (column < columns)[None, :], other=0.0).to(TYPE)


@triton.jit
def rows_of_tile(tile_ptr, offset_ptr, tiles, BM: tl.constexpr):
    """Expert, rows and which of them exist; an expert of -1 marks a tile that is not needed."""
    tile = tl.program_id(0)
    e = tl.load(tile_ptr + tile)
    first = tl.load(tile_ptr + tiles + tile)
    row = first + tl.arange(0, BM)
    return e, row.to(tl.int64), row < tl.load(offset_ptr + tl.maximum(e, 0) + 1)


@triton.jit
def glu_up(
    x_ptr, gate_w, gate_s, up_w, up_s, h_ptr, gate_ptr, up_ptr, tile_ptr, offset_ptr, tiles, L, inner,
    gate_e, gate_r, up_e, up_r, beta, linear_beta,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PACKED: tl.constexpr, KEEP: tl.constexpr,
    SITU: tl.constexpr, LINEAR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """h = act(x W_gate^T, x W_up^T) of one tile; KEEP: also both products."""
    e, row, real = rows_of_tile(tile_ptr, offset_ptr, tiles, BM)
    if e >= 0:
        n = tl.program_id(1) * BN + tl.arange(0, BN)
        gate = tl.zeros((BM, BN), tl.float32)
        up = tl.zeros((BM, BN), tl.float32)
        for first in range(0, L, BK):
            k = first + tl.arange(0, BK)
            x = tl.load(x_ptr + row[:, None] * L + k[None, :], mask=real[:, None] & (k < L)[None, :], other=0.0)
            w = weight_tile(gate_w, gate_s, e, n, first, inner, L, gate_e, gate_r, BK, PACKED, x.dtype)
            gate = product(x, tl.trans(w), gate, PRECISION)
            w = weight_tile(up_w, up_s, e, n, first, inner, L, up_e, up_r, BK, PACKED, x.dtype)
            up = product(x, tl.trans(w), up, PRECISION)
        at = row[:, None] * inner + n[None, :]
        mask = real[:, None] & (n < inner)[None, :]
        kind: tl.constexpr = h_ptr.dtype.element_ty
        if KEEP:
            tl.store(gate_ptr + at, gate.to(kind), mask=mask)
            tl.store(up_ptr + at, up.to(kind), mask=mask)
        tl.store(h_ptr + at, gated(gate, up, beta, linear_beta, SITU, LINEAR).to(kind), mask=mask)


@triton.jit
def rows_times(
    a_ptr, a_w, a_s, b_ptr, b_w, b_s, y_ptr, tile_ptr, offset_ptr, tiles, K, N, a_e, a_r, b_e, b_r,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PACKED: tl.constexpr, TURNED: tl.constexpr,
    TWO: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """y [M,N] = a [M,K] times a's expert matrix, [N,K] when TURNED and [K,N] otherwise; TWO: the same of b is added."""
    e, row, real = rows_of_tile(tile_ptr, offset_ptr, tiles, BM)
    if e >= 0:
        first_n = tl.program_id(1) * BN
        n = first_n + tl.arange(0, BN)
        y = tl.zeros((BM, BN), tl.float32)
        for first in range(0, K, BK):
            k = first + tl.arange(0, BK)
            at = row[:, None] * K + k[None, :]
            mask = real[:, None] & (k < K)[None, :]
            a = tl.load(a_ptr + at, mask=mask, other=0.0)
            if TURNED:
                w = tl.trans(weight_tile(a_w, a_s, e, n, first, N, K, a_e, a_r, BK, PACKED, a.dtype))
            else:
                w = weight_tile(a_w, a_s, e, k, first_n, K, N, a_e, a_r, BN, PACKED, a.dtype)
            y = product(a, w, y, PRECISION)
            if TWO:
                b = tl.load(b_ptr + at, mask=mask, other=0.0)
                w = weight_tile(b_w, b_s, e, k, first_n, K, N, b_e, b_r, BN, PACKED, b.dtype)
                y = product(b, w, y, PRECISION)
        at = row[:, None] * N + n[None, :]
        tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=real[:, None] & (n < N)[None, :])


@triton.jit
def glu_down_grads(
    dy_ptr, down_w, down_s, gate_ptr, up_ptr, h_ptr, dgate_ptr, dup_ptr, tile_ptr, offset_ptr, tiles, L, inner,
    down_e, down_r, beta, linear_beta,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PACKED: tl.constexpr,
    SITU: tl.constexpr, LINEAR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """From dy [M,L] through W_down [L,I] and the activation: gradients of both products [M,I], and h again."""
    e, row, real = rows_of_tile(tile_ptr, offset_ptr, tiles, BM)
    if e >= 0:
        first_n = tl.program_id(1) * BN
        n = first_n + tl.arange(0, BN)
        dh = tl.zeros((BM, BN), tl.float32)
        for first in range(0, L, BK):
            k = first + tl.arange(0, BK)
            dy = tl.load(dy_ptr + row[:, None] * L + k[None, :], mask=real[:, None] & (k < L)[None, :], other=0.0)
            w = weight_tile(down_w, down_s, e, k, first_n, L, inner, down_e, down_r, BN, PACKED, dy.dtype)
            dh = product(dy, w, dh, PRECISION)
        at = row[:, None] * inner + n[None, :]
        mask = real[:, None] & (n < inner)[None, :]
        gate = tl.load(gate_ptr + at, mask=mask, other=0.0).to(tl.float32)
        up = tl.load(up_ptr + at, mask=mask, other=0.0).to(tl.float32)
        dgate, dup, h = gated_grads(dh, gate, up, beta, linear_beta, SITU, LINEAR)
        kind: tl.constexpr = h_ptr.dtype.element_ty
        tl.store(dgate_ptr + at, dgate.to(kind), mask=mask)
        tl.store(dup_ptr + at, dup.to(kind), mask=mask)
        tl.store(h_ptr + at, h.to(kind), mask=mask)


@triton.jit
def weight_grads(
    a_ptr, b_ptr, dw_ptr, offset_ptr, A, B,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dW [E,A,B] = a^T b over the rows of each expert, a [M,A], b [M,B]; zero for an expert without rows."""
    e = tl.program_id(0)
    p = tl.program_id(1) * BN + tl.arange(0, BN)
    q = tl.program_id(2) * BK + tl.arange(0, BK)
    start, stop = tl.load(offset_ptr + e), tl.load(offset_ptr + e + 1)
    dw = tl.zeros((BN, BK), tl.float32)
    for first in range(start, stop, BM):
        row = (first + tl.arange(0, BM)).to(tl.int64)
        real = (row < stop)[:, None]
        a = tl.load(a_ptr + row[:, None] * A + p[None, :], mask=real & (p < A)[None, :], other=0.0)
        b = tl.load(b_ptr + row[:, None] * B + q[None, :], mask=real & (q < B)[None, :], other=0.0)
        dw = product(tl.trans(a), b, dw, PRECISION)
    at = (e.to(tl.int64) * A + p[:, None]) * B + q[None, :]
    tl.store(dw_ptr + at, dw.to(dw_ptr.dtype.element_ty), mask=(p < A)[:, None] & (q < B)[None, :])


def _precision(kind: str, hip: bool) -> str:
    """Of a product; "tf32" says nothing for numbers of 16 bits, where it is what the compiler expects."""
    return "tf32" if kind == "half" and not hip else "ieee"


def _stages(options: dict[str, int], hip: bool) -> dict[str, int]:
    return {**options, "num_stages": 2} if hip else options


class _Plan:
    """Tiles of rows, each within one expert: found on the device, because nobody here knows the sizes of the groups."""

    def __init__(self, x: Tensor, offsets: Tensor, experts: int, packed: bool) -> None:
        rows = x.shape[0]
        kind = "half" if x.element_size() == 2 else "full"
        mean, sizes = rows / max(1, experts), [BM for BM in CONFIGS[kind] if not packed or MOST_PACKED[kind] >= BM]
        self.BM = next((BM for BM in sizes if mean <= BM), sizes[-1])
        self.options = {**_stages(CONFIGS[kind][self.BM], torch.version.hip is not None), "BM": self.BM}
        self.summed_rows = SUMMED_ROWS[kind]
        self.precision = _precision(kind, torch.version.hip is not None)
        if interpreting():
            self.precision = "emulated"
        self.offsets = offsets.to(x.device, torch.int32).contiguous()
        counts = self.offsets.diff()
        per_expert = (counts + self.BM - 1) // self.BM
        ends = per_expert.cumsum(0)
        self.tiles = triton.cdiv(rows, self.BM) + min(experts, rows)  # at most
        tile = torch.arange(self.tiles, device=x.device)
        e = torch.searchsorted(ends, tile, right=True)
        inside = e.clamp(max=experts - 1)
        first = self.offsets[inside] + (tile - (ends - per_expert)[inside]) * self.BM
        self.table = torch.stack([torch.where(e < experts, e, -1), first]).to(torch.int32)

    def grid(self, columns: int) -> tuple[int, int]:
        return self.tiles, triton.cdiv(columns, self.options["BN"])

    def arguments(self) -> dict[str, Any]:
        where = {"tile_ptr": self.table, "offset_ptr": self.offsets, "tiles": self.tiles, "PRECISION": self.precision}
        return {**where, **self.options}


def _laid_out(
    weights: tuple[Tensor, Tensor, Tensor], scales: tuple[Tensor, Tensor, Tensor] | None
) -> tuple[list[Tensor], list[Tensor]]:
    """Columns next to each other, and scales as their weights; halves of a joint matrix stay where they are."""
    if scales is None:
        whole = [w if w.stride(2) == 1 else w.contiguous() for w in weights]
        return whole, whole
    pairs = [
        (w, s) if w.stride() == (16 * s.stride(0), 16 * s.stride(1), 1) and s.stride(2) == 1
        else (w.contiguous(), s.contiguous())
        for w, s in zip(weights, scales, strict=True)
    ]  # fmt: skip
    return [w for w, _ in pairs], [s for _, s in pairs]


def _act(beta: float | None, linear_beta: float | None) -> dict[str, Any]:
    return {
        "beta": beta or 1.0, "linear_beta": linear_beta or 1.0, "SITU": beta is not None, "LINEAR": linear_beta is None,
    }  # fmt: skip


def glu_forward(
    x: Tensor,
    offsets: Tensor,
    weights: tuple[Tensor, Tensor, Tensor],
    scales: tuple[Tensor, Tensor, Tensor] | None,
    beta: float | None,
    linear_beta: float | None,
    keep: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """As the function of this name in ``fast.py``."""
    (gate_w, up_w, down_w), (gate_s, up_s, down_s) = _laid_out(weights, scales)
    M, L = x.shape
    E, inner = gate_w.shape[:2]
    y = torch.empty_like(x)
    h, *kept = (torch.empty(M, inner, dtype=x.dtype, device=x.device) for _ in range(3 if keep else 1))
    gate, up = kept if keep else (None, None)
    if not M:
        return y, gate, up
    plan, packed = _Plan(x, offsets, E, scales is not None), scales is not None
    glu_up[plan.grid(inner)](
        x, gate_w, gate_s, up_w, up_s, h, h if gate is None else gate, h if up is None else up, L=L, inner=inner,
        gate_e=gate_w.stride(0), gate_r=gate_w.stride(1), up_e=up_w.stride(0), up_r=up_w.stride(1),
        PACKED=packed, KEEP=keep, **_act(beta, linear_beta), **plan.arguments(),
    )  # fmt: skip
    rows_times[plan.grid(L)](
        h, down_w, down_s, h, down_w, down_s, y, K=inner, N=L, a_e=down_w.stride(0), a_r=down_w.stride(1), b_e=0, b_r=0,
        PACKED=packed, TURNED=True, TWO=False, **plan.arguments(),
    )  # fmt: skip
    return y, gate, up


def glu_backward(
    dy: Tensor,
    x: Tensor,
    offsets: Tensor,
    weights: tuple[Tensor, Tensor, Tensor],
    scales: tuple[Tensor, Tensor, Tensor] | None,
    beta: float | None,
    linear_beta: float | None,
    gate: Tensor,
    up: Tensor,
    need_weights: bool,
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor] | None]:
    """As the function of this name in ``fast.py``."""
    (gate_w, up_w, down_w), (gate_s, up_s, down_s) = _laid_out(weights, scales)
    M, L = x.shape
    E, inner = gate_w.shape[:2]
    dx = torch.empty_like(x)
    if not M:
        return dx, tuple(torch.zeros_like(w) for w in weights) if need_weights else None  # type: ignore[return-value]
    plan, packed = _Plan(x, offsets, E, scales is not None), scales is not None
    h, dgate, dup = (torch.empty_like(gate) for _ in range(3))
    glu_down_grads[plan.grid(inner)](
        dy, down_w, down_s, gate, up, h, dgate, dup, L=L, inner=inner, down_e=down_w.stride(0), down_r=down_w.stride(1),
        PACKED=packed, **_act(beta, linear_beta), **plan.arguments(),
    )  # fmt: skip
    rows_times[plan.grid(L)](
        dgate, gate_w, gate_s, dup, up_w, up_s, dx, K=inner, N=L, a_e=gate_w.stride(0), a_r=gate_w.stride(1),
        b_e=up_w.stride(0), b_r=up_w.stride(1), PACKED=packed, TURNED=False, TWO=True, **plan.arguments(),
    )  # fmt: skip
    if not need_weights:
        return dx, None
    shared = {key: value for key, value in plan.arguments().items() if key not in ("tile_ptr", "tiles")}
    shared["BM"] = plan.summed_rows
    grads = []
    for a, b, w in ((dgate, x, gate_w), (dup, x, up_w), (dy, h, down_w)):
        dw = torch.empty(w.shape, dtype=w.dtype, device=w.device)
        grid = (E, triton.cdiv(w.shape[1], shared["BN"]), triton.cdiv(w.shape[2], shared["BK"]))
        weight_grads[grid](a, b, dw, A=w.shape[1], B=w.shape[2], **shared)
        grads.append(dw)
    return dx, (grads[0], grads[1], grads[2])


def compile_cases() -> list[Case]:
    """Every configuration: rows of a tile, kinds of numbers, weights of the same kind, float32 (master) or packed."""
    cases = []
    cuda = tuple(name for name, chip in CHIPS.items() if chip.backend == "cuda")
    hip = tuple(name for name in CHIPS if name not in cuda)
    ints = {name: "i32" for name in ("tiles", "L", "inner")}
    where = {"tile_ptr": "*i32", "offset_ptr": "*i32"}
    for kind, x in (("half", "*bf16"), ("full", "*fp32")):
        for BM, options in CONFIGS[kind].items():
            for chips in (cuda, hip):
                tile = {"BM": BM, **_stages(options, chips is hip)}
                launch: dict[str, Any] = {key: tile.pop(key) for key in ("num_warps", "num_stages")}
                precision = _precision(kind, chips is hip)
                for weights, w in (("same", x), ("master", "*fp32"), ("packed", "*u8")):
                    if (weights == "master" and kind == "full") or (weights == "packed" and MOST_PACKED[kind] < BM):
                        continue
                    held = {
                        **tile,
                        "PACKED": weights == "packed",
                        "PRECISION": precision,
                        "SITU": True,
                        "LINEAR": False,
                    }
                    floats = {"beta": "fp32", "linear_beta": "fp32"}
                    strides = {name: "i32" for name in ("a_e", "a_r", "b_e", "b_r")}
                    two = {"a_ptr": x, "a_w": w, "a_s": "*u8", "b_ptr": x, "b_w": w, "b_s": "*u8", "y_ptr": x}
                    size = {"tiles": "i32", "K": "i32", "N": "i32"}
                    up = {"x_ptr": x, "gate_w": w, "gate_s": "*u8", "up_w": w, "up_s": "*u8", "h_ptr": x, "gate_ptr": x}
                    up |= {"up_ptr": x, "gate_e": "i32", "gate_r": "i32", "up_e": "i32", "up_r": "i32"}
                    down = {"dy_ptr": x, "down_w": w, "down_s": "*u8", "gate_ptr": x, "up_ptr": x, "h_ptr": x}
                    down |= {"dgate_ptr": x, "dup_ptr": x, "down_e": "i32", "down_r": "i32"}
                    listed: list[tuple[str, Any, dict[str, str], dict[str, Any]]] = [
                        ("glu_up", glu_up, {**up, **where, **ints, **floats}, {**held, "KEEP": True}),
                        ("rows_times down", rows_times, {**two, **where, **size, **strides},
                         {**held, "TURNED": True, "TWO": False}),
                        ("rows_times dx", rows_times, {**two, **where, **size, **strides},
                         {**held, "TURNED": False, "TWO": True}),
                        ("glu_down_grads", glu_down_grads, {**down, **where, **ints, **floats}, held),
                    ]  # fmt: skip
                    if weights != "packed":
                        arguments = {"a_ptr": x, "b_ptr": x, "dw_ptr": w, "offset_ptr": "*i32", "A": "i32", "B": "i32"}
                        listed.append(("weight_grads", weight_grads, arguments, {**held, "BM": SUMMED_ROWS[kind]}))
                    for title, kernel, arguments, constants in listed:
                        cases.append(Case(
                            name=f"{title} {kind} {BM} {weights}", kernel=kernel, arguments=arguments, chips=chips,
                            constants={k: v for k, v in constants.items() if k in kernel.arg_names},
                            aligned=tuple(name for name in (*ints, *size, *strides, "A", "B", "gate_e", "gate_r", "up_e",
                                                            "up_r", "down_e", "down_r") if name != "tiles"),
                            quick=kind == "half" and BM == 64 and (title, weights) in (
                                ("glu_up", "packed"), ("weight_grads", "same")), **launch,
                        ))  # fmt: skip
    return cases

"""The Triton form of KDA: which kernels run in which order, with which tiles. The kernels are in ``triton_*.py``.

Legend: B batch, T tokens, N sequences, H heads, K key channels, V value channels, C rows of a chunk.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..dispatch import interpreting
from . import triton_backward, triton_configs, triton_forward, triton_gate, triton_recurrent
from .triton_configs import CONFIGS, Config, configuration

CHUNK = 64
CHUNK_WIDE = 32
"""Rows of a chunk for float32 operands: a product in three parts needs its registers many times over."""
GATE_PARTS = 256
"""Most pieces of rows whose sums for A_log and dt_bias are kept apart; they are added in a fixed order."""


Launch = Callable[[Any, tuple[int, ...], dict[str, Any], dict[str, Any], Config], None]


def launch_kernel(
    kernel: Any, grid: tuple[int, ...], arguments: dict[str, Any], constants: dict[str, Any], config: Config
) -> None:
    device = next(x.device for x in arguments.values() if isinstance(x, Tensor))
    # a launch goes to the current device, which is another one where a model lies on several
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        kernel[grid](**arguments, **constants, num_warps=config.warps, num_stages=config.stages)


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """Where the chunks of all sequences lie; see `triton_common.py`."""

    table: Tensor  # [chunks,2] int32
    chunk_bounds: Tensor  # [N+1] int32: first chunk of every sequence
    token_bounds: Tensor  # [N+1] int32: first row of every sequence
    lengths: tuple[int, ...]

    @property
    def sequences(self) -> int:
        return len(self.lengths)

    @property
    def chunks(self) -> int:
        return self.table.shape[0]


@lru_cache(maxsize=256)
def plan(lengths: tuple[int, ...], chunk: int, device: torch.device) -> Plan:
    """The plan for sequences of these lengths laid end to end."""
    table, chunks, tokens = [], [0], [0]
    for length in lengths:
        table += [(tokens[-1] + at, min(chunk, length - at)) for at in range(0, length, chunk)]
        chunks.append(len(table))
        tokens.append(tokens[-1] + length)
    as_tensor = lambda x: torch.tensor(x, dtype=torch.int32).to(device)  # noqa: E731
    return Plan(
        table=as_tensor(table).view(-1, 2), chunk_bounds=as_tensor(chunks), token_bounds=as_tensor(tokens),
        lengths=lengths,
    )  # fmt: skip


def _power(x: int) -> int:
    return max(16, triton.next_power_of_2(x))


@dataclass(frozen=True, kw_only=True)
class _Call:
    """What all launches of one call share."""

    B: int
    T: int
    H: int
    K: int
    V: int
    plan: Plan
    operand: torch.dtype
    chunk: int
    hip: bool
    launch: Launch
    emulate: bool

    @property
    def rows(self) -> int:
        return self.B * self.T

    @property
    def precision(self) -> str:
        """Of products of float32 operands: three products of the tensor cores, or AMD's own float32 ones."""
        return "ieee" if self.hip else "tf32x3"

    def run(self, kernel: Any, grid: Callable[[Config], tuple[int, ...]], arguments: dict[str, Any], *sizes: str,
            **constants: Any) -> None:  # fmt: skip
        """Launch with the constants named in ``sizes`` (K, V, BK, BV, PK) and the operand type added."""
        name = kernel.fn.__name__
        config = configuration(name, self.operand, self.K, self.hip)
        known = {
            "K": self.K, "V": self.V, "PK": _power(self.K), "C": self.chunk, "LEVELS": self.chunk.bit_length() - 1,
            "BK": min(config.keys, _power(self.K)), "BV": min(config.values, _power(self.V)),
            "OPERAND": tl.bfloat16 if self.operand == torch.bfloat16 else tl.float32, "PRECISION": self.precision,
            "EMULATE": self.emulate,
        }  # fmt: skip
        wanted = {size: known[size] for size in sizes}
        places = grid(Config(keys=known["BK"], values=known["BV"]))
        if all(places):
            self.launch(kernel, places, arguments, wanted | constants, config)


def supports(q: Tensor, v: Tensor) -> bool:
    """Widths whose tiles fit. A wider state in float32 would not stay in registers: three products are made of each."""
    K, V = q.shape[3], v.shape[3]
    return K % 16 == 0 and V % 16 == 0 and 0 < V <= 256 and 0 < K <= (256 if q.dtype == torch.bfloat16 else 128)


def saved_shape(q: Tensor) -> tuple[int, int, int, int, int]:
    """[2,B,T,H,C]: P and L, in the type of the operands."""
    B, T, H, _ = q.shape
    return 2, B, T, H, CHUNK if q.dtype == torch.bfloat16 else CHUNK_WIDE


def _call(
    q: Tensor, v: Tensor, lengths: tuple[int, ...], launch: Launch = launch_kernel, hip: bool | None = None
) -> _Call:
    B, T, H, K = q.shape
    V = v.shape[3]
    if not supports(q, v):
        raise ValueError(
            f"the Triton form of kda got K={K}, V={V} in {q.dtype}; both must be multiples of 16, at most 256, and K at "
            f"most 128 for float32"
        )
    operand = torch.bfloat16 if q.dtype == torch.bfloat16 else torch.float32
    chunk = saved_shape(q)[-1]
    return _Call(
        B=B, T=T, H=H, K=K, V=V, plan=plan(lengths, chunk, q.device), operand=operand, chunk=chunk,
        hip=torch.version.hip is not None if hip is None else hip, launch=launch, emulate=interpreting(),
    )  # fmt: skip


OPERANDS = ("OPERAND", "PRECISION", "EMULATE")


@dataclass(kw_only=True, eq=False)
class _Rows:
    """What `chunk_rows` and `chunk_states` made."""

    W: Tensor
    R: Tensor
    Q: Tensor
    D: Tensor
    N: Tensor
    S: Tensor
    final: Tensor | None


def _states(
    call: _Call, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, L: Tensor, initial: Tensor | None,
    need_final: bool,
) -> _Rows:  # fmt: skip
    H, K, V, plan = call.H, call.K, call.V, call.plan
    W, R, Q = (q.new_empty(call.rows, H, K, dtype=call.operand) for _ in range(3))
    U, N = (q.new_empty(call.rows, H, V, dtype=call.operand) for _ in range(2))
    D = q.new_empty(plan.chunks, H, K, dtype=torch.float32)
    S = q.new_empty(plan.chunks, H, K, V, dtype=call.operand)
    final = q.new_empty(plan.sequences, H, K, V, dtype=torch.float32) if need_final else None
    call.run(
        triton_forward.chunk_rows, lambda _: (plan.chunks, H),
        dict(q=q, k=k, v=v, g=g, beta=beta, table=plan.table, L=L, W=W, U=U, R=R, Q=Q, D=D, H=H),
        "K", "V", "BK", "BV", "C", *OPERANDS,
    )  # fmt: skip
    call.run(
        triton_forward.chunk_states, lambda c: (triton.cdiv(V, c.values), plan.sequences * H),
        dict(
            W=W, U=U, R=R, D=D, initial=D if initial is None else initial, table=plan.table, bounds=plan.chunk_bounds,
            N=N, S=S, final=D if final is None else final, H=H,
        ),
        "K", "V", "PK", "BV", "C", *OPERANDS,
        HAS_INITIAL=initial is not None, NEED_FINAL=need_final,
    )  # fmt: skip
    return _Rows(W=W, R=R, Q=Q, D=D, N=N, S=S, final=final)


def forward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, initial: Tensor | None, *, scale: float,
    lengths: tuple[int, ...], bounded: bool, need_final: bool, launch: Launch = launch_kernel, hip: bool | None = None,
) -> tuple[Tensor, Tensor | None, Tensor]:  # fmt: skip
    """o [B,T,H,V], the final states [N,H,K,V] or None, and what the backward reads: P and L, [2,B,T,H,C]."""
    call = _call(q, v, lengths, launch, hip)
    q, k, v, g, beta = (x.contiguous() for x in (q, k, v, g, beta))
    initial = None if initial is None else initial.contiguous()
    H, V, chunks, table = call.H, call.V, call.plan.chunks, call.plan.table
    saved = q.new_empty(saved_shape(q), dtype=call.operand)
    P, L = saved.unbind(0)
    call.run(
        triton_forward.chunk_tiles, lambda _: (chunks, H),
        dict(q=q, k=k, g=g, beta=beta, table=table, P=P, L=L, H=H),
        "K", "BK", "C", "LEVELS", *OPERANDS,
        BOUNDED=bounded and call.operand == torch.bfloat16, FINE="ieee" if call.hip else "tf32" if call.operand == torch.bfloat16 else "tf32x3",
    )  # fmt: skip
    made = _states(call, q, k, v, g, beta, L, initial, need_final)
    o = torch.empty_like(v)
    call.run(
        triton_forward.chunk_outputs, lambda c: (chunks, H, triton.cdiv(V, c.values)),
        dict(Q=made.Q, P=P, N=made.N, S=made.S, table=table, o=o, H=H, scale=scale),
        "K", "V", "BK", "BV", "C", *OPERANDS,
    )  # fmt: skip
    return o, made.final, saved


def backward(
    saved: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, initial: Tensor | None, do: Tensor,
    dfinal: Tensor | None, *, scale: float, lengths: tuple[int, ...], bounded: bool, need_initial: bool,
    launch: Launch = launch_kernel, hip: bool | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None]:  # fmt: skip
    """Gradients of q, k, v, g, beta and of the initial states."""
    call = _call(q, v, lengths, launch, hip)
    q, k, v, g, beta, do = (x.contiguous() for x in (q, k, v, g, beta, do))
    initial = None if initial is None else initial.contiguous()
    dfinal = None if dfinal is None else dfinal.contiguous()
    H, K, V, chunks, table = call.H, call.K, call.V, call.plan.chunks, call.plan.table
    P, L = saved.unbind(0)
    made = _states(call, q, k, v, g, beta, L, initial, False)
    dN, dX = (torch.empty_like(made.N) for _ in range(2))
    dP, dA = torch.empty_like(P), torch.empty_like(L)
    dS = torch.empty_like(made.S)
    call.run(
        triton_backward.value_grads, lambda _: (chunks, H),
        dict(P=P, N=made.N, do=do, table=table, dN=dN, dP=dP, H=H, scale=scale),
        "V", "BV", "C", *OPERANDS,
    )  # fmt: skip
    dinitial = q.new_empty(call.plan.sequences, H, K, V, dtype=torch.float32) if need_initial else None
    call.run(
        triton_backward.state_grads, lambda c: (triton.cdiv(V, c.values), call.plan.sequences * H),
        dict(
            W=made.W, R=made.R, Q=made.Q, D=made.D, do=do, dfinal=made.D if dfinal is None else dfinal, table=table,
            bounds=call.plan.chunk_bounds, dN=dN, dS=dS, dinitial=made.D if dinitial is None else dinitial, H=H,
            scale=scale,
        ),
        "K", "V", "PK", "BV", "C", *OPERANDS,
        HAS_FINAL=dfinal is not None, NEED_INITIAL=need_initial,
    )  # fmt: skip
    dv, dq, dk, dg = (torch.empty_like(x) for x in (v, q, k, g))
    tiles = triton.cdiv(K, min(configuration("key_grads", call.operand, K, call.hip).keys, _power(K)))
    part = q.new_empty(1 + tiles, call.rows, H, dtype=torch.float32)
    call.run(
        triton_backward.solve_grads, lambda _: (chunks, H),
        dict(L=L, N=made.N, v=v, beta=beta, dN=dN, table=table, dX=dX, dv=dv, dA=dA, part=part[0], H=H),
        "V", "BV", "C", *OPERANDS,
    )  # fmt: skip
    call.run(
        triton_backward.key_grads, lambda _: (chunks, H, tiles),
        dict(
            q=q, k=k, g=g, beta=beta, N=made.N, S=made.S, do=do, dX=dX, dS=dS, dA=dA, dP=dP, D=made.D, table=table,
            dq=dq, dk=dk, dg=dg, part=part[1:], H=H, rows=call.rows, scale=scale,
        ),
        "K", "V", "BK", "BV", "C", "LEVELS", *OPERANDS,
        BOUNDED=bounded and call.operand == torch.bfloat16,
    )  # fmt: skip
    dbeta = part.sum(0).to(beta.dtype).view(beta.shape)
    return dq, dk, dv, dg, dbeta, dinitial


def recurrent(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, initial: Tensor | None, bounds: Tensor, *, scale: float,
    need_final: bool, launch: Launch = launch_kernel, hip: bool | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """o [B,T,H,V] and the final states [N,H,K,V] or None, token by token; ``bounds`` [N+1] int32 rows of the sequences."""
    call = _call(q, v, (), launch, hip)
    q, k, v, g, beta = (x.contiguous() for x in (q, k, v, g, beta))
    initial = None if initial is None else initial.contiguous()
    o, N = torch.empty_like(v), bounds.shape[0] - 1
    final = q.new_empty(N, call.H, call.K, call.V, dtype=torch.float32) if need_final else None
    call.run(
        triton_recurrent.recurrent_steps, lambda c: (triton.cdiv(call.V, c.values), N * call.H),
        dict(
            q=q, k=k, v=v, g=g, beta=beta, initial=q if initial is None else initial, bounds=bounds, o=o,
            final=q if final is None else final, H=call.H, scale=scale,
        ),
        "K", "V", "PK", "BV",
        HAS_INITIAL=initial is not None, NEED_FINAL=need_final,
    )  # fmt: skip
    return o, final


def _gate_tile(z: Tensor) -> tuple[int, int, int, int]:
    """Rows, heads, channels of z, and the rows of a tile: about 4,096 numbers."""
    H, K = z.shape[-2:]
    return z.numel() // max(1, H * K), H, K, max(1, 4096 // _power(K))


def gate_forward(
    z: Tensor, A_log: Tensor, dt_bias: Tensor, lower_bound: float | None, launch: Launch = launch_kernel
) -> Tensor:
    """g [..,H,K] float32 from z [..,H,K], A_log [H], dt_bias [H,K]."""
    z = z.contiguous()
    rows, H, K, BT = _gate_tile(z)
    g = z.new_empty(z.shape, dtype=torch.float32)
    if g.numel():
        launch(
            triton_gate.gate_forward, (triton.cdiv(rows, BT), H),
            dict(
                z=z, A_log=A_log.contiguous(), dt_bias=dt_bias.contiguous(), g=g, H=H, rows=rows,
                bound=float(lower_bound or 0.0),
            ),
            dict(K=K, PK=_power(K), BT=BT, BOUNDED=lower_bound is not None), CONFIGS["gate_forward"][0],
        )  # fmt: skip
    return g


def gate_backward(
    dg: Tensor, z: Tensor, A_log: Tensor, dt_bias: Tensor, lower_bound: float | None, launch: Launch = launch_kernel
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of z, A_log and dt_bias, each in its dtype."""
    z, dg = z.contiguous(), dg.contiguous()
    rows, H, K, BT = _gate_tile(z)
    steps = max(1, triton.cdiv(rows, BT * GATE_PARTS))
    parts = triton.cdiv(rows, BT * steps)
    dz = torch.empty_like(z)
    part_A = z.new_empty(parts, H, dtype=torch.float32)
    part_dt = z.new_empty(parts, H, K, dtype=torch.float32)
    if z.numel():
        launch(
            triton_gate.gate_backward, (parts, H),
            dict(
                z=z, A_log=A_log.contiguous(), dt_bias=dt_bias.contiguous(), dg=dg, dz=dz, part_A=part_A,
                part_dt=part_dt, H=H, rows=rows, bound=float(lower_bound or 0.0), steps=steps,
            ),
            dict(K=K, PK=_power(K), BT=BT, BOUNDED=lower_bound is not None), CONFIGS["gate_backward"][0],
        )  # fmt: skip
    return dz, part_A.sum(0).to(A_log.dtype), part_dt.sum(0).to(dt_bias.dtype)


# --- compile checks -----------------------------------------------------------------------------------------------------

_TYPES = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.int32: "*i32"}


def compile_cases() -> list[Any]:
    """Every kernel with every configuration that the launchers above or tuning may pick, for `kernels.compile_check`."""
    from ..compile_check import Case

    found: dict[str, Any] = {}

    def record(hip: bool, quick: bool) -> Launch:
        def launch(
            kernel: Any, grid: tuple[int, ...], arguments: dict[str, Any], constants: dict[str, Any], config: Config
        ) -> None:
            types = {
                name: _TYPES[x.dtype] if isinstance(x, Tensor) else "i32" if isinstance(x, int) else "fp32"
                for name, x in arguments.items()
            }
            flags = [name for name in ("BOUNDED",) if constants.get(name)]
            operand = types[next(iter(types))][1:]
            sizes = "x".join(str(constants[size]) for size in ("K", "V") if size in constants)
            tiles = "/".join(str(x) for x in (config.keys, config.values, config.warps, config.stages))
            name = " ".join([kernel.fn.__name__, operand, sizes, tiles, *flags, *(["hip"] if hip else [])])
            found.setdefault(
                name,
                Case(
                    name=name, kernel=kernel, arguments=types, constants=constants, num_warps=config.warps,
                    num_stages=config.stages, quick=quick and name.split()[0] in ("chunk_states", "key_grads"),
                    chips=("gfx942",) if hip else ("sm_80", "sm_90", "sm_100"),
                ),
            )  # fmt: skip

        return launch

    def every_kernel(dtype: torch.dtype, K: int, V: int, hip: bool, quick: bool) -> None:
        launch = record(hip, quick)
        q, k, v = (torch.zeros(1, 70, 2, D, dtype=dtype) for D in (K, K, V))
        g, beta, state = torch.zeros(1, 70, 2, K), torch.zeros(1, 70, 2), torch.zeros(1, 2, K, V)
        for bounded in (True, False):
            fixed: dict[str, Any] = dict(scale=1.0, lengths=(70,), bounded=bounded, launch=launch, hip=hip)
            _, final, saved = forward(q, k, v, g, beta, state, need_final=True, **fixed)
            backward(saved, q, k, v, g, beta, state, v, final, need_initial=True, **fixed)
        bounds = torch.zeros(2, dtype=torch.int32)
        recurrent(q, k, v, g, beta, state, bounds, scale=1.0, need_final=True, launch=launch, hip=hip)
        for bound in (None, -5.0):
            gate_forward(q, beta[0, 0], g[0, 0], bound, launch)
            gate_backward(g, q, beta[0, 0], g[0, 0], bound, launch)

    half, full = torch.bfloat16, torch.float32
    for hip in (False, True):
        for dtype, K, V in ((half, 128, 128), (half, 256, 256), (half, 48, 80), (full, 128, 128)):
            every_kernel(dtype, K, V, hip, (dtype, K) == (half, 128))
        for _ in triton_configs.trials(hip):
            every_kernel(half, 128, 128, hip, False)
    return list(found.values())

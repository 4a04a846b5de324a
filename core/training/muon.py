"""Muon for hidden matrices and AdamW for everything else, in one optimizer.

Legend of shapes: m <= n sides of a block, B blocks of one shape stacked into one batched call.

Muon (Jordan 2024; Moonlight, arXiv:2502.16982, section 2): with gradient g, momentum M and rate lr,

    M <- mu M + g ;  u = g + mu M ;  X = NewtonSchulz(u) ;  W <- W - lr (0.2 sqrt(max(m, n)) X + wd W)

The orthogonal factor of an m x n matrix has root mean square 1/sqrt(max(m, n)), so the factor 0.2 sqrt(max(m, n)) of the
*block* gives every block an update of about 0.2 lr an element, the size AdamW's updates have. (Five quintic steps leave
singular values around 0.7 to 1.1, so the measured value lies between 0.13 and 0.22.)

A parameter is one or many logical matrices ("blocks"): heads of a q/k/v projection (Kimi K3's per-head Muon), the K and V
part of a head of `kv_b_proj`, experts of a stacked tensor. Blocks of one shape from *all* parameters are stacked and
orthogonalised in one batched call, which on a CPU is several times faster than one call a matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from watersmeet.core.errors import WatersmeetError
from watersmeet.core.model.stored import stored_views
from watersmeet.core.training.groups import ParamPlan
from watersmeet.kernels.newton_schulz import newton_schulz


@dataclass(frozen=True, kw_only=True)
class _Slot:
    """Rows `[row, row + rows)` of every group of parameter `index`, at `[start, start + count)` of its bucket."""

    index: int
    group_rows: int
    row: int
    rows: int
    start: int
    count: int
    transposed: bool


@dataclass(frozen=True, kw_only=True)
class _Bucket:
    m: int
    n: int
    count: int
    slots: tuple[_Slot, ...]


def _plan_buckets(params: list[Tensor], plans: list[ParamPlan]) -> list[_Bucket]:
    """Collect blocks of equal shape (up to transposition) of all parameters."""
    found: dict[tuple[int, int], list[_Slot]] = {}
    filled: dict[tuple[int, int], int] = {}
    for index, (param, plan) in enumerate(zip(params, plans, strict=True)):
        columns, group_rows = param.shape[-1], sum(plan.rows)
        groups = param.numel() // (columns * group_rows)
        row = 0
        for rows in plan.rows:
            shape = (min(rows, columns), max(rows, columns))
            start = filled.get(shape, 0)
            slot = _Slot(
                index=index,
                group_rows=group_rows,
                row=row,
                rows=rows,
                start=start,
                count=groups,
                transposed=rows > columns,
            )
            found.setdefault(shape, []).append(slot)
            filled[shape] = start + groups
            row += rows
    return [_Bucket(m=m, n=n, count=filled[m, n], slots=tuple(slots)) for (m, n), slots in found.items()]


def _blocks(tensor: Tensor, slot: _Slot) -> Tensor:
    """View [count, rows, columns] (or transposed) of one slot inside a parameter-shaped tensor."""
    grouped = tensor.view(slot.count, slot.group_rows, tensor.shape[-1])
    view = grouped[:, slot.row : slot.row + slot.rows]
    return view.mT if slot.transposed else view


def fast_matmul_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where matrix products in it run in hardware, else float32."""
    if device.type != "cpu":
        return torch.bfloat16
    # the public name exists since torch 2.13; without it nothing is known and float32 is right everywhere
    known: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()
    return torch.bfloat16 if known.get("amx_bf16") or known.get("avx512_bf16") else torch.float32


class MuonAdamW(torch.optim.Optimizer):
    """Muon on `plan.kind == "muon"` parameters, AdamW on the rest; states are float32.

    named_params  (name, parameter) pairs; float32 parameters are the masters that are updated
    plans         one `ParamPlan` a parameter, by name; a parameter without a plan is an error
    lr, adamw_lr  rates; a schedule multiplies both through `set_lr`
    ns_dtype      dtype of the Newton-Schulz iteration; bfloat16 is faster where the CPU has matrix units for it

    A parameter whose gradient is None is treated as having gradient zero, so that the update does not depend on which
    modalities a batch happened to contain. A step uses the gradients up as scratch space: zero them before the next
    backward pass, as any loop does.
    """

    def __init__(
        self,
        named_params: Iterable[tuple[str, Tensor]],
        plans: dict[str, ParamPlan],
        *,
        lr: float,
        adamw_lr: float,
        weight_decay: float = 0.1,
        adamw_weight_decay: float = 0.0,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_steps: int = 5,
        ns_dtype: torch.dtype = torch.float32,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
    ) -> None:
        named = [(name, param) for name, param in named_params if param.requires_grad]
        if missing := [name for name, _ in named if name not in plans]:
            raise WatersmeetError(f"optimizer: parameter {missing[0]!r} is in no group; add a rule in groups.py")
        self.names = {param: name for name, param in named}
        self.ns_steps, self.ns_dtype = ns_steps, ns_dtype
        self.nesterov, self.momentum, self.betas, self.eps = nesterov, momentum, betas, eps
        groups: list[dict[str, Any]] = []
        for label, rate, decay, wanted in (
            ("muon", lr, weight_decay, lambda plan: plan.kind == "muon"),
            ("adamw-matrix", adamw_lr, adamw_weight_decay, lambda plan: plan.kind == "adamw" and plan.decay),
            ("adamw-vector", adamw_lr, 0.0, lambda plan: plan.kind == "adamw" and not plan.decay),
        ):
            members = [param for name, param in named if wanted(plans[name])]
            if members:
                groups.append({"params": members, "label": label, "lr": rate, "peak_lr": rate, "weight_decay": decay})
        super().__init__(groups, {"lr": lr})
        self._muon_params = [param for name, param in named if plans[name].kind == "muon"]
        self._buckets = _plan_buckets(self._muon_params, [plans[self.names[param]] for param in self._muon_params])
        self.updates = 0
        for group in self.param_groups:
            for param in group["params"]:
                state = self.state[param]
                if group["label"] == "muon":
                    state["momentum"] = torch.zeros_like(param, dtype=torch.float32)
                else:
                    state["exp_avg"] = torch.zeros_like(param, dtype=torch.float32)
                    state["exp_avg_sq"] = torch.zeros_like(param, dtype=torch.float32)

    def set_lr(self, factor: float) -> None:
        """Set every group's rate to `factor` times its own peak."""
        for group in self.param_groups:
            group["lr"] = group["peak_lr"] * factor

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update of every parameter from its `.grad`."""
        if closure is not None:
            raise WatersmeetError("MuonAdamW.step takes no closure")
        self.updates += 1
        for group in self.param_groups:
            if group["label"] == "muon":
                self._muon(group)
            else:
                self._adamw(group)

    def _grads(self, group: dict[str, Any]) -> list[Tensor]:
        return [
            torch.zeros_like(p, dtype=torch.float32) if p.grad is None else p.grad.to(torch.float32)
            for p in group["params"]
        ]

    def _muon(self, group: dict[str, Any]) -> None:
        params, grads = group["params"], self._grads(group)
        momenta = [self.state[param]["momentum"] for param in params]
        torch._foreach_mul_(momenta, self.momentum)
        torch._foreach_add_(momenta, grads)
        if self.nesterov:
            torch._foreach_add_(grads, momenta, alpha=self.momentum)
        updates = grads if self.nesterov else momenta
        if group["weight_decay"]:
            torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
        for bucket in self._buckets:
            stacked = torch.empty(bucket.count, bucket.m, bucket.n, dtype=self.ns_dtype, device=params[0].device)
            for slot in bucket.slots:
                stacked[slot.start : slot.start + slot.count].copy_(_blocks(updates[slot.index], slot))
            orthogonal = newton_schulz(stacked, steps=self.ns_steps)
            rate = group["lr"] * 0.2 * math.sqrt(bucket.n)
            for slot in bucket.slots:
                # mixed dtypes add in float32 without a copy
                _blocks(params[slot.index], slot).add_(orthogonal[slot.start : slot.start + slot.count], alpha=-rate)

    def _adamw(self, group: dict[str, Any]) -> None:
        params, grads = group["params"], self._grads(group)
        first = [self.state[param]["exp_avg"] for param in params]
        second = [self.state[param]["exp_avg_sq"] for param in params]
        beta1, beta2 = self.betas
        torch._foreach_lerp_(first, grads, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, grads, grads, 1 - beta2)
        # p -= lr * (first / c1) / (sqrt(second / c2) + eps)
        denominator = torch._foreach_sqrt(second)
        torch._foreach_div_(denominator, math.sqrt(1 - beta2**self.updates))
        torch._foreach_add_(denominator, self.eps)
        if group["weight_decay"]:
            torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_addcdiv_(params, first, denominator, -group["lr"] / (1 - beta1**self.updates))

    def state_tensors(self) -> dict[str, Tensor]:
        """Every state tensor by "<parameter name on disk>/<state name>"; references, not copies."""
        return stored_views(
            (f"{self.names[param]}/{key}", value)
            for group in self.param_groups
            for param in group["params"]
            for key, value in self.state[param].items()
        )

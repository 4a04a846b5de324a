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

With several processes the blocks of every shape are dealt out evenly: the owner of a block orthogonalises it, whole, and hands
the result to the others. Whole copies of the weights (DDP): the momentum of a block lives with its owner alone.
Sharded weights (FSDP2): the momentum is cut like the weights, and what is to be orthogonalised is gathered first. The same
sums in the same order as in one process, so the same bits, with one thread each; a block that an owner has alone is
multiplied beside a copy of itself, because libraries multiply a single matrix in another way than a batch.

On a CPU with a compiler, and float32 in the iteration, one native call does all of it to all blocks, each in a core's cache
(kernels/native/muon.cpp); where blocks are dealt out or weights sharded, the same arithmetic runs in pieces between the exchanges.
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
from watersmeet.core.training.head_rate import head_rates, part_squares, update_running
from watersmeet.core.training.sharding import Team, local_rows, local_tensor, put_back, whole_tensor
from watersmeet.kernels.native import (
    Block,
    MuonBlocks,
    adamw_step,
    add_scaled,
    momentum_step,
    native_update,
)
from watersmeet.kernels.newton_schulz import newton_schulz


@dataclass(frozen=True, kw_only=True)
class _Slot:
    """Rows `[row, row + rows)` of every group of parameter `index`, at `[start, start + count)` of its bucket."""

    index: int
    part: int
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
        for part, rows in enumerate(plan.rows):
            shape = (min(rows, columns), max(rows, columns))
            start = filled.get(shape, 0)
            slot = _Slot(
                index=index,
                part=part,
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


def _native_plan(buckets: list[_Bucket], params: list[Tensor]) -> MuonBlocks:
    """The blocks of all buckets, slot by slot, by their places in the parameters."""
    blocks = []
    for slot in (slot for bucket in buckets for slot in bucket.slots):
        cols = params[slot.index].shape[-1]
        blocks += [
            Block(tensor=slot.index, offset=(group * slot.group_rows + slot.row) * cols, rows=slot.rows, cols=cols)
            for group in range(slot.count)
        ]
    return MuonBlocks(blocks)


class MuonAdamW(torch.optim.Optimizer):
    """Muon on `plan.kind == "muon"` parameters, AdamW on the rest; states are float32.

    named_params  (name, parameter) pairs; float32 parameters are the masters that are updated
    plans         one `ParamPlan` a parameter, by name; a parameter without a plan is an error
    lr, adamw_lr  rates; a schedule multiplies both through `set_lr`
    ns_dtype      dtype of the Newton-Schulz iteration; bfloat16 is faster where the CPU has matrix units for it
    head_rate     exponent of the rates per head, see head_rate.py; 0: all heads alike
    team          the processes that train together; parameters may be sharded by FSDP2

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
        head_rate: float = 0.0,
        team: Team | None = None,
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
        muon_plans = [plans[self.names[param]] for param in self._muon_params]
        self._buckets = _plan_buckets(self._muon_params, muon_plans)
        self._plan = _native_plan(self._buckets, self._muon_params)
        self.updates = 0
        self.head_rate, self.team = head_rate, team or Team()
        self._heads = [plan.rows if head_rate and plan.rule.endswith("per head") else () for plan in muon_plans]
        self.sharded = any(local_tensor(param) is not param for _, param in named)
        # of whole copies, the momentum of a block lives with its owner, in blocks; see `_muon`
        self._dealt = self.team.world > 1 and not self.sharded
        self._momenta: list[Tensor] = []
        # mean square of the last update by group, in units of the rate; measured when asked for
        self.measure, self.update_square = False, dict[str, float]()
        for group in self.param_groups:
            for param in group["params"]:
                state = self.state[param]
                if group["label"] == "muon":
                    if not self._dealt:
                        state["momentum"] = torch.zeros_like(param, dtype=torch.float32)
                else:
                    state["exp_avg"] = torch.zeros_like(param, dtype=torch.float32)
                    state["exp_avg_sq"] = torch.zeros_like(param, dtype=torch.float32)
        for param, rows in zip(self._muon_params, self._heads, strict=True):
            if rows:
                groups_of_rows = param.numel() // param.shape[-1] // sum(rows)
                place = local_tensor(param).device
                self.state[param]["head_square"] = torch.zeros(groups_of_rows, len(rows), device=place)
        if self._dealt:
            for bucket in self._buckets:
                own = self.team.share(bucket.count)
                place = self._muon_params[bucket.slots[0].index].device
                self._momenta.append(torch.zeros(own.stop - own.start, bucket.m, bucket.n, device=place))

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
        self.update_square = {}
        for group in self.param_groups:
            if group["label"] == "muon":
                self._muon(group)
            else:
                self._adamw(group)

    def _grads(self, group: dict[str, Any]) -> list[Tensor]:
        """Local gradients, float32; a missing one is zero."""
        return [
            torch.zeros_like(local_tensor(p), dtype=torch.float32)
            if p.grad is None
            else local_tensor(p.grad).to(torch.float32).contiguous()
            for p in group["params"]
        ]

    def _muon(self, group: dict[str, Any]) -> None:
        params, grads = [local_tensor(param) for param in group["params"]], self._grads(group)
        rates = self._head_rates(group["params"], grads) if self.head_rate else []
        momenta = [] if self._dealt else [local_tensor(self.state[param]["momentum"]) for param in group["params"]]
        native = self.ns_dtype == torch.float32 and native_update(*params, *grads, *momenta)
        if native and self._plan.fit and not self._dealt and not self.sharded:
            self._muon_whole(group, grads, momenta, rates)
            return
        if self._dealt:
            updates = grads
        else:
            updates = self._moved(momenta, grads, native)
            if self.sharded:
                updates = [
                    self.team.gather_rows(update.to(self.ns_dtype), len(param))
                    for update, param in zip(updates, group["params"], strict=True)
                ]
        if group["weight_decay"]:
            torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
        square, elements = 0.0, 0
        for number, bucket in enumerate(self._buckets):
            orthogonal = self._orthogonal(number, bucket, updates, native)
            if self.measure:
                square += float(orthogonal.float().square().sum()) * 0.04 * bucket.n
                elements += orthogonal.numel()
            rate = group["lr"] * 0.2 * math.sqrt(bucket.n)
            for slot in bucket.slots:
                found = orthogonal[slot.start : slot.start + slot.count]
                if rates and self._heads[slot.index]:
                    found = found * rates[slot.index][:, slot.part].view(-1, 1, 1)
                self._add(params[slot.index], group["params"][slot.index], slot, found, -rate, native)
        if self.measure:
            self.update_square["muon"] = square / max(elements, 1)

    def _muon_whole(
        self, group: dict[str, Any], grads: list[Tensor], momenta: list[Tensor], rates: list[Tensor]
    ) -> None:
        """All of it in one native call: whole float32 weights of one process, on the CPU."""
        factors = None
        if rates:
            parts = [
                rates[slot.index][:, slot.part] if self._heads[slot.index] else torch.ones(slot.count)
                for bucket in self._buckets
                for slot in bucket.slots
            ]
            factors = torch.cat(parts)
        lr = group["lr"]
        squares = self._plan.step(
            group["params"], grads, momenta, rate=lr * 0.2, factors=factors, decay=1 - lr * group["weight_decay"],
            momentum=self.momentum, nesterov=self.nesterov, steps=self.ns_steps,
        )  # fmt: skip
        if self.measure:
            elements = sum(bucket.count * bucket.m * bucket.n for bucket in self._buckets)
            self.update_square["muon"] = (
                float((squares.astype(float) * self._plan.sides).sum()) * 0.04 / max(elements, 1)
            )

    def _moved(self, momenta: list[Tensor], grads: list[Tensor], native: bool) -> list[Tensor]:
        """Move the momenta by the gradients, in place; returns what is to be orthogonalised."""
        if native:
            momentum_step(grads, momenta, momentum=self.momentum, nesterov=self.nesterov)
            return grads
        torch._foreach_mul_(momenta, self.momentum)
        torch._foreach_add_(momenta, grads)
        if not self.nesterov:
            return momenta
        torch._foreach_add_(grads, momenta, alpha=self.momentum)
        return grads

    def _orthogonal(self, number: int, bucket: _Bucket, updates: list[Tensor], native: bool) -> Tensor:
        """[count, m, n] orthogonalised blocks of one shape, each by its owner."""
        own = self.team.share(bucket.count)
        count = own.stop - own.start
        kind = torch.float32 if self._dealt else self.ns_dtype
        stacked = torch.empty(count, bucket.m, bucket.n, dtype=kind, device=updates[bucket.slots[0].index].device)
        for slot in bucket.slots:
            first, last = max(slot.start, own.start), min(slot.start + slot.count, own.stop)
            if first < last:
                blocks = _blocks(updates[slot.index], slot)[first - slot.start : last - slot.start]
                stacked[first - own.start : last - own.start].copy_(blocks)
        if self._dealt:
            stacked = self._moved([self._momenta[number]], [stacked], native)[0].to(self.ns_dtype)
        if count:
            alone = count == 1 and bucket.count > 1
            stacked = newton_schulz(torch.cat([stacked] * 2) if alone else stacked, steps=self.ns_steps)[:count]
        shares = [self.team.share(bucket.count, rank) for rank in range(self.team.world)]
        return self.team.gather(stacked, [share.stop - share.start for share in shares])

    @staticmethod
    def _add(local: Tensor, param: Tensor, slot: _Slot, found: Tensor, factor: float, native: bool) -> None:
        """Add `factor * found` to the rows of a slot, as far as this process holds them."""
        if local is param and not native:
            # mixed dtypes add in float32 without a copy
            _blocks(param, slot).add_(found, alpha=factor)
            return
        whole = torch.zeros(param.shape, dtype=found.dtype, device=found.device)
        _blocks(whole, slot).copy_(found)
        mine = whole[local_rows(param)]
        if native:
            add_scaled(local, mine, factor)
        else:
            local.add_(mine, alpha=factor)

    def _head_rates(self, params: list[Tensor], grads: list[Tensor]) -> list[Tensor]:
        """Per parameter the factors [groups, parts] of its blocks; empty for one that has no heads."""
        out = []
        for param, grad, rows in zip(params, grads, self._heads, strict=True):
            if not rows:
                out.append(grad.new_zeros(0))
                continue
            squares = grad.square().mean(-1)
            squares = self.team.gather_rows(squares, len(param)) if self.sharded else squares
            running = self.state[param]["head_square"]
            update_running(running, part_squares(squares.view(-1), rows))
            out.append(head_rates(running, self.head_rate))
        return out

    def _adamw(self, group: dict[str, Any]) -> None:
        params, grads = [local_tensor(param) for param in group["params"]], self._grads(group)
        first = [local_tensor(self.state[param]["exp_avg"]) for param in group["params"]]
        second = [local_tensor(self.state[param]["exp_avg_sq"]) for param in group["params"]]
        beta1, beta2 = self.betas
        decay = 1 - group["lr"] * group["weight_decay"]
        if native_update(*params, *grads, *first, *second):
            adamw_step(
                params, grads, first, second, lr=group["lr"], decay=decay, betas=self.betas, eps=self.eps,
                updates=self.updates,
            )  # fmt: skip
            denominator = self._denominator(second) if self.measure else []
        else:
            torch._foreach_lerp_(first, grads, 1 - beta1)
            torch._foreach_mul_(second, beta2)
            torch._foreach_addcmul_(second, grads, grads, 1 - beta2)
            denominator = self._denominator(second)
            if group["weight_decay"]:
                torch._foreach_mul_(params, decay)
            torch._foreach_addcdiv_(params, first, denominator, -group["lr"] / (1 - beta1**self.updates))
        if self.measure:
            moved = torch._foreach_div(first, denominator)
            correction = 1 - beta1**self.updates
            square = sum(float(one.square().sum()) for one in moved) / correction**2
            total = torch.tensor([square, sum(one.numel() for one in moved)], dtype=torch.float64)
            total = self.team.sum(total.to(params[0].device)) if self.sharded else total
            self.update_square[group["label"]] = float(total[0] / total[1].clamp(min=1))

    def _denominator(self, second: list[Tensor]) -> list[Tensor]:
        """AdamW's step is ``lr * (first / c1) / (sqrt(second / c2) + eps)``; this is what is divided by."""
        denominator = torch._foreach_sqrt(second)
        torch._foreach_div_(denominator, math.sqrt(1 - self.betas[1] ** self.updates))
        torch._foreach_add_(denominator, self.eps)
        return list(denominator)

    # ---- state --------------------------------------------------------------------------------------------------

    def state_tensors(self) -> dict[str, Tensor]:
        """Every state tensor, whole, by "<parameter name on disk>/<state name>", whatever number of processes there is.

        In one process they are references. With several, all have to call this, and get copies where the state is dealt out;
        `load_state_tensors` brings changed ones back.
        """
        return stored_views(self._whole_states().items())

    def _whole_states(self) -> dict[str, Tensor]:
        dealt = self._dealt_momenta()
        out: dict[str, Tensor] = {}
        for group in self.param_groups:
            for param in group["params"]:
                if param in dealt:
                    out[f"{self.names[param]}/momentum"] = dealt[param]
                for key, value in self.state[param].items():
                    out[f"{self.names[param]}/{key}"] = whole_tensor(value)
        return out

    def _dealt_momenta(self) -> dict[Tensor, Tensor]:
        """Whole momenta put together from what every owner has."""
        if not self._dealt:
            return {}
        out = {param: torch.zeros_like(param, dtype=torch.float32) for param in self._muon_params}
        for bucket, own in zip(self._buckets, self._momenta, strict=True):
            shares = [self.team.share(bucket.count, rank) for rank in range(self.team.world)]
            whole = self.team.gather(own, [share.stop - share.start for share in shares])
            for slot in bucket.slots:
                momentum = out[self._muon_params[slot.index]]
                _blocks(momentum, slot).copy_(whole[slot.start : slot.start + slot.count])
        return out

    @torch.no_grad()
    def load_state_tensors(self, fill: Callable[[dict[str, Tensor]], None]) -> None:
        """Let `fill` write whole state tensors, by their names on disk, and take over this process' part of them."""
        whole = self._whole_states()
        fill(stored_views(whole.items()))
        put_back({f"{self.names[p]}/{key}": v for p, state in self.state.items() for key, v in state.items()}, whole)
        for number, bucket in enumerate(self._buckets if self._dealt else ()):
            own = self.team.share(bucket.count)
            for slot in bucket.slots:
                first, last = max(slot.start, own.start), min(slot.start + slot.count, own.stop)
                if first < last:
                    momentum = whole[f"{self.names[self._muon_params[slot.index]]}/momentum"]
                    blocks = _blocks(momentum, slot)[first - slot.start : last - slot.start]
                    self._momenta[number][first - own.start : last - own.start].copy_(blocks)

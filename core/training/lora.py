"""Low-rank adapters: what a matrix W [out, in] becomes is W + scale * B A, with A [r, in] and B [out, r] trained alone.

The adapter sits at the parameter, not around a module: matrices that are multiplied together are read as one block
(`core/model/joint.py`), so a wrapper around the single module would never run. All experts of a layer are one parameter
[E, out, in] and get one A and B each. On disk an adapter has the layout of `peft`, which can load it.

Source: Hu et al., LoRA (arXiv:2106.09685). Legend of shapes: E experts, r rank.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.utils import parametrize

from watersmeet.core.errors import CheckpointError, ConfigError

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
EVERY = "all-linear"
"""The target that means every matrix of the layers; the word is peft's."""

_PREFIX = "base_model.model."
# kernels of convolutions, routers and the queries of residual reads are no matrices of this kind
_NEVER = ("conv1d.weight", ".gate.weight", "_res_proj.weight")


@dataclass(frozen=True, kw_only=True)
class Adapted:
    """One adapted parameter: the module that has it, and their names."""

    module: nn.Module
    module_name: str
    parameter: str

    @property
    def name(self) -> str:
        """As targets are matched against: the module's name, with the parameter's where that is not `weight`."""
        return self.module_name if self.parameter == "weight" else f"{self.module_name}.{self.parameter}"

    @property
    def value(self) -> Tensor:
        """The matrix as it is used, its adapter included."""
        found: Tensor = getattr(self.module, self.parameter)
        return found

    @property
    def low_rank(self) -> LowRank:
        """Its adapter."""
        found = self.module.parametrizations[self.parameter][0]  # type: ignore[index,union-attr]
        assert isinstance(found, LowRank)
        return found


class LowRank(nn.Module):
    """W [..., out, in] -> W + scale * lora_B lora_A; lora_A [..., r, in] random, lora_B [..., out, r] zero; float32."""

    def __init__(self, like: Tensor, r: int, alpha: float) -> None:
        super().__init__()
        *lead, rows, columns = like.shape
        self.scale = alpha / r
        self.lora_A = nn.Parameter(torch.empty(*lead, r, columns, device=like.device))
        self.lora_B = nn.Parameter(torch.zeros(*lead, rows, r, device=like.device))
        bound = 1 / math.sqrt(columns)  # what a linear layer's own weights are drawn from, as in the paper's code
        nn.init.uniform_(self.lora_A, -bound, bound)

    def delta(self) -> Tensor:
        """What is added, float32."""
        return (self.lora_B @ self.lora_A) * self.scale

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.delta().to(weight.dtype)


def _candidates(model: nn.Module) -> list[Adapted]:
    found = []
    for module_name, module in model.named_modules():
        for parameter, value in module.named_parameters(recurse=False):
            if value.ndim in (2, 3) and not f"{module_name}.{parameter}".endswith(_NEVER):
                found.append(Adapted(module=module, module_name=module_name, parameter=parameter))
    return found


def _matches(name: str, target: str) -> bool:
    if target == EVERY:
        return f".{name}".startswith(".layers.")
    return name == target or name.endswith(f".{target}")


def add_lora(model: nn.Module, *, r: int, alpha: float, targets: Sequence[str]) -> list[Adapted]:
    """Freeze `model` and put adapters on the matrices that `targets` name; returns them in order.

    A target is the end of a name at a dot: "q_proj", "self_attn.o_proj", "experts.w13"; or "all-linear". Raises ConfigError
    for a target that names nothing (an adapter that is silently missing looks like one that does not help).
    """
    candidates = _candidates(model)
    for target in targets:
        if not any(_matches(item.name, target) for item in candidates):
            ends = sorted({item.name.rpartition(".")[2] for item in candidates})
            raise ConfigError(f"lora.targets: {target!r} names no matrix of this model; names end in {', '.join(ends)}")
    for value in model.parameters():
        value.requires_grad_(False)
    chosen = [
        item
        for item in candidates
        # every matrix that is large enough; one that is named has to be
        if any(_matches(item.name, t) and (t != EVERY or r < min(item.value.shape[-2:])) for t in targets)
    ]
    if not chosen:
        raise ConfigError(f"lora.targets: nothing in {list(targets)} is larger than rank {r}; choose a smaller r")
    for item in chosen:
        weight = item.value
        if r > min(weight.shape[-2:]):
            raise ConfigError(
                f"lora.r is {r}, but {item.name} is {weight.shape[-2]} x {weight.shape[-1]}; a rank above the smaller "
                "side saves nothing, choose a smaller r or other targets"
            )
        # the matrix itself stays in place under the name `parametrizations.<parameter>.original`
        parametrize.register_parametrization(item.module, item.parameter, LowRank(weight, r, alpha), unsafe=True)
    return chosen


def adapted(model: nn.Module) -> Iterator[Adapted]:
    """All adapted parameters of a model, in order."""
    for name, module in model.named_modules():
        if parametrize.is_parametrized(module):
            for parameter, stack in module.parametrizations.items():  # type: ignore[union-attr,operator]
                if isinstance(stack[0], LowRank):
                    yield Adapted(module=module, module_name=name, parameter=parameter)


@torch.no_grad()
def merge_lora(model: nn.Module) -> int:
    """Add every adapter to its matrix and take it away; returns how many there were."""
    found = list(adapted(model))
    for item in found:
        parametrize.remove_parametrizations(item.module, item.parameter, leave_parametrized=True)
    return len(found)


def _stored(model: nn.Module) -> dict[str, Tensor]:
    """The adapters' tensors by peft's names: those of experts as matrices [E r, in] and [out, r E]."""
    out: dict[str, Tensor] = {}
    by_module: dict[str, list[Adapted]] = {}
    for item in adapted(model):
        by_module.setdefault(item.module_name, []).append(item)
    for name, items in by_module.items():
        for depth, item in enumerate(sorted(items, key=lambda i: i.parameter)):
            # several parameters of one module: peft wraps the module once for each, the first of them innermost
            inner = ".base_layer" * (len(items) - 1 - depth)
            a, b = item.low_rank.lora_A.detach(), item.low_rank.lora_B.detach()
            if a.ndim == 3:
                a, b = a.flatten(0, 1), b.permute(1, 2, 0).flatten(1)
            for letter, value in (("A", a), ("B", b)):
                out[f"{_PREFIX}{name}{inner}.lora_{letter}.weight"] = value.cpu().contiguous()
    return out


def save_adapter(model: nn.Module, out: Path, *, r: int, alpha: float, base: str) -> None:
    """Write the adapters of `model` as directory `out` in peft's layout, replacing an older one; safetensors and JSON."""
    found = list(adapted(model))
    config = {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": base,
        "r": r,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "target_modules": sorted(item.name for item in found if item.parameter == "weight"),
        "target_parameters": sorted(item.name for item in found if item.parameter != "weight") or None,
        "inference_mode": True,
    }
    beside, old = (out.with_name(f".{out.name}.{word}-{os.getpid()}") for word in ("partial", "old"))
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    (beside / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    save_file(_stored(model), beside / WEIGHTS, metadata={"format": "pt"})
    if out.exists():
        out.rename(old)
    beside.rename(out)
    shutil.rmtree(old, ignore_errors=True)


@torch.no_grad()
def load_adapter(model: nn.Module, directory: Path) -> list[Adapted]:
    """Put the adapter of a directory on `model`, which has none. Raises CheckpointError for what does not fit it."""
    try:
        config = json.loads((directory / CONFIG).read_bytes())
        tensors = load_file(directory / WEIGHTS)
        targets = [*(config["target_modules"] or ()), *(config.get("target_parameters") or ())]
        r, alpha = int(config["r"]), float(config["lora_alpha"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{directory}: not an adapter ({error!r})") from error
    found = add_lora(model, r=r, alpha=alpha, targets=targets)
    wanted = _stored(model)
    if wrong := sorted(set(wanted) ^ set(tensors)):
        raise CheckpointError(f"{directory}: tensor {wrong[0]!r} is {'missing' if wrong[0] in wanted else 'unknown'}")
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name].shape:
            raise CheckpointError(f"{directory}: {name} is {list(tensor.shape)}, expected {list(wanted[name].shape)}")
    for item in found:
        _fill(item, tensors, found)
    return found


def _fill(item: Adapted, tensors: dict[str, Tensor], found: list[Adapted]) -> None:
    beside = sorted(other.parameter for other in found if other.module_name == item.module_name)
    inner = ".base_layer" * (len(beside) - 1 - beside.index(item.parameter))
    a, b = (tensors[f"{_PREFIX}{item.module_name}{inner}.lora_{letter}.weight"] for letter in "AB")
    low = item.low_rank
    if low.lora_A.ndim == 3:
        experts = low.lora_A.shape[0]
        a = a.unflatten(0, (experts, -1))
        b = b.unflatten(1, (-1, experts)).permute(2, 0, 1)
    low.lora_A.copy_(a)
    low.lora_B.copy_(b)

"""Which tiles and launch options the Triton kernels of KDA take: defaults, choices, and what was measured on this chip.

A configuration depends on types and widths only, never on lengths: the same token gives the same bits in a short and in a
long sequence. For the same reason nothing is tuned while a model runs. `watersmeet.kernels.kda.triton_tune` measures the
choices once and writes the fastest ones into the user's cache folder, from where they are read at first use.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..native.build import cache_folder

logger = logging.getLogger("watersmeet.kernels")


@dataclass(frozen=True, kw_only=True)
class Config:
    """keys, values: channels of a tile. warps, stages: options of the launch."""

    keys: int = 0
    values: int = 0
    warps: int = 4
    stages: int = 2


# per kernel: for bfloat16 operands, for float32 operands
CONFIGS: dict[str, tuple[Config, Config]] = {
    "chunk_tiles": (Config(keys=32, warps=8), Config(keys=16, warps=8, stages=1)),
    "chunk_rows": (Config(keys=64, values=64, warps=8), Config(keys=32, values=32)),
    "chunk_states": (Config(values=32), Config(values=16, warps=8, stages=1)),
    "chunk_outputs": (Config(keys=64, values=64), Config(keys=32, values=32)),
    "value_grads": (Config(values=64), Config(values=32)),
    "state_grads": (Config(values=32, stages=1), Config(values=16, warps=8, stages=1)),
    "solve_grads": (Config(values=64), Config(values=32)),
    "key_grads": (Config(keys=32, values=32, warps=8), Config(keys=16, values=16, warps=8, stages=1)),
    "recurrent_steps": (Config(values=32), Config(values=32)),
    "gate_forward": (Config(), Config()),
    "gate_backward": (Config(warps=8), Config(warps=8)),
}

# the state of a wide head takes the registers of more threads
WIDE: dict[str, tuple[Config, Config]] = {
    "chunk_states": (Config(values=32, warps=8, stages=1), CONFIGS["chunk_states"][1]),
    "state_grads": (Config(values=32, warps=8, stages=1), CONFIGS["state_grads"][1]),
}

# on AMD's chips, where a thread has as many registers but other products
HIP: dict[str, tuple[Config, Config]] = {
    "key_grads": (Config(keys=16, values=32, warps=8), Config(keys=16, values=32)),
}

# what tuning tries beside the default, for bfloat16 operands and widths up to 128; all of it compiles without a spill for
# the chips of its maker in `compile_check`
CHOICES: dict[str, tuple[Config, ...]] = {
    "chunk_tiles": (Config(keys=16, warps=8),),
    "chunk_rows": (Config(keys=32, values=64, warps=8), Config(keys=64, values=64, warps=8, stages=3)),
    "chunk_states": (Config(values=16), Config(values=32, warps=8), Config(values=64, warps=8), Config(values=32, stages=1)),
    "chunk_outputs": (Config(keys=64, values=128, warps=8), Config(keys=32, values=64), Config(keys=128, values=64)),
    "value_grads": (Config(values=32), Config(values=64, warps=8), Config(values=128, warps=8)),
    "state_grads": (Config(values=16), Config(values=32, warps=8, stages=1), Config(values=64, warps=8, stages=1)),
    "solve_grads": (Config(values=32), Config(values=64, warps=8), Config(values=128, warps=8)),
    "key_grads": (Config(keys=16, values=32, warps=8), Config(keys=32, values=32, warps=8, stages=1)),
    "recurrent_steps": (Config(values=8, warps=1), Config(values=16, warps=2), Config(values=64, warps=8)),
}  # fmt: skip
MAKERS = {
    ("chunk_tiles", Config(keys=16, warps=8)): "cuda", ("key_grads", Config(keys=32, values=32, warps=8, stages=1)): "cuda",
}  # fmt: skip
"""A choice that only one maker's chips hold without a spill: "cuda" or "hip"."""


def choices(kernel: str, hip: bool) -> tuple[Config, ...]:
    """The default first, then what else may be measured on chips of this maker."""
    default = (HIP if hip and kernel in HIP else CONFIGS)[kernel][0]
    maker = "hip" if hip else "cuda"
    rest = (c for c in CHOICES.get(kernel, ()) if c != default and MAKERS.get((kernel, c), maker) == maker)
    return (default, *rest)


_trial: dict[str, Config] = {}
"""What tuning and the compile check try at the moment, per kernel."""


def trials(hip: bool) -> Iterator[dict[str, Config]]:
    """One choice after the other for all kernels at once, in effect while the loop runs; what the kernels have then.

    A kernel with fewer choices than another repeats its last one.
    """
    offered = {kernel: choices(kernel, hip) for kernel in CHOICES}
    try:
        for at in range(max(map(len, offered.values()))):
            _trial.update({kernel: configs[min(at, len(configs) - 1)] for kernel, configs in offered.items()})
            yield dict(_trial)
    finally:
        _trial.clear()


def configuration(kernel: str, operand: torch.dtype, K: int, hip: bool) -> Config:
    """What a kernel is launched with for operands of this type and keys of this width."""
    table = HIP if hip and kernel in HIP else WIDE if K > 128 and kernel in WIDE else CONFIGS
    fixed = table[kernel][operand == torch.float32]
    if operand == torch.float32 or K > 128:
        return fixed
    return _trial.get(kernel) or tuned().get(kernel, fixed)


def file_of(chip: str) -> Path:
    """Where the choices measured on a chip of this name are kept."""
    return cache_folder() / f"kda-{re.sub('[^a-z0-9]+', '-', chip.lower()).strip('-')}.json"


@functools.cache
def tuned() -> dict[str, Config]:
    """What was measured on the chip at hand, by kernel; empty where nothing was, or by another Triton."""
    if not torch.cuda.is_available():
        return {}
    return read(file_of(torch.cuda.get_device_name()), hip=torch.version.hip is not None)


def read(path: Path, *, hip: bool) -> dict[str, Config]:
    """Measured choices of a file; a file that this version did not write is passed over with a warning."""
    import triton

    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        logger.warning("%s holds no tiles for kda (%s); the defaults run. Delete it or tune again", path, error)
        return {}
    try:
        if content["triton"] != triton.__version__:
            logger.warning(
                "%s was measured with triton %s, not %s; tune again", path, content["triton"], triton.__version__
            )
            return {}
        found = {kernel: Config(**fields) for kernel, fields in content["kernels"].items()}
        for kernel, config in found.items():
            if config not in choices(kernel, hip):
                raise ValueError(f"{kernel} has no choice {config}")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        logger.warning("%s holds no tiles for kda (%s); the defaults run. Delete it or tune again", path, error)
        return {}
    return found


def write(path: Path, chip: str, kernels: dict[str, Config], seconds: dict[str, Any]) -> None:
    """Beside its place, then renamed."""
    import triton

    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    content = {
        "chip": chip, "triton": triton.__version__, "kernels": {k: asdict(c) for k, c in kernels.items()},
        "seconds": seconds,
    }  # fmt: skip
    part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    os.replace(part, path)

"""In which dtype a run computes: bfloat16 where the machine has units for it, float32 elsewhere."""

from __future__ import annotations

from dataclasses import replace

import torch

from watersmeet.core.training.config import TrainConfig
from watersmeet.kernels.native import bfloat16_units

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def fast_matmul_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where matrix products in it run in hardware, else float32."""
    return torch.bfloat16 if device.type != "cpu" or bfloat16_units() else torch.float32


def compute_dtype(precision: str, device: torch.device | str | None = None) -> torch.dtype:
    """The dtype that `run.precision` means on `device`; by default on a GPU if there is one."""
    if precision in DTYPES:
        return DTYPES[precision]
    return fast_matmul_dtype(torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu")))


def settled(config: TrainConfig, device: torch.device) -> TrainConfig:
    """The recipe with the precision that "auto" is on this machine, which a resume elsewhere must not change."""
    dtype = compute_dtype(config.run.precision, device)
    return replace(config, run=replace(config.run, precision=next(name for name in DTYPES if DTYPES[name] is dtype)))

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


def settled(config: TrainConfig, device: torch.device | str | None = None) -> TrainConfig:
    """The recipe with the precision that "auto" is on `device` (by default a GPU if there is one), which a resume elsewhere
    must not change."""
    if config.run.precision in DTYPES:
        return config
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    name = "bf16" if fast_matmul_dtype(place) is torch.bfloat16 else "fp32"
    return replace(config, run=replace(config.run, precision=name))

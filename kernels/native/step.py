"""One new token through all layers in one native call, and the product of a matrix with a few rows.

There is no torch form here: the definition is the model's own step, layer by layer, which the tests compare with.

Legend of shapes: N streams, D hidden width, H heads, K head width, C = H * K channels, W taps, S slots, V value width.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from .build import half, library, pointer, real, size
from .front import L2_EPS

MATRICES = (
    "q", "k", "v", "beta", "decay_a", "decay_b", "gate_a", "gate_b", "out", "q_b", "kv_a", "kv_b", "gate", "router", "w13",
    "w2", "down", "up", "dense_gate", "dense_up", "dense_down",
)  # fmt: skip
"""Fields of a layer that are matrices `[out, in]`, in the dtype of the activations."""

MANY = 64
"""Above so many rows, torch's matrix products are the faster form."""

ALONE, ALONE_STEP = 1 << 18, 3 << 20
"""Fewer weights are read by one thread: a second gains little, and all wait whenever another program takes its core."""

_P, _I, _D = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double


class Layer(ctypes.Structure):
    """`struct Layer` of step.h, field by field."""

    _fields_: ClassVar = [
        *((name, _P) for name in ("mixer_norm", "mixer_query", "ffn_norm", "ffn_query")),
        *((name, _I) for name in ("full_attention", "snapshot")),
        *((name, _P) for name in ("q", "k", "v", "beta", "decay_a", "decay_b", "gate_a", "gate_b", "out")),
        *((name, _P) for name in ("filter", "rate", "dt", "head_norm")),
        *((name, _D) for name in ("bound", "head_eps")),
        *((name, _I) for name in ("heads", "width", "taps", "gate_rank")),
        *((name, _P) for name in ("q_b", "kv_a", "kv_b", "gate", "q_norm", "kv_norm")),
        *((name, _D) for name in ("latent_eps", "scale")),
        *((name, _I) for name in ("q_rank", "rank", "nope", "shared", "value")),
        *((name, _P) for name in ("router", "w13", "w2", "down", "up", "bias", "latent_norm")),
        *((name, _D) for name in ("scaling", "inner_eps")),
        *((name, _I) for name in ("experts", "picks", "inner", "latent")),
        *((name, _P) for name in ("dense_gate", "dense_up", "dense_down")),
        *((name, _I) for name in ("dense", "situ")),
        *((name, _D) for name in ("curve", "linear")),
    ]


class Trunk:
    """All layers of a model as the native step reads them.

    layers: per layer the fields of `Layer`; tensors under the names in `MATRICES` are brought to `dtype`, all others to
    float32, without a copy where they are so already. `read`: how many weights one token is multiplied with. Queries are `query * gain` of a residual mix, `rate` is exp(A_log),
    `filter` is [W, 3C]. norm, query: of the last read. The weights must not change while this exists.
    """

    def __init__(
        self,
        layers: Sequence[Mapping[str, Tensor | int | float | None]],
        norm: Tensor,
        query: Tensor | None,
        *,
        eps: float,
        dtype: torch.dtype,
    ) -> None:
        self.dtype, self.eps = dtype, eps
        self._kept: list[Tensor] = []
        self._layers = (Layer * len(layers))()
        for cell, values in zip(self._layers, layers, strict=True):
            for name, value in values.items():
                if isinstance(value, Tensor):
                    setattr(cell, name, self._hold(value, dtype if name in MATRICES else torch.float32))
                elif value is not None:
                    setattr(cell, name, value)
        self.read = sum(_weights_read(values) for values in layers)
        self._norm = self._hold(norm, torch.float32)
        self._query = None if query is None else self._hold(query, torch.float32)

    def _hold(self, tensor: Tensor, dtype: torch.dtype) -> int:
        held = tensor.detach().to(dtype).contiguous()
        self._kept.append(held)
        return held.data_ptr()

    def step(self, x_ND: Tensor, states: Sequence[tuple[Tensor, Tensor | None]], past: Sequence[int]) -> Tensor:
        """Final hidden state [N, D] after one more token for each of N streams.

        Args:
            x_ND: embedded tokens, in the dtype of the trunk.
            states: per layer (recurrent [N,H,K,K] float32, window [N,3C,W-1]) or (rows of the cache [N,S,R], None), with
                room for the new token; contiguous; moved forward **in place**.
            past: tokens that each stream has read.
        """
        lib = library(x_ND)
        assert lib is not None and x_ND.dtype == self.dtype
        assert all(a.is_contiguous() and (b is None or b.is_contiguous()) for a, b in states)
        assert all(b is not None or a.shape[1] > max(past) for a, b in states)
        n, count, x_ND = len(x_ND), len(self._layers), x_ND.contiguous()
        first = (_P * count)(*[a.data_ptr() for a, _ in states])
        second = (_P * count)(*[a.shape[1] if b is None else b.data_ptr() for a, b in states])
        h_ND = torch.empty_like(x_ND)
        lib.trunk_step(
            half(x_ND), self._layers, count, pointer(x_ND), pointer(h_ND), _P(self._norm), _P(self._query), real(self.eps),
            real(L2_EPS), first, second, (_I * n)(*past), n, size(x_ND.shape[1]),
            1 if self.read * n < ALONE_STEP else torch.get_num_threads(),
        )  # fmt: skip
        return h_ND


def _weights_read(values: Mapping[str, Tensor | int | float | None]) -> int:
    """Numbers of all matrices that one token goes through; of experts only the picked ones."""
    total = 0
    for name in MATRICES:
        tensor = values.get(name)
        if isinstance(tensor, Tensor):
            picked = values["picks"] if name in ("w13", "w2") else None
            total += tensor.numel() if picked is None else tensor[0].numel() * int(picked)  # type: ignore[arg-type]
    return total


def few_rows(x_ND: Tensor, weight: Tensor) -> Tensor:
    """``x @ weight.T`` in float32 [N, rows]; the native form, without a gradient, reads the matrix once for a few rows."""
    learning = torch.is_grad_enabled() and (x_ND.requires_grad or weight.requires_grad)
    lib = None if learning or x_ND.dim() != 2 or not 0 < len(x_ND) <= MANY else library(x_ND, weight)
    if lib is None or not weight.is_contiguous():
        return F.linear(x_ND, weight.to(x_ND.dtype)).float()
    x_ND = x_ND.contiguous()
    y = torch.empty(len(x_ND), len(weight))
    lib.few_rows_product(
        half(x_ND), pointer(weight), pointer(x_ND), pointer(y), size(len(weight)), size(weight.shape[1]), len(x_ND),
        1 if weight.numel() < ALONE else torch.get_num_threads(),
    )  # fmt: skip
    return y

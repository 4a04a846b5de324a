"""QK-Clip: after an update, heads whose attention logits grew too large get smaller query and key matrices.

Source: Kimi K2 report (arXiv:2507.20534), section 2.1; Kimi K3 keeps it on its full-attention layers. With S_h the largest
scaled logit of head h in the step's forward passes and gamma = tau / S_h where S_h > tau: rows of q that meet the head's own
key and the own key's rows are multiplied by sqrt(gamma), rows of q that meet the shared key by gamma. The shared key itself and
the values stay as they are: scaling the shared key would clip every head. Layers of KDA have unit queries and keys and
no softmax; they are not touched.

Legend of shapes: M full-attention layers, H heads.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from watersmeet.core.model.logits import LogitMeter
from watersmeet.core.model.mla import LatentAttention
from watersmeet.core.training.sharding import local_rows, local_tensor


class QKClip:
    """Measures and clips the full-attention layers of `model`; `threshold` 0 measures for the log and never clips.

    The float32 parameters are the only copy of the weights (they are cast where they are used), so scaling them in place is
    scaling masters and working copies alike.
    """

    def __init__(self, model: nn.Module, threshold: float) -> None:
        self.threshold = threshold
        self.layers = [module for module in model.modules() if isinstance(module, LatentAttention)]
        for layer in self.layers:
            layer.meter = LogitMeter(threshold=threshold or torch.inf)

    def begin(self, *, exact: bool) -> None:
        """Forget the maxima of the step before; call it before the first forward pass of every step.

        `exact`: multiply every head out, for the log, and not only those that might have to be clipped.
        """
        for layer in self.layers:
            assert layer.meter is not None
            layer.meter.reset(exact=exact)

    def maxima(self, reduce: Callable[[Tensor], Tensor] | None = None) -> Tensor | None:
        """[M, H] largest logits since `begin`, -inf where no head was multiplied out; None without such layers.

        `reduce` takes the maximum over processes; every process calls it, whatever its batch held.
        """
        if not self.layers:
            return None
        rows = []
        for layer in self.layers:
            assert layer.meter is not None
            nothing = torch.full((layer.num_heads,), -torch.inf, device=layer.kv_b_proj.weight.device)
            rows.append(nothing if layer.meter.maxima is None else layer.meter.maxima)
        found = torch.stack(rows)
        return found if reduce is None else reduce(found)

    @torch.no_grad()
    def clip(self, maxima_MH: Tensor) -> int:
        """Scale the heads whose maximum exceeds the threshold; returns how many. Negative maxima are never clipped."""
        if not self.threshold:
            return 0
        # what was just scaled to the threshold may lie above it by its rounding
        gamma_MH = torch.where(maxima_MH > self.threshold * (1 + 1e-4), self.threshold / maxima_MH, 1.0)
        for layer, gamma_H in zip(self.layers, gamma_MH, strict=True):
            if bool((gamma_H < 1).any()):
                scale_heads(layer, gamma_H)
        return int((gamma_MH < 1).sum())


@torch.no_grad()
def scale_heads(layer: LatentAttention, gamma_H: Tensor) -> None:
    """Multiply the logits of every head by its gamma, by scaling rows of the layer's own matrices in place."""
    ones_H = torch.ones_like(gamma_H)
    query = layer.q_b_proj if layer.q_lora else layer.q_proj
    for matrix, parts in (
        (query, ((gamma_H.sqrt(), layer.nope), (gamma_H, layer.shared))),
        (layer.kv_b_proj, ((gamma_H.sqrt(), layer.nope), (ones_H, layer.v_dim))),
    ):
        weight = matrix.weight
        # what is not trained does not grow and is not ours to change; a computed weight (an adapter) cannot be changed
        if not (isinstance(weight, nn.Parameter) and weight.requires_grad):
            continue
        factor = torch.cat([value[:, None].expand(-1, rows) for value, rows in parts], dim=1).reshape(-1, 1)
        local_tensor(weight).mul_(factor[local_rows(weight)].to(weight.dtype))

"""The expert warm-up mask: at the start of training every token may choose among few experts, and all experts equally.

The mask is our own proposal; it is off by default and measured beside runs without it. Token t may pick the experts at the
places t*k ... t*k + width - 1 (modulo E) of an order that is drawn anew every step. While width = k, nothing is left to choose:
the windows of consecutive tokens tile the experts, so all experts get the same number of tokens up to one. A wider
window leaves a choice; at width = E the mask is gone.

Legend of shapes: T tokens, D hidden width, E experts, k picked experts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from watersmeet.kernels.native import route


def warmup_width(step: int, steps: int, k: int, experts: int) -> int:
    """Experts a token may choose among in step number `step` (from 0): k at first, growing evenly to all after `steps`."""
    return experts if step >= steps else k + (experts - k) * step // steps


def allowed_experts(tokens: int, k: int, width: int, order_E: Tensor) -> Tensor:
    """[T, E] bool mask. `order_E` is a permutation: the place of every expert."""
    first_T = torch.arange(tokens, device=order_E.device) * k
    return (order_E[None] - first_T[:, None]) % len(order_E) < width


def route_within(
    x_TD: Tensor, weight: Tensor, bias: Tensor, allowed_TE: Tensor, *, k: int, scaling: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What `route` returns, with picks among the allowed experts only.

    Scores and cutoff are those without the mask: balancing goes on learning the bias that is right once the mask is gone.
    """
    with torch.no_grad():
        _, _, raw_TE, cutoff_T = route(x_TD, weight, bias, k=k, scaling=scaling)
    score_TE = torch.sigmoid(x_TD.float() @ weight.float().T)
    biased_TE = (score_TE.detach() + bias).masked_fill(~allowed_TE, -torch.inf)
    picked_Tk = biased_TE.sort(dim=-1, descending=True, stable=True).indices[:, :k]
    chosen_Tk = score_TE.gather(1, picked_Tk)
    share_Tk = chosen_Tk / (chosen_Tk.sum(-1, keepdim=True) + 1e-20) * scaling
    return picked_Tk, share_Tk, raw_TE, cutoff_T

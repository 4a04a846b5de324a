"""Short causal depthwise convolution with SiLU, packed streams and a window state."""

from torch import Tensor

from ..checks import int_vector, same_place
from ..dispatch import form
from .ops import short_conv_op
from .reference import short_conv_reference

__all__ = ["short_conv"]


def short_conv(
    x: Tensor,
    weight: Tensor,
    *,
    cu_seqlens: Tensor | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    activation: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """Mix every channel with its own last W inputs: ``y_t = silu(sum_j weight[:, j] x_{t-W+1+j})``.

    Args:
        x: [B,T,C]. weight: [C,W]; its last tap multiplies the current token.
        cu_seqlens: [N+1] int32 boundaries of packed sequences, needs B == 1; nothing crosses a boundary.
        initial_state: [N,C,W-1] raw inputs before the first token of each sequence, zero when None.
        output_final_state: also return the last W-1 raw inputs of each sequence, [N,C,W-1] in x's dtype.
        activation: apply SiLU.

    Returns:
        y [B,T,C] in x's dtype, and the final window or None. Everything is differentiable, the windows too.

    Raises:
        ValueError: shapes, devices or boundaries do not fit together. TypeError: a dtype that is not floating.
    """
    if x.dim() != 3 or weight.dim() != 2 or x.shape[2] != weight.shape[0] or weight.shape[1] < 1:
        raise ValueError(f"short_conv got x {tuple(x.shape)}, weight {tuple(weight.shape)}; expected [B,T,C] and [C,W]")
    if cu_seqlens is not None:
        int_vector("short_conv", "cu_seqlens", cu_seqlens)
        if x.shape[0] != 1:
            raise ValueError(f"short_conv got B={x.shape[0]} with cu_seqlens; packed input needs B=1")
    window = (x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1, x.shape[2], weight.shape[1] - 1)
    if initial_state is not None and initial_state.shape != window:
        raise ValueError(f"short_conv got initial_state {tuple(initial_state.shape)}; expected [N,C,W-1] = {window}")
    same_place("short_conv", x=x, weight=weight, initial_state=initial_state)
    if form("short_conv", x, weight) == "reference":
        bounds = None if cu_seqlens is None else cu_seqlens.tolist()
        y, final = short_conv_reference(
            x, weight, cu_seqlens=bounds, initial_state_NCW=initial_state, activation=activation
        )
        return y, final if output_final_state else None
    y, final = short_conv_op(x, weight, cu_seqlens, initial_state, output_final_state, activation)
    return y, final if output_final_state else None

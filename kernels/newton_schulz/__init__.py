"""Newton-Schulz orthogonalisation for Muon."""

from torch import Tensor

from ..dispatch import form
from .ops import newton_schulz_op
from .reference import newton_schulz_reference

__all__ = ["newton_schulz"]


def newton_schulz(x: Tensor, *, steps: int = 5) -> Tensor:
    """Nearly orthogonal factor of every matrix in a batch [...,m,n], by the quintic iteration with Jordan's coefficients.

    Singular values of the result lie in about 0.68 ... 1.13 (they do not converge to 1; Muon does not need it). The
    computation keeps x's dtype.

    Raises:
        ValueError: x is no matrix, or the number of steps is negative. TypeError: its dtype is not floating.
    """
    if x.dim() < 2 or steps < 0:
        raise ValueError(
            f"newton_schulz got x {tuple(x.shape)} and {steps} steps; expected [...,m,n] and a number >= 0"
        )
    if not x.is_floating_point():
        raise TypeError(f"newton_schulz got x in {x.dtype}; expected a floating dtype")
    if form("newton_schulz", x, triton=False) == "reference":
        return newton_schulz_reference(x, steps=steps)
    y: Tensor = newton_schulz_op(x, steps)
    return y

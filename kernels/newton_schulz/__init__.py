"""Newton-Schulz orthogonalisation for Muon."""

import torch
from torch import Tensor

from ..dispatch import form
from .reference import COEFFICIENTS, newton_schulz_reference

__all__ = ["newton_schulz"]


def newton_schulz(x: Tensor, *, steps: int = 5) -> Tensor:
    """Nearly orthogonal factor of every matrix in a batch [...,m,n], by the quintic iteration with Jordan's coefficients.

    Singular values of the result lie in about 0.68 ... 1.13 (they do not converge to 1; Muon does not need it). The
    computation keeps x's dtype.
    """
    if form("newton_schulz", x, triton=False) == "reference":
        return newton_schulz_reference(x, steps=steps)
    a, b, c = COEFFICIENTS
    tall = x.shape[-2] > x.shape[-1]
    y = x.mT if tall else x
    y = y / (torch.linalg.matrix_norm(y, keepdim=True) + 1e-7)
    shape = y.shape
    y = y.reshape(-1, *shape[-2:])
    for _ in range(steps):
        gram = torch.bmm(y, y.mT)
        poly = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        y = torch.baddbmm(y, poly, y, beta=a)
    y = y.reshape(shape)
    return y.mT if tall else y

"""The definition of the quintic Newton-Schulz iteration that Muon uses (Jordan's coefficients; arXiv:2502.16982)."""

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def newton_schulz_reference(x: Tensor, *, steps: int) -> Tensor:
    """[m,n] or a batch of it -> nearly orthogonal, in x's dtype: singular values end up in about 0.68 ... 1.13."""
    if x.dim() > 2:
        flat = x.reshape(-1, *x.shape[-2:])
        return torch.stack([newton_schulz_reference(one, steps=steps) for one in flat]).reshape(x.shape)
    a, b, c = COEFFICIENTS
    y = x.T if x.shape[0] > x.shape[1] else x
    y = y / (y.norm() + 1e-7)
    for _ in range(steps):
        gram = y @ y.T
        y = a * y + (b * gram + c * gram @ gram) @ y
    return y.T if x.shape[0] > x.shape[1] else y

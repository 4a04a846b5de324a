"""KDA's fast form against the float64 recurrence."""

import pytest
import torch

from watersmeet.kernels import dispatch, kda

LENGTHS = (1, 15, 16, 17, 63, 64, 65, 200)


def make(T, H=2, K=8, V=12, *, gate="mid", seed=0, B=1, N=1, dtype=torch.float64):
    r = torch.Generator().manual_seed(seed)
    n = lambda *s: torch.randn(*s, generator=r, dtype=torch.float64)  # noqa: E731
    u = lambda *s: torch.rand(*s, generator=r, dtype=torch.float64)  # noqa: E731
    q, k = (torch.nn.functional.normalize(n(B, T, H, K), dim=-1) for _ in range(2))
    v = n(B, T, H, V)
    g = {
        "zero": lambda: -1e-4 * u(B, T, H, K),
        "mid": lambda: -5 * torch.sigmoid(n(B, T, H, K) * 2),
        "bound": lambda: -5 + 1e-3 * u(B, T, H, K),
        "soft": lambda: -30 + u(B, T, H, K),
        "mixed": lambda: torch.where(u(B, T, H, K) < 0.3, -30 * u(B, T, H, K), -0.01 * u(B, T, H, K)),
    }[gate]()
    beta = torch.sigmoid(n(B, T, H) * 2)
    state = n(N, H, K, V)
    return [x.to(dtype) for x in (q, k, v, g, beta, state)]


def run(inputs, form, dtype, cu=None, seed=1, bound=None):
    """Outputs and all gradients for a random cotangent on both outputs."""
    leaves = [x.to(dtype).requires_grad_() for x in inputs]
    q, k, v, g, beta, state = leaves
    with dispatch.forced(form):
        o, s = kda(q, k, v, g, beta, initial_state=state, cu_seqlens=cu, output_final_state=True, gate_lower_bound=bound)
    r = torch.Generator().manual_seed(seed)
    do = torch.randn(o.shape, generator=r, dtype=torch.float64).to(o.dtype)
    ds = torch.randn(s.shape, generator=r, dtype=torch.float64).to(s.dtype)
    grads = torch.autograd.grad([o, s], leaves, [do, ds])
    return [o.detach(), s.detach(), *grads]


NAMES = ("o", "state", "dq", "dk", "dv", "dg", "dbeta", "dstate")


def close(got, want, tol_out=2e-5, tol_grad=1e-4):
    for name, a, b in zip(NAMES, got, want, strict=True):
        tol = tol_out if name in ("o", "state") else tol_grad
        scale = max(1.0, b.double().abs().max().item())
        err = (a.double() - b.double()).abs().max().item()
        assert err <= tol * scale, f"{name}: off by {err:.2e} where the largest value is {scale:.2e}"


@pytest.mark.parametrize("gate", ["zero", "mid", "bound", "soft", "mixed"])
@pytest.mark.parametrize("T", LENGTHS)
def test_matches_float64_recurrence(T, gate):
    inputs = make(T, gate=gate, seed=T)
    bound = -5.0 if gate in ("zero", "mid", "bound") else None
    want = run(inputs, "reference", torch.float64)
    close(run(inputs, "chunked", torch.float32), want)
    if bound is not None:
        close(run(inputs, "chunked", torch.float32, bound=bound), want)


def test_packed_equals_recurrence_and_separate():
    lengths = [1, 70, 1, 64, 3, 130, 16]
    cu = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    inputs = make(sum(lengths), N=len(lengths), seed=3)
    packed = run(inputs, "chunked", torch.float32, cu)
    close(packed, run(inputs, "reference", torch.float64, cu))

"""KDA's fast form against the float64 recurrence."""

import pytest
import torch

from watersmeet.cli.bench_peers import peer_function
from watersmeet.kernels import dispatch, kda
from watersmeet.kernels.native import delta_rule, library

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
        o, s = kda(
            q, k, v, g, beta, initial_state=state, cu_seqlens=cu, output_final_state=True, gate_lower_bound=bound
        )
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


def cu_of(lengths):
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)


@pytest.mark.parametrize("gate", ["zero", "mid", "bound", "soft", "mixed"])
def test_matches_float64_recurrence(gate):
    """All lengths of interest at once: outputs, states and every gradient."""
    inputs = make(sum(LENGTHS), N=len(LENGTHS), gate=gate)
    want = run(inputs, "reference", torch.float64, cu_of(LENGTHS))
    close(run(inputs, "chunked", torch.float32, cu_of(LENGTHS)), want)
    if gate in ("zero", "mid", "bound"):
        close(run(inputs, "chunked", torch.float32, cu_of(LENGTHS), bound=-5.0), want)


@pytest.mark.parametrize("gate", ["mid", "soft"])
def test_float64_is_exact(gate):
    """Not only close: the algebra is the recurrence's. Floored gates differ by e^-21 at most."""
    inputs = make(70, B=2, N=2, gate=gate)
    bound = -5.0 if gate == "mid" else None
    close(run(inputs, "chunked", torch.float64, bound=bound), run(inputs, "reference", torch.float64), 1e-9, 1e-8)


def test_pitfall_29_packed_equals_separate():
    lengths = [70, 1, 64, 3, 130, 1]
    inputs = make(sum(lengths), N=len(lengths), gate="mixed")
    packed = run(inputs, "chunked", torch.float32, cu_of(lengths))
    state = inputs[5]
    at = 0
    for n, length in enumerate(lengths):
        own = [x[:, at : at + length] for x in inputs[:5]]
        leaves = [x.float().requires_grad_() for x in (*own, state[n : n + 1])]
        with dispatch.forced("chunked"):
            o, s = kda(*leaves[:5], initial_state=leaves[5], output_final_state=True)
        r = torch.Generator().manual_seed(1)
        do = torch.randn(packed[0].shape, generator=r, dtype=torch.float64).float()[:, at : at + length]
        ds = torch.randn(packed[1].shape, generator=r, dtype=torch.float64).float()[n : n + 1]
        alone = [o.detach(), s.detach(), *torch.autograd.grad([o, s], leaves, [do, ds])]
        part = [x[:, at : at + length] for x in (packed[0], *packed[2:7])]
        close([part[0], packed[1][n : n + 1], *part[1:], packed[7][n : n + 1]], alone, 1e-5, 1e-5)
        at += length


@pytest.mark.parametrize("first", [1, 16, 63, 64, 90])
def test_pitfall_5_prefill_then_decode(first):
    """A prefix, two chunks of it, then single tokens, equal the whole at once."""
    q, k, v, g, beta, _ = make(96, gate="mid", dtype=torch.float32)
    whole, last = kda(q, k, v, g, beta, output_final_state=True)
    state, parts = None, []
    cuts = [0, first, *range(first + 1, 93), 96] if first == 90 else [0, first, 93, 94, 96]
    for a, b in zip(cuts[:-1], cuts[1:], strict=True):
        part, state = kda(*(x[:, a:b] for x in (q, k, v, g, beta)), initial_state=state, output_final_state=True)
        parts.append(part)
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(state, last, atol=2e-5, rtol=1e-4)


def test_packed_decode_step():
    """N streams of one token each, as batched generation sends them."""
    inputs = make(5, N=5, gate="mid")
    close(
        run(inputs, "chunked", torch.float32, cu_of([1] * 5)), run(inputs, "reference", torch.float64, cu_of([1] * 5))
    )


@pytest.mark.parametrize("bound", [-5.0, None])
@pytest.mark.parametrize("cut", [1, 7, 16, 40, 64, 100])
def test_pitfall_6_later_tokens_change_no_earlier_bit(cut, bound):
    """Neither values nor gates of later tokens reach back; gradients of earlier outputs do not see them either."""
    one, two = make(150, gate="mid"), make(150, gate="bound" if bound else "mixed", seed=5)
    results = []
    for later in (one, two):
        leaves = [
            torch.cat([a[:, :cut], b[:, cut:]], 1).float().requires_grad_()
            for a, b in zip(one[:5], later[:5], strict=True)
        ]
        o, _ = kda(*leaves, gate_lower_bound=bound)
        grads = torch.autograd.grad(o[:, :cut].square().sum(), leaves)
        results.append((o.detach()[:, :cut], *(x[:, :cut] for x in grads)))
    assert torch.equal(results[0][0], results[1][0])
    for name, a, b in zip(NAMES[2:], results[0][1:], results[1][1:], strict=False):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5, msg=name)


@pytest.mark.skipif(library(torch.zeros(1)) is None, reason="no C++ compiler here")
@pytest.mark.parametrize("cut", [1, 16, 40])
def test_pitfall_6_native_later_tokens_change_no_earlier_bit(cut):
    one, two = make(70, K=16, V=16, gate="mid", dtype=torch.float32), make(70, K=16, V=16, gate="bound", seed=5)
    results = []
    for later in (one, two):
        rows = [torch.cat([a[0, :cut], b[0, cut:].float()]) for a, b in zip(one[:5], later[:5], strict=True)]
        results.append(delta_rule(*rows, cu_of([70]), bounded=True)[0][:cut])
    assert torch.equal(*results)


def test_identical_keys_stay_accurate():
    """Repeated tokens (blank patches) make (I + A) as ill-behaved as it gets; a power series would lose digits here."""
    inputs = make(130, gate="zero")
    inputs[1] = inputs[1][:, :1].expand_as(inputs[1]).clone()
    inputs[4] = torch.full_like(inputs[4], 0.98)
    close(run(inputs, "chunked", torch.float32, bound=-5.0), run(inputs, "reference", torch.float64))


def test_bfloat16_inputs_keep_their_dtype():
    inputs = make(70, gate="mid")
    leaves = [x.bfloat16().requires_grad_() for x in inputs[:3]] + [x.float().requires_grad_() for x in inputs[3:5]]
    o, state = kda(*leaves, output_final_state=True)
    assert o.dtype == torch.bfloat16 and state.dtype == torch.float32
    grads = torch.autograd.grad(o.float().sum(), leaves)
    assert [x.dtype for x in grads] == [x.dtype for x in leaves]
    with dispatch.forced("reference"):
        want, _ = kda(*(x.detach().double() for x in leaves))
    torch.testing.assert_close(o.double(), want, atol=2e-2, rtol=2e-2)


def test_broken_promise_stays_finite():
    inputs = make(70, gate="soft")
    assert all(torch.isfinite(x).all() for x in run(inputs, "chunked", torch.float32, bound=-5.0))


def test_refuses_wrong_bounds():
    inputs = make(8, dtype=torch.float32)[:5]
    with pytest.raises(ValueError, match="cu_seqlens"):
        kda(*inputs, cu_seqlens=torch.tensor([0, 5], dtype=torch.int32))
    with pytest.raises(ValueError, match="expected q, k, g"):
        kda(inputs[0][:, :5], *inputs[1:])


def test_compiles_without_a_break():
    """The opaque operator under torch.compile's front end (no C++ back end needed) gives the eager numbers."""
    inputs = make(75, gate="mid")
    cu = cu_of([5, 70])

    def loss(q, k, v, g, beta):
        o, _ = kda(q, k, v, g, beta, cu_seqlens=cu, gate_lower_bound=-5.0)
        return o.square().sum()

    leaves = [x.float().requires_grad_() for x in inputs[:5]]
    want = torch.autograd.grad(loss(*leaves), leaves)
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    for a, b in zip(torch.autograd.grad(compiled(*leaves), leaves), want, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


def test_matches_transformers():
    """An independent implementation: the fallback of transformers' kimi_linear."""
    peer = peer_function()
    if peer is None:
        pytest.skip("transformers with kimi_linear is not installed")
    q, k, v, g, beta, state = make(130, K=16, V=16, gate="mid", dtype=torch.float32)
    theirs, their_state = peer(q, k, v, g, beta, initial_state=state, output_final_state=True)
    ours, our_state = kda(q, k, v, g, beta, initial_state=state, output_final_state=True)
    torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(our_state, their_state, atol=2e-5, rtol=1e-4)

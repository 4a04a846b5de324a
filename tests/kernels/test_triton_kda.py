"""KDA's Triton form against the float64 recurrence; in Triton's interpreter where there is no GPU (see conftest.py)."""

import pytest
import torch

from watersmeet.kernels import dispatch, kda, kda_gate

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("poisoned")

FEW, ALL = (1, 15, 0, 65), (1, 15, 16, 17, 63, 64, 0, 65, 130)
GATES = {
    "zero": lambda u, n: -1e-4 * u,
    "mid": lambda u, n: -5 * torch.sigmoid(n * 2),
    "bound": lambda u, n: -5 + 1e-3 * u,
    "soft": lambda u, n: -30 + u,
    "mixed": lambda u, n: torch.where(u < 0.3, -30 * u, -0.01 * u),
}
NAMES = ("o", "state", "dq", "dk", "dv", "dg", "dbeta", "dstate")


def make(T, device, *, H=2, K=16, V=32, B=1, N=1, gate="mid", seed=0, dtype=torch.float32):
    """q, k, v in dtype and g, beta, state in float32; q and k of unit length."""
    r = torch.Generator().manual_seed(seed)
    n = lambda *s: torch.randn(*s, generator=r, dtype=torch.float64)  # noqa: E731
    q, k = (torch.nn.functional.normalize(n(B, T, H, K), dim=-1) for _ in range(2))
    v, state, beta = n(B, T, H, V), n(N, H, K, V), torch.sigmoid(n(B, T, H) * 2)
    g = GATES[gate](torch.rand(B, T, H, K, generator=r, dtype=torch.float64), n(B, T, H, K))
    return [x.to(device, dtype) for x in (q, k, v)] + [x.to(device, torch.float32) for x in (g, beta, state)]


def cu_of(lengths, device="cpu"):
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device=device)


def run(inputs, form, *, cu=None, bound=None, stateful=True, wide=False, seed=1):
    """Outputs and all gradients for a random direction on both outputs."""
    leaves = [(x.double() if wide else x).detach().requires_grad_() for x in inputs]
    leaves = leaves if stateful else leaves[:5]
    with dispatch.forced(form):
        o, s = kda(
            *leaves[:5], initial_state=leaves[5] if stateful else None, cu_seqlens=cu, output_final_state=stateful,
            gate_lower_bound=bound,
        )  # fmt: skip
        r = torch.Generator().manual_seed(seed)
        outs = [o, s] if stateful else [o]
        ways = [torch.randn(x.shape, generator=r).to(inputs[2].dtype if x is o else torch.float32) for x in outs]
        grads = torch.autograd.grad(outs, leaves, [w.to(x.device, x.dtype) for w, x in zip(ways, outs, strict=True)])
    return dict(zip(NAMES if stateful else (NAMES[0], *NAMES[2:7]), (*[x.detach() for x in outs], *grads), strict=True))


def close(got, want, tol_out=1e-5, tol_grad=1e-4):
    assert got.keys() == want.keys()
    for name, right in want.items():
        tol = tol_out if name in ("o", "state") else tol_grad
        scale = max(1.0, right.abs().max().item())
        err = (got[name].double() - right.double()).abs().max().item()
        assert err <= tol * scale, f"{name}: off by {err:.2e} where the largest value is {scale:.2e}"


def compare(device, lengths, gate, *, bound=None, tol=(1e-5, 1e-4), stateful=True, dtype=torch.float32, **sizes):
    inputs = make(sum(lengths), device, N=len(lengths), gate=gate, dtype=dtype, **sizes)
    cu = cu_of(lengths, device)
    got = run(inputs, "triton", cu=cu, bound=bound, stateful=stateful)
    close(got, run(inputs, "reference", cu=cu, stateful=stateful, wide=True), *tol)


@pytest.mark.parametrize(("gate", "bound"), [("mid", -5.0), ("mixed", None)])
def test_matches_float64_recurrence(device, gate, bound):
    compare(device, FEW, gate, bound=bound, H=1, V=16)


@pytest.mark.slow
@pytest.mark.parametrize("bound", [None, -5.0])
@pytest.mark.parametrize("gate", GATES)
def test_matches_float64_recurrence_at_all_lengths(device, gate, bound):
    if bound and gate in ("soft", "mixed"):
        pytest.skip("these gates are below the bound")
    compare(device, ALL, gate, bound=bound)


@pytest.mark.slow
@pytest.mark.parametrize(("K", "V"), [(48, 80), (80, 48), (128, 128), (16, 256)])
def test_any_width(device, K, V):
    compare(device, (70,), "mid", K=K, V=V, H=1)


@pytest.mark.slow
@pytest.mark.parametrize("T", [200, 1000])
def test_long(device, T):
    compare(device, (T,), "mid", H=1, V=16, bound=-5.0)


def test_bfloat16(device):
    """Operands of 8 bits: 1/50 of the largest value. The interpreter cuts off where a GPU rounds, which costs twice as much."""
    compare(device, FEW, "mid", H=1, V=16, dtype=torch.bfloat16, tol=(2e-2, 4e-2), bound=-5.0)


@pytest.mark.slow
@pytest.mark.parametrize("gate", GATES)
def test_bfloat16_at_all_lengths(device, gate):
    # without any decay the roundings of all earlier tokens stay in the state
    compare(device, ALL, gate, dtype=torch.bfloat16, tol=(3e-2, 5e-2) if gate == "zero" else (2e-2, 4e-2))


def test_batch_without_states(device):
    """[B,T] instead of packed; neither states in nor out."""
    inputs = make(20, device, B=2, N=2, V=16)
    close(run(inputs, "triton", stateful=False), run(inputs, "reference", stateful=False, wide=True))


def test_identical_keys_stay_accurate(device):
    """Repeated tokens make I + A as ill-behaved as it gets; a power series would lose digits here."""
    inputs = make(70, device, gate="zero", H=1, V=16)
    inputs[1] = inputs[1][:, :1].expand_as(inputs[1]).clone()
    inputs[4] = torch.full_like(inputs[4], 0.98)
    close(run(inputs, "triton", bound=-5.0), run(inputs, "reference", wide=True))


def test_broken_promise_stays_finite(device):
    inputs = make(70, device, gate="soft", H=1, V=16)
    assert all(x.isfinite().all() for x in run(inputs, "triton", bound=-5.0).values())


@pytest.mark.parametrize("bound", [-5.0, None])
@pytest.mark.parametrize(
    "cut", [16, 40, pytest.param(64, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.slow)]
)
def test_later_tokens_change_no_earlier_bit(device, cut, bound):
    """Neither what later tokens hold nor whether there are any."""
    one = make(80, device, H=1, V=16)[:5]
    two = make(80, device, H=1, V=16, gate="bound" if bound else "soft", seed=5)[:5]
    mixed = [torch.cat([a[:, :cut], b[:, cut:]], 1) for a, b in zip(one, two, strict=True)]
    with dispatch.forced("triton"):
        whole, other, short = (
            kda(*x, gate_lower_bound=bound)[0][:, :cut] for x in (one, mixed, [x[:, :cut] for x in one])
        )
    assert torch.equal(whole, other) and torch.equal(whole, short)


def test_packed_equals_separate_to_the_bit(device):
    lengths = (17, 1, 65)
    inputs = make(sum(lengths), device, H=1, V=16, N=3, gate="mixed")
    packed = run(inputs, "triton", cu=cu_of(lengths, device))
    at = 0
    for n, length in enumerate(lengths):
        with dispatch.forced("triton"):
            own = [x[:, at : at + length] for x in inputs[:5]]
            o, s = kda(*[x.requires_grad_() for x in own], initial_state=inputs[5][n : n + 1], output_final_state=True)
        assert torch.equal(o, packed["o"][:, at : at + length]) and torch.equal(s, packed["state"][n : n + 1])
        at += length


@pytest.mark.parametrize("cuts", [(0, 70, 71, 72), (0, 16, 80, 83), (0, 64, 66, 66, 67)])
def test_prefill_in_parts_then_decode(device, cuts):
    """Chunks where tokens are many, the recurrence where they are few: always the numbers of one pass."""
    inputs = make(cuts[-1], device, V=16)[:5]
    with dispatch.forced("triton"):
        whole, last = kda(*inputs, output_final_state=True)
        state, parts = None, []
        for a, b in zip(cuts[:-1], cuts[1:], strict=True):
            part, state = kda(*(x[:, a:b] for x in inputs), initial_state=state, output_final_state=True)
            parts.append(part)
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(state, last, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("lengths", [(1,) * 5, (3, 0, 1, 9), (4, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_decode_steps(device, lengths, dtype):
    """One token and several for many streams, with states; an idle stream keeps its state."""
    inputs = make(sum(lengths), device, K=32, V=48, N=len(lengths), gate="mixed", dtype=dtype)
    before = inputs[5].clone()
    with torch.no_grad(), dispatch.forced("triton"):
        o, s = kda(*inputs[:5], initial_state=inputs[5], cu_seqlens=cu_of(lengths, device), output_final_state=True)
    with dispatch.forced("reference"):
        ro, rs = kda(
            *(x.double() for x in inputs[:5]), initial_state=inputs[5].double(), cu_seqlens=cu_of(lengths, device),
            output_final_state=True,
        )  # fmt: skip
    tol = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(o.double(), ro, atol=tol, rtol=tol)
    torch.testing.assert_close(s.double(), rs, atol=1e-5, rtol=1e-5)
    assert o.dtype == dtype and torch.equal(before, inputs[5])


def test_dtypes_of_gradients(device):
    inputs = make(5, device, H=1, dtype=torch.bfloat16)
    inputs[4] = inputs[4].bfloat16()
    leaves = [x.requires_grad_() for x in inputs]
    with dispatch.forced("triton"):
        o, s = kda(*leaves[:5], initial_state=leaves[5], output_final_state=True)
        grads = torch.autograd.grad(s.sum(), leaves)  # o itself gets no gradient
    assert o.dtype == torch.bfloat16 and s.dtype == torch.float32
    assert [x.dtype for x in grads] == [x.dtype for x in leaves] and all(x.isfinite().all() for x in grads)


def test_changed_bounds_are_noticed(device):
    """Bounds are read once a tensor, and again when they were overwritten."""
    inputs = make(6, device, H=1)[:5]
    cu = cu_of((3, 3), device)
    with dispatch.forced("triton"):
        first = kda(*inputs, cu_seqlens=cu)[0]
        cu[1] = 1
        again = kda(*inputs, cu_seqlens=cu)[0]
        fresh = kda(*inputs, cu_seqlens=cu_of((1, 5), device))[0]
        cu[2] = 7
        with pytest.raises(ValueError, match="cu_seqlens"):
            kda(*inputs, cu_seqlens=cu)
    assert torch.equal(again, fresh) and not torch.equal(first, again)


def test_nothing_to_read_keeps_the_state(device):
    inputs = make(0, device, H=1, N=2)
    got = run(inputs, "triton", cu=cu_of((0, 0), device))
    assert got["o"].shape == inputs[2].shape and torch.equal(got["state"], inputs[5])
    assert got["dstate"].isfinite().all() and (got["dstate"] != 0).any()


def test_wrong_arguments_are_named(device):
    inputs = make(6, device, H=1)
    with dispatch.forced("triton"):
        with pytest.raises(ValueError, match="initial_state"):
            kda(*inputs[:5], initial_state=inputs[5][:, :, :8])
        with pytest.raises(TypeError, match="beta in torch.int64"):
            kda(*inputs[:4], inputs[4].long())
        with pytest.raises(ValueError, match="cu_seqlens"):
            kda(*inputs[:5], initial_state=inputs[5].expand(4, -1, -1, -1), cu_seqlens=cu_of((1, 1, 1, 2), device))
        with pytest.raises(RuntimeError, match="float64"):
            kda(*(x.double() for x in inputs[:5]))


def test_strided_inputs_and_odd_widths(device):
    """Other strides work; widths that no tile fits take the torch form."""
    inputs = make(20, device, H=2)[:5]
    turned = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in inputs]
    with dispatch.forced("triton"):
        assert torch.equal(kda(*inputs)[0], kda(*turned)[0])
        narrow = make(20, device, K=8, V=12)[:5]
        triton = kda(*narrow)[0]
    torch.testing.assert_close(triton, kda(*narrow)[0])


def test_operators_are_sound(device):
    from watersmeet.kernels.kda import triton_ops

    inputs = [x.requires_grad_() for x in make(9, device, H=1, N=2)]
    cu = cu_of((2, 7), device)
    torch.library.opcheck(triton_ops.kda_op, (*inputs, cu, 0.25, True, True))
    torch.library.opcheck(triton_ops.kda_op, (*inputs[:5], None, None, 0.25, False, False))
    torch.library.opcheck(triton_ops.decode_op, (*[x.detach() for x in inputs], cu, 0.25, True))


def test_compiles_without_a_break(device):
    leaves = [x.requires_grad_() for x in make(20, device, H=1)[:5]]
    cu = cu_of((5, 15), device)

    def loss(q, k, v, g, beta):
        return kda(q, k, v, g, beta, cu_seqlens=cu, gate_lower_bound=-5.0)[0].square().sum()

    with dispatch.forced("triton"):
        want = torch.autograd.grad(loss(*leaves), leaves)
        compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
        for a, b in zip(torch.autograd.grad(compiled(*leaves), leaves), want, strict=True):
            torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("bound", [-5.0, None])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 50, 2, 48), (2, 16)])
def test_gate(device, bound, dtype, shape):
    """Both gates with every gradient; rates up to e^50 must stay finite. Float64 sees the same rounded numbers."""
    r = torch.Generator().manual_seed(0)
    z = (torch.randn(shape, generator=r) * 4).to(device, dtype)
    for A in (0.0, 2.0, 50.0):
        A_log = torch.full((2,), A, device=device) + torch.tensor([0.0, -1.0], device=device)
        dt = torch.randn(2, shape[-1], generator=r).to(device)
        results = []
        for form, kind in (("triton", None), ("reference", torch.float64)):
            leaves = [x.detach().to(kind or x.dtype).requires_grad_() for x in (z, A_log, dt)]
            with dispatch.forced(form):
                g = kda_gate(*leaves, lower_bound=bound)
                way = torch.randn(g.shape, generator=torch.Generator().manual_seed(1)).to(g)
                results.append((g, *torch.autograd.grad(g, leaves, way)))
        assert results[0][0].dtype == torch.float32
        for name, got, want in zip(("g", "dz", "dA", "ddt"), *results, strict=True):
            assert got.isfinite().all(), name
            tol = 1e-2 if name == "dz" and dtype == torch.bfloat16 else 1e-5
            assert (got.double() - want).abs().max() <= tol * want.abs().max().clamp(min=1.0), (name, A)


def test_small_softplus_keeps_its_digits(device):
    """A large rate multiplies softplus of a very negative logit: log(1 + e^z) must not be rounded to 1 first."""
    z = torch.linspace(-40, 2, 64, device=device).view(2, 2, 16)
    A_log, dt = torch.full((2,), 30.0, device=device), torch.zeros(2, 16, device=device)
    with dispatch.forced("triton"):
        got = kda_gate(z, A_log, dt)
    want = -torch.exp(A_log.double())[:, None] * torch.nn.functional.softplus(z.double())
    torch.testing.assert_close(got.double(), want, atol=0.0, rtol=2e-6)


def test_compiled_kernels_fit(compiled):
    """No spill, no local memory, shared memory within the chip, on four chips (a part of the cases)."""
    reports = compiled("kda", "--quick", "--chips", "sm_90")
    assert reports and not [r for r in reports if r["problems"]]


@pytest.mark.slow
def test_all_compiled_kernels_fit(compiled):
    reports = compiled("kda")
    assert len({r["chip"] for r in reports}) == 4
    assert not [r for r in reports if r["problems"]]

"""Every CPU form of KDA against the float64 recurrence: all lengths, packings, gates, states, splits and dtypes."""

import ctypes
import subprocess
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from watersmeet.kernels import dispatch, kda, kda_gate
from watersmeet.kernels.native import kda as native
from watersmeet.kernels.native import library

# None: the automatic choice, which is the native form where there is a compiler
FORMS = [None, "chunked"]
CHUNK = 64
EVERY = (*range(1, CHUNK + 2), 200, 1000)
GATES = ("zero", "mid", "bound", "soft", "mixed")
NAMES = ("o", "state", "dq", "dk", "dv", "dg", "dbeta", "dstate")

pytestmark = pytest.mark.skipif(library(torch.zeros(1)) is None, reason="no C++ compiler here, so one form only")


def make(T, *, H=1, K=16, V=16, B=1, N=1, gate="mid", seed=0, dtype=torch.float32):
    """q, k, v in dtype; g, beta and states in float32."""
    r = torch.Generator().manual_seed(seed)
    n = lambda *s: torch.randn(*s, generator=r, dtype=torch.float64)  # noqa: E731
    u = torch.rand(B, T, H, K, generator=r, dtype=torch.float64)
    q, k = (torch.nn.functional.normalize(n(B, T, H, K), dim=-1) for _ in range(2))
    v, beta, state = n(B, T, H, V), torch.sigmoid(n(B, T, H) * 2), n(N, H, K, V)
    g = {
        "zero": lambda: torch.zeros_like(u),
        "mid": lambda: -5 * torch.sigmoid(n(B, T, H, K) * 2),
        "bound": lambda: torch.full_like(u, -5.0),
        "soft": lambda: torch.full_like(u, -30.0),
        "mixed": lambda: torch.where(u < 0.3, -100 * u, -0.01 * u),
    }[gate]()
    return [x.to(dtype) for x in (q, k, v)] + [x.float() for x in (g, beta, state)]


def bounds(lengths):
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)


def run(inputs, form, *, cu=None, bound=None, state=True, wide=False):
    """Outputs and gradients along one random direction."""
    leaves = [(x.double() if wide else x).detach().requires_grad_() for x in inputs]
    leaves = leaves if state else leaves[:5]
    with dispatch.forced(form):
        o, s = kda(
            *leaves[:5], initial_state=leaves[5] if state else None, cu_seqlens=cu, output_final_state=True,
            gate_lower_bound=bound,
        )  # fmt: skip
        r = torch.Generator().manual_seed(1)
        ways = [torch.randn(x.shape, generator=r).to(inputs[2].dtype if x is o else torch.float32) for x in (o, s)]
        grads = torch.autograd.grad([o, s], leaves, [w.to(x.dtype) for w, x in zip(ways, (o, s), strict=True)])
    return dict(zip(NAMES, (o.detach(), s.detach(), *grads), strict=False))


def close(got, want, tol_out=1e-5, tol_grad=1e-4):
    assert got.keys() == want.keys()
    for name, right in want.items():
        assert got[name].isfinite().all(), name
        tol = tol_out if name in ("o", "state") else tol_grad
        scale = max(1.0, right.abs().max().item())
        error = (got[name].double() - right.double()).abs().max().item()
        assert error <= tol * scale, f"{name}: off by {error:.2e} where the largest value is {scale:.2e}"


def compare(lengths, form, *, gate="mid", bound=None, tol=(1e-5, 1e-4), state=True, **options):
    inputs, cu = make(sum(lengths), N=len(lengths), gate=gate, **options), bounds(lengths)
    close(
        run(inputs, form, cu=cu, bound=bound, state=state),
        run(inputs, "reference", cu=cu, state=state, wide=True), *tol,
    )  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_every_length(form):
    """1..C+1, 200 and 1,000, as one packed batch: outputs, states, all gradients."""
    compare(EVERY, form)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("gate", GATES)
def test_every_gate(form, gate):
    """No decay, the bound itself, far below it, and both mixed in one chunk."""
    compare((1, 17, 0, 64, 33), form, gate=gate)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("state", [True, False])
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize(("K", "V"), [(16, 32), (48, 16), (128, 128)])
def test_every_length_gate_width_and_state(form, state, gate, K, V):
    compare((1, 2, 15, 16, 17, 63, 64, 65, 200), form, gate=gate, state=state, K=K, V=V, H=2)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("gate", GATES)
def test_every_length_at_every_gate(form, gate):
    compare(EVERY, form, gate=gate)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("A_log", [0.0, 4.0, 50.0])
@pytest.mark.parametrize("bound", [-5.0, None])
def test_gates_of_every_strength(form, A_log, bound):
    """The operator behind its own gate, up to A = e^50: finite, and the recurrence of the same log decays."""
    inputs = make(70, H=2)
    z = torch.randn(1, 70, 2, 16, generator=torch.Generator().manual_seed(3)) * 3
    inputs[3] = kda_gate(z, torch.full((2,), A_log), torch.zeros(2, 16), lower_bound=bound)
    close(run(inputs, form, bound=bound), run(inputs, "reference", wide=True))


# what 8 bits of operands leave, measured and doubled; the torch form computes in float32 from the same rounded inputs
BFLOAT16 = {"o": 1e-2, "state": 1e-4, "dq": 1e-2, "dk": 1e-2, "dv": 1e-2, "dg": 1e-3, "dbeta": 1e-3, "dstate": 1e-3}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("gate", ["mid", "mixed"])
def test_bfloat16_inputs_against_float64_of_the_same(form, gate):
    """Only what leaves in bfloat16 is rounded to it; what leaves in float32 keeps float32's digits but for the cotangent's."""
    lengths = (1, 17, 64, 100)
    inputs = make(sum(lengths), N=4, gate=gate, H=2, dtype=torch.bfloat16)
    got, want = run(inputs, form, cu=bounds(lengths)), run(inputs, "reference", cu=bounds(lengths), wide=True)
    for name, tol in BFLOAT16.items():
        scale = max(1.0, want[name].abs().max().item())
        assert (got[name].double() - want[name]).abs().max().item() <= tol * scale, name


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cut", [1, 5, 16, 40, 64])
@pytest.mark.parametrize("gate", ["mid", "mixed"])
def test_later_tokens_change_no_earlier_bit(form, cut, gate):
    """Neither what they hold nor whether there are any."""
    one, two = make(90, gate=gate)[:5], make(90, gate="soft", seed=5)[:5]
    other = [torch.cat([a[:, :cut], b[:, cut:]], 1) for a, b in zip(one, two, strict=True)]
    with dispatch.forced(form):
        whole, changed, short = (kda(*x)[0][:, :cut] for x in (one, other, [x[:, :cut] for x in one]))
    assert torch.equal(whole, changed) and torch.equal(whole, short)


@pytest.mark.parametrize("gate", ["mid", "mixed"])
def test_packed_is_separate_to_the_last_bit(gate):
    """Of the native form, whose streams never share a product."""
    lengths = (17, 1, 0, 65, 3)
    inputs = make(sum(lengths), N=len(lengths), gate=gate, H=2)
    packed, at = run(inputs, None, cu=bounds(lengths)), 0
    for n, length in enumerate(lengths):
        rows = slice(at, at + length)
        alone = kda(*(x[:, rows] for x in inputs[:5]), initial_state=inputs[5][n : n + 1], output_final_state=True)
        assert torch.equal(alone[0], packed["o"][:, rows]) and torch.equal(alone[1], packed["state"][n : n + 1])
        at += length


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cuts=st.lists(st.integers(0, 80), max_size=4).map(sorted),
    gate=st.sampled_from(GATES),
    form=st.sampled_from(FORMS),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_prefill_in_any_split(cuts, gate, form, dtype):
    """Pieces of any length, none included, hand one state on; the last tokens come one by one."""
    inputs = make(84, gate=gate, dtype=dtype)[:5]
    with dispatch.forced(form):
        whole, last = kda(*inputs, output_final_state=True)
        state, parts = None, []
        for a, b in zip([0, *cuts, 80, 81, 82, 83], [*cuts, 80, 81, 82, 83, 84], strict=True):
            part, state = kda(*(x[:, a:b] for x in inputs), initial_state=state, output_final_state=True)
            parts.append(part)
    tol = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(torch.cat(parts, 1).float(), whole.float(), atol=tol, rtol=tol)
    torch.testing.assert_close(state, last, atol=1e-5, rtol=1e-4)


@settings(max_examples=20, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=5).filter(any),
    H=st.integers(1, 3),
    K=st.sampled_from([8, 16, 32, 48]),
    V=st.sampled_from([4, 16, 32]),
    gate=st.sampled_from(GATES),
    form=st.sampled_from(FORMS),
    dtypes=st.tuples(*[st.sampled_from([torch.float32, torch.bfloat16])] * 3),
    state=st.booleans(),
)
def test_any_shape_and_mixture_of_dtypes(lengths, H, K, V, gate, form, dtypes, state):
    """q and k, v, and g with beta each in a dtype of its own; gradients come back in the dtypes that went in."""
    inputs = make(sum(lengths), N=len(lengths), H=H, K=K, V=V, gate=gate)
    kinds = (dtypes[0], dtypes[0], dtypes[1], dtypes[2], dtypes[2], torch.float32)
    inputs = [x.to(kind) for x, kind in zip(inputs, kinds, strict=True)]
    got = run(inputs, form, cu=bounds(lengths), state=state)
    want = run(inputs, "reference", cu=bounds(lengths), state=state, wide=True)
    assert got["o"].dtype == inputs[2].dtype and got["state"].dtype == torch.float32
    for name, x in zip(NAMES[2:], inputs, strict=True):
        assert name not in got or got[name].dtype == x.dtype
    close(got, want, 2e-2, 2e-2) if torch.bfloat16 in dtypes else close(got, want)


@pytest.mark.parametrize("form", FORMS)
def test_no_token_at_all(form):
    """A stream without tokens keeps its state."""
    inputs = make(0, N=2)
    with dispatch.forced(form):
        o, s = kda(*inputs[:5], initial_state=inputs[5], cu_seqlens=bounds((0, 0)), output_final_state=True)
    assert o.shape == inputs[2].shape and torch.equal(s, inputs[5])


def test_strided_and_batched_inputs():
    """Views in other strides work; [B,T] is B packed streams."""
    inputs = make(33, B=2, N=2, H=2)
    turned = [x.transpose(1, 2).contiguous().transpose(1, 2) if x.dim() > 3 else x for x in inputs[:5]]
    assert torch.equal(kda(*inputs[:5])[0], kda(*turned)[0])
    flat = [x.reshape(1, 66, *x.shape[2:]) for x in inputs[:5]]
    assert torch.equal(kda(*inputs[:5])[0].flatten(0, 1), kda(*flat, cu_seqlens=bounds((33, 33)))[0][0])


def test_native_operator_is_sound_and_opaque():
    """The registered operator with the native form inside: schema, fake shapes, gradients, no graph break."""
    inputs = [x.requires_grad_() for x in make(20, N=2, H=1)]
    cu = bounds((5, 15))
    torch.library.opcheck(torch.ops.watersmeet.kda, (*inputs, cu, 0.25, False, True))
    torch.library.opcheck(torch.ops.watersmeet.kda, (*inputs[:5], None, None, 0.25, True, False))

    def loss(*x):
        o, s = kda(*x[:5], initial_state=x[5], cu_seqlens=cu, output_final_state=True)
        return o.square().sum() + s.square().sum()

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    for got, want in zip(
        torch.autograd.grad(compiled(*inputs), inputs), torch.autograd.grad(loss(*inputs), inputs), strict=True
    ):
        torch.testing.assert_close(got, want)


def test_long_streams_make_states_again():
    """More chunks than one segment of kept states holds: the gradients are still those of the recurrence."""
    compare((64 * 16 + 5,), None, gate="mixed")
    compare((64 * 16 * 2, 7), None, bound=-5.0)


@pytest.fixture(scope="module")
def processor(tmp_path_factory):
    """A processor's matrix units: its own, or those that tests/kernels/matrix_units.cpp carries out."""
    if native.matrix_units(library(torch.zeros(1))):
        yield None
        return
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    if "avx512f" not in flags:
        pytest.skip(
            "the form for matrix units is compiled where vectors are 512 bits wide, which those with such units are"
        )
    target = tmp_path_factory.mktemp("units") / "units.so"
    source = Path(__file__).with_name("matrix_units.cpp")
    subprocess.run(["g++", "-std=c++20", "-O2", "-shared", "-fPIC", source, "-o", target], check=True, timeout=300)
    yield ctypes.CDLL(str(target))


@pytest.fixture
def units(processor, monkeypatch):
    """Matrix units switched on; a test must have used them."""
    monkeypatch.setattr(native, "matrix_units", lambda _: True)
    if processor is None:
        yield
        return
    processor.matrix_units_begin()
    yield
    assert processor.matrix_units_end() > 0


@pytest.mark.parametrize(("gate", "lengths"), [("mid", (1, 17, 300)), ("mixed", (40, 16)), ("soft", (20,))])
def test_matrix_units_against_float64(units, gate, lengths):
    """The bounds of the other forms, with states to begin from, whole chunks and shorter ones, kept states and none."""
    inputs = make(sum(lengths), N=len(lengths), gate=gate, K=32, V=64, dtype=torch.bfloat16)
    got, want = run(inputs, None, cu=bounds(lengths)), run(inputs, "reference", cu=bounds(lengths), wide=True)
    for name, tol in BFLOAT16.items():
        scale = max(1.0, want[name].abs().max().item())
        assert (got[name].double() - want[name]).abs().max().item() <= tol * scale, name


def test_two_parts_of_every_operand_leave_float32_little_to_lose(units, monkeypatch):
    """What leaves in float32 differs from the form without matrix units by 2^-15 of the largest value at most: operands of
    one bfloat16 part would lose 2^-9."""
    inputs = make(70, gate="mid", H=2, K=64, V=32, N=1, dtype=torch.bfloat16)
    got = run(inputs, None)
    monkeypatch.setattr(native, "matrix_units", lambda _: False)
    plain = run(inputs, None)
    for name in ("state", "dg", "dbeta", "dstate"):
        assert (got[name] - plain[name]).abs().max() <= 2**-15 * max(1.0, plain[name].abs().max().item()), name
    assert not torch.equal(got["state"], plain["state"])  # there are two forms


def test_matrix_units_read_no_later_row_and_no_other_stream(units):
    one, two = (make(50, gate="mid", seed=seed, K=32, V=32, dtype=torch.bfloat16)[:5] for seed in (0, 5))
    other = [torch.cat([a[:, :21], b[:, 21:]], 1) for a, b in zip(one, two, strict=True)]
    whole, changed, short = (kda(*x)[0][:, :21] for x in (one, other, [x[:, :21] for x in one]))
    assert torch.equal(whole, changed) and torch.equal(whole, short)
    packed = kda(*(torch.cat([a, b], 1) for a, b in zip(two, one, strict=True)), cu_seqlens=bounds((50, 50)))[0]
    assert torch.equal(packed[:, 50:71], whole)

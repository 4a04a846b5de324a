"""The short convolution in Triton against its definition in float64: outputs, windows and all gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from watersmeet.kernels import short_conv
from watersmeet.kernels.dispatch import forced

pytest.importorskip("triton")
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1.2e-2, torch.float16: 3e-3}
DTYPES = [torch.float32, torch.bfloat16]


def draw(*shape, seed=0, scale=1.0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


def close(one, other):
    """Equal but for the last bits: on a CPU the exponential of a number depends on its place in a vector register."""
    torch.testing.assert_close(one, other, rtol=2e-6, atol=2e-6)


def both(form, leaves, cu, activation, final=True):
    """Outputs and gradients of everything in one form; float64 for the definition."""
    leaves = [x.detach().clone().requires_grad_() for x in leaves]
    x, w, state = (*leaves, None)[:3]
    with forced(form):
        y, last = short_conv(x, w, cu_seqlens=cu, initial_state=state, output_final_state=final, activation=activation)
        outputs = [y, last] if final else [y]
        total = sum((o.double() * draw(*o.shape, seed=5).to(o.device)).sum() for o in outputs)
        total = total + 0 * sum(leaf.sum() for leaf in leaves)  # without tokens nothing depends on the weight
        return outputs, torch.autograd.grad(total, leaves)


def compare(device, lengths, channels, taps, dtype, *, state=True, packed=True, activation=True, final=True):
    if packed:
        cu, shape, streams = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32), (1, sum(lengths)), len(lengths)
    else:
        cu, shape, streams = None, (len(lengths), lengths[0]), len(lengths)
    leaves = [draw(*shape, channels), draw(channels, taps, seed=1), draw(streams, channels, taps - 1, seed=2)]
    leaves = [leaves[0].to(dtype), leaves[1].float(), leaves[2].to(dtype)][: 3 if state else 2]
    got = both("triton", [x.to(device) for x in leaves], cu if cu is None else cu.to(device), activation, final)
    want = both("reference", [x.double() for x in leaves], cu, activation, final)
    for kind, tolerance in zip((0, 1), (TOLERANCE[dtype], 5 * TOLERANCE[dtype]), strict=True):
        for one, other in zip(got[kind], want[kind], strict=True):
            assert one.shape == other.shape and torch.isfinite(one).all()
            assert (
                (one.cpu().double() - other).abs().max() <= tolerance * (1 + other.abs().max())
                if other.numel()
                else True
            )
    return got


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lengths", [(1, 2, 3, 0, 7, 1, 20), (33,)])
@pytest.mark.parametrize("state", [True, False])
def test_packed(device, lengths, dtype, state):
    got = compare(device, lengths, 20, 4, dtype, state=state)
    assert got[0][0].dtype == got[0][1].dtype == got[1][0].dtype == dtype and got[1][1].dtype == torch.float32


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("T", [1, 2, 3, 5, 18])
def test_batches_and_single_steps(device, T):
    compare(device, (T, T, T), 70, 4, torch.float32, packed=False)
    compare(device, (T, T), 8, 4, torch.float32, packed=False, state=False, final=False, activation=False)


@settings(max_examples=6, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=3),
    channels=st.integers(1, 40), taps=st.integers(2, 5), state=st.booleans(), activation=st.booleans(),
    final=st.booleans(), dtype=st.sampled_from(list(TOLERANCE)),
)  # fmt: skip
def test_any_shape(lengths, channels, taps, state, activation, final, dtype):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    compare(device, lengths, channels, taps, dtype, state=state, activation=activation, final=final)


@pytest.mark.parametrize("form", ["triton", "chunked"])
def test_pitfall_29_nothing_crosses_a_boundary_and_a_prefix_does_not_feel_what_follows(device, form):
    """Outputs and gradients; a neighbour made of NaN leaves no trace, not in one bit."""
    x, w = draw(1, 30, 6).float().to(device), draw(6, 4, seed=1).float().to(device)
    cu = torch.tensor([0, 11, 12, 30], dtype=torch.int32, device=device)

    def run(x, cu):
        leaf = x.clone().requires_grad_()
        with forced(form):
            y, _ = short_conv(leaf, w, cu_seqlens=cu)
        return y, torch.autograd.grad(y.sum(), leaf)[0]

    whole, grad = run(x, cu)
    for a, b in ((0, 11), (11, 12), (12, 30)):
        alone, grad_alone = run(x[:, a:b], None)
        close(whole[:, a:b], alone)
        close(grad[:, a:b], grad_alone)
    spoiled = x.clone()
    spoiled[:, 11] = float("nan")
    y, g = run(spoiled, cu)
    for piece in (slice(0, 11), slice(12, 30)):
        assert torch.equal(y[:, piece], whole[:, piece]) and torch.equal(g[:, piece], grad[:, piece])
    close(run(x[:, 12:20], None)[0], whole[:, 12:20])


@pytest.mark.parametrize("form", ["triton", "chunked"])
def test_any_split_of_a_prefill_is_one_prefill_and_steps_go_on(device, form):
    x, w = draw(2, 13, 8).float().to(device), draw(8, 4, seed=1).float().to(device)
    state = draw(2, 8, 3, seed=2).float().to(device)
    with forced(form):
        whole, last = short_conv(x, w, initial_state=state, output_final_state=True)
        parts, now = [], state
        for a, b in ((0, 2), (2, 9), (9, 10), (10, 11), (11, 13)):
            y, now = short_conv(x[:, a:b], w, initial_state=now, output_final_state=True)
            parts.append(y)
    close(torch.cat(parts, 1), whole)
    assert torch.equal(now, last)


@pytest.mark.parametrize("form", ["triton", "chunked"])
def test_inputs_need_not_be_contiguous(device, form):
    x = draw(2, 12, 9).float().to(device).transpose(1, 2)
    w, state = draw(4, 12, seed=1).float().to(device).T, draw(2, 3, 12, seed=2).float().to(device).transpose(1, 2)
    with forced(form):
        got = short_conv(x, w, initial_state=state, output_final_state=True)
        want = short_conv(x.contiguous(), w.contiguous(), initial_state=state.contiguous(), output_final_state=True)
    assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])


@pytest.mark.parametrize("form", ["triton", "chunked", "reference"])
def test_wrong_inputs_raise_one_clear_error(form):
    x, w = torch.zeros(1, 5, 3), torch.zeros(3, 4)
    cu = torch.tensor([0, 2, 5], dtype=torch.int32)
    cases = [
        (ValueError, "expected .B,T,C.", (torch.zeros(5, 3), w), {}),
        (ValueError, "expected .B,T,C.", (x, torch.zeros(4, 3)), {}),
        (ValueError, "B=2 with cu_seqlens", (torch.zeros(2, 5, 3), w), {"cu_seqlens": cu}),
        (ValueError, "cu_seqlens .* int32 or int64", (x, w), {"cu_seqlens": cu.float()}),
        (TypeError, "cu_seqlens as list", (x, w), {"cu_seqlens": [0, 5]}),
        (ValueError, "initial_state .* expected .N,C,W-1. = .2, 3, 3.", (x, w),
         {"cu_seqlens": cu, "initial_state": torch.zeros(1, 3, 3)}),
        (TypeError, "x in torch.int64", (x.long(), w), {}),
        (ValueError, "x on cpu and weight on meta", (x, w.to("meta")), {}),
    ]  # fmt: skip
    if form != "reference":
        cases += [
            (ValueError, "rise from 0 to 5", (x, w), {"cu_seqlens": torch.tensor(b)})
            for b in ([0, 4], [1, 5], [0, 4, 2, 5])
        ]
    with forced(form):
        for kind, message, arguments, options in cases:
            with pytest.raises(kind, match=message):
                short_conv(*arguments, **options)


def test_compiles_for_all_chips(compiled):
    for report in compiled("conv", "--quick"):
        assert not report["problems"], report


@pytest.mark.slow
def test_every_kernel_compiles_for_all_chips(compiled):
    for report in compiled("conv"):
        assert not report["problems"], report

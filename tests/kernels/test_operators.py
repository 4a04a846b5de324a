"""The small operators against their definitions, autograd, and properties."""

import math

import pytest
import torch
import torch.nn.functional as F

from watersmeet import kernels
from watersmeet.kernels import attnres, dispatch, expert_glu, kda_gate, newton_schulz, short_conv, situ_glu, swi_glu
from watersmeet.kernels.attnres.reference import attnres_reference
from watersmeet.kernels.experts.reference import situ_glu_reference
from watersmeet.kernels.kda.reference import kda_gate_reference


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def gradients(function, inputs, seed=9):
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    out = function(*leaves)
    cotangent = normal(*out.shape, seed=seed, dtype=out.dtype)
    return out.detach(), torch.autograd.grad(out, leaves, cotangent)


def same(got, want, tol=1e-10):
    (y, grads), (y_want, grads_want) = got, want
    torch.testing.assert_close(y, y_want, atol=tol, rtol=tol)
    for a, b in zip(grads, grads_want, strict=True):
        torch.testing.assert_close(a, b, atol=tol, rtol=tol)


# ---- gates


def test_pitfall_1_the_bounded_gate_is_no_clamp_of_the_other():
    z = torch.tensor([4.0, -4.0]).view(1, 1, 2)
    zero = torch.zeros(1)
    bounded = kda_gate(z, zero, torch.zeros(1, 2), lower_bound=-5.0).flatten()
    free = kda_gate(z, zero, torch.zeros(1, 2)).flatten()
    torch.testing.assert_close(bounded, torch.tensor([-4.910069, -0.089931]), atol=1e-5, rtol=0)
    torch.testing.assert_close(free, torch.tensor([-4.018150, -0.018150]), atol=1e-5, rtol=0)
    assert (bounded - free.clamp(min=-5)).abs().min() > 0.05  # not a clamp of the other gate


@pytest.mark.parametrize("bound", [-5.0, None])
def test_gate_gradients(bound):
    inputs = normal(2, 3, 2, 4), normal(2, seed=1), normal(2, 4, seed=2)
    same(
        gradients(lambda *x: kda_gate(*x, lower_bound=bound), inputs),
        gradients(lambda *x: kda_gate_reference(*x, lower_bound=bound), inputs),
    )


@pytest.mark.parametrize("A", [50.0, 200.0])
@pytest.mark.parametrize("bound", [-5.0, None])
def test_pitfall_8_saturated_gate_is_finite(A, bound):
    z = torch.tensor([-30.0, -1e-3, 0.0, 1e-3, 30.0]).view(1, 1, 5)
    g, grads = gradients(
        lambda z, A, dt: kda_gate(z, A, dt, lower_bound=bound), (z, torch.full((1,), A), torch.zeros(1, 5))
    )
    if bound is not None:
        assert torch.isfinite(g).all() and all(torch.isfinite(x).all() for x in grads)
    else:
        assert not torch.isnan(g).any()


def test_gate_says_what_is_wrong():
    with pytest.raises(ValueError, match="expected"):
        kda_gate(torch.zeros(1, 2, 3), torch.zeros(3), torch.zeros(2, 3))


# ---- short convolution


def by_conv1d(x, w, state=None):
    seen = x.transpose(1, 2) if state is None else torch.cat([state, x.transpose(1, 2)], -1)
    pad = w.shape[1] - 1 if state is None else 0
    return F.silu(F.conv1d(F.pad(seen, (pad, 0)), w[:, None], groups=w.shape[0])).transpose(1, 2)


@pytest.mark.parametrize("T", [1, 2, 3, 4, 20])
def test_conv_is_conv1d(T):
    x, w = normal(2, T, 6), normal(6, 4, seed=1)
    same(gradients(lambda x, w: short_conv(x, w)[0], (x, w)), gradients(by_conv1d, (x, w)))


def test_conv_packed_equals_separate_and_continues():
    lengths = [1, 2, 5, 1, 9]
    cu = torch.tensor([0, 1, 3, 8, 9, 18], dtype=torch.int32)
    x, w, state = normal(1, 18, 6), normal(6, 4, seed=1), normal(5, 6, 3, seed=2)

    def separate(x, w, state):
        parts = x.split(lengths, 1)
        return torch.cat([by_conv1d(p, w, state[n : n + 1]) for n, p in enumerate(parts)], 1)

    same(
        gradients(lambda x, w, s: short_conv(x, w, cu_seqlens=cu, initial_state=s)[0], (x, w, state)),
        gradients(separate, (x, w, state)),
    )
    same(
        gradients(lambda x, w: short_conv(x, w, cu_seqlens=cu)[0], (x, w)),
        gradients(lambda x, w: separate(x, w, torch.zeros_like(state)), (x, w)),
    )
    whole, last = short_conv(x[:, 9:], w, output_final_state=True)
    first, middle = short_conv(x[:, 9:11], w, output_final_state=True)
    second, end = short_conv(x[:, 11:], w, initial_state=middle, output_final_state=True)
    torch.testing.assert_close(torch.cat([first, second], 1), whole)
    torch.testing.assert_close(end, last)
    torch.testing.assert_close(last, x[:, -3:].transpose(1, 2))


# ---- Attention Residuals


def test_pitfall_15_zero_query_is_the_mean():
    x = normal(4, 3, 5, 8, dtype=torch.float32)
    torch.testing.assert_close(attnres(x, torch.zeros(8), torch.ones(8), eps=1e-5), x.mean(0))


def test_attnres_matches_definition():
    inputs = normal(3, 2, 5, 8), normal(8, seed=1), normal(8, seed=2)
    same(
        gradients(lambda *x: attnres(*x, eps=1e-5), inputs),
        gradients(lambda *x: attnres_reference(*x, eps=1e-5), inputs),
    )


def test_pitfall_16_no_float32_copy_of_the_sources_is_kept():
    x = normal(6, 512, 64, dtype=torch.bfloat16).requires_grad_()
    held = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: held.append(t) or t, lambda t: t):
        attnres(x, torch.randn(64), torch.ones(64), eps=1e-5)
    extra = sum(t.numel() * t.element_size() for t in held if t.shape != x.shape)
    assert extra < x.numel() * x.element_size() / 4


# ---- experts and activations


@pytest.mark.parametrize("linear_beta", [25.0, None])
def test_situ(linear_beta):
    gate, up = 6 * normal(4, 5), 40 * normal(4, 5, seed=1)
    want = gradients(lambda g, u: situ_glu_reference(g, u, beta=4.0, linear_beta=linear_beta), (gate, up))
    same(gradients(lambda g, u: situ_glu(g, u, linear_beta=linear_beta), (gate, up)), want)


def test_pitfall_22_situ_is_bounded_and_near_swiglu():
    big = torch.full((3,), 1e4)
    assert situ_glu(big, big).max() <= 100.0
    small = 1e-3 * normal(50, dtype=torch.float32)
    torch.testing.assert_close(situ_glu(small, small), swi_glu(small, small), rtol=1e-4, atol=1e-12)
    assert situ_glu(small.bfloat16(), small.bfloat16()).dtype == torch.bfloat16


def test_situ_gradcheck():
    gate, up = (normal(6, seed=s).requires_grad_() for s in (1, 2))
    assert torch.autograd.gradcheck(situ_glu, (gate, up))


@pytest.mark.parametrize("act", [situ_glu, swi_glu])
@pytest.mark.parametrize("offsets", [[0, 3, 3, 10, 12], [0, 0, 0, 0, 12]])
def test_experts_match_loop(offsets, act):
    inputs = normal(12, 6), normal(4, 5, 6, seed=1), normal(4, 5, 6, seed=2), normal(4, 6, 5, seed=3)
    bounds = torch.tensor(offsets)

    def run(x, *weights):
        return expert_glu(x, bounds, *weights, act=act, linear_beta=25.0 if len(set(offsets)) > 3 else None)

    got = gradients(run, inputs)
    with dispatch.forced("reference"):
        same(got, gradients(run, inputs))


def test_pitfall_23_gate_comes_first_and_up_second():
    """Asymmetric by hand: one row, one inner unit; gate 2, up -3."""
    x = torch.tensor([[1.0]])
    gate, up, down = (torch.full((1, 1, 1), v) for v in (2.0, -3.0, 1.0))
    want = 4 * math.tanh(2 / 4) / (1 + math.exp(-2)) * 25 * math.tanh(-3 / 25)
    y = expert_glu(x, torch.tensor([0, 1]), gate, up, down)
    assert y.item() == pytest.approx(want, rel=1e-6)
    assert expert_glu(x, torch.tensor([0, 1]), up, gate, down).item() != pytest.approx(want, rel=1e-2)
    joint = torch.cat([gate, up], dim=1)
    assert torch.equal(y, expert_glu(x, torch.tensor([0, 1]), *joint.chunk(2, dim=1), down))


def test_experts_without_rows_keep_the_graph():
    inputs = normal(0, 6), normal(2, 5, 6), normal(2, 5, 6), normal(2, 6, 5)
    y, grads = gradients(lambda *x: expert_glu(x[0], torch.zeros(3, dtype=torch.int64), *x[1:]), inputs)
    assert y.shape == (0, 6) and all(not g.any() for g in grads)


# ---- Newton-Schulz


@pytest.mark.parametrize("shape", [(3, 16, 40), (3, 40, 16), (24, 24)])
def test_newton_schulz(shape):
    x = normal(*shape)
    y = newton_schulz(x)
    values = torch.linalg.svdvals(y)
    assert values.min() > 0.6 and values.max() < 1.25
    with dispatch.forced("reference"):
        torch.testing.assert_close(y, newton_schulz(x), atol=1e-9, rtol=1e-9)
    # the same subspaces: y = U f(S) V^T for x = U S V^T
    U, _, Vh = torch.linalg.svd(x, full_matrices=False)
    core = U.mT @ y @ Vh.mT
    torch.testing.assert_close(core, torch.diag_embed(core.diagonal(dim1=-2, dim2=-1)), atol=1e-8, rtol=0)


# ---- the room


def test_names_are_functions_even_after_importing_folders():
    import watersmeet.kernels.kda.layout  # noqa: F401

    assert callable(kernels.kda) and callable(kernels.newton_schulz) and callable(kernels.attnres)
    with pytest.raises(AttributeError, match="short_conv"):
        _ = kernels.nothing


def test_forced_form_is_checked():
    with pytest.raises(ValueError, match="reference"), dispatch.forced("fastest"):
        pass

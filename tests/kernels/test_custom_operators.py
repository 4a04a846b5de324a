"""Public operators as PyTorch knows them: registered with shapes, gradients and schemas, and opaque to the compiler."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.library import opcheck

from watersmeet.kernels import (
    attnres,
    dispatch,
    expert_glu,
    kda_gate,
    mla_decode,
    newton_schulz,
    short_conv,
    situ_glu,
    swi_glu,
)

OPERATORS = torch.ops.watersmeet


def normal(*shape, seed=0, dtype=torch.float32, grad=True):
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)
    return x.requires_grad_(grad)


def whole_graph(function, *inputs):
    """Compile without a graph break; results and gradients equal the eager ones."""
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")

    def run(call):
        leaves = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
        outputs = call(*leaves)
        outputs = [y for y in (outputs if isinstance(outputs, tuple) else (outputs,)) if y is not None]
        total = sum((y.double() * normal(*y.shape, seed=7, dtype=torch.float64, grad=False)).sum() for y in outputs)
        return outputs, torch.autograd.grad(total, [x for x in leaves if x.requires_grad])

    for got, want in zip(run(compiled), run(function), strict=True):
        for one, other in zip(got, want, strict=True):
            assert one.stride() == other.stride()
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("bound", [-5.0, None])
@pytest.mark.parametrize("shape", [(2, 5, 3, 4), (3, 4)])
def test_gate(bound, shape):
    inputs = normal(*shape), normal(3, seed=1), normal(3, 4, seed=2)
    opcheck(OPERATORS.kda_gate, (*inputs, bound))
    opcheck(OPERATORS.kda_gate, (normal(*shape, dtype=torch.bfloat16), *inputs[1:], bound))
    opcheck(OPERATORS.kda_gate, (normal(4, 3, seed=3).T, *inputs[1:], bound))
    whole_graph(lambda z, A, dt: kda_gate(z, A, dt, lower_bound=bound), *inputs)


@pytest.mark.parametrize("form", ["chunked", "triton"])
@pytest.mark.parametrize("packed", [True, False])
def test_short_conv(form, packed):
    """Both fast forms hide behind the same operator."""
    if form == "triton":
        pytest.importorskip("triton")
    cu = torch.tensor([0, 1, 5, 10], dtype=torch.int32) if packed else None
    x = normal(1, 10, 6) if packed else normal(3, 4, 6)
    w, state = normal(6, 4, seed=1), normal(3, 6, 3, seed=2)
    with dispatch.forced(form):
        opcheck(OPERATORS.short_conv, (x, w, cu, state, True, True))
        opcheck(OPERATORS.short_conv, (x.detach().bfloat16().requires_grad_(), w, cu, None, False, True))
        whole_graph(
            lambda x, w, s: short_conv(x, w, cu_seqlens=cu, initial_state=s, output_final_state=True), x, w, state
        )
        whole_graph(lambda x, w: short_conv(x, w, cu_seqlens=cu)[0], x, w)


@pytest.mark.parametrize("form", ["chunked", "triton"])
def test_attnres(form):
    if form == "triton":
        pytest.importorskip("triton")
    x, query, gain = normal(4, 6, 8), normal(8, seed=1), normal(8, seed=2)
    with dispatch.forced(form):
        opcheck(OPERATORS.attnres, (x, query, gain, 1e-5))
        opcheck(OPERATORS.attnres, (x.detach().bfloat16().requires_grad_(), query, gain.detach().bfloat16(), 1e-5))
        whole_graph(lambda x, q, w: attnres(x.view(4, 2, 3, 8), q, w, eps=1e-5), x, query, gain)


@pytest.mark.parametrize("form", ["chunked", "triton"])
def test_expert_glu(form):
    if form == "triton":
        pytest.importorskip("triton")
    offsets = torch.tensor([0, 3, 3, 7])
    x, gate, up, down = normal(7, 8), normal(3, 5, 8, seed=1), normal(3, 5, 8, seed=2), normal(3, 8, 5, seed=3)
    with dispatch.forced(form):
        for keep in (True, False):
            opcheck(OPERATORS.expert_glu, (x, offsets, gate, up, down, None, None, None, 4.0, 25.0, keep))
        opcheck(OPERATORS.expert_glu, (x, offsets, gate, up, down, None, None, None, None, None, False))
        codes = [torch.randint(0, 256, (3, 32, 16), dtype=torch.uint8) for _ in range(3)]
        scales = [torch.full((3, 32, 1), 120, dtype=torch.uint8)] * 3
        opcheck(OPERATORS.expert_glu, (normal(7, 32), offsets, *codes, *scales, 4.0, 25.0, True))
        whole_graph(lambda x, *w: expert_glu(x, offsets, *w), x, gate, up, down)


@pytest.mark.parametrize("shape", [(5, 9), (2, 9, 5)])
def test_newton_schulz(shape):
    opcheck(OPERATORS.newton_schulz, (normal(*shape), 3))
    whole_graph(lambda x: newton_schulz(x, steps=3), normal(*shape))
    x = normal(*shape, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: newton_schulz(x, steps=3), (x,))


def test_newton_schulz_of_zeros_and_strided_matrices():
    zeros = torch.zeros(2, 3, 4).requires_grad_()
    y = newton_schulz(zeros)
    assert not y.any() and torch.isfinite(torch.autograd.grad(y.sum(), zeros)[0]).all()
    x = normal(7, 3, 5, grad=False)
    torch.testing.assert_close(newton_schulz(x.permute(1, 0, 2)), newton_schulz(x.permute(1, 0, 2).contiguous()))
    for wrong, kind in ((torch.zeros(3), ValueError), (torch.zeros(3, 3, dtype=torch.int64), TypeError)):
        with pytest.raises(kind, match="newton_schulz got x"):
            newton_schulz(wrong)


def latent_inputs(dtype=torch.float32):
    """q, cache, w_key, w_value of 3 streams, 2 heads, 4 own and 3 shared channels, rank 6, values of 5; a mask."""
    tensors = [normal(3, 2, 7), normal(3, 8, 9, seed=1), normal(2, 4, 6, seed=2), normal(2, 5, 6, seed=3)]
    mask = torch.zeros(3, 8)
    mask[0, 5:], mask[2, 1:] = -torch.inf, -torch.inf
    return [t.detach().to(dtype).requires_grad_() for t in tensors], mask


@pytest.mark.parametrize("masked", [True, False])
def test_mla_decode(masked):
    inputs, mask = latent_inputs()
    mask = mask if masked else None
    opcheck(OPERATORS.mla_decode, (*inputs, mask, 0.4))
    whole_graph(lambda *x: mla_decode(*x, scale=0.4, mask=mask), *inputs)
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
        inputs, _ = latent_inputs(dtype)
        o = mla_decode(*inputs, scale=0.4, mask=mask)
        with dispatch.forced("reference"):
            exact = [x.detach().double().requires_grad_() for x in inputs]
            want = mla_decode(*exact, scale=0.4, mask=mask)
        direction = normal(*o.shape, seed=9, dtype=torch.float64, grad=False)
        grads = torch.autograd.grad((o.double() * direction).sum(), inputs)
        want_grads = torch.autograd.grad((want * direction).sum(), exact)
        assert o.dtype == dtype
        for one, other in ((o, want), *zip(grads, want_grads, strict=True)):
            assert (one.double() - other).norm() <= tolerance * (1 + other.norm())


def test_mla_decode_says_what_is_wrong():
    inputs, mask = latent_inputs()
    q, cache, w_key, w_value = inputs
    wrong = [(q[0], *inputs[1:]), (q, cache[:, :, :8], w_key, w_value), (q, cache[:, :0], w_key, w_value)]
    for arguments in wrong:
        with pytest.raises(ValueError, match=r"mla_decode got q .* expected .N,H,A.P."):
            mla_decode(*arguments, scale=1.0)
    with pytest.raises(ValueError, match="mask"):
        mla_decode(*inputs, scale=1.0, mask=mask[:, 1:])
    with pytest.raises(TypeError, match="w_key in torch.int64"):
        mla_decode(q, cache, w_key.long(), w_value, scale=1.0)


@pytest.mark.parametrize("form", ["chunked", "reference"])
def test_activations_and_definitions_break_no_graph(form):
    gate, up, gain = normal(3, 8), normal(3, 8, seed=1), normal(8, seed=2)
    with dispatch.forced(form):
        whole_graph(situ_glu, gate, up)
        whole_graph(swi_glu, gate, up)
        whole_graph(lambda x, w: attnres(torch.stack([x, 2 * x]), w, w, eps=1e-5), gate, gain)


def test_lengths_may_change_without_another_graph():
    """Sizes come from shapes alone: with dynamic shapes, other lengths and group sizes use what was compiled."""
    torch._dynamo.reset()
    count = CompileCounterWithBackend("aot_eager")

    @torch.compile(fullgraph=True, backend=count, dynamic=True)
    def run(x, cu, filters, offsets, gate, up, down):
        y, _ = short_conv(x, filters, cu_seqlens=cu)
        return expert_glu(
            attnres(torch.stack([x[0], y[0]]), filters[:, 0], filters[:, 1], eps=1e-5), offsets, gate, up, down
        )

    filters, weights = normal(8, 4), [normal(3, 5, 8, seed=1), normal(3, 5, 8, seed=2), normal(3, 8, 5, seed=3)]
    compiled = None
    for lengths, groups in (([4, 3], [0, 5, 2]), ([6, 5], [11, 0, 0]), ([9, 11], [1, 1, 18])):
        x = normal(1, sum(lengths), 8)
        cu, offsets = (torch.tensor([0, *counts]).cumsum(0).to(torch.int32) for counts in (lengths, groups))
        run(x, cu, filters, offsets, *weights).sum().backward()
        assert torch.isfinite(x.grad).all()
        compiled = compiled or count.frame_count
    assert count.frame_count == compiled

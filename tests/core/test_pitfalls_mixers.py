"""Known ways to get KDA and full attention wrong, each with its number in the list of docs/official.md."""

import pytest
import torch
from torch.nn import functional as F

from watersmeet.core.cache import KdaState
from watersmeet.core.model.kda import KimiDeltaAttention
from watersmeet.core.model.ops import Layout, RMSNorm, l2_norm
from watersmeet.core.stream import Stream
from watersmeet.kernels import native
from watersmeet.kernels.dispatch import forced

FORMS = (None, "chunked", "reference")


def layer_of(kit, kind, **changes):
    model = kit.model(kit.micro.replace(**changes) if changes else None)
    return next(m for m in model.modules() if isinstance(m, kind))


def layout(*lengths):
    return Layout.of(torch.tensor([0, *lengths]).cumsum(0).to(torch.int32), None)


def inputs(n, width=48, seed=0):
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed))


def front(qkv, z, filters, A_log, dt_bias, bound):
    """What the recurrence reads, of one stream; beta's logits are zero."""
    proj = torch.cat([qkv, qkv.new_zeros(len(qkv), len(A_log))], dim=-1)
    place = torch.arange(len(qkv), dtype=torch.int32)
    bounds = torch.tensor([0, len(qkv)], dtype=torch.int32)
    return native.kda_front(proj, z, filters, A_log, dt_bias, bounds, place, lower_bound=bound)


@pytest.mark.parametrize("form", FORMS[:2])
@pytest.mark.parametrize("bound", [-5.0, None])
def test_pitfall_4_dt_bias_belongs_to_a_head_and_a_channel(form, bound):
    heads, width = 3, 16
    dt, rate = torch.linspace(-2, 2, heads * width), torch.tensor([0.5, 1.0, 2.0])
    with forced(form):
        *_, g, _ = front(
            torch.ones(4, 3 * heads * width), torch.zeros(4, heads * width), torch.ones(3 * heads * width, 4),
            rate.log(), dt, bound,
        )  # fmt: skip
    for h in range(heads):
        for c in range(width):
            z = dt[h * width + c].double()
            wanted = bound * torch.sigmoid(rate[h] * z) if bound else -rate[h] * torch.log1p(torch.exp(z))
            torch.testing.assert_close(g[:, h, c].double(), wanted.expand(4), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", FORMS[:2])
@pytest.mark.parametrize("rate", [50.0, 88.0])
@pytest.mark.parametrize("bound", [-5.0, None])
def test_pitfall_8_a_saturated_gate_has_finite_gradients(kit, form, rate, bound):
    layer = layer_of(kit, KimiDeltaAttention, gate_lower_bound=bound)
    with torch.no_grad():
        layer.A_log.fill_(rate)
    x = inputs(40).requires_grad_()
    with forced(form):
        y = layer(x, layout(25, 15))
        y.square().sum().backward()
    assert y.isfinite().all() and x.grad.isfinite().all() and x.grad.any()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bound", [-5.0, None])
def test_pitfall_9_streams_of_every_length_in_one_batch(kit, form, bound):
    """1, 2, ..., chunk + 1: nothing is NaN, and each is what it is alone."""
    lengths = range(1, 66) if form != "reference" else (1, 2, 16, 17, 65)
    layer = layer_of(kit, KimiDeltaAttention, gate_lower_bound=bound)
    x = inputs(sum(lengths)).requires_grad_()
    with forced(form):
        together = layer(x, layout(*lengths))
        together.square().sum().backward()
        assert together.isfinite().all() and x.grad.isfinite().all()
        with torch.no_grad():
            for part, rows in zip(together.split(list(lengths)), x.split(list(lengths)), strict=True):
                torch.testing.assert_close(part, layer(rows, layout(len(rows))), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", FORMS[:2])
def test_pitfall_36_the_l2_norm_adds_its_eps_to_the_sum(form):
    """At 1e-3 a value, adding 1e-6 to the sum, to the mean, and taking the larger of both differ by far."""
    heads, width = 2, 16
    raw = torch.full((1, 3 * heads * width), 2e-3)
    filters = torch.zeros(3 * heads * width, 4)
    filters[:, -1] = 1.0
    with forced(form):
        q, k, v, *_ = front(raw, torch.zeros(1, heads * width), filters, torch.zeros(heads), torch.zeros(32), -5.0)
    value = F.silu(torch.tensor(2e-3, dtype=torch.float64))
    wanted = value / torch.sqrt(width * value**2 + 1e-6)
    assert abs(wanted - value / torch.sqrt(torch.clamp(width * value**2, min=1e-6))) > 0.005
    assert abs(wanted - value / torch.sqrt(width * (value**2 + 1e-6))) > 0.05
    for branch in (q, k):
        torch.testing.assert_close(
            branch.double(), torch.full_like(branch, float(wanted)).double(), rtol=1e-5, atol=1e-7
        )
    torch.testing.assert_close(v.double(), torch.full_like(v, float(value)).double(), rtol=1e-5, atol=1e-8)
    direct = l2_norm(torch.full((1, width), float(value)))
    torch.testing.assert_close(
        direct.double(), torch.full((1, width), float(wanted), dtype=torch.float64), rtol=1e-5, atol=1e-7
    )


@pytest.mark.parametrize("fused", [False, True])
def test_pitfall_37_window_and_state_have_dtypes_of_their_own(kit, fused):
    """A bfloat16 window beside a float32 state is not a reason to start anew: decoding goes on where reading ended."""
    model = kit.model().to_dtype(torch.bfloat16).eval()
    more = torch.randint(0, 64, (6,), generator=torch.Generator().manual_seed(1))
    stream = kit.stream(20, 0)
    with torch.inference_mode():
        cache = model.new_cache(1)
        model.prefill(cache, kit.pack(stream))
        with model.fused() if fused else torch.no_grad():
            for token in more:
                hidden = model.step(model.embed_ids(token[None]), cache)
        states = [state for state in cache.layers if isinstance(state, KdaState)]
        assert states and all(s.conv.dtype == torch.bfloat16 and s.recurrent.dtype == torch.float32 for s in states)
        assert any(not torch.equal(s.recurrent, s.recurrent.bfloat16().float()) for s in states)
        whole = model(kit.pack(Stream(spans=(*stream.spans, kit.text(*more.tolist())))))[-1]
        fresh = model(kit.pack(Stream(spans=(kit.text(*more.tolist()),))))[-1]
    assert (hidden[0] - whole).float().norm() / whole.float().norm() < 0.05
    assert (fresh - whole).float().norm() / whole.float().norm() > 0.2


@pytest.mark.parametrize("form", FORMS[:2])
def test_pitfall_40_every_norm_has_its_eps_inside_the_root(form):
    """Rows of 1e-3: mean square 1e-6, eps 1e-5."""
    eps, size = 1e-5, 32
    x, gain = inputs(5, size) * 1e-3, inputs(1, size, 1)[0] + 2
    scale = x.double() / torch.sqrt(x.double().square().mean(-1, keepdim=True) + eps)
    assert ((scale - x / (x.square().mean(-1, keepdim=True).sqrt() + eps)).abs() > 0.1).any()
    wanted = (scale * gain).float()
    with forced(form), torch.no_grad():
        norm = RMSNorm(size, eps)
        norm.weight.copy_(gain)
        torch.testing.assert_close(norm(x), wanted, rtol=1e-5, atol=1e-7)
        h, _ = native.mix_norm([x], None, None, None, gain, eps=0.0, norm_eps=eps)
        torch.testing.assert_close(h, wanted, rtol=1e-5, atol=1e-7)
        y = native.gated_norm(x[:, None], torch.zeros(5, 1, size), gain, eps=eps)
        torch.testing.assert_close(2 * y[:, 0], wanted, rtol=1e-5, atol=1e-7)
        # the score of a mix is query . RMSNorm(source)
        other = inputs(5, size, 2)
        mixed, _ = native.mix_norm([x, other], None, torch.ones(size), gain, torch.ones(size), eps=eps, norm_eps=1.0)
        unit = torch.stack(
            [s.double() / torch.sqrt(s.double().square().mean(-1, keepdim=True) + eps) for s in (x, other)]
        )
        share = (unit * gain).sum(-1, keepdim=True).softmax(0)
        plain = (share * torch.stack([x, other])).sum(0)
        torch.testing.assert_close(
            mixed.double(), plain / torch.sqrt(plain.square().mean(-1, keepdim=True) + 1.0), rtol=1e-4, atol=1e-6
        )

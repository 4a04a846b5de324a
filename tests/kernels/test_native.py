"""Every native operator against its torch definition in float64: results and all gradients, odd sizes, both dtypes."""

import pytest
import torch

from watersmeet.kernels import native
from watersmeet.kernels.dispatch import forced
from watersmeet.kernels.kda import kda
from watersmeet.kernels.native import routed
from watersmeet.kernels.native.build import library
from watersmeet.kernels.native.glu import cross_entropy_rows

pytestmark = pytest.mark.skipif(library(torch.zeros(1)) is None, reason="no C++ compiler here")
DTYPES = [torch.float32, torch.bfloat16]


def draw(*shape, seed=0, scale=1.0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


def compare(run_native, run_definition, inputs, dtype, wide=()):
    """Both forms on the same rounded inputs; those named in `wide` stay float32. Gradients against random directions."""

    def call(run, kind):
        leaves = {}
        for name, value in inputs.items():
            rounded = value.to(torch.float32 if name in wide else dtype)
            leaves[name] = rounded.to(rounded.dtype if kind == "native" else torch.float64).requires_grad_()
        outputs = run(**leaves)
        total = sum((out.double() * draw(*out.shape, seed=7 + i)).sum() for i, out in enumerate(outputs))
        grads = torch.autograd.grad(total, list(leaves.values()))
        return list(outputs), dict(zip(leaves, grads, strict=True))

    out_native, grad_native = call(run_native, "native")
    out_true, grad_true = call(run_definition, "definition")
    tolerance = 2e-5 if dtype == torch.float32 else 2e-2
    for one, other in zip(out_native, out_true, strict=True):
        assert (one.double() - other).norm() <= tolerance * (other.norm() + 1e-6)
    for name, gradient in grad_native.items():
        assert gradient.dtype == (torch.float32 if name in wide else dtype)
        error = (gradient.double() - grad_true[name]).norm() / (grad_true[name].norm() + 1e-6)
        assert error <= 5 * tolerance, (name, float(error))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "rows", "width"), [(1, 3, 16), (3, 70, 48), (5, 33, 40)])
def test_mix_norm(dtype, n, rows, width):
    inputs = {f"s{i}": draw(rows, width, seed=i) for i in range(n)} | {"update": draw(rows, width, seed=9)}
    inputs |= {"query": draw(width, seed=10), "gain": draw(width, seed=11), "norm": draw(width, seed=12)}

    def run(form):
        def call(update, query, gain, norm, **sources):
            sources = list(sources.values())
            return form(sources, update, query, gain, norm, eps=1e-5, norm_eps=1e-4)

        return call

    compare(run(native.mix_norm), run(native.mix_norm_torch), inputs, dtype, wide=("query", "gain", "norm"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_mix_norm_without_update_or_query(dtype):
    def run(form):
        return lambda a, b, q, gain, norm: (
            form([a, b], None, q, gain, norm, eps=1e-5, norm_eps=1e-5)[0],
            form([a], None, None, None, norm, eps=0.0, norm_eps=1e-5)[0],
            *form([a], b, None, None, norm, eps=0.0, norm_eps=1e-5),
        )

    inputs = {"a": draw(40, 24), "b": draw(40, 24, seed=1), "q": draw(24, seed=2), "gain": draw(24, seed=3)}
    inputs["norm"] = draw(24, seed=4)
    compare(run(native.mix_norm), run(native.mix_norm_torch), inputs, dtype, wide=("q", "gain", "norm"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lengths", [(5, 1, 2, 3, 40), (100,)])
@pytest.mark.parametrize("bound", [-5.0, None])
def test_kda_front(dtype, lengths, bound):
    heads, width, taps, rows = 2, 16, 4, sum(lengths)
    bounds = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    place = torch.cat([torch.arange(n, dtype=torch.int32) for n in lengths])
    channels = heads * width
    inputs = {
        "proj": draw(rows, 3 * channels + heads),
        "z": draw(rows, channels, seed=1),
        "filters": draw(3 * channels, taps, seed=2, scale=0.5),
        "A_log": draw(heads, seed=3, scale=0.3),
        "dt_bias": draw(channels, seed=4),
    }

    def fast(proj, z, filters, A_log, dt_bias):
        return native.kda_front(proj, z, filters, A_log, dt_bias, bounds, place, lower_bound=bound)

    def slow(proj, z, filters, A_log, dt_bias):
        return native.kda_front_torch(proj, z, filters, A_log, dt_bias, bounds, lower_bound=bound)

    compare(fast, slow, inputs, dtype, wide=("filters", "A_log", "dt_bias"))


@pytest.mark.parametrize("taps", [4, 2, 1])
def test_kda_front_continues_from_a_window(taps):
    """In pieces of 1, 2, 7 and 3 tokens a stream, side by side with another stream that starts anew at its own length."""
    heads, width, rows = 2, 5, 13
    channels = heads * width
    proj, z = draw(2, rows, 3 * channels + heads).float(), draw(2, rows, channels, seed=1).float()
    weights = draw(3 * channels, taps, seed=2).float(), draw(heads, seed=3).float(), draw(channels, seed=4).float()

    def front(form, x, y, cu, **options):
        place = torch.cat([torch.arange(n, dtype=torch.int32) for n in cu.diff().tolist()])
        where = (cu,) if form is native.kda_front_torch else (cu, place)
        return form(x, y, *weights, *where, lower_bound=None, **options)

    ends = torch.tensor([0, rows, 2 * rows], dtype=torch.int32)
    whole = [
        t.unflatten(0, (2, rows)) for t in front(native.kda_front_torch, proj.flatten(0, 1), z.flatten(0, 1), ends)
    ]
    for form in (native.kda_front, native.kda_front_torch):
        window = torch.zeros(2, 3 * channels, taps - 1)
        at = [0, 0]
        for one, two in ((1, 3), (2, 1), (7, 2), (3, 7)):
            pick = (slice(at[0], at[0] + one), slice(at[1], at[1] + two))
            cu = torch.tensor([0, one, one + two], dtype=torch.int32)
            joined = [torch.cat([t[0][pick[0]], t[1][pick[1]]]) for t in (proj, z)]
            with torch.no_grad():
                got = front(form, *joined, cu, window=window)
            for mine, true in zip(got, whole, strict=True):
                torch.testing.assert_close(mine, torch.cat([true[0][pick[0]], true[1][pick[1]]]), rtol=1e-4, atol=1e-5)
            at = [at[0] + one, at[1] + two]
        if taps > 1:
            torch.testing.assert_close(window, proj[:, 1 - taps :, : 3 * channels].transpose(1, 2))


@pytest.mark.parametrize("dtype", DTYPES)
def test_gated_norm(dtype):
    inputs = {"o": draw(37, 3, 16), "gate": draw(37, 3, 16, seed=1), "weight": draw(16, seed=2)}
    compare(
        lambda **x: [native.gated_norm(**x, eps=1e-5)], lambda **x: [native.gated_norm_torch(**x, eps=1e-5)],
        inputs, dtype, wide=("weight",),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lengths", [(1, 2, 15, 16, 17, 33), (64,), (130, 3)])
@pytest.mark.parametrize("low", [0.1, 5.0])
def test_delta_rule(dtype, lengths, low):
    """Decays near 0 and down to the bound of -5 at every token of a chunk."""
    heads, keys, values, rows = 2, 16, 32, sum(lengths)
    bounds = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    unit = [torch.nn.functional.normalize(draw(rows, heads, keys, seed=s), dim=-1) for s in (0, 1)]
    inputs = {
        "q": unit[0],
        "k": unit[1],
        "v": draw(rows, heads, values, seed=2),
        "g": -low * torch.sigmoid(4 * draw(rows, heads, keys, seed=3)),
        "beta": torch.sigmoid(draw(rows, heads, seed=4)),
    }

    def slow(q, k, v, g, beta):
        with forced("reference"):
            o, _ = kda(q[None], k[None], v[None], g[None], beta[None], cu_seqlens=bounds)
        return [o[0]]

    compare(
        lambda q, k, v, g, beta: [native.delta_rule(q, k, v, g, beta, bounds, bounded=True)[0]], slow,
        inputs, dtype, wide=("g", "beta"),
    )  # fmt: skip


def test_delta_rule_continues_from_a_state():
    q, k = (torch.nn.functional.normalize(draw(50, 2, 16, seed=s), dim=-1).float() for s in (0, 1))
    v, g, beta = draw(50, 2, 16, seed=2).float(), -draw(50, 2, 16, seed=3).float().abs(), torch.rand(50, 2)
    cu = torch.tensor([0, 50], dtype=torch.int32)
    whole, state = native.delta_rule(q, k, v, g, beta, cu, bounded=True, output_final_state=True)
    parts, now = [], None
    for a, b in ((0, 21), (21, 22), (22, 50)):
        inner = torch.tensor([0, b - a], dtype=torch.int32)
        rows = (t[a:b] for t in (q, k, v, g, beta))
        o, now = native.delta_rule(*rows, inner, bounded=True, initial_state=now, output_final_state=True)
        parts.append(o)
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(now, state, rtol=1e-4, atol=1e-5)
    with forced("reference"):
        true, final = kda(*(t[None] for t in (q, k, v, g, beta)), cu_seqlens=cu, output_final_state=True)
    torch.testing.assert_close(whole, true[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state, final, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("strength", [2.0, 9.0, 30.0])
def test_delta_rule_of_decays_without_a_bound(dtype, strength):
    """The softplus gate: over a chunk the decay reaches e^-80, e^-160 and beyond; without a gradient, from a state on."""
    lengths, heads, keys, values = (1, 15, 16, 50), 2, 16, 32
    rows, bounds = sum(lengths), torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    q, k = (torch.nn.functional.normalize(draw(rows, heads, keys, seed=s), dim=-1).to(dtype) for s in (0, 1))
    v, beta = draw(rows, heads, values, seed=2).to(dtype), torch.sigmoid(draw(rows, heads, seed=4)).float()
    g = (-strength * torch.nn.functional.softplus(2 * draw(rows, heads, keys, seed=3))).float()
    start = draw(len(lengths), heads, keys, values, seed=5).float()
    with torch.no_grad():
        o, final = native.delta_rule(
            q, k, v, g, beta, bounds, bounded=False, initial_state=start, output_final_state=True
        )  # fmt: skip
    with forced("reference"):
        inputs = (t.double()[None] for t in (q, k, v, g, beta))
        true, last = kda(*inputs, initial_state=start.double(), cu_seqlens=bounds, output_final_state=True)
    tolerance = 2e-5 if dtype == torch.float32 else 1e-2
    assert (o.double() - true[0]).norm() <= tolerance * true.norm()
    assert (final.double() - last).norm() <= 2e-5 * last.norm()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", ["situ", "situ without a bound", "swi"])
def test_glu_joint(dtype, form):
    def run(gate_up):
        if form == "swi":
            return [native.swi_glu_joint(gate_up)]
        return [native.situ_glu_joint(gate_up, linear_beta=25.0 if form == "situ" else None)]

    compare(run, run, {"gate_up": draw(33, 40, scale=6.0)}, dtype)


def test_situ_keeps_the_digits_of_small_inputs():
    """tanh by a difference of numbers near one would be right to 1e-7 of one, not of itself."""
    size = torch.logspace(-6, 1.5, 4000, dtype=torch.float64)
    gate, up = torch.cat([size, -size]), torch.cat([-size, -size.flip(0)])
    got = native.situ_glu_joint(torch.stack([gate, up], dim=-1).float())[:, 0].double()
    inputs = gate.float().double(), up.float().double()
    wanted = 4 * torch.tanh(inputs[0] / 4) * torch.sigmoid(inputs[0]) * 25 * torch.tanh(inputs[1] / 25)
    assert ((got - wanted) / wanted).abs().max() < 2e-6


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [7, 300])
@pytest.mark.parametrize(("normed", "betas"), [(True, (4.0, 25.0)), (False, None), (True, (4.0, None))])
def test_route_and_routed_experts(dtype, tokens, normed, betas):
    experts, k, size, inner = 5, 2, 24, 16
    bias = draw(experts, seed=9, scale=0.1).float()
    inputs = {
        "x": draw(tokens, 20),
        "gate": draw(experts, 20, seed=1, scale=0.3),
        "z": draw(tokens, size, seed=2),
        "w13": draw(experts, 2 * inner, size, seed=3, scale=0.3),
        "w2": draw(experts, size, inner, seed=4, scale=0.3),
        "norm": draw(size, seed=5),
    }

    def run(route, routed):
        def call(x, gate, z, w13, w2, norm):
            picked, share, *_ = route(x, gate, bias.to(gate.dtype), k=k, scaling=1.5)
            mixed = routed(z, share, picked, w13, w2, norm if normed else None, betas=betas, eps=1e-5)
            return [share, mixed if normed else mixed + 0 * norm]

        return call

    compare(
        run(native.route, native.routed_experts), run(native.route_torch, native.routed_experts_torch), inputs, dtype,
        wide=("gate", "norm"),
    )  # fmt: skip


@pytest.mark.parametrize("betas", [(4.0, 25.0), None, (4.0, None)])
@pytest.mark.parametrize("shape", [(1, 2, 1, 5, 3), (40, 3, 2, 64, 32), (700, 5, 3, 33, 47), (900, 2, 1, 130, 70)])
def test_routed_experts_without_a_gradient(shape, betas):
    """Float32 then takes another road: sizes that fill no panel, experts with more rows than a tile and with none."""
    tokens, experts, k, size, inner = shape
    z, w13, w2 = draw(tokens, size), draw(experts, 2 * inner, size, seed=1), draw(experts, size, inner, seed=2)
    picked = torch.stack(
        [torch.randperm(experts - 1)[:k] if experts > k + 1 else torch.arange(k) for _ in range(tokens)]
    )
    share, norm = torch.rand(tokens, k, dtype=torch.float64), draw(size, seed=5)
    for gain in (None, norm):
        options = {"betas": betas, "eps": 1e-5}
        true = native.routed_experts_torch(z, share, picked, w13, w2, gain, **options)
        with torch.no_grad():
            inputs = [t.float() for t in (z, share)], [None if t is None else t.float() for t in (w13, w2, gain)]
            got = native.routed_experts(*inputs[0], picked, *inputs[1], **options)
            few = native.routed_experts(*(t[:7] for t in inputs[0]), picked[:7], *inputs[1], **options)
        assert (got.double() - true).norm() <= 1e-5 * true.norm()
        assert torch.equal(few, got[:7])


@pytest.mark.parametrize("units", [True, False])
def test_bfloat16_without_a_gradient_with_and_without_units_for_it(units, monkeypatch):
    """Where a processor has none, experts in bfloat16 take the road of float32, rounded once at its end."""
    monkeypatch.setattr(routed, "bfloat16_units", lambda: units)
    z, w13, w2 = (t.bfloat16() for t in (draw(150, 70), draw(5, 48, 70, seed=1, scale=0.1), draw(5, 70, 24, seed=2)))
    picked, share = torch.rand(150, 5).topk(2).indices, torch.rand(150, 2)
    options = {"betas": (4.0, 25.0), "eps": 0.0}
    true = native.routed_experts_torch(
        *(t.double() for t in (z, share)), picked, w13.double(), w2.double(), None, **options
    )
    with torch.no_grad():
        got = native.routed_experts(z, share, picked, w13, w2, None, **options)
    assert got.dtype == torch.bfloat16
    assert (got.double() - true).norm() <= (2e-2 if units else 4e-3) * true.norm()


@pytest.mark.parametrize("shape", [(1, 1, 1), (50, 6, 2), (9, 40, 3)])
def test_rows_in_expert_order_without_filling(shape):
    tokens, experts, k = shape
    picked = torch.stack([torch.randperm(experts)[:k] for _ in range(tokens)])
    source, at, offsets = routed.order_in_place(picked, experts)
    assert offsets[0] == 0 and offsets[-1] == tokens * k == len(source)
    for e in range(experts):
        assert source[offsets[e] : offsets[e + 1]].tolist() == (picked == e).any(1).nonzero()[:, 0].tolist()
    assert source[at].view(tokens, k).tolist() == [[i] * k for i in range(tokens)]


def test_equal_scores_go_to_the_lower_index():
    picked, share, score, cutoff = native.route(torch.ones(2, 4), torch.zeros(6, 4), torch.zeros(6), k=3, scaling=1.0)
    assert picked.tolist() == [[0, 1, 2]] * 2
    torch.testing.assert_close(share, torch.full((2, 3), 1 / 3))
    assert cutoff.tolist() == [0.5, 0.5] and score.shape == (2, 6)


def test_a_token_does_not_feel_how_many_others_chose_its_expert():
    """Bitwise, because groups are never so small that matrix products add in another order."""
    z, w13, w2 = draw(90, 48).float(), draw(4, 64, 48, seed=1).float(), draw(4, 48, 32, seed=2).float()
    share = torch.full((90, 1), 1.0)
    crowded = native.routed_experts(
        z, share, torch.zeros(90, 1, dtype=torch.int64), w13, w2, None, betas=(4.0, 25.0), eps=0.0
    )
    for alone in (1, 2, 5, 12, 31):
        picked = torch.ones(90, 1, dtype=torch.int64)
        picked[:alone] = 0
        got = native.routed_experts(z, share, picked, w13, w2, None, betas=(4.0, 25.0), eps=0.0)
        assert torch.equal(got[:alone], crowded[:alone])


@pytest.mark.parametrize("dtype", DTYPES)
def test_cross_entropy_rows(dtype):
    logits, target = (draw(21, 50, scale=5.0)).to(dtype), torch.randint(0, 50, (21,))
    weight = torch.rand(21)
    leaf = logits.double().requires_grad_()
    nll = torch.nn.functional.cross_entropy(leaf, target, reduction="none")
    (slope,) = torch.autograd.grad((nll * weight).sum(), leaf)
    torch.testing.assert_close(cross_entropy_rows(logits, target, None).double(), nll.detach(), rtol=1e-5, atol=1e-5)
    got = cross_entropy_rows(logits, target, weight)
    torch.testing.assert_close(got.double(), nll.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(logits.double(), slope, rtol=1e-2 if dtype == torch.bfloat16 else 1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_not_a_number_is_never_hidden(dtype):
    x = torch.zeros(2, 16, dtype=dtype)
    x[1, 3] = float("nan")
    h, _ = native.mix_norm([x], None, None, None, torch.ones(16), eps=0.0, norm_eps=1e-5)
    assert h[1].isnan().all() and not h[0].isnan().any()
    assert native.situ_glu_joint(x)[1].isnan().any()


def test_switched_off_and_other_devices_take_the_torch_form():
    with forced("chunked"):
        assert library(torch.zeros(1)) is None
    assert library(torch.zeros(1, dtype=torch.float64)) is None
    assert library(torch.zeros(1), torch.zeros(1, dtype=torch.bfloat16)) is None

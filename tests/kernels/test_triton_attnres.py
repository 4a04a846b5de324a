"""The Attention Residuals mix in Triton against its definition in float64."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from watersmeet.kernels import attnres
from watersmeet.kernels.dispatch import forced

pytest.importorskip("triton")
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1.2e-2, torch.float16: 3e-3}
DTYPES = [torch.float32, torch.bfloat16]


def draw(*shape, seed=0, scale=1.0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


def run(form, leaves):
    leaves = [x.detach().clone().requires_grad_() for x in leaves]
    with forced(form):
        y = attnres(*leaves, eps=1e-5)
    return y, torch.autograd.grad((y.double() * draw(*y.shape, seed=5).to(y.device)).sum(), leaves)


def compare(device, shape, dtype, scale=1.0, query=0.3):
    leaves = [draw(*shape, scale=scale), draw(shape[-1], seed=1, scale=query), 1 + 0.3 * draw(shape[-1], seed=2)]
    leaves = [leaves[0].to(dtype), leaves[1].float(), leaves[2].float()]
    y, grads = run("triton", [x.to(device) for x in leaves])
    want, want_grads = run("reference", [x.double() for x in leaves])
    assert y.dtype == grads[0].dtype == dtype and y.shape == shape[1:]
    # A score's gradient is p_n (dp_n - sum p dp), where dp_n = dy . x_n: for one channel, or where one source has all the
    # weight, the difference is nothing beside its terms, and what rounding leaves of it is measured by the terms.
    x, way = leaves[0].double(), draw(*y.shape, seed=5)
    dots = (x.abs().amax(0) * way.abs()).sum(-1).norm()
    rounding = 2 * torch.finfo(torch.float32).eps * dots * shape[-1] ** 0.5
    floors = (rounding * query / scale, rounding, rounding * max(1.0, query))
    for one, other, slack, floor in ((y, want, 1, 0), *zip(grads, want_grads, (5, 5, 5), floors, strict=True)):
        assert torch.isfinite(one).all()
        assert (one.cpu().double() - other).norm() <= slack * TOLERANCE[dtype] * (other.norm() + 1e-3) + floor


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 3, 16), (5, 2, 3, 40), (9, 4, 129), (17, 1, 64)])
def test_matches_the_definition(device, shape, dtype):
    compare(device, shape, dtype)


@settings(max_examples=8, deadline=None)
@given(
    n=st.integers(1, 9), rows=st.integers(1, 5), width=st.integers(1, 70), dtype=st.sampled_from(list(TOLERANCE)),
    scale=st.sampled_from([1e-3, 1.0, 30.0]), query=st.sampled_from([0.0, 0.3, 5.0]),
)  # fmt: skip
@example(n=2, rows=2, width=54, dtype=torch.float32, scale=1.0, query=5.0)
@example(n=2, rows=3, width=1, dtype=torch.float32, scale=30.0, query=0.0)
def test_any_shape(n, rows, width, dtype, scale, query):
    compare("cuda" if torch.cuda.is_available() else "cpu", (n, rows, width), dtype, scale, query)


@pytest.mark.usefixtures("poisoned")
def test_more_rows_than_parts(device, monkeypatch):
    from watersmeet.kernels.attnres import triton as form

    monkeypatch.setattr(form, "PARTS", 4)
    compare(device, (3, 11, 24), torch.float32)


def test_no_rows(device):
    y, grads = run("triton", [torch.zeros(3, 0, 8), torch.ones(8), torch.ones(8)])
    assert y.shape == (0, 8) and not grads[1].any()


@pytest.mark.parametrize("form", ["chunked", "triton"])
def test_pitfall_16_no_float32_copies_of_the_sources_are_kept(device, form):
    """Held for the backward: the sources themselves (shared) and rows of n x T; never anything of n x T x D."""
    x = draw(6, 24, 128).bfloat16().to(device).requires_grad_()
    query, gain = draw(128, seed=1).float().to(device).requires_grad_(), torch.ones(128, device=device).requires_grad_()
    held = {}
    with (
        forced(form),
        torch.autograd.graph.saved_tensors_hooks(lambda t: held.setdefault(t.data_ptr(), t), lambda t: t),
    ):
        y = attnres(x, query, gain, eps=1e-5)
    assert x.data_ptr() in held
    own = sum(
        t.numel() * t.element_size()
        for p, t in held.items()
        if p not in (x.data_ptr(), query.data_ptr(), gain.data_ptr())
    )
    assert own <= 2 * 6 * 24 * 4 < x.numel() * 4 / 10
    y.sum().backward()


@pytest.mark.parametrize("form", ["chunked", "triton"])
def test_a_row_does_not_feel_its_neighbours(device, form):
    x = draw(4, 9, 32).float().to(device)
    query, gain = draw(32, seed=1).float().to(device), torch.ones(32, device=device)
    spoiled = x.clone()
    spoiled[:, 4] = float("nan")
    with forced(form):
        y, z = attnres(x, query, gain, eps=1e-5), attnres(spoiled, query, gain, eps=1e-5)
    keep = [i for i in range(9) if i != 4]
    assert torch.equal(y[keep], z[keep]) and z[4].isnan().all()


@pytest.mark.parametrize("form", ["chunked", "triton"])
def test_inputs_need_not_be_contiguous(device, form):
    x = draw(3, 16, 5).float().to(device).transpose(1, 2)
    query, gain = draw(32, seed=1).float().to(device)[::2], torch.ones(1, device=device).expand(16)
    with forced(form):
        torch.testing.assert_close(
            attnres(x, query, gain, eps=1e-5), attnres(x.contiguous(), query.contiguous(), gain.contiguous(), eps=1e-5)
        )


@pytest.mark.parametrize("form", ["chunked", "triton", "reference"])
def test_wrong_inputs_raise_one_clear_error(form):
    x, one = torch.zeros(2, 3, 8), torch.ones(8)
    cases = [
        (ValueError, "expected .n,...,D.", (torch.zeros(8), one, one)),
        (ValueError, "expected .n,...,D.", (x, torch.ones(1, 8), one)),
        (ValueError, "expected .n,...,D.", (x, one, torch.ones(4))),
        (ValueError, "no sources", (torch.zeros(0, 3, 8), one, one)),
        (TypeError, "query in torch.int64", (x, one.long(), one)),
        (ValueError, "sources on cpu and norm_weight on meta", (x, one, one.to("meta"))),
    ]
    with forced(form):
        for kind, message, arguments in cases:
            with pytest.raises(kind, match=message):
                attnres(*arguments, eps=1e-5)


def test_compiles_for_all_chips(compiled):
    for report in compiled("attnres", "--quick"):
        assert not report["problems"], report


@pytest.mark.slow
def test_every_kernel_compiles_for_all_chips(compiled):
    for report in compiled("attnres"):
        assert not report["problems"], report

"""The experts' feed-forward in Triton against its definition in float64: outputs and all gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from watersmeet.core.config import preset
from watersmeet.core.model.packed import PackedExperts
from watersmeet.kernels import expert_glu, situ_glu, swi_glu
from watersmeet.kernels.dispatch import forced
from watersmeet.kernels.mxfp4 import mxfp4_decode, mxfp4_encode

pytest.importorskip("triton")
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1.2e-2, torch.float16: 3e-3}
DTYPES = [torch.float32, torch.bfloat16]


def draw(*shape, seed=0, scale=1.0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


def offsets_of(counts, dtype=torch.int32):
    return torch.tensor([0, *counts]).cumsum(0).to(dtype)


def run(form, leaves, offsets, **options):
    leaves = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in leaves]
    with forced(form):
        y = expert_glu(leaves[0], offsets, *leaves[1:], **options)
    grads = torch.autograd.grad(
        (y.double() * draw(*y.shape, seed=5).to(y.device)).sum(), [x for x in leaves if x.requires_grad]
    )
    return y, grads


def compare(device, counts, width, inner, dtype, *, weight_dtype=None, act=situ_glu, linear_beta=25.0, slack=1):
    experts, rows = len(counts), sum(counts)
    leaves = [draw(rows, width).to(dtype)]
    for seed, shape in enumerate([(experts, inner, width)] * 2 + [(experts, width, inner)]):
        leaves.append(draw(*shape, seed=seed + 1, scale=shape[2] ** -0.5 * 1.5).to(weight_dtype or dtype))
    options = {"act": act, "linear_beta": linear_beta}
    y, grads = run("triton", [x.to(device) for x in leaves], offsets_of(counts).to(device), **options)
    want, want_grads = run("reference", [x.double() for x in leaves], offsets_of(counts), **options)
    assert y.dtype == grads[0].dtype == dtype and grads[1].dtype == (weight_dtype or dtype)
    for one, other, more in ((y, want, 1), *((g, w, 4) for g, w in zip(grads, want_grads, strict=True))):
        assert one.shape == other.shape and torch.isfinite(one).all()
        assert (one.cpu().double() - other).norm() <= more * slack * TOLERANCE[dtype] * (other.norm() + 1e-3)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("counts", [(3, 0, 21, 1), (0, 0, 5)])
def test_matches_the_definition(device, counts, dtype):
    compare(device, counts, 40, 24, dtype)


@pytest.mark.usefixtures("poisoned")
def test_large_groups_and_wide_sums(device):
    """More rows than a tile, and more columns than a step of the sum."""
    compare(device, (70,), 72, 40, torch.float32)


def test_master_weights_are_rounded_on_the_way(device):
    # the interpreter cuts bits off where a GPU rounds
    compare(device, (5, 4), 33, 17, torch.bfloat16, weight_dtype=torch.float32, slack=2)


@settings(max_examples=5, deadline=None)
@given(
    counts=st.lists(st.integers(0, 20), min_size=1, max_size=4), width=st.integers(1, 40), inner=st.integers(1, 40),
    dtype=st.sampled_from(list(TOLERANCE)), act=st.sampled_from([situ_glu, swi_glu]),
    linear_beta=st.sampled_from([25.0, 3.0, None]),
)  # fmt: skip
def test_any_shape(counts, width, inner, dtype, act, linear_beta):
    compare(
        "cuda" if torch.cuda.is_available() else "cpu", counts, width, inner, dtype, act=act, linear_beta=linear_beta
    )


@pytest.mark.parametrize("form", ["triton", "chunked"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_packed_weights(device, form, dtype):
    """The same as with decoded weights, forwards and for the gradient of x; the weights get none."""
    counts, width, inner = (3, 0, 18), 64, 96
    packed, scales, plain = [], [], []
    for seed, shape in enumerate([(3, inner, width)] * 2 + [(3, width, inner)]):
        codes, scale = mxfp4_encode(draw(*shape, seed=seed + 1, scale=0.2).float())
        packed.append(codes.to(device))
        scales.append(scale.to(device))
        plain.append(mxfp4_decode(codes, scale, dtype=torch.float64))
    x = draw(21, width).to(dtype)
    y, (dx,) = run(form, [x.to(device), *packed], offsets_of(counts).to(device), scales=tuple(scales))
    want, (want_dx, *_) = run("reference", [x.double(), *plain], offsets_of(counts))
    assert (y.cpu().double() - want).norm() <= TOLERANCE[dtype] * want.norm()
    assert (dx.cpu().double() - want_dx).norm() <= 4 * TOLERANCE[dtype] * want_dx.norm()
    # halves of a joint tensor, as a model holds them
    joint, joint_scale = torch.cat(packed[:2], dim=1), torch.cat(scales[:2], dim=1)
    with forced(form):
        again = expert_glu(
            x.to(device), offsets_of(counts).to(device), *joint.chunk(2, dim=1), packed[2],
            scales=(*joint_scale.chunk(2, dim=1), scales[2]),
        )  # fmt: skip
    assert torch.equal(again, y)


@pytest.mark.parametrize("activation", ["situ", "silu"])
def test_packed_experts_of_a_model_take_the_grouped_form(device, activation):
    config = preset("micro")
    experts = PackedExperts(config.replace(moe_intermediate_size=32, routed_expert_hidden_size=64)).to(device)
    generator = torch.Generator().manual_seed(0)
    for name, buffer in experts.named_buffers():
        low, high = (0, 256) if "packed" in name else (120, 124)
        buffer.copy_(torch.randint(low, high, buffer.shape, generator=generator, dtype=torch.uint8))
    z, share = draw(9, 64).float().to(device), torch.rand(9, 2, generator=generator).to(device)
    picked = torch.stack([torch.randperm(config.num_experts, generator=generator)[:2] for _ in range(9)]).to(device)
    results = []
    for form in ("triton", "chunked"):
        leaf, weight = z.clone().requires_grad_(), share.clone().requires_grad_()
        with forced(form):
            mixed = experts(leaf, weight, picked, None, betas=(4.0, 25.0) if activation == "situ" else None, eps=1e-5)
        results.append((mixed, *torch.autograd.grad(mixed.square().sum(), [leaf, weight])))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5 * float(other.detach().abs().max()))


@pytest.mark.parametrize("form", ["triton", "chunked", "reference"])
def test_pitfall_24_a_scale_is_a_power_of_two_for_32_columns_and_the_low_half_is_the_even_column(device, form):
    """By hand: identity-like products read single weights out of the kernel. L = 64 has two blocks to a row."""
    codes = torch.zeros(1, 32, 32, dtype=torch.uint8)
    codes[0, 0, 0] = 0x72  # columns 0 and 1: code 2 = 1.0 and code 7 = 6.0
    codes[0, 0, 15] = 0xC1  # columns 30 and 31: code 1 = 0.5 and code 12 = -2.0
    codes[0, 0, 16] = 0x05  # column 32, first of the second block: code 5 = 3.0
    scale = torch.full((1, 32, 2), 127, dtype=torch.uint8)
    scale[0, 0] = torch.tensor([128, 125])  # 2 and 1/4; as E4M3 numbers they would be -0 and -13
    expected = torch.zeros(64)
    expected[:2], expected[30:33] = torch.tensor([2.0, 12.0]), torch.tensor([1.0, -4.0, 0.75])
    up, one = torch.zeros(1, 32, 32, dtype=torch.uint8), torch.full((1, 64, 1), 127, dtype=torch.uint8)
    up[0, 0] = 0x22  # every column 1.0
    down = torch.zeros(1, 64, 16, dtype=torch.uint8)
    down[0, 0, 0] = 0x02  # passes inner unit 0 to output 0
    plain_scale = torch.full((1, 32, 2), 127, dtype=torch.uint8)
    weights = [t.to(device) for t in (codes, up, down)]
    scales = tuple(t.to(device) for t in (scale, plain_scale, one))
    with forced(form):
        y = expert_glu(
            torch.eye(64, device=device), torch.tensor([0, 64], device=device), *weights, act=swi_glu, scales=scales
        )
    torch.testing.assert_close(y[:, 0].cpu(), torch.nn.functional.silu(expected))
    assert not y[:, 1:].any()


@pytest.mark.parametrize("form", ["triton", "chunked"])
def test_extreme_scales(device, form):
    """Byte 0 is 2^-127, which is no normal number; byte 255 is NaN, and stays within its expert."""
    codes = torch.full((2, 32, 16), 0x77, dtype=torch.uint8).to(device)
    low = torch.zeros(2, 32, 1, dtype=torch.uint8)
    low[1] = 255
    one = torch.full((2, 32, 1), 121, dtype=torch.uint8).to(device)
    x = torch.full((2, 32), 2.0**60, device=device)
    with forced(form):
        y = expert_glu(
            x, torch.tensor([0, 1, 2], device=device), codes, codes, codes, act=swi_glu,
            scales=(low.to(device), one, one),
        )  # fmt: skip
    gate = 32 * 6 * 2.0**-67  # silu halves it where it is this small
    want = gate / 2 * (32 * 6 * 2.0**54) * (32 * 6 * 2.0**-6)
    torch.testing.assert_close(y[0], torch.full((32,), want, device=device), rtol=1e-4, atol=0)
    assert y[1].isnan().all()


@pytest.mark.parametrize("form", ["triton", "chunked"])
def test_a_row_does_not_feel_other_rows(device, form):
    x, offsets = draw(30, 32).float().to(device), offsets_of((14, 16)).to(device)
    weights = [draw(2, 32, 32, seed=s).float().to(device) for s in (1, 2, 3)]
    spoiled = x.clone()
    spoiled[20] = float("nan")
    with forced(form):
        y, z = expert_glu(x, offsets, *weights), expert_glu(spoiled, offsets, *weights)
    keep = [i for i in range(30) if i != 20]
    torch.testing.assert_close(y[keep], z[keep], rtol=0, atol=0)


@pytest.mark.parametrize("form", ["triton", "chunked"])
def test_halves_of_a_joint_matrix_and_strided_rows(device, form):
    joint, down = draw(3, 40, 24, seed=1).float().to(device), draw(3, 20, 24, seed=2).float().to(device).transpose(1, 2)
    x, offsets = draw(24, 9).float().to(device).T, offsets_of((2, 3, 4), torch.int64).to(device)
    with forced(form):
        got = expert_glu(x, offsets, *joint.chunk(2, dim=1), down)
        plain = [t.contiguous() for t in (*joint.chunk(2, dim=1), down)]
        torch.testing.assert_close(got, expert_glu(x.contiguous(), offsets, *plain))


@pytest.mark.parametrize("form", ["triton", "chunked", "reference"])
def test_wrong_inputs_raise_one_clear_error(form):
    x, offsets = torch.zeros(3, 6), torch.tensor([0, 1, 3])
    gate, down = torch.zeros(2, 5, 6), torch.zeros(2, 6, 5)
    packed, scale = torch.zeros(2, 32, 16, dtype=torch.uint8), torch.zeros(2, 32, 1, dtype=torch.uint8)
    cases = [
        (ValueError, "expected .M,L.", (x[0], offsets, gate, gate, down), {}),
        (ValueError, "w_up .2, 6, 5.; expected .2, 5, 6.", (x, offsets, gate, down, down), {}),
        (ValueError, "2 offsets for 2 experts", (x, offsets[:2], gate, gate, down), {}),
        (TypeError, "expert_offsets as list", (x, [0, 1, 3], gate, gate, down), {}),
        (ValueError, "int32 or int64", (x, offsets.float(), gate, gate, down), {}),
        (ValueError, "w_down on meta", (x, offsets, gate, gate, down.to("meta")), {}),
        (TypeError, "w_gate in torch.int64", (x, offsets, gate.long(), gate, down), {}),
        (ValueError, "another activation", (x, offsets, gate, gate, down), {"act": torch.mul}),
        (ValueError, "multiples of 32", (x, offsets, gate, gate, down), {"scales": (scale,) * 3}),
        (TypeError, "not uint8", (torch.zeros(3, 32), offsets, packed, packed, packed.float()), {"scales": (scale,) * 3}),
        (ValueError, "got scales .2, 1, 32.", (torch.zeros(3, 32), offsets, packed, packed, packed),
         {"scales": (scale, scale, scale.transpose(1, 2))}),
    ]  # fmt: skip
    if form != "reference":
        cases += [
            (ValueError, "rise from 0 to 3", (x, torch.tensor(b), gate, gate, down), {})
            for b in ([0, 1, 2], [0, 4, 3], [1, 2, 3])
        ]
    with forced(form):
        for kind, message, arguments, options in cases:
            with pytest.raises(kind, match=message):
                expert_glu(*arguments, **options)


def test_compiles_for_all_chips(compiled):
    for report in compiled("experts", "--quick"):
        assert not report["problems"], report


@pytest.mark.slow
def test_every_kernel_compiles_for_all_chips(compiled):
    for report in compiled("experts"):
        assert not report["problems"], report


def test_routed_experts_read_sorted_rows_without_asking_the_host(device):
    from watersmeet.kernels.native import routed_experts, routed_experts_torch

    z, w13, w2 = draw(20, 32, seed=1), draw(4, 64, 32, seed=2, scale=0.2), draw(4, 32, 32, seed=3, scale=0.2)
    picked, share = torch.rand(20, 4).topk(2).indices, torch.rand(20, 2)
    options = {"betas": (4.0, 25.0), "eps": 0.0}
    true = routed_experts_torch(z, share.double(), picked, w13, w2, None, **options)
    with forced("triton"):
        moved = [t.to(device) for t in (z.float(), share, picked, w13.float(), w2.float())]
        got = routed_experts(*moved, None, **options)
    assert (got.cpu().double() - true).norm() <= 1e-5 * true.norm()

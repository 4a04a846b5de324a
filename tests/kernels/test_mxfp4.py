"""MXFP4 against hand-written values, its definition, and the numbers it must keep."""

import math

import pytest
import torch

from watersmeet.kernels import mxfp4_decode, mxfp4_encode
from watersmeet.kernels.mxfp4.reference import mxfp4_decode_reference, mxfp4_encode_reference

CODES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]


def bits(x):
    return x.contiguous().view({4: torch.int32, 2: torch.int16}[x.element_size()])


@pytest.mark.parametrize("byte", [0, 1, 100, 127, 130, 250])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pitfall_24_all_codes_times_a_power_of_two(byte, dtype):
    # column j holds code j % 16; the even column is the low half of its byte
    packed = torch.tensor([[low | (low + 1) << 4 for low in range(0, 16, 2)] * 2], dtype=torch.uint8)
    got = mxfp4_decode(packed, torch.tensor([[byte]], dtype=torch.uint8), dtype=dtype)
    want = torch.tensor([CODES * 2], dtype=torch.float64) * 2.0 ** (byte - 127)
    assert torch.equal(bits(got), bits(want.to(dtype)))  # by bits: code 8 is a negative zero


def test_scale_255_is_no_number_and_low_nibble_comes_first():
    packed = torch.zeros(1, 32, dtype=torch.uint8)
    packed[0, 0] = 0x72  # low 2 -> 1.0, high 7 -> 6.0
    got = mxfp4_decode(packed, torch.tensor([[128, 255]], dtype=torch.uint8), dtype=torch.float32)
    assert got[0, :3].tolist() == [2.0, 12.0, 0.0]
    assert got[0, 32:].isnan().all() and not got[0, :32].isnan().any()


def test_one_scale_for_32_columns_of_one_row():
    packed = torch.full((2, 32), 0x22, dtype=torch.uint8)
    scale = torch.tensor([[127, 128], [129, 130]], dtype=torch.uint8)
    got = mxfp4_decode(packed, scale, dtype=torch.float32)
    assert got[0].tolist() == [1.0] * 32 + [2.0] * 32 and got[1].tolist() == [4.0] * 32 + [8.0] * 32


@pytest.mark.parametrize("seed", range(3))
def test_fast_forms_equal_the_definition(seed):
    generator = torch.Generator().manual_seed(seed)
    packed = torch.randint(0, 256, (3, 5, 48), dtype=torch.uint8, generator=generator)
    scale = torch.randint(0, 256, (3, 5, 3), dtype=torch.uint8, generator=generator)
    for dtype in (torch.float32, torch.bfloat16):
        got, want = mxfp4_decode(packed, scale, dtype=dtype), mxfp4_decode_reference(packed, scale, dtype=dtype)
        assert torch.equal(got.isnan(), want.isnan()) and torch.equal(bits(got.nan_to_num()), bits(want.nan_to_num()))
    weight = torch.randn(7, 96, generator=generator) * torch.exp2(torch.randint(-20, 20, (7, 1), generator=generator))
    weight[0, :32] = 0.0
    weight[1, 3] = math.inf
    weight[2, 40] = math.nan
    for rule in ("packer", "floor"):
        for a, b in zip(mxfp4_encode(weight, rule=rule), mxfp4_encode_reference(weight, rule=rule), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("rule", ["packer", "floor"])
def test_what_was_decoded_comes_back_exactly(rule):
    generator = torch.Generator().manual_seed(4)
    packed = torch.randint(0, 256, (64, 64), dtype=torch.uint8, generator=generator)
    packed[:8] &= 0x11 * 3  # blocks of small codes take another scale for the same values
    scale = torch.randint(8, 240, (64, 4), dtype=torch.uint8, generator=generator)
    weight = mxfp4_decode(packed, scale, dtype=torch.bfloat16)
    again = mxfp4_decode(*mxfp4_encode(weight, rule=rule), dtype=torch.bfloat16)
    assert torch.equal(bits(again), bits(weight))


def test_the_two_rules_differ_where_they_should():
    blocks = torch.zeros(3, 32)
    blocks[:, 0] = torch.tensor([1.74, 1.75, 1.99])
    assert mxfp4_encode(blocks, rule="floor")[1].flatten().tolist() == [125, 125, 125]
    assert mxfp4_encode(blocks, rule="packer")[1].flatten().tolist() == [125, 126, 126]
    weight = torch.randn(4096, 32, generator=torch.Generator().manual_seed(0))
    differ = (mxfp4_encode(weight, rule="floor")[1] != mxfp4_encode(weight, rule="packer")[1]).double().mean()
    assert 0.15 < float(differ) < 0.35


def test_rounding_goes_to_the_nearest_and_ties_to_the_even_code():
    block = torch.zeros(1, 32)
    block[0, :10] = torch.tensor([4.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, -0.76, -0.24, 0.26])
    packed, scale = mxfp4_encode(block, rule="floor")
    got = mxfp4_decode(packed, scale, dtype=torch.float32)[0, :10].tolist()
    assert scale.item() == 127 and got == [4.0, 0.0, 1.0, 1.0, 2.0, 2.0, 4.0, -1.0, -0.0, 0.5]
    block[0, 0] = 7.9  # still the same scale by the floor: cut off at 6
    assert mxfp4_decode(*mxfp4_encode(block, rule="floor"), dtype=torch.float32)[0, 0] == 6.0
    assert mxfp4_decode(*mxfp4_encode(block, rule="packer"), dtype=torch.float32)[0, 0] == 8.0


@pytest.mark.parametrize(
    "packed,scale",
    [((4, 16), (4, 2)), ((4, 16), (3, 1)), ((4, 8), (4, 1)), ((2, 4, 16), (4, 1))],
)
def test_shapes_that_do_not_belong_together_are_refused(packed, scale):
    with pytest.raises(ValueError, match="expected"):
        mxfp4_decode(torch.zeros(packed, dtype=torch.uint8), torch.zeros(scale, dtype=torch.uint8))
    with pytest.raises(ValueError, match="uint8"):
        mxfp4_decode(torch.zeros(4, 16, dtype=torch.int8), torch.zeros(4, 1, dtype=torch.uint8))
    with pytest.raises(ValueError, match="multiple of 32"):
        mxfp4_encode(torch.zeros(4, 40))
    with pytest.raises(ValueError, match="rules are"):
        mxfp4_encode(torch.zeros(4, 32), rule="ceil")

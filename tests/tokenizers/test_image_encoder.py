import io
import math
import pickle

import numpy as np
import pytest
import torch
from PIL import Image

from watersmeet.core.errors import ConfigError, DecodeError
from watersmeet.core.stream import Stream, pack
from watersmeet.tokenizers.image.embedder import Embedder
from watersmeet.tokenizers.image.encoder import Encoder


def noise(width, height, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def test_patches_are_the_pixels_where_the_boxes_say():
    pixels = noise(70, 50)
    span = Encoder({"scale": 1.0, "patch": 16}).encode(pixels)[0]
    rows, columns = math.ceil(50 / 16), math.ceil(70 / 16)
    assert span.n == rows * columns and span.data.shape == (span.n, 16 * 16 * 3) and span.data.dtype == torch.uint8
    assert span.coords.tolist() == [[row, column] for row in range(rows) for column in range(columns)]
    covered = np.zeros((50, 70), dtype=int)
    for data, (left, top, right, bottom) in zip(span.data, span.source, strict=True):
        patch = data.reshape(16, 16, 3).numpy()
        inside = patch[: bottom - top, : right - left]
        assert np.array_equal(inside, pixels[top:bottom, left:right])
        # what sticks out repeats the last row and column
        assert (patch[bottom - top :] == patch[bottom - top - 1]).all()
        assert (patch[:, right - left :] == patch[:, right - left - 1 : right - left]).all()
        covered[top:bottom, left:right] += 1
    assert (covered == 1).all()
    assert span.block.tolist() == [-1] * span.n and span.time_us is None


def test_half_scale_is_the_mean_of_two_by_two_pixels():
    pixels = noise(128, 64)
    span = Encoder({"scale": 0.5, "patch": 32}).encode(pixels)[0]
    means = pixels.reshape(32, 2, 64, 2, 3).astype(float).mean((1, 3))
    for data, (row, column) in zip(span.data, span.coords.tolist(), strict=True):
        found = data.reshape(32, 32, 3).numpy().astype(float)
        assert np.abs(found - means[row * 32 : row * 32 + 32, column * 32 : column * 32 + 32]).max() <= 1
    assert span.source == ((0, 0, 64, 64), (64, 0, 128, 64))


@pytest.mark.parametrize(
    "size", [(1, 1), (1, 5000), (5000, 1), (31, 33), (32, 32), (33, 31), (390, 844), (1280, 757), (1280, 9000), (3, 3)]
)
@pytest.mark.parametrize("most", [1, 7, 4096])
def test_any_size_stays_within_the_budget_and_covers_the_picture(size, most):
    encoder = Encoder({"max_patches": most})
    span = encoder.encode(np.zeros((size[1], size[0], 3), dtype=np.uint8))[0]
    assert 1 <= span.n <= most == encoder.max_tokens
    rows, columns = encoder.grid(*size)
    assert span.n == rows * columns
    boxes = np.array(span.source)
    assert boxes.min(0)[:2].tolist() == [0, 0] and boxes.max(0)[2:].tolist() == list(size)


def test_one_picture_has_one_key_however_it_comes(tmp_path):
    encoder = Encoder({})
    pixels = noise(40, 30)
    image = Image.fromarray(pixels)
    image.save(tmp_path / "a.png")
    out = io.BytesIO()
    image.save(out, "BMP")
    sources = [
        tmp_path / "a.png",
        str(tmp_path / "a.png"),
        (tmp_path / "a.png").read_bytes(),
        out.getvalue(),
        image,
        pixels,
    ]
    assert len({encoder.encode(source)[0].key for source in sources}) == 1
    key = encoder.encode(pixels)[0].key
    changed = pixels.copy()
    changed[-1, -1, -1] ^= 1
    assert encoder.encode(changed)[0].key != key
    assert Encoder({"patch": 16}).encode(pixels)[0].key != key
    assert encoder.encode(pixels.transpose(1, 0, 2).copy())[0].key != key
    assert pickle.loads(pickle.dumps(encoder)).encode(pixels)[0].key == key
    assert Encoder(encoder.settings).encode(pixels)[0].key == key


def test_grey_arrays_and_wrong_arrays():
    encoder = Encoder({})
    assert encoder.encode(np.zeros((20, 20), dtype=np.uint8))[0].n == 1
    for wrong in (np.zeros((4, 4, 3)), np.zeros((0, 4, 3), dtype=np.uint8), np.zeros((4, 4, 7), dtype=np.uint8)):
        with pytest.raises(DecodeError, match="image array"):
            encoder.encode(wrong)


def test_open_image_uses_the_limits_of_the_settings(tmp_path):
    Image.new("RGBA", (50, 50), (0, 0, 0, 0)).save(tmp_path / "a.png")
    picture, warnings = Encoder({"background": [1, 2, 3]}).open_image(tmp_path / "a.png")
    assert picture.getpixel((0, 0)) == (1, 2, 3) and warnings
    with pytest.raises(DecodeError, match="2,500 pixels are more than the limit of 2,499"):
        Encoder({"max_pixels": 2499}).encode(tmp_path / "a.png")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"pach": 32}, "unknown name 'pach'"),
        ({"patch": 20}, "multiple of 8"),
        ({"patch": 0}, "at least 1"),
        ({"scale": 0}, "above 0"),
        ({"scale": "x"}, "above 0"),
        ({"max_patches": 1.5}, "max_patches"),
    ],
)
def test_bad_settings_are_explained(settings, words):
    with pytest.raises(ConfigError, match=words):
        Encoder(settings)


def test_settings_are_plain_values():
    import json

    full = Encoder({"patch": 16}).settings
    assert json.loads(json.dumps(full)) == full and full["patch"] == 16 and full["scale"] == 0.5


def embedder(**settings):
    torch.manual_seed(0)
    return Embedder(24, {"patch": 16, "max_rows": 4, "max_columns": 3} | settings)


def test_embedder_is_the_written_out_formula():
    net = embedder().double()
    span = Encoder({"patch": 16, "scale": 1.0}).encode(noise(100, 90))[0]
    found = net(span.data, span.coords, None)
    assert found.shape == (span.n, 24) and found.dtype == torch.float64
    for index in (0, 5, span.n - 1):
        row, column = span.coords[index].tolist()
        picture = span.data[index].double().reshape(16, 16, 3).permute(2, 0, 1)[None] / 127.5 - 1
        hidden = torch.nn.functional.gelu(net.conv1(picture), approximate="tanh")
        hidden = torch.nn.functional.gelu(net.conv2(hidden), approximate="tanh")
        expected = net.project(net.norm(hidden.reshape(1, -1)))[0] + net.row[min(row, 3)] + net.column[min(column, 2)]
        assert torch.allclose(found[index], expected, atol=1e-12)


def test_embedder_takes_nothing_and_still_has_gradients():
    net = embedder()
    span = Encoder({"patch": 16}).encode(noise(20, 20))[0]
    out = net(span.data[:0], span.coords[:0], None)
    assert out.shape == (0, 24) and out.requires_grad
    out.sum().backward()
    assert all(value.grad is not None and not value.grad.any() for value in net.parameters())


def test_every_parameter_learns_and_tokens_do_not_mix():
    net = embedder()
    one = Encoder({"patch": 16, "scale": 1.0}).encode(noise(60, 70, 1))[0]
    two = Encoder({"patch": 16, "scale": 1.0}).encode(noise(33, 20, 2))[0]
    packed = pack([Stream(spans=(one,)), Stream(spans=(two,))])
    (segment,) = packed.segments
    together = net(segment.data, segment.coords, segment.time_us)
    apart = torch.cat([net(span.data, span.coords, None) for span in (one, two)])
    assert torch.allclose(together, apart, atol=1e-6)
    together.square().sum().backward()
    assert all(value.grad.abs().sum() > 0 for value in net.parameters())


def test_embedder_starts_near_the_scale_of_the_text_embedding_and_follows_the_weights_dtype():
    net = embedder(channels=8).to(torch.bfloat16)
    span = Encoder({"patch": 16}).encode(noise(300, 300))[0]
    out = net(span.data, span.coords, None)
    assert out.dtype == torch.bfloat16 and 0.01 < out.float().std() < 0.05

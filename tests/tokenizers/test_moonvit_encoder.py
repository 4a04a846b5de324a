"""Pictures to patches as Kimi K3 reads them."""

import json
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from watersmeet.core.errors import ConfigError, DecodeError
from watersmeet.plugins import get_registry
from watersmeet.tokenizers.moonvit.embedder import Embedder
from watersmeet.tokenizers.moonvit.encoder import Encoder
from watersmeet.tokenizers.moonvit.published import from_preprocessor, published_settings


def noise(width, height, channels=3, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


def picture_of(span, frame=0):
    """The padded picture put together again from the patches: [H, W, 3]."""
    rows, columns = span.coords[0, 2:4].tolist()
    out = np.zeros((rows * 28, columns * 28, 3), dtype=np.uint8)
    for (row, column, *_), cell in zip(span.coords.tolist(), span.data[:, frame], strict=True):
        for j, patch in enumerate(cell):
            y, x = row * 28 + j // 2 * 14, column * 28 + j % 2 * 14
            out[y : y + 14, x : x + 14] = patch.reshape(3, 14, 14).permute(1, 2, 0).numpy()
    return out


@pytest.mark.parametrize(
    ("size", "scaled", "tokens"),
    [
        ((1, 1), (1, 1), 1),
        ((28, 28), (28, 28), 1),
        ((29, 28), (29, 28), 2),
        ((224, 224), (224, 224), 64),
        ((3584, 3584), (3584, 3584), 16384),
        ((10000, 100), (7168, 71), 256 * 3),
        ((7168, 3584), (5068, 2534), 181 * 91),
    ],
)
def test_pitfall_49_size_and_number_of_tokens(size, scaled, tokens):
    encoder = Encoder({})
    assert encoder.scaled_size(*size) == scaled
    rows, columns = encoder.grid(*size)
    assert rows * columns == tokens
    if tokens <= 64:
        span = encoder.encode(noise(*size))[0]
        assert span.n == tokens == span.data.shape[0] and span.data.shape[1:] == (1, 4, 588)


def test_the_largest_picture_has_as_many_tokens_as_the_limit_says():
    encoder = Encoder({})
    picture = encoder.largest()
    assert math.prod(encoder.grid(*picture.size)) == encoder.max_tokens == 255 * 66
    assert math.prod(picture.size) <= encoder.limits.max_pixels
    # more than the 16,384 of a square, whose patches are all whole
    assert math.prod(encoder.grid(3584, 3584)) == 128 * 128
    assert Encoder({"frames": 4}).max_tokens is None
    small = Encoder({"patch_limit": 16, "side_limit": 12})
    assert small.encode(small.largest())[0].n == small.max_tokens == 6 * 2


@given(
    patch=st.integers(1, 16),
    side=st.integers(1, 12).map(lambda half: 2 * half),
    patch_limit=st.integers(1, 200),
    width=st.integers(1, 900),
    heights=st.lists(st.integers(1, 900), min_size=20, max_size=20),
)
def test_no_picture_has_more_tokens_than_the_limit(patch, side, patch_limit, width, heights):
    encoder = Encoder({"patch": patch, "side_limit": side, "patch_limit": patch_limit})
    most = encoder.max_tokens
    for height in heights:
        assert math.prod(encoder.grid(width, height)) <= most
        assert math.prod(encoder.grid(height, width)) <= most


def test_budgets_hold_for_any_size():
    encoder = Encoder({"patch_limit": 400, "side_limit": 40})
    for width, height in np.random.default_rng(1).integers(1, 3000, (300, 2)).tolist():
        w, h = encoder.scaled_size(width, height)
        rows, columns = encoder.grid(width, height)
        assert 1 <= w <= min(width, 560) and 1 <= h <= min(height, 560)
        assert max(rows, columns) * 2 <= 40
        # the rule counts whole patches before scaling, so a few more than the budget may come out
        assert max(1, w // 14) * max(1, h // 14) <= 400 * 1.1


def test_patches_hold_the_padded_picture():
    pixels = noise(70, 50)
    span = Encoder({}).encode(pixels)[0]
    whole = picture_of(span)
    assert whole.shape == (56, 84, 3) and np.array_equal(whole[:50, :70], pixels)
    assert not whole[50:].any() and not whole[:, 70:].any()
    assert span.coords.tolist() == [[row, column, 2, 3, 1] for row in range(2) for column in range(3)]
    assert span.source[0] == (0, 0, 28, 28) and span.source[5] == (56, 28, 70, 50)
    assert span.block.tolist() == [-1] * 6 and span.time_us is None


@pytest.mark.parametrize("size", [(900, 500), (333, 777)])
def test_pitfall_45_resizing_is_antialiased_bicubic_with_whole_values(size):
    """Equal to Pillow; within 2 of the formula in float64; far from bicubic without antialiasing."""
    # not the whole range: Pillow cuts to 0..255 between its two passes, whose order is its own affair
    pixels = 64 + noise(*size) // 2
    encoder = Encoder({"patch_limit": 256})
    w, h = encoder.scaled_size(*size)
    assert w < size[0]
    found = picture_of(encoder.encode(pixels)[0])[:h, :w]
    assert np.array_equal(found, np.asarray(Image.fromarray(pixels).resize((w, h), Image.Resampling.BICUBIC)))

    def kernel(x, a=-0.5):
        x = abs(x)
        if x < 1:
            return ((a + 2) * x - (a + 3)) * x * x + 1
        return (((x - 5) * x + 8) * x - 4) * a if x < 2 else 0.0

    def weights(old, new):
        matrix, scale = np.zeros((new, old)), old / new
        for i in range(new):
            centre = (i + 0.5) * scale
            for j in range(max(0, int(centre - 2 * scale + 0.5)), min(old, int(centre + 2 * scale + 0.5))):
                matrix[i, j] = kernel((j + 0.5 - centre) / scale)
        return matrix / matrix.sum(1, keepdims=True)

    exact = np.einsum("yi,xj,ijc->yxc", weights(size[1], h), weights(size[0], w), pixels.astype(float), optimize=True)
    assert np.abs(found - exact).max() <= 2
    sharp = torch.nn.functional.interpolate(
        torch.from_numpy(pixels).permute(2, 0, 1)[None].float(), size=(h, w), mode="bicubic", antialias=False
    )
    assert np.abs(found - sharp[0].permute(1, 2, 0).clamp(0, 255).numpy()).max() > 20


def test_small_pictures_are_never_enlarged():
    pixels = noise(20, 9)
    assert np.array_equal(picture_of(Encoder({}).encode(pixels)[0])[:9, :20], pixels)


def chessboard(height, width, square, first, second):
    board = np.empty((height, width, 1))
    for y in range(height):
        for x in range(width):
            board[y, x] = first if (x // square + y // square) % 2 == 0 else second
    return board


@pytest.mark.parametrize("kind", ["white", "black", "gray", "chessboard", "none"])
def test_transparent_pixels_lie_on_the_background_after_the_resize(kind):
    pixels = noise(500, 400, 4)
    encoder = Encoder({"background": kind, "patch_limit": 100})
    w, h = encoder.scaled_size(500, 400)
    found = picture_of(encoder.encode(Image.fromarray(pixels))[0])[:h, :w].astype(float)
    small = np.asarray(Image.fromarray(pixels).resize((w, h), Image.Resampling.BICUBIC)).astype(float)
    if kind == "none":
        assert np.array_equal(found, small[..., :3])
        return
    under = {"white": 255.0, "black": 0.0, "gray": 128.0}.get(kind, chessboard(h, w, 8, 255, 180))
    alpha = small[..., 3:] / 255
    exact = alpha * small[..., :3] + (1 - alpha) * under
    # cut down to whole values; float32 may land just below one
    assert (found <= exact + 1e-3).all() and (found > exact - 1 - 1e-3).all()


def test_the_chessboard_can_start_dark_and_be_filled_before_the_resize():
    clear = np.zeros((20, 20, 4), dtype=np.uint8)
    found = picture_of(Encoder({"light_first": False, "square": 5, "dark": 10, "light": 200}).encode(clear)[0])
    assert np.array_equal(found[:20, :20], np.broadcast_to(chessboard(20, 20, 5, 10, 200), (20, 20, 3)))
    pixels = noise(500, 400, 4)
    late, early = (
        picture_of(Encoder({"fill": fill, "patch_limit": 100, "background": "white"}).encode(pixels)[0])
        for fill in ("after_resize", "before_resize")
    )
    assert not np.array_equal(late, early) and np.abs(late.astype(int) - early).max() < 40


def test_normalised_values_are_those_of_the_reference_order():
    """uint8 / 255 rounded to float32, then (x - 0.5) / 0.5; padding is -1 and not 0."""
    values = torch.arange(256, dtype=torch.uint8)
    ours = (values.float() / 255 - 0.5) / 0.5
    theirs = ((values.numpy() / 255.0).astype(np.float32) - np.float32(0.5)) * np.float32(2)
    assert np.array_equal(ours.numpy(), theirs) and float(ours[0]) == -1.0


def test_clips_come_in_groups_within_their_own_budget():
    encoder = Encoder({"frames": 4, "frame_patch_limit": 64, "video_patch_limit": 120})
    frames = [noise(300, 200, seed=seed) for seed in range(6)]
    spans = encoder.encode(frames)
    rows, columns = encoder.grid(300, 200, 20)  # 120 patches for 6 frames
    assert [span.n for span in spans] == [rows * columns] * 2
    assert spans[0].coords[0].tolist() == [0, 0, rows, columns, 4] and spans[1].coords[0, 4] == 2
    assert spans[0].source[0][4:] == (0, 3) and spans[1].source[0][4:] == (4, 5)
    w, h = encoder.scaled_size(300, 200, 20)
    for group, span in enumerate(spans):
        for t in range(4):
            whole = picture_of(span, t)
            if group == 1 and t >= 2:
                assert not whole.any()
                continue
            small = Image.fromarray(frames[4 * group + t]).resize((w, h), Image.Resampling.BICUBIC)
            assert np.array_equal(whole[:h, :w], np.asarray(small))
    # a picture and a clip of one frame fit into the same batch
    assert encoder.encode(frames[0])[0].data.shape[1:] == spans[0].data.shape[1:]


def test_clips_that_cannot_be_read_are_explained():
    with pytest.raises(DecodeError, match="frames is 1"):
        Encoder({}).encode([noise(30, 30)])
    encoder = Encoder({"frames": 2})
    with pytest.raises(DecodeError, match="without frames"):
        encoder.encode([])
    with pytest.raises(DecodeError, match=r"frame 1 of the clip is \(31, 30\)"):
        encoder.encode([noise(30, 30), noise(31, 30)])


def test_files_go_through_the_safe_loader(tmp_path):
    encoder = Encoder({"max_pixels": 1000})
    Image.new("RGB", (50, 50)).save(tmp_path / "a.png")
    with pytest.raises(DecodeError, match="2,500 pixels are more than the limit"):
        encoder.encode(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"%PDF-1.7")
    with pytest.raises(DecodeError, match="PDF"):
        encoder.encode(tmp_path / "b.png")
    with pytest.raises(DecodeError, match="image array"):
        encoder.encode(np.zeros((4, 4)))


def test_the_key_follows_the_pixels_and_what_changes_them():
    pixels = noise(40, 30)
    encoder = Encoder({})
    key = encoder.encode(pixels)[0].key
    assert Encoder(encoder.settings).encode(Image.fromarray(pixels))[0].key == key
    assert pickle.loads(pickle.dumps(encoder)).encode(pixels)[0].key == key
    assert Encoder({"layers": 3}).encode(pixels)[0].key == key, "the tower does not change the patches"
    assert Encoder({"patch_limit": 4}).encode(pixels)[0].key != key
    assert encoder.encode(pixels[::-1].copy())[0].key != key
    assert json.loads(json.dumps(encoder.settings)) == encoder.settings


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"pach": 1}, "unknown name 'pach'"),
        ({"patch": 0}, "at least 1"),
        ({"heads": 1.5}, "heads is 1.5"),
        ({"background": "pink"}, "expected one of white"),
        ({"fill": "never"}, "after_resize"),
        ({"frames": 5}, "at most 4"),
        ({"head_dim": 6}, "multiple of 4"),
        ({"width": 5}, "even"),
        ({"side_limit": 7}, "even"),
        ({"dark": 300}, "at most 255"),
    ],
)
def test_bad_settings_are_explained(settings, words):
    with pytest.raises(ConfigError, match=words):
        Encoder(settings)


def test_settings_come_from_an_official_file():
    found = from_preprocessor(
        {
            "media_proc_cfg": {
                "in_patch_limit": 16384,
                "patch_size": 14,
                "image_mean": [0.5, 0.5, 0.5],
                "image_std": [0.25, 0.25, 0.25],
                "merge_kernel_size": 2,
                "fixed_output_tokens": None,
                "patch_limit_on_one_side": 128,
                "transparent_bg_config": {"pattern": "chessboard", "chessboard_square_size": 4},
            }
        }
    )
    assert found == {
        "patch": 14, "patch_limit": 16384, "side_limit": 128, "mean": 0.5, "std": 0.25, "background": "chessboard",
        "square": 4, "light_first": True, "light": 255, "dark": 200, "fill": "before_resize",
    }  # fmt: skip
    Encoder(found)
    assert from_preprocessor({})["background"] == "none"
    for wrong in ({"merge_kernel_size": 3}, {"fixed_output_tokens": 8}, {"image_mean": [0.1, 0.2, 0.3]}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            from_preprocessor(wrong)


def test_the_sizes_of_a_tower_come_from_its_tensors():
    sizes = {"width": 24, "layers": 3, "heads": 2, "head_dim": 8, "mlp": 40, "grid": 6, "patch": 14}
    with torch.device("meta"):
        net = Embedder(20, sizes)
    names = {own: published for published, own in Embedder.checkpoint_names.items()}
    shapes = {}
    for name, parameter in net.named_parameters():
        start = next(own for own in names if name.startswith(own))
        shapes[names[start] + name.removeprefix(start)] = tuple(parameter.shape)
    config = {"vision_config": {"vt_num_attention_heads": 2, "mm_projector_type": "patchmergerv2", "other": 1}}
    assert published_settings(shapes, config, {}) == sizes
    stated = json.dumps({"media_proc_cfg": {"patch_size": 14, "in_patch_limit": 99}}).encode()
    assert published_settings(shapes, config, {"preprocessor_config.json": stated})["patch_limit"] == 99
    assert published_settings({"model.norm.weight": (3,)}, config, {}) is None
    for wrong, words in (
        ({"vt_num_attention_heads": 5}, "5 heads"),
        ({"mm_projector_type": "patchmerger"}, "mm_projector_type"),
        ({"norm_type": "layernorm"}, "norm_type"),
    ):
        with pytest.raises(ConfigError, match=words):
            published_settings(shapes, {"vision_config": wrong}, {})
    for content, words in ((b"[]", "list"), (b"{", "JSON"), (b'{"patch_size": 16}', "patch_size is 16")):
        with pytest.raises(ConfigError, match=words):
            published_settings(shapes, config, {"preprocessor_config.json": content})
    with pytest.raises(ConfigError, match="another form"):
        published_settings({"vision_tower.patch_embed.proj.weight": (1152, 3, 14, 14)}, {}, {})


def test_it_comes_through_its_own_entry_point():
    found = get_registry()
    assert found.modality("moonvit").atomic and found.modality_owner("moonvit").distribution == "watersmeet"
    assert math.isclose(found.encoder("moonvit").settings["mean"], 0.5)

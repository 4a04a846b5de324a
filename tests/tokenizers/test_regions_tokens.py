"""Regions to tokens: columns, offsets, determinism, and an embedder that takes nothing."""

import json

import pytest
import torch
from PIL import Image, ImageDraw

from watersmeet.core.errors import ConfigError, DecodeError
from watersmeet.core.stream import Stream, pack
from watersmeet.tokenizers.regions import features
from watersmeet.tokenizers.regions.embedder import Embedder
from watersmeet.tokenizers.regions.encoder import Encoder


@pytest.fixture(scope="module")
def scene():
    image = Image.new("RGB", (400, 240), "white")
    draw = ImageDraw.Draw(image)
    draw.rectangle((20, 20, 219, 199), fill=(235, 240, 250))
    draw.rounded_rectangle((40, 140, 139, 175), radius=5, fill=(13, 110, 253))
    texts = [((50, 147, 130, 167), "Sign in"), ((40, 40, 200, 60), "Welcome back"), ((250, 40, 360, 60), "$ 12.50")]
    for box, text in texts:
        draw.text((box[0], box[3] - 5), text, fill=(0, 0, 0), font_size=16, anchor="ls")
    return image, texts


def test_describe_is_plain_sorted_and_deterministic(scene):
    image, texts = scene
    encoder = Encoder({})
    regions = encoder.describe(image, [*texts, ((0, 0, 10, 10), "  "), ((500, 0, 600, 10), "outside")])
    assert regions == json.loads(json.dumps(regions)) == encoder.describe(image, texts[::-1])
    assert (regions["width"], regions["height"], regions["background"]) == (400, 240, [255, 255, 255])
    assert [t["text"] for t in regions["texts"]] == ["Welcome back", "Sign in", "$ 12.50"]
    assert [tuple(s["box"].values()) for s in regions["shapes"]] == [(20, 20, 220, 200), (40, 140, 140, 176)]


def test_span_follows_the_reading_order(scene):
    image, texts = scene
    encoder = Encoder({})
    regions = encoder.describe(image, texts)
    (span,) = encoder.encode(regions)
    assert [name for name, _ in span.source] == ["s0", "t0", "s1", "t1", "t2"]
    assert span.data.shape == (5, features.FEATURES) and span.coords.shape == (5, 4)
    names = list(features.COLUMNS)
    assert span.data[:, names.index("type")].tolist() == [1, 0, 1, 0, 0]
    assert span.data[:, names.index("depth")].tolist() == [0, 1, 1, 2, 0]
    assert span.data[:, names.index("parent")].tolist() == [0, 1, 1, 2, 0]
    assert span.data[:, -1].tolist() == [0, 0, 1, 1, 2]
    assert span.coords[2].tolist() == [40, 140, 140, 176]
    assert (span.data[:, : len(names)] < torch.tensor(list(features.COLUMNS.values()))).all()
    assert pack([Stream(spans=(span,))]).T == 5


def test_offsets_move_only_references(scene):
    image, texts = scene
    encoder = Encoder({})
    regions = encoder.describe(image, texts)
    plain = encoder.encode(regions)[0]
    moved = encoder.encode(regions | {"offset_t": 255, "offset_s": 159})[0]
    assert moved.data[:, -1].tolist() == [159, 255, 0, 0, 1]
    assert torch.equal(encoder.shift(plain.data, 255, 159), moved.data)
    assert torch.equal(Encoder({"offset_t": 255, "offset_s": 159}).encode(regions)[0].data, moved.data)
    parent = list(features.COLUMNS).index("parent")
    same = [c for c in range(features.FEATURES - 1) if c != parent]
    assert torch.equal(plain.data[:, same], moved.data[:, same])
    assert plain.key != moved.key == encoder.encode(regions | {"offset_t": 255, "offset_s": 159})[0].key


def test_word_hashes_are_stable_and_case_blind():
    assert features.word_hashes("Sign IN", 4096) == features.word_hashes("sign in", 4096)
    # crc32 is fixed for all time: a checkpoint depends on it
    assert features.word_hashes("sign", 4096) == [2695, 0, 0, 0, 0, 0]
    assert len(features.word_hashes("a b c d e f g h", 4096)) == features.WORDS


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("a@b.org", 1),
        ("www.x.org", 2),
        ("$ 12", 3),
        ("40 %", 4),
        ("12:30", 5),
        ("1,200", 6),
        ("—", 7),
        ("f()", 8),
        ("HOME", 9),
    ],
)
def test_looks(text, kind):
    assert features.looks(text) == kind


@pytest.mark.parametrize("item", [{}, {"texts": [], "shapes": 3}, {"texts": [{"box": 1}], "shapes": []}, 7])
def test_what_is_no_record_is_a_decode_error(item):
    with pytest.raises(DecodeError, match="regions"):
        Encoder({}).encode(item)


def test_too_many_regions_name_the_numbers(scene):
    regions = Encoder({}).describe(*scene)
    with pytest.raises(DecodeError, match="3 texts and 2 shapes, at most 2 and 160"):
        Encoder({"max_texts": 2}).encode(regions)


@pytest.mark.parametrize("settings", [{"colour": 1}, {"width": 0}, {"offset_t": -1}, {"max_shapes": 500}])
def test_wrong_settings(settings):
    with pytest.raises(ConfigError):
        Encoder(settings)


def test_empty_picture_gives_an_empty_span():
    (span,) = Encoder({}).encode(Encoder({}).describe(Image.new("RGB", (50, 50), "white"), []))
    assert span.n == 0 and span.data.shape == (0, features.FEATURES) and span.coords.shape == (0, 4)


def test_embedder(scene):
    torch.manual_seed(0)
    encoder = Encoder({"width": 32, "buckets": 64})
    (span,) = encoder.encode(encoder.describe(*scene))
    embedder = Embedder(48, encoder.settings)
    whole = embedder(span.data, span.coords, None)
    assert whole.shape == (5, 48) and 0.005 < whole.std() < 0.1
    alone = torch.cat([embedder(span.data[i : i + 1], span.coords[i : i + 1], None) for i in range(5)])
    torch.testing.assert_close(whole, alone)
    # texts and shapes with one number must differ, and so must equal regions with different numbers
    twin = span.data[:1].clone()
    twin[0, -1] += 1
    assert not torch.allclose(embedder(twin, span.coords[:1]), whole[:1])
    huge = torch.full_like(span.data, 10**6)
    assert torch.isfinite(embedder(huge, span.coords * 10**4)).all()
    embedder.zero_grad()
    nothing = embedder(span.data[:0], span.coords[:0], None)
    assert nothing.shape == (0, 48)
    nothing.sum().backward()
    assert all(p.grad is not None and not p.grad.any() for p in embedder.parameters())


def test_embedder_in_bfloat16(scene):
    encoder = Encoder({"width": 32, "buckets": 64})
    (span,) = encoder.encode(encoder.describe(*scene))
    assert Embedder(48, encoder.settings).bfloat16()(span.data, span.coords).dtype == torch.bfloat16

"""Processors of transformers as encoders, against what the processors themselves return."""

import pickle

import numpy as np
import pytest
import torch
from PIL import Image

from watersmeet.core.errors import ConfigError, DecodeError
from watersmeet.plugins.processors import ProcessorEncoder
from watersmeet.plugins.vectors import VectorEmbedder

pytest.importorskip("transformers")


class Eyes(ProcessorEncoder):
    modality, patch = "eyes", 16

    def processor(self):
        from transformers import CLIPImageProcessorPil

        size = {"height": 32, "width": 48}
        return CLIPImageProcessorPil(size=size, crop_size=size, **self.settings["processor"])

    def call(self, item):
        return self.made(Image.open(item) if isinstance(item, str) else item, return_tensors="np")


class Ears(ProcessorEncoder):
    modality, array, layout = "ears", "input_features", "f t"

    def processor(self):
        from transformers import WhisperFeatureExtractor

        return WhisperFeatureExtractor(chunk_length=2, **self.settings["processor"])

    def call(self, item):
        return self.made(item, sampling_rate=16000, return_tensors="np")


@pytest.fixture
def picture():
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8))


def test_patches_are_those_of_the_processors_pixels(picture):
    eyes = Eyes()
    [span] = eyes.encode(picture)
    pixels = eyes.made(picture, return_tensors="np")["pixel_values"][0]
    assert span.n == 6 and span.data.shape == (6, 16 * 16 * 3) and span.data.dtype == torch.float32
    for (row, column), patch in zip(span.coords.tolist(), span.data, strict=True):
        cut = pixels[:, 16 * row : 16 * row + 16, 16 * column : 16 * column + 16]
        assert np.array_equal(patch.numpy(), cut.transpose(1, 2, 0).ravel())
    assert span.coords.tolist() == [[r, c] for r in range(2) for c in range(3)]
    made = VectorEmbedder(24, features=span.data.shape[1], coords=2)
    assert made(span.data, span.coords).shape == (6, 24)


def test_steps_are_those_of_the_processors_features():
    ears, sound = Ears(), np.sin(np.arange(16000) / 20)
    [span] = ears.encode(sound)
    wanted = ears.made(sound, sampling_rate=16000, return_tensors="np")["input_features"][0]
    assert np.array_equal(span.data.numpy(), wanted.T) and span.coords[:, 0].tolist() == list(range(len(wanted.T)))


def test_it_keeps_the_contract(picture):
    eyes = Eyes()
    there = pickle.loads(pickle.dumps(eyes))
    assert there.encode(picture)[0].key == eyes.encode(picture)[0].key == Eyes(eyes.settings).encode(picture)[0].key
    other = Eyes({"processor": {"do_normalize": False}})
    assert other.encode(picture)[0].key != eyes.encode(picture)[0].key
    assert eyes.encode(picture.rotate(90))[0].key != eyes.encode(picture)[0].key


def test_what_a_processor_does_not_take_is_an_error_of_the_item(picture):
    for item in (None, {}, [], "no such file", 3):
        with pytest.raises(DecodeError, match="eyes: the processor refused the item"):
            Eyes().encode(item)
    with pytest.raises(DecodeError, match="ears: "):
        Ears().encode([picture])
    with pytest.raises(DecodeError, match="NaN"):
        Ears().encode(np.full(16000, np.nan))
    with pytest.raises(DecodeError, match="the processor made 2 items of one"):
        Eyes().encode([picture, picture])


def test_what_a_subclass_says_wrong_is_told():
    with pytest.raises(ConfigError, match="eyes has no setting 'procesor'; there are: processor"):
        Eyes({"procesor": {}})

    class Flat(Eyes):
        patch = 0

    with pytest.raises(ConfigError, match="layout 'c h w' with patch 0"):
        Flat()

    class Odd(Eyes):
        patch = 20

    with pytest.raises(DecodeError, match="32 x 48 pixels, expected multiples of the patch, 20"):
        Odd().encode(Image.new("RGB", (9, 9)))


def test_a_fault_of_the_program_stays_one(picture):
    class Broken(Eyes):
        def call(self, item):
            return self.made.no_such_method(item)

    with pytest.raises(AttributeError):
        Broken().encode(picture)

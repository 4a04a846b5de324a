"""The built-in modalities keep the contract that strangers are held against."""

import pytest

from watersmeet.pipelines.models.reading import read_folder
from watersmeet.testing import ModalityTests, Subject


class TestImage(ModalityTests):
    modality = "image"
    settings = {"max_patches": 64, "channels": 4}  # noqa: RUF012  # as an author would write it


class TestText(ModalityTests):
    modality = "text"

    def subject(self):
        encoder = read_folder("nano").encoders["text"]
        return Subject(modality="text", settings=encoder.settings, files=encoder.files)


def described(texts):
    """Regions of a made-up page with one box and some lines."""
    from PIL import Image

    from watersmeet.tokenizers.regions.encoder import Encoder

    page = Image.new("RGB", (240, 200), "white")
    page.paste((30, 90, 200), (20, 140, 120, 190))
    return Encoder.describe(page, [((10, 20 * i + 4, 90, 20 * i + 16), f"line {i}") for i in range(texts)])


class TestRegions(ModalityTests):
    modality = "regions"
    settings = {"max_texts": 4, "max_shapes": 2}  # noqa: RUF012

    def items(self):
        return [described(texts) for texts in (1, 3)]

    def largest(self):
        full = described(4)
        return [full | {"shapes": [full["shapes"][0]] * 2}]


class TestVideo(ModalityTests):
    modality = "video"
    settings = {"scale": 0.125, "max_patches": 64, "max_tokens": 64 * 256}  # noqa: RUF012


pytestmark = pytest.mark.slow

"""From a file to a picture and its regions."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from watersmeet.core.errors import DecodeError
from watersmeet.pipelines.layout.regions import Regions

MIN_SIDE = 16  # px; nothing that could be called a page fits into less


@dataclass(frozen=True, kw_only=True)
class Screenshot:
    """A picture that was read: upright RGB, its regions, and one sentence for everything that was not taken as it was."""

    picture: Image.Image
    regions: Regions
    warnings: tuple[str, ...]


def read_screenshot(path: Path, encoders: Mapping[str, Any]) -> Screenshot:
    """Decode and read `path` with the "image" and "regions" encoders.

    Raises DecodeError, naming the file and the reason, for what is no picture of a page: damaged or foreign files,
    pictures of less than 16 px or of more pixels than the decoder's limit, and pictures of one colour.
    """
    picture, warnings = encoders["image"].open_image(path)
    if min(picture.size) < MIN_SIDE:
        raise DecodeError(
            f"{path}: the picture is {picture.width} x {picture.height} px; at least {MIN_SIDE} px a side are needed"
        )
    if all(low == high for low, high in picture.getextrema()):
        raise DecodeError(f"{path}: the picture is blank, every pixel has the colour {picture.getpixel((0, 0))}")
    regions = Regions.from_json(encoders["regions"].read(picture))
    if not regions.texts and not regions.shapes:
        raise DecodeError(f"{path}: neither text nor boxes were found in the picture; is it a screenshot of a page?")
    return Screenshot(picture=picture, regions=regions, warnings=tuple(warnings))

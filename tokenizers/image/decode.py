"""Open any picture a user may have and give plain 8-bit RGB, or one sentence that says why not.

Order: size of the file, format, number of pixels, and only then the pixels themselves. Then rotation by EXIF, colour
profile to sRGB, transparency onto a stated background.
"""

from __future__ import annotations

import functools
import io
import os
import re
import warnings
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageCms, ImageOps, UnidentifiedImageError

from watersmeet.core.errors import DecodeError
from watersmeet.plugins.sources import read_source

# EPS and the like are left out on purpose: Pillow hands them to external programs
FORMATS = ("PNG", "JPEG", "MPO", "GIF", "WEBP", "AVIF", "BMP", "DIB", "TIFF", "ICO", "PPM", "JPEG2000")

_READABLE = "PNG, JPEG, WebP, GIF, BMP or TIFF"

_FOREIGN = (
    (re.compile(rb"^(\xef\xbb\xbf)?\s*(<\?xml[^>]*>.{0,800})?<svg", re.DOTALL | re.IGNORECASE), "an SVG drawing"),
    (re.compile(rb"^\s*<(!doctype html|html)", re.IGNORECASE), "an HTML page"),
    (re.compile(rb"^%PDF-"), "a PDF document"),
    (re.compile(rb"^....ftyp(heic|heix|hevc|mif1|msf1)", re.DOTALL), "a HEIC photo"),
    (re.compile(rb"^....ftyp|^\x1aE\xdf\xa3", re.DOTALL), "a video"),
    (re.compile(rb"^%!PS"), "a PostScript file"),
    (re.compile(rb"^PK\x03\x04"), "a ZIP archive"),
)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What is accepted and how transparency is filled.

    max_pixels  width times height, checked before decoding
    max_bytes   size of the file
    min_side    smallest width and height
    background  colour (red, green, blue) under transparent pixels
    """

    max_pixels: int = 64_000_000
    max_bytes: int = 256_000_000
    min_side: int = 1
    background: tuple[int, int, int] = (255, 255, 255)


def _not_an_image(raw: bytes, name: str) -> DecodeError:
    for pattern, kind in _FOREIGN:
        if pattern.search(raw[:1024]):
            return DecodeError(f"{name}: is {kind}, not an image; convert it to PNG first")
    return DecodeError(f"{name}: is not an image that can be read; expected {_READABLE}")


def _check_pixels(width: int, height: int, name: str, limits: Limits) -> None:
    if width * height > limits.max_pixels:
        raise DecodeError(
            f"{name}: {width:,} x {height:,} = {width * height:,} pixels are more than the limit of "
            f"{limits.max_pixels:,}; scale it down or raise max_pixels"
        )
    if min(width, height) < max(1, limits.min_side):
        raise DecodeError(f"{name}: {width} x {height} pixels, expected at least {limits.min_side} on each side")


@functools.cache
def _formats() -> tuple[str, ...]:
    """Those of `FORMATS` that this build of Pillow has; it refuses to look at any file when asked for one it lacks."""
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def _open(raw: bytes, name: str, limits: Limits) -> Image.Image:
    """Header only; no pixel is decoded here."""
    try:
        with warnings.catch_warnings():
            # our own budget below is the one that counts, and damage is reported once, as an error
            warnings.simplefilter("ignore")
            image = Image.open(io.BytesIO(raw), formats=_formats())
    except Image.DecompressionBombError as error:
        # Pillow refuses sizes far above any sensible budget by itself, with the number in its message
        number = re.search(r"\d+", str(error))
        pixels = f"{int(number.group()):,} pixels" if number else "its number of pixels"
        raise DecodeError(
            f"{name}: {pixels} are more than the limit of {limits.max_pixels:,}; scale it down"
        ) from error
    except UnidentifiedImageError as error:
        raise _not_an_image(raw, name) from error
    except Exception as error:  # damaged headers raise anything: struct.error, ValueError, SyntaxError, ...
        raise DecodeError(f"{name}: damaged image header: {_reason(error)}") from error
    _check_pixels(*image.size, name, limits)
    return image


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _to_srgb(image: Image.Image, found: list[str]) -> Image.Image:
    """Convert by the embedded colour profile; a wrong profile is ignored and said so."""
    profile = image.info.get("icc_profile")
    if not profile or image.mode not in ("RGB", "RGBA", "CMYK"):
        return image
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        if "sRGB" in ImageCms.getProfileDescription(source):
            return image
        mode = "RGBA" if image.mode == "RGBA" else "RGB"
        converted = ImageCms.profileToProfile(image, source, ImageCms.createProfile("sRGB"), outputMode=mode)
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError) as error:
        found.append(f"colour profile ignored: {_reason(error)}")
        return image
    return image if converted is None else converted


def _to_eight_bits(image: Image.Image, found: list[str]) -> Image.Image:
    """Grey pictures of more than 8 bits: keep the range instead of clipping at 255."""
    if not (image.mode.startswith("I") or image.mode == "F"):
        return image
    values = np.asarray(image, dtype=np.float64)
    if image.mode == "F":
        low, high = float(np.nanmin(values)), float(np.nanmax(values))
        if not np.isfinite([low, high]).all():
            low, high = 0.0, 1.0
        values = np.nan_to_num(values, nan=low, posinf=high, neginf=low)
        scaled = (values - low) / max(high - low, 1e-12) * 255
        found.append(f"floating-point grey from {low:g} to {high:g} was stretched to 8 bits")
    else:
        # mode I holds 32 bits but files of 16 bits arrive in it too
        top = 65535 if values.max(initial=0) <= 65535 else float(values.max())
        scaled = values / top * 255
        found.append("16-bit grey was reduced to 8 bits" if top == 65535 else "32-bit grey was reduced to 8 bits")
    return Image.fromarray(np.clip(np.round(scaled), 0, 255).astype(np.uint8))


def _flatten(image: Image.Image, limits: Limits, found: list[str]) -> Image.Image:
    if not image.has_transparency_data:
        return image.convert("RGB")
    picture = image.convert("RGBA")
    lowest = picture.getchannel("A").getextrema()[0]
    below = Image.new("RGBA", picture.size, (*limits.background, 255))
    below.alpha_composite(picture)
    if isinstance(lowest, (int, float)) and lowest < 255:
        found.append(f"transparent pixels were placed on the colour rgb{limits.background}")
    return below.convert("RGB")


def load_image(
    source: str | os.PathLike[str] | bytes | Image.Image, limits: Limits | None = None, *, keep_alpha: bool = False
) -> tuple[Image.Image, list[str]]:
    """Read a picture as Pillow image of mode RGB, upright, with sRGB colours and no transparency.

    With `keep_alpha` a picture that has transparency comes back as RGBA, for a caller that fills it later.

    `source` is a path, the file's bytes, or a Pillow image. The second value holds one sentence for each thing that was
    not taken as it was (first frame of an animation, transparency, reduced depth). Raises DecodeError naming the
    file and the reason: missing, empty, not an image, truncated, too many pixels (before any is decoded).
    """
    limits = limits or Limits()
    found: list[str] = []
    if isinstance(source, Image.Image):
        image, name = source, f"image {source.width} x {source.height}"
        _check_pixels(*image.size, name, limits)
    else:
        raw, name = read_source(source, "image", expected=f"an image file ({_READABLE})", max_bytes=limits.max_bytes)
        image = _open(raw, name, limits)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if getattr(image, "is_animated", False):
                image.seek(0)
                found.append(f"{image.format} holds several frames; only the first is used")
            image.load()
    except Exception as error:  # decoders raise anything on bad data, and all of it means "bad data"
        raise DecodeError(f"{name}: image data is truncated or damaged: {_reason(error)}") from error
    # an ICO may turn out larger than its directory said
    _check_pixels(*image.size, name, limits)
    try:
        if image.getexif().get(0x0112, 1) != 1:
            image = ImageOps.exif_transpose(image)
    except Exception as error:  # damaged EXIF raises anything
        found.append(f"EXIF orientation ignored: {_reason(error)}")
    if image.mode == "CMYK":
        found.append("CMYK colours were converted to RGB")
    try:
        plain = _to_eight_bits(_to_srgb(image, found), found)
        if keep_alpha and plain.has_transparency_data:
            picture = plain.convert("RGBA")
        else:
            picture = _flatten(plain, limits, found)
    except Exception as error:  # damaged profiles and palettes raise anything
        raise DecodeError(f"{name}: pixels of mode {image.mode} cannot be turned into RGB: {_reason(error)}") from error
    return picture, found

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageCms

from watersmeet.core.errors import DecodeError
from watersmeet.tokenizers.image.decode import Limits, load_image

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


def saved(image, kind="PNG", **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def quarters(mode="RGB"):
    """2 x 2 blocks of 8 pixels: red green / blue white."""
    image = Image.new("RGB", (16, 16), WHITE)
    image.paste(RED, (0, 0, 8, 8))
    image.paste(GREEN, (8, 0, 16, 8))
    image.paste(BLUE, (0, 8, 8, 16))
    return image.convert(mode)


def noise(width=200, height=150):
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


def header(width, height):
    """A PNG that claims a size and has no pixel data."""
    body = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", body) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def near(found, expected, tolerance=0):
    return max(abs(a - b) for a, b in zip(found, expected, strict=True)) <= tolerance


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "GIF", "PPM"])
def test_plain_pictures_come_back_exactly(kind, tmp_path):
    path = tmp_path / "plain.any"
    path.write_bytes(saved(quarters(), kind))
    for source in (path, str(path), path.read_bytes()):
        picture, warnings = load_image(source)
        assert picture.mode == "RGB" and warnings == []
        assert np.array_equal(np.asarray(picture), np.asarray(quarters()))


# position of the original's top left pixel after each EXIF orientation is undone, written out by hand
@pytest.mark.parametrize(
    ("orientation", "corners"),
    [
        (1, (RED, GREEN, BLUE, WHITE)),
        (2, (GREEN, RED, WHITE, BLUE)),
        (3, (WHITE, BLUE, GREEN, RED)),
        (4, (BLUE, WHITE, RED, GREEN)),
        (5, (RED, BLUE, GREEN, WHITE)),
        (6, (BLUE, RED, WHITE, GREEN)),
        (7, (WHITE, GREEN, BLUE, RED)),
        (8, (GREEN, WHITE, RED, BLUE)),
    ],
)
def test_exif_orientation(orientation, corners):
    exif = Image.Exif()
    exif[0x0112] = orientation
    raw = saved(quarters(), "JPEG", exif=exif, quality=95, subsampling=0)
    picture, _ = load_image(raw)
    found = [picture.getpixel(place) for place in ((3, 3), (12, 3), (3, 12), (12, 12))]
    assert all(near(a, b, 12) for a, b in zip(found, corners, strict=True)), found


def test_orientation_beyond_the_known_ones_is_ignored():
    exif = Image.Exif()
    exif[0x0112] = 77
    picture, _ = load_image(saved(quarters(), "PNG", exif=exif))
    assert picture.getpixel((3, 3)) == RED


def test_transparency_lands_on_the_stated_background():
    image = quarters("RGBA")
    image.putpixel((0, 0), (10, 20, 30, 0))
    image.putpixel((1, 0), (255, 0, 0, 128))
    picture, warnings = load_image(saved(image))
    assert picture.getpixel((0, 0)) == WHITE and near(picture.getpixel((1, 0)), (255, 127, 127), 1)
    assert len(warnings) == 1 and "rgb(255, 255, 255)" in warnings[0]
    dark, _ = load_image(saved(image), Limits(background=(0, 0, 0)))
    assert dark.getpixel((0, 0)) == (0, 0, 0)
    # an alpha channel without holes is not worth a warning
    assert load_image(saved(quarters("RGBA")))[1] == []


def test_palette_with_a_transparent_entry_hides_its_colour():
    image = quarters("P")
    index = image.getpixel((0, 0))
    picture, warnings = load_image(saved(image, transparency=index))
    assert picture.getpixel((3, 3)) == WHITE and picture.getpixel((12, 3)) == GREEN and len(warnings) == 1
    grey = Image.new("L", (4, 4), 7)
    picture, warnings = load_image(saved(grey, transparency=7))
    assert picture.getpixel((0, 0)) == WHITE and len(warnings) == 1
    greys = Image.new("LA", (4, 4), (0, 0))
    assert load_image(saved(greys))[0].getpixel((0, 0)) == WHITE


def test_cmyk():
    picture, warnings = load_image(saved(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "TIFF"))
    assert near(picture.getpixel((2, 2)), RED, 2) and any("CMYK" in line for line in warnings)
    picture, _ = load_image(saved(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG", quality=95))
    assert near(picture.getpixel((2, 2)), RED, 12)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bit_grey_keeps_its_range(kind):
    values = np.array([[0, 256, 32768, 65535]] * 4, dtype=np.uint16)
    picture, warnings = load_image(saved(Image.fromarray(values), kind))
    assert [picture.getpixel((x, 0))[0] for x in range(4)] == [0, 1, 128, 255]
    assert any("16-bit" in line for line in warnings)


def test_float_and_one_bit_pictures():
    values = np.array([[0.0, 0.5, 1.0, np.nan]] * 4, dtype=np.float32)
    picture, warnings = load_image(saved(Image.fromarray(values), "TIFF"))
    assert [picture.getpixel((x, 0))[0] for x in range(4)] == [0, 128, 255, 0] and len(warnings) == 1
    picture, _ = load_image(saved(quarters("1")))
    assert picture.getpixel((12, 12)) == WHITE


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_animations_give_their_first_frame_and_say_so(kind):
    frames = [Image.new("RGB", (8, 8), colour) for colour in (RED, GREEN, BLUE)]
    options = {"lossless": True} if kind == "WEBP" else {}
    raw = saved(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    picture, warnings = load_image(raw)
    assert picture.getpixel((2, 2)) == RED and any("first" in line for line in warnings)


def test_colour_profiles_are_converted_and_broken_ones_ignored():
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    picture, warnings = load_image(saved(quarters(), icc_profile=srgb))
    assert picture.getpixel((3, 3)) == RED and warnings == []
    picture, warnings = load_image(saved(quarters(), icc_profile=b"not a profile"))
    assert picture.getpixel((3, 3)) == RED and any("profile ignored" in line for line in warnings)


def test_the_pixel_budget_is_checked_before_decoding():
    with pytest.raises(DecodeError, match=r"20,000 x 5,000 = 100,000,000 pixels .* 64,000,000"):
        load_image(header(20_000, 5_000))
    # the same file within budget is found to have no data: so above, nothing was decoded
    with pytest.raises(DecodeError, match="truncated or damaged"):
        load_image(header(20, 50))
    for side in (20_000, 1_000_000):
        with pytest.raises(DecodeError, match=r"pixels are more than the limit of 64,000,000"):
            load_image(header(side, side))
    with pytest.raises(DecodeError, match="16 x 16 pixels, expected at least 17"):
        load_image(saved(quarters()), Limits(min_side=17))
    with pytest.raises(DecodeError, match="bytes are more than the limit of 10"):
        load_image(saved(quarters()), Limits(max_bytes=10))
    with pytest.raises(DecodeError, match="256 pixels are more than the limit of 255"):
        load_image(quarters(), Limits(max_pixels=255))


@pytest.mark.parametrize(
    ("name", "raw", "words"),
    [
        ("empty.png", b"", "is empty"),
        ("noise.png", b"\x07\x01" * 500, "not an image"),
        ("words.png", b"just some words", "not an image"),
        ("page.png", b"<!doctype html><p>hi", "an HTML page"),
        ("draw.svg", b'<?xml version="1.0"?>\n<svg xmlns="x"></svg>', "an SVG drawing"),
        ("draw2.svg", b'  <svg width="3"></svg>', "an SVG drawing"),
        ("paper.pdf", b"%PDF-1.7 ...", "a PDF document"),
        ("photo.heic", b"\0\0\0\x18ftypheic\0\0\0\0", "a HEIC photo"),
        ("clip.mp4", b"\0\0\0\x18ftypisom\0\0\0\0", "a video"),
        ("run.eps", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "a PostScript file"),
        ("head.png", b"\x89PNG\r\n\x1a\n", "header|not an image"),
        ("zero.png", header(0, 5), "header|expected at least|not an image"),
    ],
)
def test_what_is_not_an_image_is_named_with_its_file(tmp_path, name, raw, words):
    path = tmp_path / name
    path.write_bytes(raw)
    with pytest.raises(DecodeError, match=words) as caught:
        load_image(path)
    assert name in str(caught.value) and "\n" not in str(caught.value)


def test_missing_files_and_folders(tmp_path):
    with pytest.raises(DecodeError, match=r"gone.png: cannot be read: No such file"):
        load_image(tmp_path / "gone.png")
    with pytest.raises(DecodeError, match="is a folder"):
        load_image(tmp_path)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_truncated_files(kind, tmp_path):
    raw = saved(noise(), kind)
    path = tmp_path / "cut.bin"
    for share in (0.3, 0.6, 0.9):
        path.write_bytes(raw[: int(len(raw) * share)])
        with pytest.raises(DecodeError, match="cut.bin"):
            load_image(path)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "TIFF", "ICO", "BMP", "JPEG2000"])
def test_damaged_files_give_a_picture_or_a_decode_error_and_nothing_else(kind):
    rng = np.random.default_rng(3)
    raw = saved(noise(64, 48), kind)
    for _ in range(40):
        bad = bytearray(raw)
        for place in rng.integers(0, min(len(bad), 400), 4):
            bad[place] = rng.integers(256)
        try:
            picture, _ = load_image(bytes(bad), Limits(max_pixels=1_000_000))
        except DecodeError as error:
            assert "\n" not in str(error)
        else:
            assert picture.mode == "RGB"

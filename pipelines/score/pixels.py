"""Pixel scores that an empty page cannot earn: both are rescaled so that a page of the main colour alone is 0."""

import cv2
import numpy as np
from PIL import Image

from watersmeet.pipelines.layout.tree import RGB
from watersmeet.pipelines.score.color import delta_e, to_lab

GRID = (32, 20)  # columns, rows


def main_color(picture: Image.Image) -> RGB:
    """The most frequent colour of a picture."""
    pixels = np.asarray(picture.convert("RGB")).reshape(-1, 3).astype(np.uint32)
    codes = (pixels[:, 0] << 16) | (pixels[:, 1] << 8) | pixels[:, 2]
    values, counts = np.unique(codes, return_counts=True)
    code = int(values[counts.argmax()])
    return code >> 16, (code >> 8) & 255, code & 255


def same_canvas(picture: Image.Image, width: int, height: int, background: RGB) -> Image.Image:
    """`picture` cut or extended with `background` to `width` x `height`."""
    canvas = Image.new("RGB", (width, height), background)
    canvas.paste(picture.convert("RGB"), (0, 0))
    return canvas


def fill(reference: Image.Image, result: Image.Image) -> float:
    """Agreement of large coloured areas: mean CIEDE2000 over a 32 x 20 grid of mean colours, against the empty page's.

    1 when all cells agree, 0 when the result is no nearer to the reference than a page of its main colour.
    """
    wanted, got = _grid(reference), _grid(result)
    empty = to_lab(np.array(main_color(reference), dtype=np.float64))
    far = float(delta_e(wanted, np.broadcast_to(empty, wanted.shape)).mean())
    near = float(delta_e(wanted, got).mean())
    return _rescaled(-near, -far, 0.0)


def ssim(reference: Image.Image, result: Image.Image) -> float:
    """Structural similarity of luminance at quarter size, rescaled against the page of the main colour."""
    color = main_color(reference)
    wanted, got = _quarter(reference), _quarter(result)
    empty = _quarter(Image.new("RGB", reference.size, color))
    return _rescaled(mean_ssim(wanted, got), mean_ssim(wanted, empty), 1.0)


def _rescaled(value: float, empty: float, best: float) -> float:
    if best - empty < 1e-9:  # the reference is empty itself
        return 1.0 if best - value < 1e-9 else 0.0
    return min(1.0, max(0.0, (value - empty) / (best - empty)))


def _grid(picture: Image.Image) -> np.ndarray:
    small = picture.convert("RGB").resize(GRID, Image.Resampling.BOX)
    return to_lab(np.asarray(small, dtype=np.float64))


def _quarter(picture: Image.Image) -> np.ndarray:
    size = max(8, picture.width // 4), max(8, picture.height // 4)
    return np.asarray(picture.convert("L").resize(size, Image.Resampling.BOX), dtype=np.float64)


def mean_ssim(a: np.ndarray, b: np.ndarray) -> float:
    """Mean SSIM of two grey pictures `[H, W]`, 0 to 255 (Wang et al. 2004: Gaussian window of sigma 1.5, 11 x 11)."""
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2

    def blur(x: np.ndarray) -> np.ndarray:
        return cv2.GaussianBlur(x, (11, 11), 1.5, borderType=cv2.BORDER_REFLECT)

    mu_a, mu_b = blur(a), blur(b)
    var_a, var_b = blur(a * a) - mu_a**2, blur(b * b) - mu_b**2
    cov = blur(a * b) - mu_a * mu_b
    value = (2 * mu_a * mu_b + c1) * (2 * cov + c2) / ((mu_a**2 + mu_b**2 + c1) * (var_a + var_b + c2))
    return float(value.mean())

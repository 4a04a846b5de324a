"""Drawn pictures: photos made of noise, avatars, logos and charts. All from a seed, as files or inline SVG."""

import colorsys
import io
import math
import random
import re
from functools import lru_cache
from html import escape
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter


def color(rng: random.Random, low: float = 0.25, high: float = 0.85, saturation: float = 0.6) -> str:
    """A random colour as #rrggbb, with lightness between `low` and `high`."""
    r, g, b = colorsys.hls_to_rgb(rng.random(), rng.uniform(low, high), rng.uniform(saturation * 0.4, saturation))
    return f"#{int(r * 255):02x}{int(g * 255):02x}{int(b * 255):02x}"


def _rgb(text: str) -> tuple[int, int, int]:
    return int(text[1:3], 16), int(text[3:5], 16), int(text[5:7], 16)


def _noise(rng: np.random.Generator, width: int, height: int, octaves: int) -> np.ndarray:
    out = np.zeros((height, width), np.float32)
    for octave in range(octaves):
        n = 2 + 2**octave
        grid = Image.fromarray(rng.random((n, n), dtype=np.float32)).resize((width, height), Image.Resampling.BICUBIC)
        out += np.asarray(grid) / 1.7**octave
    return (out - out.min()) / max(float(np.ptp(out)), 1e-6)


def photo(seed: int, width: int = 320, height: int = 220) -> Image.Image:
    """Something like a photo: a landscape, a texture, a still life or a portrait, [width, height] RGB."""
    rng, noise = random.Random(f"photo{seed}"), np.random.default_rng(seed)
    a, b, c = (np.array(_rgb(color(rng, 0.1, 0.9, 0.7)), np.float32) for _ in range(3))
    field = _noise(noise, width, height, rng.randint(2, 6))[..., None]
    kind = rng.randrange(4)
    if kind == 0:  # landscape: sky, hills
        y = np.linspace(0, 1, height, dtype=np.float32)[:, None, None]
        pixels = a * (1 - y) + b * y + 30 * (field - 0.5)
        for hill in range(rng.randint(1, 3)):
            line = 0.45 + 0.2 * hill + 0.25 * (_noise(noise, width, 2, 4)[:1, :, None] - 0.5)
            pixels = np.where(y > line, c * (0.9 - 0.25 * hill) + 25 * (field - 0.5), pixels)
    elif kind == 1:
        pixels = a * field + b * (1 - field)
    else:
        pixels = a * 0.6 + 90 + 25 * (field - 0.5) + np.zeros((height, width, 3), np.float32)
    image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
    if kind >= 2:
        draw = ImageDraw.Draw(image)
        for _ in range(rng.randint(1, 6)):
            w, h = rng.uniform(0.1, 0.5) * width, rng.uniform(0.1, 0.6) * height
            x, y0 = rng.uniform(0, width - w), rng.uniform(0, height - h)
            shape = draw.ellipse if rng.random() < 0.6 else draw.rectangle
            shape((x, y0, x + w, y0 + h), fill=color(rng, 0.15, 0.85))
        image = image.filter(ImageFilter.GaussianBlur(rng.uniform(0.4, 2)))
    grain = noise.normal(0, rng.uniform(0, 5), (height, width, 1))
    return Image.fromarray(np.clip(np.asarray(image, np.float32) + grain, 0, 255).astype(np.uint8))


def portrait(seed: int, size: int = 96) -> Image.Image:
    """A drawn head and shoulders, square."""
    rng = random.Random(f"portrait{seed}")
    image = Image.new("RGB", (size * 2, size * 2), color(rng, 0.5, 0.92, 0.4))
    draw, s = ImageDraw.Draw(image), size * 2
    skin = rng.choice(("#f1c9a5", "#d9a77c", "#a8744f", "#7b4f33", "#ffe0c4"))
    hair = color(rng, 0.08, 0.5, 0.5)
    draw.ellipse((s * 0.27, s * 0.12, s * 0.73, s * rng.uniform(0.55, 0.8)), fill=hair)
    draw.ellipse((s * 0.1, s * 0.68, s * 0.9, s * 1.5), fill=color(rng, 0.2, 0.7))
    draw.rectangle((s * 0.43, s * 0.5, s * 0.57, s * 0.75), fill=skin)
    draw.ellipse((s * 0.32, s * 0.2, s * 0.68, s * 0.64), fill=skin)
    for x in (0.42, 0.56):
        draw.ellipse((s * x, s * 0.38, s * (x + 0.03), s * 0.42), fill="#222222")
    draw.arc((s * 0.42, s * 0.44, s * 0.58, s * 0.56), 20, 160, fill="#883333", width=4)
    return image.resize((size, size), Image.Resampling.LANCZOS)


PHOTOS, PORTRAITS = 160, 80


def write_pictures(folder: Path) -> None:
    """Write the shared pictures of all generated pages below `folder` (once; ~5 MB)."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (*(f"photo{i}.jpg" for i in range(PHOTOS)), *(f"portrait{i}.jpg" for i in range(PORTRAITS))):
        path, picture = folder / name, None if (folder / name).exists() else drawn(name)
        if picture is not None:
            path.write_bytes(picture)


@lru_cache(maxsize=64)
def drawn(name: str) -> bytes | None:
    """The shared picture of this file name as JPEG; None if there is none."""
    found = re.fullmatch(r"(photo|portrait)(\d{1,3})\.jpg", name)
    if found is None or int(found[2]) >= (PHOTOS if found[1] == "photo" else PORTRAITS):
        return None
    number, out = int(found[2]), io.BytesIO()
    if found[1] == "portrait":
        portrait(number).save(out, "JPEG", quality=85)
    else:
        size = random.Random(number).choice(((320, 220), (400, 260), (300, 300), (260, 360), (640, 300)))
        photo(number, *size).save(out, "JPEG", quality=80)
    return out.getvalue()


def logo(rng: random.Random, size: int, tint: str) -> str:
    """A small SVG mark."""
    other = color(rng)
    body = rng.choice(
        (
            f'<circle cx="16" cy="16" r="14" fill="{tint}"/><path d="M9 17l5 5 9-11" stroke="#fff" stroke-width="3" fill="none"/>',
            f'<rect x="3" y="3" width="12" height="26" rx="4" fill="{tint}"/><rect x="18" y="10" width="11" height="19" rx="4" fill="{other}"/>',
            f'<path d="M16 2l14 26H2z" fill="{tint}"/>',
            f'<path d="M4 24V8l12 10L28 8v16" stroke="{tint}" stroke-width="5" fill="none"/>',
            f'<circle cx="11" cy="16" r="9" fill="{tint}"/><circle cx="21" cy="16" r="9" fill="{other}" opacity=".7"/>',
        )
    )
    return f'<svg width="{size}" height="{size}" viewBox="0 0 32 32">{body}</svg>'


def chart(rng: random.Random, width: int, height: int, tint: str, ink: str, words: list[str]) -> str:
    """A line, area, bar or ring chart as SVG, with axis labels as SVG text in some of them."""
    kind = rng.choice(("line", "area", "bar", "bar", "ring", "area"))
    n = rng.randint(5, 12)
    values = [rng.uniform(0.1, 0.95) for _ in range(n)]
    left, low = 34, height - 22
    parts = []
    other = color(rng, 0.4, 0.7)
    if kind == "ring":
        r, x, y = min(width, height) * 0.33, width / 2, height / 2
        start = 0.0
        for i, share in enumerate((0.5, 0.3, 0.2)):
            length = 2 * math.pi * r
            parts.append(
                f'<circle cx="{x:.0f}" cy="{y:.0f}" r="{r:.0f}" fill="none" stroke="{(tint, other, "#36b9cc")[i]}" '
                f'stroke-width="{r * 0.45:.0f}" stroke-dasharray="{share * length:.1f} {length:.1f}" stroke-dashoffset="{-start * length:.1f}"/>'
            )
            start += share
    else:
        for i in range(4):
            y = 12 + i * (low - 12) / 3.5
            parts.append(f'<line x1="{left}" x2="{width - 6}" y1="{y:.0f}" y2="{y:.0f}" stroke="{ink}" opacity=".15"/>')
            if rng.random() < 0.8:
                parts.append(
                    f'<text x="2" y="{y + 4:.0f}" font-size="10" fill="{ink}" opacity=".7">{(4 - i) * 10}k</text>'
                )
        step = (width - left - 10) / n
        xs = [left + step * (i + 0.5) for i in range(n)]
        ys = [low - v * (low - 14) for v in values]
        if kind == "bar":
            parts += [
                f'<rect x="{x - step * 0.3:.1f}" y="{y:.1f}" width="{step * 0.6:.1f}" height="{low - y:.1f}" fill="{tint}" rx="2"/>'
                for x, y in zip(xs, ys, strict=True)
            ]
        else:
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))
            if kind == "area":
                parts.append(
                    f'<polygon points="{xs[0]:.1f},{low} {points} {xs[-1]:.1f},{low}" fill="{tint}" opacity=".2"/>'
                )
            parts.append(f'<polyline points="{points}" fill="none" stroke="{tint}" stroke-width="2.5"/>')
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{tint}"/>' for x, y in zip(xs, ys, strict=True)]
        if rng.random() < 0.7:
            parts += [
                f'<text x="{x:.0f}" y="{height - 6}" font-size="10" text-anchor="middle" fill="{ink}" opacity=".7">{escape(words[i % len(words)][:6])}</text>'
                for i, x in enumerate(xs)
                if n < 9 or i % 2 == 0
            ]
    return f'<svg class="w-chart" width="{width}" height="{height}" viewBox="0 0 {width} {height}" style="max-width:100%">{"".join(parts)}</svg>'

"""Every choice of the moonvit modality; the defaults are those of the released Kimi K3 files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from watersmeet.core.errors import ConfigError
from watersmeet.tokenizers.image.decode import Limits

MERGE = 2
"""Patches on a side of one token's cell; the name `sd2_tpool` of the checkpoint fixes it."""

ENCODER: dict[str, Any] = {
    "patch": 14,
    "frames": 1,
    "patch_limit": 65536,
    "side_limit": 512,
    "frame_patch_limit": 16384,
    "video_patch_limit": 655360,
    "background": "chessboard",
    "square": 8,
    "light_first": True,
    "light": 255,
    "dark": 180,
    "fill": "after_resize",
    "max_pixels": Limits.max_pixels,
    "max_bytes": Limits.max_bytes,
}
"""What the encoder reads.

patch        pixels on a side of a patch
frames       most frames of one item: 1 reads pictures only, up to 4 reads clips too (pictures then carry empty frames)
patch_limit  most patches of a picture; larger ones are scaled down
side_limit   most patches along one side
frame_patch_limit, video_patch_limit  the same for one frame and for all frames of a clip
background   under transparent pixels: "white", "black", "gray", "chessboard", or "none", which drops transparency
square, light_first, light, dark  of the chessboard: pixels on a side, whether the top left one is light, both values
fill         "after_resize" (the released files) or "before_resize"
max_pixels, max_bytes  of the file, see `decode.Limits`
"""

TOWER: dict[str, Any] = {
    "width": 1024,
    "layers": 27,
    "heads": 12,
    "head_dim": 128,
    "mlp": 4096,
    "grid": 64,
    "norm_eps": None,
    "mean": 0.5,
    "std": 0.5,
}
"""What the embedder is made of.

width, layers, heads, head_dim, mlp  sizes of the transformer; heads * head_dim need not be `width`
grid      rows and columns of the learned position grid
norm_eps  of the tower's norms; None is the reference's rule, machine epsilon of the activations' dtype (2^-7 in
          bfloat16). To compute in float32 what the released model computes in bfloat16, set 0.0078125
mean, std of the pixel values, which are from 0 to 1
"""

BACKGROUNDS = ("white", "black", "gray", "chessboard", "none")


def complete(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with defaults filled in. Raises ConfigError for an unknown name or a value out of range."""
    known = ENCODER | TOWER
    given = {name: value for name, value in settings.items() if name != "files"}
    if unknown := sorted(set(given) - set(known)):
        raise ConfigError(f"moonvit settings have unknown name {unknown[0]!r}; names are {', '.join(known)}")
    full = known | given
    for name, default in known.items():
        value, low = full[name], 0 if name in ("light", "dark", "layers") else 1
        if type(default) is int and (type(value) is not int or value < low):
            raise ConfigError(f"moonvit setting {name} is {value!r}, expected an integer of at least {low}")
    if full["background"] not in BACKGROUNDS:
        raise ConfigError(
            f"moonvit setting background is {full['background']!r}, expected one of {', '.join(BACKGROUNDS)}"
        )
    if full["fill"] not in ("after_resize", "before_resize"):
        raise ConfigError(f"moonvit setting fill is {full['fill']!r}, expected 'after_resize' or 'before_resize'")
    for name in ("light", "dark"):
        if full[name] > 255:
            raise ConfigError(f"moonvit setting {name} is {full[name]}, expected at most 255")
    if full["frames"] > 4:
        raise ConfigError(
            f"moonvit setting frames is {full['frames']}, expected at most 4 (the tower averages them away)"
        )
    if full["head_dim"] % 4:
        raise ConfigError(
            f"moonvit setting head_dim is {full['head_dim']}, expected a multiple of 4 (two axes of pairs)"
        )
    if full["width"] % 2:
        raise ConfigError(f"moonvit setting width is {full['width']}, expected an even number")
    if full["side_limit"] % MERGE:
        raise ConfigError(f"moonvit setting side_limit is {full['side_limit']}, expected an even number")
    return full

"""Settings as the official files state them: preprocessor_config.json, config.json, and the shapes of the tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from watersmeet.core.errors import ConfigError
from watersmeet.tokenizers.moonvit.settings import MERGE

TOWER, PROJECTOR = "vision_tower.", "mm_projector."

# what the tower is, of which one form is built here
_FIXED = {
    "merge_type": ("sd2_tpool",),
    "mm_projector_type": ("patchmergerv2",),
    "norm_type": ("rmsnorm",),
    "pos_emb_interpolation_mode": ("bilinear",),
    "merge_kernel_size": (MERGE, [MERGE, MERGE]),
    "projector_ln_eps": (1e-5,),
    "rope_theta": (10000, 10000.0),
}


def published_settings(
    shapes: Mapping[str, tuple[int, ...]], config: Mapping[str, Any], files: Mapping[str, bytes]
) -> dict[str, Any] | None:
    """Settings of the tower that a published directory holds; None where it holds none.

    shapes: of all tensors by name. config: the object of config.json. files: the small files by name. Raises ConfigError
    naming the field or tensor for a tower of another form, e.g. that of an older generation.
    """
    first = TOWER + "patch_embed.proj.weight"
    if first not in shapes:
        return None
    vision = config.get("vision_config") or {}
    for name, known in _FIXED.items():
        if name in vision and vision[name] not in known:
            raise ConfigError(f"config.json: vision_config.{name} is {vision[name]!r}, expected {known[0]!r}")
    block = TOWER + "encoder.blocks.0."
    try:
        width, _, patch, _ = shapes[first]
        grid, other, _ = shapes[TOWER + "patch_embed.pos_emb.weight"]
        inner, mlp = shapes[block + "wqkv.weight"][0] // 3, shapes[block + "mlp.fc0.weight"][0]
    except (KeyError, ValueError) as error:
        raise ConfigError(f"the vision tensors are of another form than MoonViT-V2 ({error})") from error
    if grid != other:
        raise ConfigError(f"{TOWER}patch_embed.pos_emb.weight is {grid} x {other}, expected a square grid")
    # heads leave no trace in the shapes; all releases have heads of 128 channels
    heads = vision.get("vt_num_attention_heads") or vision.get("num_attention_heads") or inner // 128
    if not isinstance(heads, int) or heads < 1 or inner % heads:
        raise ConfigError(
            f"config.json: vision_config has {heads!r} heads, but {block}wqkv.weight has {inner} channels for each of q, k, v"
        )
    layers = len({name.split(".")[3] for name in shapes if name.startswith(TOWER + "encoder.blocks.")})
    sizes = {
        "patch": patch,
        "width": width,
        "layers": layers,
        "heads": heads,
        "head_dim": inner // heads,
        "mlp": mlp,
        "grid": grid,
    }
    if "preprocessor_config.json" not in files:
        return sizes
    try:
        stated = json.loads(files["preprocessor_config.json"])
    except ValueError as error:
        raise ConfigError(f"preprocessor_config.json: not JSON ({error})") from error
    if not isinstance(stated, dict):
        raise ConfigError(f"preprocessor_config.json: holds a {type(stated).__name__}, expected an object")
    found = from_preprocessor(stated)
    if found.get("patch", patch) != patch:
        raise ConfigError(
            f"preprocessor_config.json: patch_size is {found['patch']}, but the tower's patches are {patch}"
        )
    return found | sizes


def from_preprocessor(config: Mapping[str, Any]) -> dict[str, Any]:
    """Encoder settings from the values of an official `preprocessor_config.json` (its `media_proc_cfg` or the whole).

    Raises ConfigError where the file asks for something this pipeline does not do.
    """
    config = config.get("media_proc_cfg", config)
    names = {
        "patch_size": "patch",
        "in_patch_limit": "patch_limit",
        "patch_limit_on_one_side": "side_limit",
        "in_patch_limit_each_frame": "frame_patch_limit",
        "in_patch_limit_video": "video_patch_limit",
    }
    found = {ours: config[theirs] for theirs, ours in names.items() if config.get(theirs) is not None}
    for theirs, only in (("merge_kernel_size", (MERGE, [MERGE, MERGE])), ("fixed_output_tokens", (None,))):
        if theirs in config and config[theirs] not in only:
            raise ConfigError(f"preprocessor_config.json: {theirs} is {config[theirs]!r}, expected {only[0]!r}")
    for theirs, ours in (("image_mean", "mean"), ("image_std", "std")):
        values = config.get(theirs)
        if values is not None:
            if len(set(values)) != 1:
                raise ConfigError(
                    f"preprocessor_config.json: {theirs} is {values!r}, expected one value for all channels"
                )
            found[ours] = float(values[0])
    under = config.get("transparent_bg_config")
    if under is None:
        return found | {"background": "none"}
    return found | {
        "background": under.get("pattern", "black"),
        "square": under.get("chessboard_square_size", 16),
        "light_first": under.get("chessboard_square_on_top_left", True),
        "light": under.get("chessboard_white_value", 255),
        "dark": under.get("chessboard_gray_value", 200),
        "fill": config.get("transparent_bg_fill_stage", "before_resize"),
    }

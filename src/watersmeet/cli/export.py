"""`watersmeet export`: a model in the published layout, read back and compared before it is called done."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from watersmeet.core.errors import UsageError

if TYPE_CHECKING:
    import torch

DTYPES = ("auto", "float32", "bfloat16")


def export_command(spec: str, out: Path, *, dtype: str, mxfp4: bool, rule: str) -> list[str]:
    """Write `out` from the model that `spec` names; returns what to say.

    dtype "auto": as the source stores its matrices, bfloat16 for a model of our own layout. Embedders that have no names in
    the published layout are kept beside it in a file of our own, which other programs do not read.
    """
    if dtype not in DTYPES:
        raise UsageError(f"--dtype {dtype} is not one of {', '.join(DTYPES)}")
    if rule not in ("packer", "floor"):
        raise UsageError(f"--rule {rule} is not one of packer, floor")
    if out.exists():
        raise UsageError(f"--out {out} is there already; remove it or write to another place")
    import torch

    from watersmeet.core.graft import GRAFTED, Graft, write_graft
    from watersmeet.core.official.config import describe
    from watersmeet.core.official.export import compare_export, export_official
    from watersmeet.pipelines.models.local import find_local, load_local

    folder = find_local(spec)
    wanted = _stored_dtype(folder) if dtype == "auto" else getattr(torch, dtype)
    local = load_local(spec, dtype=wanted)
    official = local.official
    if official is None:
        encoder = local.encoders.get(local.model.config.output_modality)
        ids = {"bos_id": getattr(encoder, "bos_id", None), "eos_ids": local.stop_ids}
        official = describe(local.model.config.replace(output_modality=""), **ids)
    beside = out.with_name(f".{out.name}.export")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        others = export_official(
            local.model, official, beside, dtype=wanted, mxfp4=mxfp4, rule=rule, files=_files(local.files)
        )
        count = compare_export(local.model, official, beside, dtype=wanted, mxfp4=mxfp4, rule=rule)
        if others:
            known = local.recipe["modalities"]
            grafts = {
                name: Graft(settings=known.get(name, {}), embedder=local.model.embedders[name]) for name in others
            }
            write_graft(beside, out, grafts)
        else:
            beside.rename(out)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    kind = "bfloat16" if wanted == torch.bfloat16 else "float32"
    lines = [
        f"{out}: {official.family}, {count:,} tensors in {kind}{', experts in MXFP4' if mxfp4 else ''}; read back and "
        "compared: configuration and every tensor are the same"
    ]
    if others:
        lines.append(
            f"the published layout has no place for the embedders of {', '.join(others)}; they are in {GRAFTED}, which "
            "watersmeet reads and other programs do not (give those input embeddings, see docs/official.md)"
        )
    return lines


def _files(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if name != "processor.json"}


def _stored_dtype(folder: Path) -> torch.dtype:
    """What a published directory stores its output head in."""
    import torch

    from watersmeet.core.official.load import is_official
    from watersmeet.core.official.shards import TORCH_DTYPES, Shards

    if not is_official(folder):
        return torch.bfloat16
    heads = [stored.dtype for name, stored in Shards(folder).tensors.items() if name.endswith("lm_head.weight")]
    found = TORCH_DTYPES.get(heads[0], torch.bfloat16) if heads else torch.bfloat16
    return torch.float32 if found == torch.float32 else torch.bfloat16

"""`watersmeet embed`: the vectors that a mixed prompt enters the first layer with, for engines that take prompt embeddings."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from watersmeet.core.errors import UsageError

FORMAT = "watersmeet-embeds-1"


def embed_command(model: str, inputs: Sequence[str], out: Path, *, dtype: str = "bfloat16") -> str:
    """Write the safetensors file `out` for the prompt `inputs` (see `pipelines.models.prompt`); returns the closing line.

    inputs_embeds  [T, D] in `dtype`, what the first layer reads
    ids            [T] int64, the id of a position of text and -1 elsewhere
    metadata       format, model, and spans: JSON, one object a span in order with modality, start, end, input (index of
                   the word) and key (hexadecimal)

    Raises UsageError for a dtype that is none of the two, a word of no known form, and a prompt that engines cannot be
    given this way because parts of it are read in both directions.
    """
    if dtype not in ("float32", "bfloat16"):
        raise UsageError(f"--dtype {dtype} is not one of float32, bfloat16")
    if out.suffix != ".safetensors":
        raise UsageError(f"--out {out} has to end in .safetensors")
    import torch
    from safetensors.torch import save_file

    from watersmeet.core.stream import Stream, pack
    from watersmeet.pipelines.models.local import load_local
    from watersmeet.pipelines.models.prompt import read_prompt

    local = load_local(model, dtype=getattr(torch, dtype), embedders_alone=True)
    parts = read_prompt(local, inputs)
    if wrong := [span.modality for _, span in parts if bool((span.block >= 0).any())]:
        raise UsageError(
            f"a span of {wrong[0]!r} is read in both directions, but engines read prompt embeddings in one; "
            "change the setting of that modality, e.g. both_ways"
        )
    packed = pack([Stream(spans=tuple(span for _, span in parts))], local.model.modality_names)
    with torch.inference_mode():
        embeds_TD = local.model.embed(packed.to(local.model.lm_head.weight.device)).cpu().contiguous()
    ids_T = torch.full((packed.T,), -1, dtype=torch.int64)
    spans, start = [], 0
    for index, span in parts:
        end = start + span.n
        if span.modality == local.model.config.output_modality:
            ids_T[start:end] = span.data
        spans.append({"modality": span.modality, "start": start, "end": end, "input": index, "key": span.key.hex()})
        start = end
    metadata = {"format": FORMAT, "model": model, "spans": json.dumps(spans)}
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        save_file({"inputs_embeds": embeds_TD, "ids": ids_T}, beside, metadata=metadata)
        beside.replace(out)
    finally:
        beside.unlink(missing_ok=True)
    return f"{out}: {packed.T} positions of width {embeds_TD.shape[1]} in {dtype}, {len(spans)} spans"

"""`watersmeet bench load`: loading a published checkpoint beside reading its files, and the memory it takes meanwhile.

Every measurement runs in a process of its own, reading and loading in turns, so that neither profits from the other.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from watersmeet.cli.lists import table

SIZES: dict[str, Any] = {
    "hidden_size": 1024,
    "num_hidden_layers": 12,
    "vocab_size": 32768,
    "kda_num_heads": 8,
    "kda_head_dim": 128,
    "num_attention_heads": 8,
    "kv_lora_rank": 256,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
    "intermediate_size": 4096,
    "num_experts": 32,
    "num_experts_per_token": 4,
    "moe_intermediate_size": 768,
}
"""About 2 GB in bfloat16, most of it experts."""

ROUNDS = 5


def make(directory: Path) -> None:
    """Write the synthetic checkpoint in eight shards."""
    import torch

    from watersmeet.core.official.random import random_kimi_linear

    random_kimi_linear(directory, dtype=torch.bfloat16, shards=8, **SIZES)


def read_files(directory: Path) -> float:
    """Seconds to read all weight files into fresh memory that is kept."""
    start = time.perf_counter()
    held = [path.read_bytes() for path in sorted(directory.glob("*.safetensors"))]
    seconds = time.perf_counter() - start
    del held
    return seconds


def load(directory: Path, dtype: str) -> tuple[float, int]:
    """Seconds to load the model, ready to run, and by how many bytes the peak of the process grew."""
    import torch

    from watersmeet.pipelines.models.local import load_local

    load_local("nano")  # imports and the native library
    before = _resident()
    filler = bytearray(b"x") * max(0, _peak() - before)  # the peak is then what is in use now
    floor = _peak()
    start = time.perf_counter()
    local = load_local(str(directory), dtype=getattr(torch, dtype))
    seconds = time.perf_counter() - start
    grown = _peak() - floor
    del local, filler
    return seconds, grown


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def child(words: list[str]) -> None:
    """What a measuring process does: `read DIR` or `load DIR DTYPE`; one line of JSON."""
    directory = Path(words[1])
    print(json.dumps([read_files(directory)] if words[0] == "read" else load(directory, words[2])))


def _ask(*words: str) -> list[float]:
    program = f"import sys; from watersmeet.cli.bench_load import child; child({list(words)!r})"
    out = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True).stdout
    found: list[float] = json.loads(out.splitlines()[-1])
    return found


def measure(directory: Path, rounds: int = ROUNDS) -> dict[str, float]:
    """Sizes in bytes and medians in seconds of reading, loading as stored, and loading into float32."""
    files = [path.stat().st_size for path in directory.glob("*.safetensors")]
    reads, same, wide = [], [], []
    _ask("read", str(directory))  # into the system's cache
    for _ in range(rounds):
        reads.append(_ask("read", str(directory))[0])
        same.append(_ask("load", str(directory), "bfloat16"))
    wide = [_ask("load", str(directory), "float32") for _ in range(2)]
    return {
        "files": sum(files),
        "shard": max(files),
        "read_s": median(reads),
        "load_s": median(s for s, _ in same),
        "load_peak": max(peak for _, peak in same),
        "float32_s": min(s for s, _ in wide),
        "float32_peak": max(peak for _, peak in wide),
    }


def lines(found: dict[str, float]) -> list[str]:
    """The measurement as a table."""
    files, shard = found["files"], found["shard"]

    def row(name: str, seconds: float, peak: float | None, weights: float) -> tuple[str, ...]:
        ratio = f"{seconds / found['read_s']:.2f}x"
        if peak is None:
            return (name, f"{seconds:.2f} s", ratio, "", "")
        return (name, f"{seconds:.2f} s", ratio, f"{peak / 1e9:.2f} GB", f"{(weights + shard) / 1e9:.2f} GB")

    head = f"{files / 1e9:.2f} GB in files of at most {shard / 1e9:.2f} GB, from the system's cache"
    return [
        head,
        *table(
            [
                ("", "time", "of reading", "peak grew by", "weights + one shard"),
                row("read the files", found["read_s"], None, 0),
                row("load, bfloat16 as stored", found["load_s"], found["load_peak"], files),
                row("load into float32", found["float32_s"], found["float32_peak"], 2 * files),
            ]
        ),
    ]


def run(directory: Path | None = None) -> None:
    """Measure and print; without a directory, a synthetic checkpoint is made and removed."""
    if directory is not None:
        print("\n".join(lines(measure(directory))))
        return
    with tempfile.TemporaryDirectory(prefix="watersmeet-bench-") as folder:
        make(Path(folder))
        print("\n".join(lines(measure(Path(folder)))))

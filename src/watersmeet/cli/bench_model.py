"""`watersmeet bench model`: decoding and reading of whole models beside transformers, on the same weights, in one run."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from watersmeet.core.errors import UsageError

SIZES: dict[str, dict[str, Any]] = {
    "4m": {
        "hidden_size": 128, "num_hidden_layers": 8, "vocab_size": 2048, "kda_num_heads": 4, "kda_head_dim": 32,
        "num_attention_heads": 4, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32,
        "intermediate_size": 512, "num_experts": 16, "num_experts_per_token": 4, "num_shared_experts": 1,
        "moe_intermediate_size": 64, "full_attention_layers": (3, 7),
    },
    "100m": {
        "hidden_size": 512, "num_hidden_layers": 12, "vocab_size": 16384, "kda_num_heads": 4, "kda_head_dim": 128,
        "num_attention_heads": 4, "kv_lora_rank": 256, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "intermediate_size": 2048, "num_experts": 32, "num_experts_per_token": 4, "num_shared_experts": 1,
        "moe_intermediate_size": 128, "full_attention_layers": (3, 7, 11),
    },
}  # fmt: skip
"""Kimi-Linear-shaped: the widths of heads, of the latent and of the experts stand to each other as in the 48 B model."""

WANTED = {"4m": {"decode": 3.0, "prefill": 8.0, "memory": 3.0}, "100m": {"decode": 1.5, "prefill": 8.0, "memory": 3.0}}
"""How many times the peer's speed, or how many times less than its memory."""

READ = 1.5
"""A token of the larger model may take so many times the reading of its weights."""

PROMPT, ROUNDS = 64, 6


def measure(directory: Path, dtype: str, *, tokens: int, peer: bool, threads: int) -> dict[str, Any]:
    """All numbers of one model in one dtype; the forms take turns, so that other load on the machine meets them all."""
    import torch

    from watersmeet.cli import bench_model_sides as sides

    ours = sides.Ours(directory, dtype)
    forms: dict[str, sides.Side] = {"ours": ours}
    if peer:
        forms["peer"] = sides.Peer(directory, dtype)
    vocab = ours.vocab
    ids = torch.randint(3, vocab, (tokens,), generator=torch.Generator().manual_seed(1))
    out: dict[str, Any] = {"parameters": ours.parameters, "active_bytes": ours.active_bytes, "dtype": dtype}
    reader = torch.ones(ours.active_bytes // 4)
    for count in sorted({threads, 1}, reverse=True):
        torch.set_num_threads(count)
        times: dict[str, list[float]] = {name: [] for name in forms}
        reading: list[float] = []
        for side in forms.values():
            side.start(ids[:PROMPT])
        at = PROMPT
        for _ in range(ROUNDS):
            for name, side in forms.items():
                for i in range(8):
                    begin = time.perf_counter()
                    side.token(ids[(at + i) % tokens])
                    times[name].append(time.perf_counter() - begin)
            at += 8
            reading += [_seconds(reader.sum) for _ in range(4)]
        key = "decode" if count == threads else "decode_one_thread"
        out[key] = {name: 1.0 / statistics.median(values) for name, values in times.items()}
        if count == threads:
            out["read_ms"] = statistics.median(reading) * 1e3
            out["token_ms"] = statistics.median(times["ours"]) * 1e3
    torch.set_num_threads(threads)
    del reader
    works: dict[str, Callable[[], Any]] = {name: partial(side.start, ids) for name, side in forms.items()}
    for work in works.values():
        work()
    spans: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(3):
        for name, work in works.items():
            spans[name] += [_seconds(work) for _ in range(1 if name == "peer" else 2)]
    out["prefill"] = {name: tokens / statistics.median(values) for name, values in spans.items()}
    out["distance"] = _distances(directory, forms, ids)
    out["memory"] = {name: _memory(directory, dtype, name, tokens, threads) for name in forms}
    return out


def _distances(directory: Path, forms: dict[str, Any], ids: Any) -> dict[str, float]:
    """Mean relative distance of the logits of each form from ours in float32 with the same weights, prefill and decode."""
    from watersmeet.cli import bench_model_sides as sides

    def logits(side: Any) -> list[Any]:
        return [side.start(ids[:PROMPT]), *(side.token(ids[i]) for i in range(PROMPT, min(PROMPT + 16, len(ids))))]

    truth = logits(sides.Ours(directory, "float32"))
    found = {}
    for name, side in forms.items():
        apart = [float((a - b).norm() / b.norm()) for a, b in zip(logits(side), truth, strict=True)]
        found[name] = statistics.mean(apart)
    return found


def _seconds(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _memory(directory: Path, dtype: str, side: str, tokens: int, threads: int) -> int:
    """Bytes that a prefill needs beyond the loaded model, in a process of its own."""
    code = "import sys; from watersmeet.cli.bench_model_sides import print_peak; print_peak(*sys.argv[1:])"
    arguments = [str(directory), dtype, side, str(tokens), str(threads)]
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *arguments], capture_output=True, text=True, check=False, cwd=directory
    )
    if done.returncode:
        raise UsageError(f"bench model: the process that measures memory failed: {done.stderr.strip()[-300:]}")
    return int(done.stdout.split()[-1])


def run(
    *, sizes: Sequence[str] = (), dtypes: Sequence[str] = (), tokens: int = 4096, json_file: Path | None = None
) -> None:
    """Print the table; with `json_file`, also write all numbers."""
    import torch

    from watersmeet.cli.bench_model_sides import peer_version
    from watersmeet.core.official.random import random_kimi_linear

    sizes, dtypes = sizes or tuple(SIZES), dtypes or ("float32", "bfloat16")
    for name, known in ((s, SIZES) for s in sizes):
        if name not in known:
            raise UsageError(f"bench model: size {name!r} is unknown; sizes are {', '.join(known)}")
    for name in dtypes:
        if name not in ("float32", "bfloat16"):
            raise UsageError(f"bench model: dtype {name!r} is unknown; it is float32 or bfloat16")
    if tokens < PROMPT:
        raise UsageError(f"bench model: {tokens} tokens are too few; give at least {PROMPT}")
    console = Console()
    version = peer_version()
    if version is None:
        console.print(
            "transformers with kimi_linear (5.24 or newer) is not installed, so there is nothing to compare with; "
            "install it with `pip install 'transformers>=5.24'`. Our own numbers follow."
        )
    before = torch.get_num_threads()
    threads = min(2, before)
    results: dict[str, dict[str, Any]] = {}
    try:
        with tempfile.TemporaryDirectory() as folder:
            for size in sizes:
                for dtype in dtypes:
                    directory = Path(folder) / f"{size}-{dtype}"
                    random_kimi_linear(directory, seed=0, dtype=getattr(torch, dtype), **SIZES[size])
                    results[f"{size} {dtype}"] = measure(
                        directory, dtype, tokens=tokens, peer=version is not None, threads=threads
                    )
    finally:
        torch.set_num_threads(before)
    console.print(_table(results, tokens, threads))
    if json_file is not None:
        about = {"torch": torch.__version__, "transformers": version, "processor": _processor(), "threads": threads}
        text = json.dumps({"about": about, "tokens": tokens, "results": results}, indent=2) + "\n"
        part = json_file.with_name(json_file.name + ".part")
        part.write_text(text, encoding="utf-8")
        os.replace(part, json_file)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def _table(results: dict[str, dict[str, Any]], tokens: int, threads: int) -> Table:
    table = Table(title=f"Kimi-Linear-shaped random models, batch 1, {threads} threads; the peer is transformers")
    for heading in ("model", "what", "ours", "peer", "times better", "wanted"):
        table.add_column(heading, justify="left" if heading in ("model", "what") else "right")
    for name, found in results.items():
        wanted = WANTED[name.split()[0]]
        label = f"{found['parameters'] / 1e6:.1f} M {found['dtype']}"

        def row(what: str, ours: float, peer: float | None, better: float | None, aim: str, shown: str) -> None:
            ratio = "" if better is None else f"{better:.1f}"
            table.add_row(label, what, shown.format(ours), "" if peer is None else shown.format(peer), ratio, aim)  # noqa: B023

        for what, key, aim in (
            ("decode, tokens/s", "decode", f"{wanted['decode']:g}"),
            ("the same, one thread", "decode_one_thread", ""),
            (f"prefill of {tokens}, tokens/s", "prefill", f"{wanted['prefill']:g}"),
        ):
            if key in found:
                ours, peer = found[key]["ours"], found[key].get("peer")
                row(what, ours, peer, None if peer is None else ours / peer, aim, "{:,.0f}")
        ours, peer = found["memory"]["ours"] / 2**20, found["memory"].get("peer")
        peer = None if peer is None else peer / 2**20
        row(
            "peak memory of it, MiB",
            ours,
            peer,
            None if peer is None else peer / ours,
            f"{wanted['memory']:g}",
            "{:,.0f}",
        )
        bound = f"at most {READ:g} readings" if name.startswith("100m") else ""
        table.add_row(
            label, "a token, and reading its weights, ms", f"{found['token_ms']:.2f}", f"{found['read_ms']:.2f}",
            f"{found['token_ms'] / found['read_ms']:.2f} readings", bound,
        )  # fmt: skip
        apart = found["distance"]
        table.add_row(
            label, "logits, distance from ours in float32", f"{apart['ours']:.1e}", f"{apart['peer']:.1e}" if "peer" in apart
            else "", "", "",
        )  # fmt: skip
        table.add_section()
    return table

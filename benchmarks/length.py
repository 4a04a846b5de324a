"""Time of KDA against length, 1 k to 1 M tokens, handing the state from piece to piece; draws docs/images/kda-length.png.

    .venv/bin/python -P benchmarks/length.py

Pieces of 4,096 tokens, each from the state that the last one left: the memory is that of one piece at every length.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from watersmeet.cli.bench_kernels_work import kda_inputs
from watersmeet.kernels import kda

PIECE, HEADS, WIDTH = 4096, 4, 128


def read(length: int, piece: int, inputs: Sequence[torch.Tensor]) -> float:
    """Seconds to read ``length`` tokens; the same piece of inputs again and again, for only their number costs time."""
    state, left = None, length
    begin = time.perf_counter()
    with torch.no_grad():
        while left:
            rows = min(piece, left)
            _, state = kda(
                *(x[:, :rows] for x in inputs), initial_state=state, output_final_state=True, gate_lower_bound=-5.0
            )
            left -= rows
    assert state is not None and bool(state.isfinite().all())
    return time.perf_counter() - begin


def measure(
    lengths: Sequence[int], *, piece: int = PIECE, heads: int = HEADS, width: int = WIDTH
) -> list[dict[str, Any]]:
    """Seconds and the process's peak memory after each length; short lengths are the median of several runs."""
    *inputs, _ = kda_inputs(piece, heads, width, torch.float32)
    read(piece, piece, inputs)
    found = []
    for length in lengths:
        runs = [read(length, piece, inputs) for _ in range(5 if length <= 16 * piece else 1)]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        found.append({"tokens": length, "seconds": statistics.median(runs), "peak_bytes": peak})
    return found


def draw(found: Sequence[dict[str, Any]], path: Path, title: str) -> None:
    """Both axes logarithmic; a line of slope 1 is a constant time a token."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    figure, left = plt.subplots(figsize=(7, 4), layout="constrained")
    tokens, spans = [one["tokens"] for one in found], [one["seconds"] for one in found]
    left.loglog(tokens, spans, "o-", color="C0")
    left.set_xlabel("tokens")
    left.set_ylabel("seconds", color="C0")
    right = left.twinx()
    right.plot(tokens, [one["peak_bytes"] / 1e6 for one in found], "s--", color="C1")
    right.set_ylim(bottom=0)
    right.set_ylabel("peak memory of the process, MB", color="C1")
    left.set_title(title, fontsize=10)
    left.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def main(words: Sequence[str] | None = None) -> int:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("docs/images/kda-length.png"))
    parser.add_argument("--most", type=int, default=2**20, help="the longest length")
    parser.add_argument("--piece", type=int, default=PIECE)
    options = parser.parse_args(words)
    torch.set_num_threads(min(2, torch.get_num_threads()))
    lengths = [2**i for i in range(10, 40) if 2**i <= options.most]
    found = measure(lengths, piece=options.piece)
    for one in found:
        print(json.dumps(one))
    draw(found, options.out, f"KDA forward, {HEADS} heads of {WIDTH}, float32, {torch.get_num_threads()} threads")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`watersmeet bench kda`: speed of the KDA operator beside the pure-torch form that transformers falls back to on a CPU."""

import contextlib
import importlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

PEER = "transformers.models.kimi_linear.modeling_kimi_linear"
T, H, K = 2048, 4, 64
GATE_BOUND = -5.0


@contextlib.contextmanager
def _without_working_folder() -> Iterator[None]:
    """In a checkout the folders `kernels` and `tokenizers` would hide packages of those names from other libraries."""
    here = Path.cwd().resolve()
    before = list(sys.path)
    sys.path[:] = [entry for entry in before if entry and Path(entry).resolve() != here]
    try:
        yield
    finally:
        sys.path[:] = before


def peer_function() -> Callable[..., Any] | None:
    """The chunked fallback of transformers' kimi_linear, or None where transformers is missing or too old."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        with _without_working_folder():
            return importlib.import_module(PEER).chunk_kimi_delta_attention
    except (ImportError, AttributeError):
        return None


def _median_ms(work: Callable[[], object], *, seconds: float, least: int) -> float:
    work()
    times: list[float] = []
    stop = time.perf_counter() + seconds
    while len(times) < least or (time.perf_counter() < stop and len(times) < 100):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e3


def run() -> None:
    """Print medians in milliseconds and their ratios, forward and forward+backward, on [1, 2048, 4, 64] float32."""
    import torch

    from watersmeet.kernels import kda

    console = Console()
    peer = peer_function()
    if peer is None:
        console.print(
            "transformers with kimi_linear (5.24 or newer) is not installed, so there is nothing to compare with; "
            "install it with `pip install 'transformers>=5.24'`. Our own numbers follow."
        )
    threads = torch.get_num_threads()
    torch.set_num_threads(min(2, threads))
    try:
        generator = torch.Generator().manual_seed(0)
        q, k = (torch.nn.functional.normalize(torch.randn(1, T, H, K, generator=generator), dim=-1) for _ in range(2))
        v, cotangent = (torch.randn(1, T, H, K, generator=generator) for _ in range(2))
        g = GATE_BOUND * torch.sigmoid(torch.randn(1, T, H, K, generator=generator) - 3)
        beta = torch.sigmoid(torch.randn(1, T, H, generator=generator))
        inputs = (q, k, v, g, beta)
        leaves = [x.clone().requires_grad_() for x in inputs]

        def forward(call: Callable[..., Any]) -> Callable[[], Any]:
            def work() -> Any:
                with torch.no_grad():
                    return call(*inputs)[0]

            return work

        def both(call: Callable[..., Any]) -> Callable[[], Any]:
            return lambda: torch.autograd.grad(call(*leaves)[0], leaves, cotangent)

        def bounded(*x: Any) -> Any:
            return kda(*x, gate_lower_bound=GATE_BOUND)

        def theirs(*x: Any) -> Any:
            assert peer is not None
            return peer(*x, initial_state=None, output_final_state=False)

        rows = [("watersmeet, gate bounded by -5", bounded), ("watersmeet, any gate", kda)]
        measured = [
            (name, _median_ms(forward(call), seconds=2, least=7), _median_ms(both(call), seconds=3, least=7))
            for name, call in rows
        ]
        base = None
        if peer is not None:
            base = (
                "transformers kimi_linear fallback",
                _median_ms(forward(theirs), seconds=2, least=3),
                _median_ms(both(theirs), seconds=2, least=3),
            )
            measured.append(base)
            error = (forward(bounded)() - forward(theirs)()).abs().max().item()

        table = Table(title=f"KDA, [B=1, T={T}, H={H}, K=V={K}] float32, {torch.get_num_threads()} threads, medians")
        for heading in ("form", "forward", "times faster", "forward + backward", "times faster"):
            table.add_column(heading, justify="left" if heading == "form" else "right")
        for name, one, two in measured:
            ratios = ("", "") if base is None else (f"{base[1] / one:.1f}", f"{base[2] / two:.1f}")
            table.add_row(name, f"{one:.1f} ms", ratios[0], f"{two:.1f} ms", ratios[1])
        console.print(table)
        if base is not None:
            console.print(f"largest difference of the two outputs: {error:.1e}")
    finally:
        torch.set_num_threads(threads)

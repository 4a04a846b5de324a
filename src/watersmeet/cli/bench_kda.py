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

PEER_NAME = "transformers kimi_linear, torch fallback"
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


def _time_ms(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return (time.perf_counter() - begin) * 1e3


def _medians(works: dict[str, Callable[[], object]], *, rounds: int, repeats: int, once: str) -> dict[str, float]:
    """Median of every form. Rounds alternate between the forms, so that other load on the machine meets all of them.

    ``once`` names the slow form, which runs once a round instead of ``repeats`` times.
    """
    times: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():
        work()
    for _ in range(rounds):
        for name, work in works.items():
            times[name] += [_time_ms(work) for _ in range(1 if name == once else repeats)]
    return {name: statistics.median(values) for name, values in times.items()}


def run() -> None:
    """Print medians in milliseconds and their ratios, forward and forward+backward, on [1, 2048, 4, 64] float32."""
    import torch

    from watersmeet.kernels import kda
    from watersmeet.kernels.native import delta_rule, library

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

        bounds = torch.tensor([0, T], dtype=torch.int32)

        def compiled(*x: Any) -> Any:
            q, k, v, g, beta = (y[0] for y in x)
            return delta_rule(q, k, v, g, beta, bounds, bounded=True)[0][None], None

        forms: dict[str, Callable[..., Any]] = {} if peer is None else {PEER_NAME: theirs}
        forms |= {"torch, any gate": kda, "torch, gate above -5": bounded}
        if library(q) is not None:
            forms["native, gate above -5"] = compiled
        one = _medians({n: forward(f) for n, f in forms.items()}, rounds=5, repeats=5, once=PEER_NAME)
        two = _medians({n: both(f) for n, f in forms.items()}, rounds=3, repeats=5, once=PEER_NAME)

        table = Table(title=f"KDA, [B=1, T={T}, H={H}, K=V={K}] float32, {torch.get_num_threads()} threads, medians")
        for heading in ("form", "forward", "times faster", "forward + backward", "times faster", "largest difference"):
            table.add_column(heading, justify="left" if heading == "form" else "right")
        truth = forward(forms[next(iter(forms))])()
        for name, form in forms.items():
            ratios, error = ("", ""), ""
            if peer is not None and name != PEER_NAME:
                ratios = (f"{one[PEER_NAME] / one[name]:.1f}", f"{two[PEER_NAME] / two[name]:.1f}")
                error = f"{(forward(form)() - truth).abs().max().item():.1e}"
            table.add_row(name, f"{one[name]:.1f} ms", ratios[0], f"{two[name]:.1f} ms", ratios[1], error)
        console.print(table)
    finally:
        torch.set_num_threads(threads)

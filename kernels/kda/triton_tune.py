"""Measure the choices of `triton_configs.py` on the GPU at hand and keep the fastest.

    python -m watersmeet.kernels.kda.triton_tune

One stream in bfloat16, forward and backward, and one token for many streams. It takes a minute or two, most of it compiling. The
result lies in the user's cache folder under the chip's name and holds for every process that starts afterwards; delete the
file to return to the defaults.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from . import triton as form
from . import triton_configs

Clock = Callable[[Callable[[], Any]], float]
NEVER = float("inf")
BOUND = -5.0


def on_gpu(work: Callable[[], Any], rounds: int = 20) -> float:
    """Median seconds of one call, by the events of the GPU."""
    times = []
    for _ in range(rounds):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(times)


def _inputs(N: int, T: int, H: int, K: int, V: int, device: torch.device) -> tuple[Tensor, ...]:
    """q, k, v in bfloat16, g, beta and the state [N,H,K,V] in float32: kernels take the same time for any values."""
    r = torch.Generator(device=device).manual_seed(0)
    q, k, v = (torch.randn(N, T, H, D, generator=r, device=device, dtype=torch.bfloat16) for D in (K, K, V))
    q, k = (torch.nn.functional.normalize(x, dim=-1) for x in (q, k))
    g = BOUND * torch.rand(N, T, H, K, generator=r, device=device)
    return q, k, v, g, torch.rand(N, T, H, generator=r, device=device), torch.zeros(N, H, K, V, device=device)


def measure(
    device: torch.device, clock: Clock, *, T: int = 8192, H: int = 32, K: int = 128, V: int = 128, streams: int = 64
) -> dict[str, dict[triton_configs.Config, float]]:
    """Seconds of every choice of every kernel; infinite for one that this chip refuses."""
    hip = torch.version.hip is not None
    seconds: dict[str, dict[triton_configs.Config, float]] = {kernel: {} for kernel in triton_configs.CHOICES}

    def launch(kernel: Any, grid: Any, arguments: Any, constants: Any, config: triton_configs.Config) -> None:
        from triton.runtime.errors import OutOfResources

        known = seconds.get(kernel.fn.__name__)
        work = lambda: form.launch_kernel(kernel, grid, arguments, constants, config)  # noqa: E731
        if known is None or config in known:
            if known is None or known[config] < NEVER:
                work()
            return
        try:
            work()  # compiles
            known[config] = clock(work)
        except OutOfResources:
            known[config] = NEVER

    q, k, v, g, beta, state = _inputs(1, T, H, K, V, device)
    q1, k1, v1, g1, beta1, state1 = _inputs(streams, 1, H, K, V, device)
    bounds = torch.arange(streams + 1, dtype=torch.int32, device=device)
    for _ in triton_configs.trials(hip):
        shared: dict[str, Any] = dict(scale=K**-0.5, lengths=(T,), bounded=True, launch=launch)
        _, final, saved = form.forward(q, k, v, g, beta, state, need_final=True, **shared)
        form.backward(saved, q, k, v, g, beta, state, v, final, need_initial=True, **shared)
        form.recurrent(
            q1, k1, v1, g1, beta1, state1, bounds, scale=K**-0.5, need_final=True, launch=launch,
        )  # fmt: skip
    return seconds


def tune(device: torch.device, clock: Clock = on_gpu, **sizes: int) -> dict[str, triton_configs.Config]:
    """Measure, keep, and use from now on; the fastest choice of every kernel."""
    seconds = measure(device, clock, **sizes)
    best = {kernel: min(times, key=times.__getitem__) for kernel, times in seconds.items()}
    chip = torch.cuda.get_device_name(device) if device.type == "cuda" else "interpreter"
    said = {
        kernel: {f"{c.keys}/{c.values}/{c.warps}/{c.stages}": t for c, t in times.items() if t < NEVER}
        for kernel, times in seconds.items()
    }
    triton_configs.write(triton_configs.file_of(chip), chip, best, said)
    triton_configs.tuned.cache_clear()
    return best


def main(words: Sequence[str] | None = None) -> int:
    """Run as a program."""
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args(words)
    if not torch.cuda.is_available():
        print("triton_tune: torch sees no GPU here, so there is nothing to measure", file=sys.stderr)
        return 1
    device = torch.device("cuda")
    for kernel, config in tune(device).items():
        print(f"{kernel}: keys {config.keys}, values {config.values}, warps {config.warps}, stages {config.stages}")
    print(triton_configs.file_of(torch.cuda.get_device_name(device)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

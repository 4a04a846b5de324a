"""The Triton kernels on a GPU: first their tests, then the tiles that suit the chip, then their speed beside
flash-linear-attention and torch.

    .venv/bin/python -P benchmarks/gpu.py --out docs/gpu.md

Times are medians of interleaved repetitions; all kernels compile before anything is timed. The table is Markdown and holds
date, chip and versions. flash-linear-attention 0.6 is compared with where it can be imported
(`pip install flash-linear-attention`). Without a GPU the program says so and ends with code 1.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from watersmeet.kernels import attnres, dispatch, expert_glu, kda, short_conv, swi_glu

BOUND = -5.0
LENGTHS = (4096, 8192, 16384, 32768, 65536, 131072)
HEADS = (32, 96)
STREAMS = (1, 32, 256)
Work = Callable[[], Any]
Row = tuple[str, str, str, str]


def wait(device: torch.device) -> None:
    """Until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def medians(works: dict[str, Work], device: torch.device, rounds: int) -> dict[str, float]:
    """Seconds of each; a form that does not fit into memory is left out."""
    times: dict[str, list[float]] = {}
    for name, work in works.items():
        try:
            work()
            work()
            wait(device)
            times[name] = []
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
    for _ in range(rounds):
        for name in times:
            wait(device)
            begin = time.perf_counter()
            works[name]()
            wait(device)
            times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(values) for name, values in times.items()}


def peer() -> tuple[Any, Any] | None:
    """fla's chunk_kda and fused_recurrent_kda, or None."""
    try:
        from fla.ops.kda import chunk_kda, fused_recurrent_kda
    except Exception:  # whatever it asks of the machine, it is not there
        return None
    return chunk_kda, fused_recurrent_kda


def ratio(times: dict[str, float], ours: str = "ours", other: str = "theirs") -> str:
    """How many times the other's speed ours is."""
    return f"{times[other] / times[ours]:.2f}x" if ours in times and other in times else ""


def shown(times: dict[str, float], name: str) -> str:
    """Milliseconds, or what is missing."""
    return f"{times[name] * 1e3:.3f} ms" if name in times else "-"


def kda_inputs(B: int, T: int, H: int, D: int, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """q, k, v, g, beta and a cotangent."""
    r = torch.Generator(device=device).manual_seed(0)

    def normal() -> Tensor:
        return torch.randn(B, T, H, D, generator=r, device=device, dtype=dtype)

    q, k = (torch.nn.functional.normalize(normal(), dim=-1) for _ in range(2))
    v, cotangent = normal(), normal()
    g = BOUND * torch.sigmoid(normal().float() - 3)
    beta = torch.sigmoid(torch.randn(B, T, H, generator=r, device=device, dtype=dtype).float())
    return [q, k, v, g, beta, cotangent]


def measure_kda(T: int, H: int, D: int, dtype: torch.dtype, device: torch.device, rounds: int) -> list[Row]:
    """Forward, and forward with all gradients, of one stream of T tokens."""
    *inputs, cotangent = kda_inputs(1, T, H, D, dtype, device)
    leaves = [x.requires_grad_() for x in inputs]
    forms: dict[str, Callable[..., Tensor]] = {"ours": lambda *x: kda(*x, gate_lower_bound=BOUND)[0]}
    found = peer()
    if found is not None:
        forms["theirs"] = lambda *x: found[0](*x, safe_gate=True)[0]

    def forward(call: Callable[..., Tensor]) -> Work:
        def work() -> Tensor:
            with torch.no_grad():
                return call(*inputs)

        return work

    def both(call: Callable[..., Tensor]) -> Work:
        return lambda: torch.autograd.grad(call(*leaves), leaves, cotangent)

    rows = []
    for label, make in (("forward", forward), ("forward+backward", both)):
        times = medians({name: make(form) for name, form in forms.items()}, device, rounds)
        rows.append((f"KDA {label}, T={T}, H={H}, K=V={D}", shown(times, "ours"), shown(times, "theirs"), ratio(times)))
    return rows


def measure_decode(N: int, H: int, D: int, dtype: torch.dtype, device: torch.device, rounds: int) -> list[Row]:
    """One token for each of N streams."""
    inputs = kda_inputs(N, 1, H, D, dtype, device)[:-1]
    state = torch.randn(N, H, D, D, device=device)

    def ours() -> Any:
        with torch.no_grad():
            return kda(*inputs, initial_state=state, output_final_state=True)

    works: dict[str, Work] = {"ours": ours}
    found = peer()
    if found is not None:

        def theirs() -> Any:
            with torch.no_grad():
                return found[1](*inputs, initial_state=state, output_final_state=True)

        works["theirs"] = theirs
    times = medians(works, device, rounds)
    return [(f"KDA decode, {N} streams, H={H}, K=V={D}", shown(times, "ours"), shown(times, "theirs"), ratio(times))]


def measure_experts(
    M: int, L: int, inner: int, E: int, dtype: torch.dtype, device: torch.device, rounds: int
) -> list[Row]:
    """The whole feed-forward of sorted rows against torch's grouped products with the activation between them."""
    r = torch.Generator(device=device).manual_seed(0)
    x = torch.randn(M, L, generator=r, device=device, dtype=dtype)
    w_gate, w_up, w_down = (
        torch.randn(E, *shape, generator=r, device=device, dtype=dtype) * shape[1] ** -0.5
        for shape in ((inner, L), (inner, L), (L, inner))
    )
    counts = torch.bincount(torch.randint(0, E, (M,), generator=r, device=device), minlength=E)
    ends = counts.cumsum(0, dtype=torch.int32)
    offsets = torch.cat([ends.new_zeros(1), ends])
    cotangent, leaves = torch.randn_like(x), [t.requires_grad_() for t in (x, w_gate, w_up, w_down)]

    def ours(x: Tensor, *weights: Tensor) -> Tensor:
        return expert_glu(x, offsets, *weights, act=swi_glu)

    def theirs(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
        def product(a: Tensor, w: Tensor) -> Tensor:
            return torch.nn.functional.grouped_mm(a, w.transpose(1, 2), offs=ends)

        return product(torch.nn.functional.silu(product(x, gate)) * product(x, up), down)

    rows = []
    for label in ("forward", "forward+backward"):
        works: dict[str, Work] = {}
        for name, call in (("ours", ours), ("theirs", theirs)):

            def work(call: Callable[..., Tensor] = call) -> Any:
                if label == "forward":  # noqa: B023 (called before the label changes)
                    with torch.no_grad():
                        return call(*leaves)
                return torch.autograd.grad(call(*leaves), leaves, cotangent)

            works[name] = work
        times = medians(works, device, rounds)
        rows.append((
            f"experts {label}, M={M}, L={L}, I={inner}, E={E}, beside torch's grouped product",
            shown(times, "ours"), shown(times, "theirs"), ratio(times),
        ))  # fmt: skip
    return rows


def measure_bandwidth(
    T: int, D: int, n: int, dtype: torch.dtype, device: torch.device, rounds: int, copy: int = 2**28
) -> list[Row]:
    """AttnRes and the short convolution: bytes that must move, as a share of what a copy of one large tensor moves."""
    plain = torch.empty(copy, dtype=torch.uint8, device=device)
    target = torch.empty_like(plain)
    sources, query, gain = (torch.randn(*s, device=device, dtype=dtype) for s in ((n, T, D), (D,), (D,)))
    x, taps = torch.randn(1, T, D, device=device, dtype=dtype), torch.randn(D, 4, device=device, dtype=dtype)

    def mix() -> Any:
        with torch.no_grad():
            return attnres(sources, query, gain, eps=1e-5)

    def conv() -> Any:
        with torch.no_grad():
            return short_conv(x, taps)

    times = medians({"copy": lambda: target.copy_(plain), "mix": mix, "conv": conv}, device, rounds)
    rate = 2 * plain.numel() / times["copy"]
    size = x.numel() * x.element_size()
    moved = {"mix": (n + 1) * size, "conv": 2 * size}
    labels = {"mix": f"AttnRes, {n} sources, T={T}, D={D}", "conv": f"short convolution, T={T}, C={D}"}
    return [
        (f"{labels[name]}: share of a copy's bandwidth ({rate / 1e9:.0f} GB/s)", shown(times, name), "",
         f"{moved[name] / times[name] / rate:.0%}")
        for name in moved
    ]  # fmt: skip


def markdown(rows: Sequence[Row], device: torch.device) -> str:
    """The table with date, chip and versions."""
    chip = torch.cuda.get_device_name(device) if device.type == "cuda" else "no GPU, Triton's interpreter"
    versions = [f"torch {torch.__version__}"]
    for package in ("triton", "flash-linear-attention"):
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"no {package}")
    today = datetime.date.today().isoformat()
    lines = [f"{today}, {chip}, {', '.join(versions)}; medians, bfloat16.", ""]
    lines += ["| what | ours | theirs | times their speed |", "|---|--:|--:|--:|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def measure(device: torch.device, *, dtype: torch.dtype = torch.bfloat16, rounds: int = 20, tiny: bool = False) -> str:
    """All measurements as Markdown; ``tiny`` takes sizes that an interpreter can run."""
    rows: list[Row] = []
    with dispatch.forced("triton"):
        for H in (1,) if tiny else HEADS:
            D = 16 if tiny else 128
            for T in (20,) if tiny else LENGTHS:
                rows += measure_kda(T, H, D, dtype, device, rounds)
                print(*rows[-2:], sep="\n", flush=True)
            for N in (2,) if tiny else STREAMS:
                rows += measure_decode(N, H, D, dtype, device, rounds)
        shapes = [(24, 32, 16, 3)] if tiny else [(32768, 2048, 1024, 64), (8192, 2048, 1024, 256)]
        for shape in shapes:
            rows += measure_experts(*shape, dtype, device, rounds)
        rows += measure_bandwidth(
            *((8, 16, 2) if tiny else (16384, 4096, 6)), dtype, device, rounds, 2**10 if tiny else 2**30
        )
    return markdown(rows, device)


def run_tests() -> int:
    """The Triton tests on this GPU; pytest's exit code."""
    tests = sorted(str(path) for path in (Path(__file__).parents[1] / "tests" / "kernels").glob("test_triton_*.py"))
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run([sys.executable, "-P", "-m", "pytest", "-q", *tests], env=environment, check=False).returncode


def main(words: Sequence[str] | None = None) -> int:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("docs/gpu.md"), help="where the table is written")
    parser.add_argument("--skip-tests", action="store_true", help="measure at once")
    parser.add_argument("--skip-tuning", action="store_true", help="take the default tiles, or those measured earlier")
    options = parser.parse_args(words)
    if not torch.cuda.is_available():
        print(
            "benchmarks/gpu.py: torch sees no GPU here, so nothing was run; start it on a machine with one",
            file=sys.stderr,
        )
        return 1
    if not dispatch.has_triton():
        print("benchmarks/gpu.py: triton is not installed; install watersmeet[gpu]", file=sys.stderr)
        return 1
    if not options.skip_tests and run_tests():
        print("benchmarks/gpu.py: the tests above fail on this GPU, so nothing was measured", file=sys.stderr)
        return 1
    if not options.skip_tuning:
        from watersmeet.kernels.kda import triton_tune  # only here: needs triton

        for kernel, config in triton_tune.tune(torch.device("cuda")).items():
            print(kernel, config, flush=True)
    text = measure(torch.device("cuda"))
    print(text)
    part = options.out.with_name(options.out.name + ".part")
    part.write_text("# Kernels on a GPU\n\n" + text, encoding="utf-8")
    os.replace(part, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())

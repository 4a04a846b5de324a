"""`watersmeet bench kernels`: the operators beside the machine's matrix product and beside the peers' own code, in one run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from watersmeet.cli.bench_peers import fla_function, transformers_module, version
from watersmeet.core.errors import UsageError

SHAPES = ((4096, 4, 128), (2048, 4, 64))
EXPERTS = {"T": 4096, "D": 512, "inner": 256, "experts": 64, "k": 4}
TOKENS = 2048
MEMORY = (4096, 4, 128)
ROUNDS = 5
PARTS = ("kda", "experts", "step", "memory", "training")
WANTED = {"forward": 20.0, "both": 40.0, "float32": 0.5, "bfloat16": 0.3, "experts": 3.0, "step": 0.4, "memory": 10.0, "training": 0.5}  # fmt: skip

PEERS = {"transformers": "transformers' fallback", "fla": "fla's naive_chunk_kda"}


def run(*, parts: Sequence[str] = (), json_file: Path | None = None) -> None:
    """Print the table; with `json_file`, also write all numbers."""
    import torch

    from watersmeet.cli import bench_kernels_work as work

    for part in parts:
        if part not in PARTS:
            raise UsageError(f"bench kernels: part {part!r} is unknown; parts are {', '.join(PARTS)}")
    parts = parts or PARTS
    console = Console()
    versions = {
        "transformers": version("transformers") if transformers_module() else None,
        "fla": version("flash-linear-attention", "fla-core") if fla_function() else None,
    }
    if versions["transformers"] is None:
        console.print(
            "transformers with kimi_linear (5.24 or newer) is not installed and is left out; "
            "install it with `pip install 'transformers>=5.24'`."
        )
    if versions["fla"] is None:
        console.print(
            "flash-linear-attention is not installed and is left out; install it apart, because transformers would call "
            "its GPU kernels: `pip install --no-deps --target peers fla-core==0.6.0 einops`, then PYTHONPATH=peers."
        )
    before = torch.get_num_threads()
    threads = min(2, before)
    torch.set_num_threads(threads)
    found: dict[str, Any] = {}
    try:
        if "kda" in parts:
            found["kda"] = {
                f"[1, {T}, {H}, {D}] {name}": work.measure_kda(T, H, D, getattr(torch, name), rounds=ROUNDS)
                for T, H, D in SHAPES
                for name in ("float32", "bfloat16")
            }
        if "experts" in parts:
            found["experts"] = work.measure_experts(**EXPERTS, rounds=ROUNDS)
        if "step" in parts:
            found["step"] = work.measure_step(rounds=4 * ROUNDS)
        if "training" in parts:
            found["training"] = work.measure_training(tokens=TOKENS, rounds=ROUNDS)
        if "memory" in parts:
            found["memory"] = {
                form: _peak(form, threads) for form in ("ours", *(p for p in PEERS if versions[p] is not None))
            }
    finally:
        torch.set_num_threads(before)
    about = {"torch": torch.__version__, **versions, "processor": processor(), "threads": threads}
    console.print(table(found, about))
    if json_file is not None:
        text = json.dumps({"about": about, "results": found}, indent=2) + "\n"
        unfinished = json_file.with_name(json_file.name + ".part")
        unfinished.write_text(text, encoding="utf-8")
        os.replace(unfinished, json_file)


def processor() -> str:
    """What the system calls it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "unknown"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def _peak(form: str, threads: int) -> int:
    """Bytes of one forward and backward, measured in a process of its own."""
    code = (
        "import sys, torch; torch.set_num_threads(int(sys.argv[2]))\n"
        "from watersmeet.cli.bench_kernels_work import peak; print(peak(sys.argv[1], *map(int, sys.argv[3:])))"
    )
    words = [form, str(threads), *(str(n) for n in MEMORY)]
    done = subprocess.run([sys.executable, "-P", "-c", code, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise UsageError(f"bench kernels: the process that measures memory failed: {done.stderr.strip()[-300:]}")
    return int(done.stdout.split()[-1])


def table(found: dict[str, Any], about: dict[str, Any]) -> Table:
    """All measurements beside what was aimed at."""
    peers = ", ".join(f"{name} {about[name]}" for name in PEERS if about[name])
    made = Table(
        title=f"Kernels, {about['threads']} threads, torch {about['torch']}{', ' + peers if peers else ''}; medians"
    )
    for heading in ("what", "ours", "other", "measured", "wanted"):
        made.add_column(heading, justify="left" if heading == "what" else "right")

    def ms(value: float) -> str:
        return f"{value * 1e3:.2f} ms" if value < 0.01 else f"{value * 1e3:.1f} ms"

    for shape, one in found.get("kda", {}).items():
        dtype = shape.split()[-1]
        for key, label in (("forward", "forward"), ("both", "forward+backward")):
            times = one[key]
            for peer, called in PEERS.items():
                if peer in times:
                    ratio = times[peer] / times["ours"]
                    made.add_row(
                        f"KDA {shape}, {label}, against {called}", ms(times["ours"]), ms(times[peer]), f"{ratio:.0f}x",
                        f"{WANTED[key]:.0f}x",
                    )  # fmt: skip
            made.add_row(
                f"KDA {shape}, {label}, share of the rate of matmul", ms(times["ours"]),
                f"{one['matmul_gflops']:.0f} GFLOP/s", f"{one[f'share_{key}']:.0%}", f"{WANTED[dtype]:.0%}",
            )  # fmt: skip
        made.add_section()
    if "experts" in found:
        for key, label in (("forward", "forward"), ("both", "forward+backward")):
            times = found["experts"][key]
            theirs = times.get("transformers")
            made.add_row(
                f"{EXPERTS['experts']} experts, top {EXPERTS['k']}, T={EXPERTS['T']}, D={EXPERTS['D']}, "
                f"I={EXPERTS['inner']}, {label}, against transformers' loop",
                ms(times["ours"]), "" if theirs is None else ms(theirs),
                "" if theirs is None else f"{theirs / times['ours']:.1f}x", f"{WANTED['experts']:.0f}x",
            )  # fmt: skip
        bare = found["experts"]["forward"]["products"]
        made.add_row("the same, forward: bare products of torch", "", ms(bare), "", "")
        made.add_section()
    if "step" in found:
        one = found["step"]
        made.add_row(
            "nano, one decoding step: time outside the products of its weights", ms(one["step"]),
            f"{ms(one['products'])} products", f"{one['outside']:.0%}", f"< {WANTED['step']:.0%}",
        )  # fmt: skip
    if "memory" in found:
        one = found["memory"]
        for peer, called in PEERS.items():
            if peer in one:
                made.add_row(
                    f"KDA {list(MEMORY)} float32, forward+backward, memory against {called}",
                    f"{one['ours'] / 1e6:.0f} MB", f"{one[peer] / 1e6:.0f} MB",
                    f"1/{one[peer] / max(one['ours'], 1):.0f}", f"1/{WANTED['memory']:.0f}",
                )  # fmt: skip
        if len(one) == 1:
            made.add_row(
                f"KDA {list(MEMORY)} float32, forward+backward, memory", f"{one['ours'] / 1e6:.0f} MB", "", "", ""
            )
    if "training" in found:
        one = found["training"]
        products = one["parts"]["matrix products of torch"]
        kda = next((share for name, share in one["parts"].items() if name.startswith("KDA")), 0.0)
        made.add_section()
        made.add_row(
            f"nano, training step of {one['tokens']} tokens: matrix products and KDA's chunks", ms(one["seconds"]), "",
            f"{products + kda:.0%}", f"> {WANTED['training']:.0%}",
        )  # fmt: skip
        for name, share in sorted(one["parts"].items(), key=lambda item: -item[1]):
            made.add_row(f"  {name}", "", "", f"{share:.0%}", "")
    return made

"""Compile the native operators once a machine, and load them.

The sources are plain C++ without torch headers: a few seconds of g++ or clang++. The library is kept in the user's cache
under a name made of sources, flags, compiler and processor, so that nothing stale is ever loaded. It is linked
without an OpenMP runtime of its own and uses the one torch has loaded, because two pools of threads on the same cores
fight each other. Where there is no compiler, every operator falls back to its torch form.

`WATERSMEET_NATIVE=0` switches the native forms off; so does forcing a form with `WATERSMEET_KERNELS`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path

import torch
from torch import Tensor

from .. import dispatch

logger = logging.getLogger("watersmeet.kernels")

SOURCES = (
    "mix.cpp",
    "front.cpp",
    "kda_forward.cpp",
    "kda_backward.cpp",
    "experts.cpp",
    "grouped.cpp",
    "muon.cpp",
    "step.cpp",
)
HEADERS = (
    "common.h", "vector.h", "products.h", "kda_products.h", "kda_chunk.h", "kda_tiles.h", "step.h", "step_kda.h", "step_mla.h",
    "step_ffn.h",
)  # fmt: skip
FLAGS = ("-std=c++20", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-fvisibility=hidden")
VARIANTS = (("-fopenmp", "-mprefer-vector-width=512"), ("-fopenmp",), ())
"""Extra flags, best first; the next one is tried when a compiler does not know them."""


def cache_folder() -> Path:
    """Where compiled libraries are kept."""
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(root) / "watersmeet" / "native"


def _processor() -> str:
    """What `-march=native` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "|".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))


def _reached(name: str, sources: dict[str, bytes]) -> dict[str, bytes]:
    """A source file and everything of ours that it includes, at any depth."""
    found, open_names = {}, [name]
    while open_names:
        at = open_names.pop()
        if at not in found and at in sources:
            found[at] = sources[at]
            open_names += re.findall(r'^#include "([^"]+)"', sources[at].decode(), re.MULTILINE)
    return found


def _mark(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """One process at a time: all ranks of a first run would otherwise compile the same files on the same cores."""
    try:
        import fcntl
    except ImportError:  # Windows: whoever is last to finish renames the same library into place
        yield
        return
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _compile(compiler: str, sources: dict[str, bytes], target: Path) -> None:
    """Build `target`, or raise RuntimeError with what the compiler found first. Only what has changed is compiled."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        for name, text in sources.items():
            (Path(folder) / name).write_bytes(text)

        def run(*arguments: str) -> str | None:
            done = subprocess.run([compiler, *arguments], cwd=folder, capture_output=True, text=True, timeout=600)
            return None if done.returncode == 0 else (done.stderr.strip() or "failed without a message")

        def make(name: str, flags: tuple[str, ...]) -> tuple[str | None, Path]:
            kept = target.parent / f"{_mark(sorted(_reached(name, sources).items()), flags, compiler, _processor())}.o"
            error = None if kept.exists() else run(*flags, "-c", name, "-o", f"{name}.o")
            if error is None and not kept.exists():
                os.replace(Path(folder) / f"{name}.o", kept)
            return error, kept

        error: str | None = "no flags to try"
        for extra in VARIANTS:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                made = list(pool.map(lambda name: make(name, (*FLAGS, *extra)), SOURCES))  # noqa: B023
            error = next((one for one, _ in made if one), None)
            if error is None:
                undefined = ("-undefined", "dynamic_lookup") if platform.system() == "Darwin" else ()
                error = run("-shared", *undefined, *(str(kept) for _, kept in made), "-o", "library.so")
            if error is None:
                os.replace(Path(folder) / "library.so", target)
                return
    lines = (error or "").splitlines()  # the last ones are a picture of the line
    raise RuntimeError(next((line for line in lines if "error" in line), lines[-1] if lines else "unknown error"))


@functools.cache
def _load() -> ctypes.CDLL | None:
    if os.environ.get("WATERSMEET_NATIVE", "1") == "0":
        return None
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    folder = resources.files(__package__ or "watersmeet.kernels.native")
    sources = {name: folder.joinpath(name).read_bytes() for name in (*HEADERS, *SOURCES)}
    target = cache_folder() / f"{_mark(sorted(sources.items()), FLAGS, VARIANTS, compiler, _processor())}.so"
    try:
        if not target.exists():
            if compiler is None:
                raise RuntimeError("there is no C++ compiler (g++ or clang++)")
            target.parent.mkdir(parents=True, exist_ok=True)
            with _alone(target.parent / "lock"):
                if not target.exists():
                    logger.info("compiling native operators into %s (once, some seconds)", target)
                    _compile(compiler, sources, target)
        return ctypes.CDLL(str(target))
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        logger.warning("native operators are off and training is several times slower: %s", error)
        return None


def library(*tensors: Tensor | None) -> ctypes.CDLL | None:
    """The compiled operators, or None when these tensors must take the torch form.

    All tensors that decide it (activations) must be on the CPU, float32 or bfloat16, and of one dtype.
    """
    if dispatch._choice is not None:
        return None
    first = next((t for t in tensors if t is not None), None)
    for tensor in tensors:
        if tensor is not None and (tensor.device.type != "cpu" or tensor.dtype != first.dtype):  # type: ignore[union-attr]
            return None
    if first is None or first.dtype not in (torch.float32, torch.bfloat16):
        return None
    return _load()


@functools.cache
def bfloat16_units() -> bool:
    """Whether this processor multiplies bfloat16 in hardware."""
    # the public name exists since torch 2.13; without it nothing is known
    known: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(known.get("amx_bf16") or known.get("avx512_bf16"))


def pointer(tensor: Tensor | None) -> ctypes.c_void_p:
    """Address of a contiguous tensor's first element, or null."""
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


def pointers(tensors: Sequence[Tensor]) -> ctypes.Array[ctypes.c_void_p]:
    """Array of addresses."""
    return (ctypes.c_void_p * len(tensors))(*(t.data_ptr() for t in tensors))


def half(tensor: Tensor) -> ctypes.c_int:
    """Whether activations are bfloat16, as the operators want to know it."""
    return ctypes.c_int(tensor.dtype == torch.bfloat16)


def size(value: int) -> ctypes.c_int64:
    """A 64-bit count."""
    return ctypes.c_int64(value)


def real(value: float) -> ctypes.c_float:
    """A float32 constant."""
    return ctypes.c_float(value)


def threads(rows: int) -> ctypes.c_int:
    """How many threads `rows` rows are worth."""
    return ctypes.c_int(1 if rows < 32 else torch.get_num_threads())


def full(tensor: Tensor) -> Tensor:
    """float32 and contiguous, without a gradient."""
    return tensor.detach().float().contiguous()


def keep_memory() -> bool:
    """Ask glibc to keep freed memory for the next tensors instead of giving it back; True when it agreed.

    A training step frees and asks for the same large blocks again and again, and every block fresh from the system
    costs a page fault for each 4 KiB. Call it once before training. The process keeps its peak size.
    """
    try:
        libc = ctypes.CDLL(None)
        trim_threshold, top_pad, mmap_max = -1, -2, -4  # names of malloc.h
        return bool(
            libc.mallopt(mmap_max, 0) and libc.mallopt(trim_threshold, 2**31 - 1) and libc.mallopt(top_pad, 2**27)
        )
    except (OSError, AttributeError):
        return False

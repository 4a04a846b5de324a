"""Compile Triton kernels for chips that are not here, and say what each needs: registers, spills, local and shared memory.

Every operator folder with a ``triton.py`` offers ``compile_cases()`` there: one :class:`Case` a kernel, dtype and
configuration that its launcher may pick. As a program it prints one JSON object a line, the exit code is 1 on problems::

    python -m watersmeet.kernels.compile_check conv attnres --quick --chips sm_90 gfx942

Triton must not be in its interpreter (``TRITON_INTERPRET``): interpreted kernels have nothing to compile.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

KIB = 1024


@dataclass(frozen=True, kw_only=True)
class Chip:
    """A compilation target: backend and architecture as Triton names them, threads of a warp, shared bytes a block."""

    backend: str
    arch: int | str
    warp: int
    shared: int


CHIPS = {
    "sm_80": Chip(backend="cuda", arch=80, warp=32, shared=163 * KIB),
    "sm_90": Chip(backend="cuda", arch=90, warp=32, shared=227 * KIB),
    "sm_100": Chip(backend="cuda", arch=100, warp=32, shared=227 * KIB),
    "gfx942": Chip(backend="hip", arch="gfx942", warp=64, shared=64 * KIB),
}
TENSOR_MEMORY = 512
"""Columns of tensor memory of a Blackwell multiprocessor."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One kernel with everything that is fixed at compile time.

    arguments: name -> Triton type ("*bf16", "i32", "fp32") of every argument that is no constant, in any order.
    constants: name -> value of the others. aligned: integers that are multiples of 16; pointers always count as such.
    quick: belongs to the few that every test run compiles. chips: None for all of `CHIPS`.
    """

    name: str
    kernel: Any
    arguments: dict[str, str]
    constants: dict[str, Any]
    num_warps: int = 4
    num_stages: int = 2
    aligned: tuple[str, ...] = ()
    quick: bool = False
    chips: tuple[str, ...] | None = None
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class Report:
    """What a compiled case needs. spills and local: bytes or registers, and instructions, that touch thread-private memory."""

    name: str
    chip: str
    registers: int = 0
    spills: int = 0
    local: int = 0
    shared: int = 0
    problems: list[str] = field(default_factory=list)


def _tool(name: str) -> str:
    import triton

    return os.path.join(os.path.dirname(triton.__file__), "backends", "nvidia", "bin", name)


def _read_cubin(cubin: bytes, report: Report) -> None:
    """Registers and stack from the resource table; loads and stores of local memory from the machine code."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "kernel.cubin")
        with open(path, "wb") as file:
            file.write(cubin)
        table, code = (
            subprocess.run([_tool("cuobjdump"), flag, path], capture_output=True, text=True, check=True).stdout
            for flag in ("-res-usage", "-sass")
        )
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", table)
    if found is None or "/*0000*/" not in code:
        raise RuntimeError(f"cuobjdump printed no resource usage or no code: {table!r}, {code[:200]!r}")
    report.registers, report.spills = int(found[1]), int(found[2]) + int(found[3])
    report.local = len(re.findall(r"\b(?:LDL|STL)\b", code))


def _read_amdgcn(text: str, report: Report) -> None:
    """The same from the metadata notes that the assembler puts into the hsaco."""

    def number(key: str) -> int:
        found = re.search(rf"\.{key}:\s+(\d+)", text)
        if found is None:
            raise RuntimeError(f"the notes of an hsaco lack {key}")
        return int(found[1])

    report.registers = number("vgpr_count")
    report.spills = number("vgpr_spill_count") + number("sgpr_spill_count")
    report.local = number("private_segment_fixed_size")


def compile_case(case: Case, chip_name: str) -> Report:
    """Compile one case for one chip; whatever is wrong with it is in the report's ``problems``."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    chip, report = CHIPS[chip_name], Report(name=case.name, chip=chip_name)
    names: list[str] = case.kernel.arg_names
    unknown = set(names) ^ (set(case.arguments) | set(case.constants))
    if unknown:
        raise ValueError(f"case {case.name} and its kernel differ in the arguments {', '.join(sorted(unknown))}")
    signature = {name: case.arguments.get(name, "constexpr") for name in names}
    even = [["tt.divisibility", 16]]
    attributes = {(i,): even for i, name in enumerate(names) if signature[name].startswith("*") or name in case.aligned}
    source = ASTSource(case.kernel, signature, case.constants, attributes)
    options = {"num_warps": case.num_warps, "num_stages": case.num_stages, **case.options}
    try:
        done = triton.compile(source, target=GPUTarget(chip.backend, chip.arch, chip.warp), options=options)
    except Exception as error:  # whatever a compiler pass raises, the other cases still count
        report.problems.append(f"does not compile: {type(error).__name__}: {str(error)[:2000]}")
        return report
    report.shared = done.metadata.shared
    if chip.backend == "cuda":
        _read_cubin(done.asm["cubin"], report)
    else:
        _read_amdgcn(done.asm["amdgcn"], report)
    if report.spills:
        report.problems.append(f"{report.spills} spilled to memory with {report.registers} registers")
    if report.local:
        report.problems.append(f"{report.local} uses of local memory")
    if report.shared > chip.shared:
        report.problems.append(f"{report.shared} bytes of shared memory, {chip_name} has {chip.shared}")
    tensor = getattr(done.metadata, "tmem_size", None) or 0
    if tensor > TENSOR_MEMORY:
        report.problems.append(f"{tensor} columns of tensor memory, {chip_name} has {TENSOR_MEMORY}")
    return report


def check(cases: Iterable[Case], chips: Iterable[str] = tuple(CHIPS)) -> Iterator[Report]:
    """Reports of all cases on all chips."""
    wanted = tuple(chips)
    for case in cases:
        for chip in wanted:
            if case.chips is None or chip in case.chips:
                yield compile_case(case, chip)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m watersmeet.kernels.compile_check")
    parser.add_argument("operators", nargs="+", help="folders of kernels/ with a triton.py")
    parser.add_argument("--chips", nargs="+", choices=list(CHIPS), default=list(CHIPS))
    parser.add_argument("--quick", action="store_true", help="only the cases marked quick")
    parser.add_argument("--only", default="", help="only cases whose name holds this")
    options = parser.parse_args(words)
    failed = False
    for operator in options.operators:
        cases = importlib.import_module(f"watersmeet.kernels.{operator}.triton").compile_cases()
        picked = [case for case in cases if (case.quick or not options.quick) and options.only in case.name]
        for report in check(picked, options.chips):
            failed = failed or bool(report.problems)
            print(json.dumps(dataclasses.asdict(report)), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

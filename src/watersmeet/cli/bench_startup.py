"""`watersmeet bench startup`: what commands cost before they do anything, alone and beside a hundred installed plugins.

Each command runs in a fresh process. Wall time is what a person waits; CPU time is what other work on the machine does not
lengthen.
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

ROUNDS = 7
PLUGINS = 100

COMMANDS: tuple[tuple[str, ...], ...] = (("--help",), ("--version",), ("plugins",), ("modalities",), ("pipelines",))

_MODULE = """from watersmeet.plugins import ModalitySpec, hookimpl

@hookimpl
def register_modalities():
    return [ModalitySpec(name="dummy-{index}", encoder="dummy_{index}_parts:Encoder", embedder="dummy_{index}_parts:Embedder")]
"""


def install_dummies(folder: Path, count: int) -> None:
    """What an installer leaves behind for `count` packages with one plugin each; the classes they name do not exist."""
    for index in range(count):
        (folder / f"dummy_{index}.py").write_text(_MODULE.format(index=index))
        info = folder / f"dummy_{index}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: dummy-{index}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[watersmeet.plugins]\ndummy-{index} = dummy_{index}\n")


def measure(words: tuple[str, ...], path: str) -> tuple[float, float]:
    """Wall and CPU seconds of one run of a command, its child processes included. Raises RuntimeError when it fails."""
    environment = dict(os.environ) | {"PYTHONPATH": path}
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "watersmeet", *words], env=environment, capture_output=True, text=True, check=False
    )
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        raise RuntimeError(f"watersmeet {' '.join(words)} failed: {done.stderr[-500:]}")
    return wall, (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)


def run(*, rounds: int = ROUNDS, count: int = PLUGINS, json_file: Path | None = None) -> None:
    """Print medians over `rounds` runs of each command, in turns, and write them all as JSON when asked."""
    with tempfile.TemporaryDirectory(prefix="watersmeet-startup-") as name:
        full = Path(name) / "full"
        full.mkdir()
        install_dummies(full, count)
        places = {"": "", f" beside {count} plugins": str(full)}
        found: dict[str, list[tuple[float, float]]] = {}
        # in turns, so that other work on the machine meets all of them alike; the first round warms the files
        for turn in range(rounds + 1):
            for words in COMMANDS:
                for what, path in places.items():
                    taken = measure(words, path)
                    if turn:
                        found.setdefault(" ".join(words) + what, []).append(taken)
    rows: list[tuple[str, ...]] = [("watersmeet ...", "wall s", "CPU s", "fastest wall s")]
    summary: dict[str, Any] = {}
    for command, times in found.items():
        wall, cpu = median(w for w, _ in times), median(c for _, c in times)
        rows.append((command, f"{wall:.2f}", f"{cpu:.2f}", f"{min(w for w, _ in times):.2f}"))
        summary[command] = {"wall_s": wall, "cpu_s": cpu, "runs": times}
    print("\n".join(table(rows)))
    if json_file is not None:
        json_file.write_text(json.dumps({"plugins": count, "rounds": rounds, "commands": summary}, indent=1))

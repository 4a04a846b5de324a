"""Chunks of work in a few processes, each chunk in a fresh one, so that no page can end a build."""

import multiprocessing
import time
from collections.abc import Callable, Iterable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any


def run_chunks(
    work: Callable[..., Any],
    tasks: Iterable[tuple[Path, tuple[Any, ...]]],
    *,
    processes: int = 2,
    limit_s: float = 1800.0,
    say: Callable[[str], None] = print,
) -> list[Path]:
    """Call `work(*arguments, path)` for every (path, arguments) whose `path` does not exist yet.

    A chunk that dies or takes longer than `limit_s` is tried once more, then left out. Returns the paths left out.
    """
    context = multiprocessing.get_context("spawn")
    waiting = [(path, arguments, 0) for path, arguments in tasks if not path.exists()]
    total, done = len(waiting), 0
    running: list[tuple[BaseProcess, float, tuple[Path, tuple[Any, ...], int]]] = []
    lost: list[Path] = []
    start = time.monotonic()
    while waiting or running:
        while waiting and len(running) < processes:
            path, arguments, tries = task = waiting.pop(0)
            process = context.Process(target=work, args=(*arguments, path))
            process.start()
            running.append((process, time.monotonic(), task))
        time.sleep(0.2)
        for item in list(running):
            worker, began, (path, arguments, tries) = item
            late = time.monotonic() - began > limit_s
            if worker.is_alive() and not late:
                continue
            if late:
                worker.kill()
            worker.join()
            running.remove(item)
            done += 1
            if not path.exists():
                say(f"{path.name} ended with {'no answer in time' if late else worker.exitcode}")
                if tries < 1:
                    waiting.append((path, arguments, tries + 1))
                    done -= 1
                else:
                    lost.append(path)
            else:
                say(f"{path.name} is written, {done} of {total}, {time.monotonic() - start:.0f} s")
    return lost

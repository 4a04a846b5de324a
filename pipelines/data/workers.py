"""Chunks of work in a few processes that are replaced now and then, so that no page can end a build."""

import multiprocessing
import os
import time
from collections.abc import Callable, Iterable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

Task = tuple[Path, tuple[Any, ...]]


def _several(work: Callable[..., Any], tasks: list[Task]) -> None:
    parent = os.getppid()
    for path, arguments in tasks:
        if os.getppid() != parent:
            return  # who waited for it was ended by a signal that it could not pass on
        if not path.exists():
            work(*arguments, path)


def run_chunks(
    work: Callable[..., Any],
    tasks: Iterable[Task],
    *,
    processes: int = 2,
    per_process: int = 4,
    limit_s: float = 1800.0,
    say: Callable[[str], None] = print,
) -> list[Path]:
    """Call `work(*arguments, path)` for every (path, arguments) whose `path` does not exist yet.

    A process takes `per_process` chunks, since starting one costs seconds. A chunk that dies or takes longer than
    `limit_s` is tried once more, then left out. Returns the paths left out.
    """
    context = multiprocessing.get_context("spawn")
    waiting = [task for task in tasks if not task[0].exists()]
    total = len(waiting)
    failures: dict[Path, int] = {}
    lost: list[Path] = []
    running: list[tuple[BaseProcess, list[Task], list[float]]] = []
    start = time.monotonic()
    done = 0
    while waiting or running:
        while waiting and len(running) < processes:
            share = max(1, min(per_process, len(waiting) // processes))
            group, waiting = waiting[:share], waiting[share:]
            process = context.Process(target=_several, args=(work, group))
            process.start()
            running.append((process, group, [time.monotonic()]))
        time.sleep(0.2)
        for item in list(running):
            worker, group, began = item
            while group and group[0][0].exists():
                done += 1
                say(f"{group.pop(0)[0].name} is written, {done} of {total}, {time.monotonic() - start:.0f} s")
                began[0] = time.monotonic()
            late = time.monotonic() - began[0] > limit_s
            if worker.is_alive() and not late:
                continue
            if late:
                worker.kill()
            worker.join()
            if group and group[0][0].exists():
                continue  # written in the moment between the two looks
            running.remove(item)
            if group:
                path = group[0][0]
                failures[path] = failures.get(path, 0) + 1
                say(f"{path.name} ended with {'no answer in time' if late else worker.exitcode}")
                if failures[path] > 1:
                    lost.append(path)
                    group = group[1:]
                waiting += group
    return lost

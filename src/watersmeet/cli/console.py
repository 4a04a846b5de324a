"""Progress of long work: a bar on a terminal, plain lines elsewhere. Always on stderr, so that stdout is the result."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO

Progress = Callable[[str, float], None]

_EVERY_S = 10.0


@contextmanager
def show_progress(stream: TextIO | None = None) -> Iterator[Progress]:
    """A function to call with (what is being done, share done 0 to 1) while the block runs."""
    stream = sys.stderr if stream is None else stream
    if stream.isatty():
        with _bar(stream) as progress:
            yield progress
    else:
        yield plain_progress(stream)


def plain_progress(stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> Progress:
    """Lines instead of a bar: one for each new step, and one every ten seconds within a long step."""
    last_what, last_time = "", float("-inf")

    def progress(what: str, share: float) -> None:
        nonlocal last_what, last_time
        now = clock()
        if what == last_what and now - last_time < _EVERY_S:
            return
        last_what, last_time = what, now
        print(f"{_percent(share):3d} % {what}", file=stream, flush=True)

    return progress


@contextmanager
def _bar(stream: TextIO) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    # what a pipeline says may hold brackets, which are text here and not markup
    columns = (BarColumn(), TextColumn("{task.percentage:>3.0f} %"), TextColumn("{task.description}", markup=False))
    with RichProgress(*columns, TimeElapsedColumn(), console=Console(file=stream), transient=True) as bar:
        task = bar.add_task("", total=100)
        yield lambda what, share: bar.update(task, description=what, completed=_percent(share))


def _percent(share: float) -> int:
    return round(100 * min(1.0, max(0.0, share)))


StepProgress = Callable[[int, Mapping[str, Any]], None]
"""Called with a step and what the log says of it: `loss`, `tokens_per_second`, `step_seconds`."""


@contextmanager
def show_steps(steps: int, stream: TextIO | None = None) -> Iterator[tuple[StepProgress, Callable[[str], None]]]:
    """(to call after every step, to call with a line of text): a bar with loss, speed and time left, or plain lines."""
    stream = sys.stderr if stream is None else stream
    if stream.isatty():
        with _step_bar(steps, stream) as pair:
            yield pair
    else:
        yield plain_steps(steps, stream), lambda line: print(line, file=stream, flush=True)


def plain_steps(steps: int, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> StepProgress:
    """A line for the first step of a run, for the last, and one every ten seconds."""
    last_time = float("-inf")

    def progress(step: int, record: Mapping[str, Any]) -> None:
        nonlocal last_time
        now = clock()
        if step < steps and now - last_time < _EVERY_S:
            return
        last_time = now
        print(f"step {step}/{steps}  {_numbers(steps - step, record)}", file=stream, flush=True)

    return progress


def _numbers(left: int, record: Mapping[str, Any]) -> str:
    seconds = left * float(record["step_seconds"])
    shown = f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
    return f"loss {record['loss']:.4f}  {record['tokens_per_second']:,.0f} tokens/s  left {shown}"


@contextmanager
def _step_bar(steps: int, stream: TextIO) -> Iterator[tuple[StepProgress, Callable[[str], None]]]:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    console = Console(file=stream)
    columns = (TextColumn("step {task.completed:.0f}/{task.total:.0f}"), BarColumn(), TextColumn("{task.description}"))
    with RichProgress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task("", total=steps)
        yield (
            lambda step, record: bar.update(task, completed=step, description=_numbers(steps - step, record)),
            # lines hold whatever names people give to files, which is no markup
            lambda line: console.print(line, markup=False, highlight=False),
        )

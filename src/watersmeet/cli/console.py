"""Progress of long work: a bar on a terminal, plain lines elsewhere. Always on stderr, so that stdout is the result."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

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

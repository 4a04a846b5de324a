"""Run a plugin's code so that the host survives it: what it raises, prints, forks, starts and moves."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from watersmeet.core.errors import PluginError

ValueT = TypeVar("ValueT")


def describe(error: BaseException) -> str:
    """The error in one line, whatever its class: the sentence of a PluginError, else class and message."""
    try:
        text = str(error)
    except Exception:  # an exception whose __str__ is broken is still an exception
        text = "(its message cannot be shown)"
    if not isinstance(error, PluginError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return " ".join(text.split())


def attempt(action: Callable[[], ValueT], *, strict: bool = True) -> tuple[ValueT | None, BaseException | None]:
    """(value, None), or (None, what was raised). Only Ctrl-C gets through. strict: see `contained`.

    SystemExit is caught because a plugin must not end the host, and other BaseExceptions because frameworks derive
    control flow from them (a skipped test, a cancelled task) that means nothing here.
    """
    try:
        with contained(strict=strict):
            return action(), None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # see above
        return None, error


@contextlib.contextmanager
def contained(*, strict: bool = True) -> Iterator[None]:
    """Send what the block prints to stderr, end a process that it forked, and see what it left behind.

    With `strict`, raises PluginError when it left the working folder, which is entered again, or started a thread that
    would keep the host from ending.
    """
    process, folder, threads = os.getpid(), _folder(), set(threading.enumerate())
    try:
        with contextlib.redirect_stdout(_Aside()):
            yield
    finally:
        if os.getpid() != process:
            # two hosts would do the work twice and write over each other
            os._exit(0)
        moved = folder is not None and _folder() != folder
        if moved and folder is not None:
            os.chdir(folder)
    if moved and strict:
        raise PluginError("it changes the working folder when it is imported; leave the folder alone")
    started = [thread for thread in threading.enumerate() if thread not in threads and not thread.daemon]
    if started and strict:
        raise PluginError(
            f"it starts thread {started[0].name!r} when it is imported, which would keep the program from ending; "
            "start it on first use, with daemon=True"
        )


class _Aside(io.TextIOBase):
    """Writes to whatever stderr is, and cannot be closed."""

    def write(self, text: str, /) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()

    def close(self) -> None:
        pass


def _folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # the folder was removed
        return None

"""Frames of a file, decoded in a child process that may crash, hang or run out of memory without harm to this one.

Frames cross in memory that both processes map; lines of JSON say which slot holds which frame.
"""

from __future__ import annotations

import contextlib
import io
import json
import mmap
import os
import select
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from watersmeet.core.errors import DecodeError
from watersmeet.tokenizers.video.frames import Frame, Gap, Head, Limits

Source = str | os.PathLike[str] | bytes

_RING_BYTES = 64 * 2**20
_LINE_BYTES = 2**20


def open_source(source: Source) -> tuple[BinaryIO, str]:
    """An ordinary open file and the name for messages. Raises DecodeError for what is not there or is no such file."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        # TemporaryFile has no name that could stay behind
        held = tempfile.TemporaryFile()  # noqa: SIM115  (the caller closes it)
        held.write(source)
        held.seek(0)
        name = f"video of {len(source):,} bytes"
        return _filled(held, len(source), name), name
    if not isinstance(source, (str, os.PathLike)):
        raise DecodeError(f"a video is a {type(source).__name__}, expected a path or a file's bytes")
    path = Path(source)
    try:
        # a pipe would be waited for without end
        if not stat.S_ISREG(path.stat().st_mode):
            raise DecodeError(
                f"{path}: is {'a folder' if path.is_dir() else 'no ordinary file'}, expected a video file"
            )
        file = path.open("rb")
    except OSError as error:
        raise DecodeError(f"{path}: cannot be read ({error.strerror or error})") from error
    return _filled(file, os.fstat(file.fileno()).st_size, str(path)), str(path)


def _filled(file: Any, size: int, name: str) -> BinaryIO:
    if size == 0:
        file.close()
        raise DecodeError(f"{name}: is empty (0 bytes), expected a video file")
    return file


def _shared_memory() -> BinaryIO:
    """Memory without a name, so that nothing of it can stay behind."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(
            os.memfd_create("watersmeet-frames", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "r+b", buffering=0
        )
    return tempfile.TemporaryFile(buffering=0)  # type: ignore[return-value]


def _seal(file: BinaryIO) -> None:
    """A child that shrank the memory would crash whoever reads it."""
    import fcntl

    if hasattr(os, "memfd_create"):
        fcntl.fcntl(file.fileno(), fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)


class Video:
    """A file that is being decoded; a context manager.

    head     known at once
    gaps, notes, end_us, count  damaged parts, what else was found, end of the last frame in microseconds and number of
             decoded frames; complete when `frames` has ended

    source: a path or a file's bytes. measured: find out the length by reading all time stamps where the file does not say
    it. Raises DecodeError naming the file and the reason; also when decoding crashes or goes beyond `limits`.
    """

    def __init__(self, source: Source, limits: Limits | None = None, *, measured: bool = False) -> None:
        self.limits = limits or Limits()
        self.gaps: list[Gap] = []
        self.notes: list[str] = []
        self.end_us = self.count = 0
        self._pending = b""
        file, self.name = open_source(source)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the child)
        self._ring = _shared_memory()
        self._out, theirs = os.pipe()
        try:
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-m", "watersmeet.tokenizers.video.child", *self._numbers(file, theirs)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=(file.fileno(), self._ring.fileno(), theirs),
                # threads of a library for matrices would take address space, and there are no matrices
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            )
        except BaseException:  # Ctrl-C too: descriptors are not left open
            self._release()
            raise
        finally:
            os.close(theirs)
            file.close()
        try:
            self._tell({"limits": asdict(self.limits), "name": self.name, "measured": measured})
            told = self._next_line()
            if told["kind"] != "head":
                raise DecodeError(
                    f"{self.name}: the decoding process said {told['kind']!r} before it described the file"
                )
            self.head = Head(**{name: told[name] for name in Head.__dataclass_fields__})
            if not 0 < self.head.width * self.head.height <= self.limits.max_pixels:
                raise DecodeError(f"{self.name}: frames of {self.head.width} x {self.head.height} are beyond the limit")
        except BaseException:  # Ctrl-C too: the child is not left behind
            self.close()
            raise

    def _numbers(self, file: BinaryIO, out: int) -> list[str]:
        return [str(number) for number in (file.fileno(), self._ring.fileno(), out)]

    def __enter__(self) -> Video:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the child and close everything; frames that were given out stay readable."""
        if self._child.poll() is None:
            self._child.kill()
        self._child.wait()
        if self._child.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._child.stdin.close()
        self._release()

    def abort(self) -> None:
        """End the child from another thread; `frames`, if it waits, raises DecodeError where it is read."""
        self._child.kill()

    def _release(self) -> None:
        self._ring.close()
        self._errors.close()
        if self._out >= 0:
            os.close(self._out)
            self._out = -1

    def frames(self, wanted_us: Sequence[int] | None = None, *, halved: bool = False) -> Iterator[Frame]:
        """Every frame in order of time, or for each of the rising times `wanted_us` the one that is shown then.

        halved: at half the size, which the child computes. Once only. Raises DecodeError when the child fails on the way; frames given before that were good.
        """
        sides = (self.head.height, self.head.width)
        height, width = (max(1, side // 2) for side in sides) if halved else sides
        size = width * height * 3
        slots = max(2, min(8, _RING_BYTES // size))
        os.ftruncate(self._ring.fileno(), slots * size)
        _seal(self._ring)
        memory = mmap.mmap(self._ring.fileno(), slots * size)
        places = np.frombuffer(memory, dtype=np.uint8).reshape(slots, height, width, 3)
        places.flags.writeable = False
        times = None if wanted_us is None else [int(time) for time in wanted_us]
        self._tell({"slots": slots, "times": times, "halved": halved, "size": (height, width)})
        while (told := self._next_line())["kind"] != "end":
            if told["kind"] == "gaps":
                self.gaps += [Gap(**gap) for gap in told["gaps"]]
            elif told["kind"] == "note":
                self.notes.append(str(told["text"]))
            else:
                slot = int(told["slot"]) % slots
                values = {name: told[name] for name in ("index", "time_us", "key", "guessed", "unsure")}
                yield Frame(pixels=places[slot], **values)
                self._tell(None)
        self.end_us, self.count = int(told["end_us"]), int(told["frames"])

    def _tell(self, request: Any) -> None:
        """A line of JSON, or the byte that frees a slot."""
        assert self._child.stdin is not None
        # what became of the child is found when its next line is read
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.write(b"." if request is None else json.dumps(request).encode() + b"\n")
            self._child.stdin.flush()

    def _next_line(self) -> dict[str, Any]:
        until = time.monotonic() + self.limits.stall_seconds
        while b"\n" not in self._pending:
            # select() knows no file beyond the 1024th
            waiting = select.poll()
            waiting.register(self._out, select.POLLIN)
            if not waiting.poll(max(0.0, until - time.monotonic()) * 1000):
                raise DecodeError(
                    f"{self.name}: decoding stood still for {self.limits.stall_seconds:g} s and was given up"
                )
            read = os.read(self._out, 65536)
            if not read or len(self._pending) > _LINE_BYTES:
                raise DecodeError(f"{self.name}: {self._last_words()}")
            self._pending += read
        line, _, self._pending = self._pending.partition(b"\n")
        told: dict[str, Any] = json.loads(line)
        if told["kind"] == "error":
            raise DecodeError(str(told["text"]))
        return told

    def _last_words(self) -> str:
        """Why there is no child any more."""
        code = self._child.wait()
        if -code == signal.SIGXCPU:
            return f"decoding took more than {self.limits.cpu_seconds} s of processor time and was given up"
        if code < 0:
            return f"the decoder crashed on it ({signal.Signals(-code).name}); the file is damaged, or convert it first"
        self._errors.seek(0, io.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - 4000))
        last = self._errors.read().decode("utf-8", "replace").strip().splitlines()[-1:]
        if last and last[0].startswith(("MemoryError", "av.error.MemoryError")):
            return "needs more memory than the limit to be decoded"
        return f"the decoding process ended with status {code} ({' '.join(last) or 'without a word'})"

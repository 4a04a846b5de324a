"""Batches made ahead in one background thread.

A thread, not a process: encoding is mostly C code that releases the interpreter lock, nothing has to be pickled or
started anew, and memory stays single. Which batch comes next does not depend on it: the cursor travels with the batch,
so what was made ahead and never used is simply made again after a resume.
"""

from __future__ import annotations

import queue
import threading
from typing import Any

from watersmeet.core.training.packing import Batch, Packer


class Loader:
    """`next()` gives the packer's batches in order; `ahead` of them are prepared in a thread (0: none, no thread)."""

    def __init__(self, packer: Packer, ahead: int = 2) -> None:
        self.packer = packer
        self._queue: queue.Queue[Any] = queue.Queue(maxsize=max(ahead, 1))
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        if ahead > 0:
            self._thread = threading.Thread(target=self._work, name="watersmeet-loader", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                item: Any = self.packer.next_batch()
            except BaseException as error:  # handed to the training thread, which raises it where it can be seen
                item = error
            while not self._stop.is_set():
                try:
                    self._queue.put(item, timeout=0.1)
                    break
                except queue.Full:
                    continue
            if isinstance(item, BaseException):
                return

    def next(self) -> Batch:
        """The next batch; raises what making it raised."""
        if self._thread is None:
            return self.packer.next_batch()
        item = self._queue.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def close(self) -> None:
        """Stop the thread; batches made ahead are dropped."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=30)

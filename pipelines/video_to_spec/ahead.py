"""Frames that a specification may cite, decoded while the model still says what happened.

Every claim names a moment of a turn, and these are known before the model is asked. Decoding the file once more after its
answer would take as long as the answer did.
"""

from __future__ import annotations

import tempfile
import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import cv2
from PIL import Image

from watersmeet.pipelines.task.staging import OutputError
from watersmeet.pipelines.video_to_spec.keyframes import frames_of
from watersmeet.pipelines.video_to_spec.outputs import FrameAt
from watersmeet.pipelines.video_to_spec.watch.sight import Sight

MOST = 600  # frames that are kept, some 200 kB each; of a longer recording those that are cited are decoded afterwards


class Ahead:
    """Decodes in a thread of its own from `with` on, into a folder that is gone at the end of it.

    encoder: of the modality `video`. An error of decoding is raised by the first frame that is asked for.
    """

    def __init__(self, encoder: Any, path: Path, sight: Sight) -> None:
        self.encoder, self.path, self.times_us = encoder, path, sight.times_us
        numbers = {moment.frame for turn in sight.turns for moment in turn.observed.moments}
        self.numbers = tuple(sorted(numbers)) if len(numbers) <= MOST else ()
        self._here = threading.Condition()
        self._count = 0  # of the frames that are in the folder
        self._stop = False
        self._video: Any = None  # that is being decoded
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Ahead:
        self._folder = tempfile.TemporaryDirectory(prefix="watersmeet-frames-")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._here:
            self._stop = True
            if self._video is not None:
                self._video.abort()  # it may be waiting for a frame that takes long
        self._thread.join()
        self._folder.cleanup()

    def _work(self) -> None:
        try:
            self._decode()
        except Exception as error:  # whatever file, disk or decoder do belongs to whoever asks for a frame
            with self._here:
                self._error = error
                self._here.notify_all()

    def _decode(self) -> None:
        if not self.numbers:
            return
        times = [self.times_us[number] for number in self.numbers]
        with self.encoder.video(self.path) as video, self._open_to_others(video):
            for number, frame in zip(self.numbers, video.frames(times), strict=True):
                if self._stop:
                    return
                picture = cv2.cvtColor(frame.pixels, cv2.COLOR_RGB2BGR)
                if not cv2.imwrite(str(self._name(number)), picture, [cv2.IMWRITE_PNG_COMPRESSION, 1]):
                    raise OutputError(f"{self._folder.name}: a frame cannot be written; is the disk full?")
                with self._here:
                    self._count += 1
                    self._here.notify_all()

    @contextmanager
    def _open_to_others(self, video: Any) -> Iterator[None]:
        """Let `__exit__` end it as long as it is open."""
        with self._here:
            self._video = video
        try:
            yield
        finally:
            with self._here:
                self._video = None

    def _name(self, number: int) -> Path:
        return Path(self._folder.name) / f"{number}.png"

    @contextmanager
    def frames(self, times_s: Sequence[float]) -> Iterator[FrameAt]:
        """A function that gives the frames shown at `times_s` (rising), to be asked for each of them once and in this order."""
        if {self._number(t_s) for t_s in times_s} <= set(self.numbers):
            yield lambda t_s: self._kept(self._number(t_s))
            return
        # a model that is asked in words may cite any frame
        with frames_of(self.encoder, self.path, times_s) as frame_at:
            yield frame_at

    def _number(self, t_s: float) -> int:
        """Of the frame that is shown then."""
        return max(0, bisect_right(self.times_us, round(t_s * 1e6)) - 1)

    def _kept(self, number: int) -> Image.Image:
        place = self.numbers.index(number)
        with self._here:
            self._here.wait_for(lambda: self._count > place or self._error is not None)
            if self._count <= place and self._error is not None:
                raise self._error
        with Image.open(self._name(number)) as picture:
            picture.load()
            return picture

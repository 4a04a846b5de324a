"""Video to the patches that change. Shapes: n tokens, p pixels on a side of a patch, H x W pixels of a frame."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import cv2
import numpy as np
import torch

from watersmeet.core.errors import DecodeError
from watersmeet.core.stream import Span, content_key
from watersmeet.tokenizers.image.grid import patch_boxes, scaled_size
from watersmeet.tokenizers.video.changes import Change, Changes
from watersmeet.tokenizers.video.frames import Frame, Limits
from watersmeet.tokenizers.video.process import Source, Video
from watersmeet.tokenizers.video.settings import CHANGES, PATCHES, complete, most_tokens

VERSION = 1
"""Part of every key; raised when equal frames and settings would give other patches than before."""

_KEYED = (*(name for name in PATCHES if name not in ("max_rows", "max_columns", "channels")), *CHANGES)


class Session:
    """Frames in, spans out; what a whole video gives is what its frames give one by one.

    size: (width, height) of the video where frames come smaller than that; boxes and scale are those of the video.
    counts: see `changes.Counts`, once there was a frame.
    """

    def __init__(self, settings: Mapping[str, Any], size: tuple[int, int] | None = None) -> None:
        self.settings = settings
        self._of = size
        self._keyed = {name: settings[name] for name in _KEYED}
        self._changes: Changes | None = None
        self._size: tuple[int, int] | None = None
        self._scaled = (0, 0)
        self._boxes: tuple[tuple[int, int, int, int], ...] = ()
        self._columns = 0
        self._given = self._count = 0
        self._closed = False
        self._last_us: int | None = None
        self._whole: np.ndarray | None = None  # the last frame as it came
        self._small: np.ndarray | None = None  # and scaled

    @property
    def counts(self) -> Any:
        """What was given out and what was held back."""
        return None if self._changes is None else self._changes.counts

    def push(self, chunk: Frame | tuple[np.ndarray, int]) -> list[Span]:
        """The next frame, or its pixels uint8 [H, W, 3] and the microsecond from which it is shown; they are not kept.
        Returns the spans that are certain by now.

        Raises DecodeError for another shape, a time that does not rise, more tokens than the settings allow, and after
        `close`.
        """
        if isinstance(chunk, Frame):
            pixels, time_us, number, key = chunk.pixels, chunk.time_us, chunk.index, chunk.key
        else:
            (pixels, time_us), number, key = chunk, self._count, False
        if self._closed:
            raise DecodeError("the video was closed; open another one")
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or 0 in pixels.shape:
            raise DecodeError(f"a frame is {pixels.shape} {pixels.dtype}, expected uint8 [H, W, 3]")
        size = (pixels.shape[1], pixels.shape[0])
        if self._changes is None:
            self._begin(size)
        if size != self._size:
            raise DecodeError(f"a frame is {size[0]} x {size[1]} but the first one is {self._size}")
        if self._last_us is not None and time_us <= self._last_us:
            raise DecodeError(f"a frame at {time_us} us follows one at {self._last_us} us; times have to rise")
        self._last_us = time_us
        self._count += 1
        assert self._changes is not None
        return self._spans(self._changes.push(self._scale(pixels), time_us, number, key))

    def close(self, end_us: int | None = None) -> list[Span]:
        """The rest; no frame can follow. end_us: until when the last frame was shown."""
        closed, self._closed = self._closed, True
        if closed or self._changes is None or self._last_us is None:
            return []
        return self._spans(self._changes.close(self._last_us if end_us is None else end_us))

    def _begin(self, size: tuple[int, int]) -> None:
        patch = self.settings["patch"]
        self._size = size
        size = self._of or size
        self._scaled = scaled_size(
            *size, scale=float(self.settings["scale"]), patch=patch, most=self.settings["max_patches"]
        )
        w, h = self._scaled
        rows, self._columns = -(-h // patch), -(-w // patch)
        self._boxes = patch_boxes(*size, w, h, patch)
        self._changes = Changes(self.settings, rows, self._columns)

    def _scale(self, pixels: np.ndarray) -> np.ndarray:
        """[R * p, C * p, 3]: averaged where it shrinks; what sticks out repeats the last row or column."""
        # most frames of a screen recording are the one before again, and comparing is quicker than scaling
        if self._whole is not None and self._small is not None and np.array_equal(pixels, self._whole):
            return self._small
        if self._whole is None:
            self._whole = pixels.copy()
        else:
            np.copyto(self._whole, pixels)
        small = self._scaled_anew(pixels)
        # what came is overwritten with later frames; where nothing is scaled the copy of it stands in
        self._small = self._whole if small is pixels else small
        return self._small

    def _scaled_anew(self, pixels: np.ndarray) -> np.ndarray:
        (w, h), patch = self._scaled, self.settings["patch"]
        if (w, h) != self._size:
            how = cv2.INTER_AREA if w <= pixels.shape[1] else cv2.INTER_CUBIC
            pixels = cv2.resize(pixels, (w, h), interpolation=how)
        if h % patch or w % patch:
            pixels = cv2.copyMakeBorder(pixels, 0, -h % patch, 0, -w % patch, cv2.BORDER_REPLICATE)
        return pixels

    def _spans(self, changes: list[Change]) -> list[Span]:
        return [self._span(change) for change in changes]

    def _span(self, change: Change) -> Span:
        n = len(change.where)
        self._given += n
        if self._given > self.settings["max_tokens"]:
            raise DecodeError(
                f"the video gives more than {self.settings['max_tokens']:,} tokens by {change.time_us / 1e6:.1f} s; "
                "lower scale or burst, or raise max_tokens"
            )
        data = torch.from_numpy(change.pixels.reshape(n, -1))
        where = torch.from_numpy(change.where.astype(np.int64))
        places = (change.where[:, 0] * self._columns + change.where[:, 1]).tolist()
        return Span(
            modality="video",
            data=data,
            coords=where,
            time_us=torch.full((n,), change.time_us, dtype=torch.int64),
            key=content_key("video", VERSION, self._keyed, change.time_us, where, data),
            source=tuple((*self._boxes[place], change.time_us, change.frame) for place in places),
        )


class Encoder:
    """Encodes a path or a file's bytes; `open` takes frames one by one.

    settings: see `settings`; the attribute `settings` is the complete set. There are no files.
    """

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        self.settings = complete(settings or {})
        self.files: dict[str, bytes] = {}
        names = ("max_pixels", "max_seconds", "max_memory", "stall_seconds")
        self.limits = Limits(**{name: self.settings[name] for name in names})

    @property
    def max_tokens(self) -> int:
        """Most tokens one video can give."""
        return int(self.settings["max_tokens"])

    def most_tokens(self, width: int, height: int, seconds: float) -> int:
        """Most tokens that a video of this size and length can give, whatever it shows."""
        w, h = scaled_size(
            width,
            height,
            scale=float(self.settings["scale"]),
            patch=self.settings["patch"],
            most=self.settings["max_patches"],
        )
        patch = self.settings["patch"]
        return most_tokens(self.settings, -(-w // patch) * -(-h // patch), seconds)

    def open(self, size: tuple[int, int] | None = None) -> Session:
        """For frames as they come. size: (width, height) of the video where they come smaller than that."""
        return Session(self.settings, size)

    def encode(self, item: Source) -> list[Span]:
        """One span for every instant at which something new is shown, in order of time.

        data [n, p * p * 3] uint8 as in the image modality; coords [n, 2] int64 (row, column); time_us [n] int64; source: box
        (left, top, right, bottom) of each patch in pixels of the upright frame, time in microseconds, number of the
        frame. Raises DecodeError for bad media.
        """
        return [span for spans in self.stream(item) for span in spans]

    def stream(self, item: Source) -> Iterator[list[Span]]:
        """The same piece by piece, in constant memory however long the video is."""
        session = self.open()
        with self.video(item) as video:
            for frame in video.frames():
                yield session.push(frame)
            yield session.close(video.end_us)

    def video(self, item: Source) -> Video:
        """The file, opened within the limits of the settings; a context manager with frames one by one."""
        return Video(item, self.limits)

    @staticmethod
    def frames_at(
        source: Source, times: Callable[[int], Sequence[int]], limits: Mapping[str, Any], *, most_bytes: int = 4 * 2**30
    ) -> tuple[list[np.ndarray], list[int]]:
        """Frames [H, W, 3] uint8 that are shown at certain times, and the times (microseconds) from which they are.

        times: called with the length in microseconds, gives the rising times in microseconds. Raises DecodeError.
        """
        with Video(source, Limits(**limits), measured=True) as video:
            if video.head.duration_us is None:
                raise DecodeError(f"{video.name}: does not say how long it is; write it anew with time stamps")
            wanted = times(video.head.duration_us)
            size = len(wanted) * video.head.width * video.head.height * 3
            if size > most_bytes:
                raise DecodeError(f"{video.name}: {len(wanted)} frames of it take {size:,} bytes; ask for fewer")
            found: list[Frame] = []
            pictures: list[np.ndarray] = []
            for frame in video.frames(wanted):
                pictures.append(frame.pixels.copy())
                found.append(frame)
        return pictures, [frame.time_us for frame in found]

"""Frames of a file, one after the other, in this process. `process.py` runs it in a limited child."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from watersmeet.core.errors import DecodeError
from watersmeet.tokenizers.video.clock import FrameClock
from watersmeet.tokenizers.video.frames import Frame, Gap, Head, Limits
from watersmeet.tokenizers.video.upright import (
    Converter,
    display_matrix,
    hdr_kind,
    is_askew,
    is_sideways,
    square_size,
    turned,
)

CONTAINERS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,flv,mpegts,mpeg,ogg,asf,gif,ivf,wav,mp3,flac,aac"
"""What is opened at all. Playlists and scripts of FFmpeg are left out: they open other files."""

READABLE = "MP4, MOV, WebM, MKV, AVI, FLV, MPEG, Ogg, WMV or GIF"

_MOST_FAULTS = 1000


class Reader:
    """One pass over a file that is open for reading and can seek.

    head is known from the first frame; gaps, notes and end_us are complete when `frames` has ended. Raises DecodeError
    when nothing of it can be read.
    """

    def __init__(self, file: BinaryIO, name: str, limits: Limits, *, measured: bool = False) -> None:
        import av

        av.logging.set_level(av.logging.ERROR)  # errors then name the format that was refused
        self.name, self.limits = name, limits
        self.gaps: list[Gap] = []
        self.notes: list[str] = []
        self.end_us = 0
        self.count = self.guessed = 0
        self._open_gap: tuple[int, int, int] | None = None
        self._matrix: tuple[int, Any] | None = None
        length = self._scan(file) if measured else None
        file.seek(0)
        self._container = self._open(file)
        try:
            self._stream = self._choose(self._container)
            self._clock = FrameClock(self._stream.time_base, self._stream.start_time)
            declared = self._declared()
            if (declared or 0) > limits.max_seconds * 1e6:
                raise DecodeError(
                    f"{name}: is {(declared or 0) / 1e6:,.0f} s long, more than the limit of {limits.max_seconds:,.0f} s"
                )
            self._check_size(self._stream.width, self._stream.height)
            self._converter = Converter()
            self._decoded = self._decode()
            self._first = next(self._decoded, None)
            if self._first is None:
                raise DecodeError(f"{name}: holds no frame that can be decoded")
            self.head = self._describe(self._first[0], length if declared is None else declared)
        except BaseException:  # Ctrl-C too: the container is not left open
            self._container.close()
            raise

    def close(self) -> None:
        """Let go of the file."""
        self._container.close()

    def _open(self, file: BinaryIO) -> Any:
        import av

        try:
            return av.open(file, options={"format_whitelist": CONTAINERS, "protocol_whitelist": "none"})
        except av.error.FFmpegError as error:
            log: Any = error.log or (0, "", "")
            if "whitelist" in log[2]:
                raise DecodeError(
                    f"{self.name}: has the form {log[1]!r}, expected {READABLE}; a bare stream says no times, so put it "
                    "into a container"
                ) from error
            reason = log[2].strip() or error.strerror
            raise DecodeError(
                f"{self.name}: is not a video that can be read ({reason}); expected {READABLE}"
            ) from error

    def _choose(self, container: Any) -> Any:
        # a cover picture counts as a video stream too
        shown = [s for s in container.streams.video if "attached_pic" not in str(s.disposition)]
        if not shown:
            kinds = sorted({stream.type for stream in container.streams}) or ["nothing"]
            raise DecodeError(f"{self.name}: holds no video stream, only {' and '.join(kinds)}")
        stream = shown[0]
        if stream.codec_context is None:
            raise DecodeError(f"{self.name}: its video is in a form that this build cannot decode; convert it to H.264")
        stream.thread_type, stream.codec_context.thread_count = "NONE", 1
        return stream

    def _declared(self) -> int | None:
        """Length in microseconds as the file says it."""
        if self._stream.duration is not None:
            return self._clock.micros(self._stream.duration)
        return None if self._container.duration is None else int(self._container.duration)

    def _scan(self, file: BinaryIO) -> int | None:
        """Length in microseconds from the time stamps of all packets, where the file does not say it."""
        with self._open(file) as container:
            stream = self._choose(container)
            if stream.duration is not None or container.duration is not None:
                return None
            clock, start, end = FrameClock(stream.time_base, None), stream.start_time, None
            for packet in self._packets(container, stream):
                if packet.pts is not None:
                    start = packet.pts if start is None else start
                    end = max(packet.pts + (packet.duration or 0), packet.pts if end is None else end)
            return None if start is None or end is None else clock.micros(end - start)

    def _check_size(self, width: int, height: int) -> None:
        if width * height > self.limits.max_pixels:
            raise DecodeError(
                f"{self.name}: frames of {width} x {height} are larger than the limit of {self.limits.max_pixels:,} pixels"
            )

    def _describe(self, frame: Any, duration: int | None) -> Head:
        matrix = self._matrix_of(frame)
        size = square_size(frame.width, frame.height, self._stream.sample_aspect_ratio)
        self._check_size(*size)
        if is_askew(matrix):
            self.notes.append("is turned by an angle that is no multiple of 90 degrees; the nearest one was used")
        if kind := hdr_kind(frame):
            self.notes.append(f"has {kind} colours (HDR), which were not mapped to the brightness of a screen")
        if is_sideways(matrix):
            size = size[::-1]
        container, codec = self._container.format.name.split(",")[0], self._stream.codec_context.name
        return Head(width=size[0], height=size[1], duration_us=duration, container=container, codec=codec)

    def _packets(self, container: Any, stream: Any) -> Iterator[Any]:
        """All packets; a damaged stretch of the container is stepped over."""
        import av

        faults = 0
        while faults < _MOST_FAULTS:
            try:
                for packet in container.demux(stream):
                    faults = 0
                    yield packet
                return
            except av.error.EOFError:
                return
            except av.error.FFmpegError:
                faults += 1
        self.notes.append("its container is damaged; what follows the damage was not found")

    def _decode(self) -> Iterator[tuple[Any, int, bool, bool]]:
        """(frame, time, guessed, unsure) in the order of time."""
        import av

        for packet in self._packets(self._container, self._stream):
            try:
                frames = packet.decode()
            except av.error.EOFError:
                return
            except (av.error.FFmpegError, MemoryError) as error:
                if isinstance(error, MemoryError):
                    raise DecodeError(f"{self.name}: needs more memory than the limit to be decoded") from error
                self._lose(packets=1)
                continue
            for frame in frames:
                yield self._place(frame)

    def _place(self, frame: Any) -> tuple[Any, int, bool, bool]:
        try:
            time, guessed = self._clock.stamp(frame.pts, frame.dts, frame.duration)
        except ValueError:
            raise DecodeError(
                f"{self.name}: does not say when its frames are shown; write it anew with time stamps"
            ) from None
        if time > self.limits.max_seconds * 1e6:
            raise DecodeError(f"{self.name}: is longer than the limit of {self.limits.max_seconds:,.0f} s")
        if frame.is_corrupt:
            self._lose(packets=1)
        elif frame.key_frame:
            self._end_gap(time)
        unsure = self._open_gap is not None
        if unsure:
            self._lose(frames=1)
        self.guessed += guessed
        length = self._clock.micros(frame.duration) if frame.duration else 0
        self.end_us = time + length
        return frame, time, guessed, unsure

    def _lose(self, packets: int = 0, frames: int = 0) -> None:
        start, lost, kept = self._open_gap or (self.end_us, 0, 0)
        self._open_gap = (start, lost + packets, kept + frames)

    def _end_gap(self, time: int) -> None:
        if self._open_gap is not None:
            start, packets, frames = self._open_gap
            self.gaps.append(Gap(start_us=min(start, time), end_us=time, packets=packets, frames=frames))
            self._open_gap = None

    def frames(self, wanted_us: Sequence[int] | None = None) -> Iterator[Frame]:
        """Every frame, or those that are shown at the times `wanted_us` (rising), one for each of them.

        Only what is given back is converted to RGB. Raises DecodeError beyond a limit.
        """
        first, self._first = self._first, None
        rest = self._chosen(first, list(wanted_us)) if wanted_us is not None else self._all(first)
        for index, (frame, time, guessed, unsure) in rest:
            yield Frame(
                pixels=self._pixels(frame, time),
                index=index,
                time_us=time,
                key=bool(frame.key_frame),
                guessed=guessed,
                unsure=unsure,
            )
        self._finish(wanted_us is None)

    def _all(self, first: Any) -> Iterator[tuple[int, Any]]:
        yield 0, first
        self.count = 1
        for found in self._decoded:
            if self.count >= self.limits.max_frames:
                raise DecodeError(f"{self.name}: has more frames than the limit of {self.limits.max_frames:,}")
            yield self.count, found
            self.count += 1

    def _chosen(self, first: Any, wanted: list[int]) -> Iterator[tuple[int, Any]]:
        shown: tuple[int, Any] | None = None
        for item in self._all(first):
            while wanted and shown is not None and item[1][1] > wanted[0]:
                yield shown
                wanted.pop(0)
            shown = item
            if not wanted:
                return
        for _ in wanted:
            assert shown is not None
            yield shown

    def _matrix_of(self, frame: Any) -> Any:
        """The display matrix; read again only where the angle is another. A frame whose side data were asked for is in a
        cycle of references, and a hundred large frames would wait for the collector."""
        if self._matrix is None or self._matrix[0] != frame.rotation:
            self._matrix = (frame.rotation, display_matrix(frame))
        return self._matrix[1]

    def _pixels(self, frame: Any, time: int) -> Any:
        matrix = self._matrix_of(frame)
        size = (self.head.width, self.head.height)
        own = square_size(frame.width, frame.height, self._stream.sample_aspect_ratio)
        if (own[::-1] if is_sideways(matrix) else own) != size and not any("another size" in n for n in self.notes):
            self.notes.append(
                f"frames have another size from {time / 1e6:.3f} s on ({frame.width} x {frame.height}); they were scaled to "
                f"{size[0]} x {size[1]}"
            )
        return turned(self._converter.rgb(frame, size[::-1] if is_sideways(matrix) else size), matrix)

    def _finish(self, whole: bool) -> None:
        declared = self._declared()
        self._end_gap(self.end_us)
        if self.guessed:
            self.notes.append(f"{self.guessed} frames have no usable time; theirs follow from their neighbours")
        if whole and declared is not None:
            if declared - self.end_us > 1_000_000:
                self.notes.append(
                    f"ends at {self.end_us / 1e6:.3f} s although it says to be {declared / 1e6:.3f} s long"
                )

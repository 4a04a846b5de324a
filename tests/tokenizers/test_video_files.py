"""Files of every awkward kind, written by PyAV when the tests run. Reading is tried in this process, where it is the same
code; what the child adds is in `test_video_process.py`."""

import gc
import io
import struct
from fractions import Fraction

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watersmeet.core.errors import ConfigError, DecodeError
from watersmeet.tokenizers.video.clock import FrameClock
from watersmeet.tokenizers.video.frames import Limits
from watersmeet.tokenizers.video.reader import Reader

MS = Fraction(1, 1000)
UNEVEN = [0, 40, 50, 51, 700, 701, 5000, 5033, 65_000]


class Read:
    """All of a file: its frames with pixels of their own, and what was found."""

    def __init__(self, source, limits=None, measured=False, wanted=None):
        raw = source if isinstance(source, bytes) else source.read_bytes()
        reader = Reader(io.BytesIO(raw), "a file", limits or Limits(), measured=measured)
        try:
            found = [(frame, frame.pixels.copy()) for frame in reader.frames(wanted)]
        finally:
            reader.close()
        self.frames = [frame for frame, _ in found]
        self.pixels = [pixels for _, pixels in found]
        self.times = [frame.time_us for frame in self.frames]
        self.greys = [int(pixels[-8:, -8:].mean()) for pixels in self.pixels]
        self.head, self.gaps, self.notes, self.end_us = reader.head, reader.gaps, reader.notes, reader.end_us

    def numbers(self):
        """Which of the grey pictures each frame is."""
        return [round((grey - 16) / 7) for grey in self.greys]


@pytest.mark.parametrize(
    ("name", "codec", "base"),
    [
        ("a.mp4", "libx264", Fraction(1, 90_000)),
        ("a.mov", "mjpeg", MS),
        ("a.mkv", "libx264", MS),
        ("a.webm", "libvpx", MS),
        ("a.ts", "libx264", Fraction(1, 90_000)),
        ("a.flv", "libx264", MS),
    ],
)
@pytest.mark.parametrize("start", [0, 2500])
def test_times_are_the_time_stamps_from_the_start_whatever_the_rate(tmp_path, film, name, codec, base, start):
    pts = [round((t + start) * MS / base) for t in UNEVEN]
    form = "yuvj420p" if codec == "mjpeg" else "yuv420p"
    path = film(tmp_path / name, list(film_frames(len(pts))), pts, codec=codec, base=base, pixel_format=form)
    read = Read(path)
    assert [round(time / 1000) for time in read.times] == UNEVEN
    assert read.numbers() == list(range(len(pts))) and not read.gaps
    assert not any(frame.guessed or frame.unsure for frame in read.frames) and read.frames[0].key


def film_frames(count, size=(64, 48)):
    for i in range(count):
        yield np.full((size[1], size[0], 3), 16 + 7 * i, np.uint8)


def test_frames_that_are_stored_in_another_order_come_in_order_of_time(tmp_path, film):
    path = film(tmp_path / "a.mp4", options={"bf": "3", "b_strategy": "0", "x264-params": "b-adapt=0:scenecut=0"})
    with av.open(str(path)) as container:
        stored = [packet.pts for packet in container.demux(video=0) if packet.pts is not None]
    assert stored != sorted(stored)
    read = Read(path)
    assert read.times == [round(i * 1e6 / 30) for i in range(30)] and read.numbers() == list(range(30))
    assert read.end_us == 1_000_000 == read.head.duration_us


def test_an_edit_list_that_begins_later_hides_the_frames_before(tmp_path, film):
    path = film(tmp_path / "a.mp4", options={"bf": "0", "g": "5"})
    raw = bytearray(path.read_bytes())
    place = raw.index(b"elst") + 4  # version and flags, count, then duration, media time, rate
    assert struct.unpack(">II", raw[place : place + 8]) == (0, 1)
    duration, media = struct.unpack(">Ii", raw[place + 8 : place + 16])
    # the media's unit is the track's time scale, which mdhd says
    scale = struct.unpack(">I", raw[raw.index(b"mdhd") + 16 :][:4])[0]
    skipped = 12
    raw[place + 8 : place + 16] = struct.pack(">Ii", duration * 18 // 30, media + skipped * scale // 30)
    read = Read(bytes(raw))
    assert read.numbers() == list(range(12, 30))
    assert read.times == [round(i * 1e6 / 30) for i in range(18)]


@pytest.mark.parametrize("mirror", [False, True])
@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
def test_rotation_and_mirrors_are_applied(tmp_path, film, degrees, mirror):
    rng = np.random.default_rng(0)
    blocks = np.kron(rng.integers(0, 255, (3, 4, 3), dtype=np.uint8), np.ones((16, 16, 1), np.uint8))
    straight = film(tmp_path / "a.mp4", [blocks] * 2)
    turned = film(tmp_path / "b.mp4", [blocks] * 2, prepare=lambda s: s.set_display_rotation(degrees, hflip=mirror))
    plain, found = Read(straight).pixels[0], Read(turned).pixels[0]
    assert plain.shape == (48, 64, 3)
    # PyAV: turned against the clock by so many degrees; a mirror comes after
    expected = np.rot90(plain, degrees // 90)
    assert np.array_equal(found, expected[:, ::-1] if mirror else expected)
    if not mirror:
        with av.open(str(turned)) as container:
            assert next(container.decode(video=0)).rotation % 360 == degrees
    head = Read(turned).head
    assert (head.width, head.height) == (expected.shape[1], expected.shape[0])


@pytest.mark.parametrize(("aspect", "size"), [((2, 1), (128, 48)), ((1, 2), (64, 96)), ((8, 9), (64, 54))])
def test_pixels_come_out_square(tmp_path, film, aspect, size):
    def prepare(stream):
        stream.codec_context.sample_aspect_ratio = Fraction(*aspect)

    read = Read(film(tmp_path / "a.mp4", prepare=prepare))
    assert (read.head.width, read.head.height) == size and read.pixels[0].shape == (size[1], size[0], 3)
    assert read.numbers() == list(range(30))


@pytest.mark.parametrize(
    ("codec", "form", "name"),
    [
        ("ffv1", "yuv420p10le", "a.mkv"),
        ("ffv1", "yuv444p16le", "a.mkv"),
        ("libx264", "yuv444p", "a.mp4"),
        ("libx265", "yuv420p10le", "a.mp4"),
        ("prores_ks", "yuv422p10le", "a.mov"),
        ("png", "rgb24", "a.mov"),
        ("gif", "rgb8", "a.gif"),
        ("ffv1", "gray", "a.mkv"),
    ],
)
def test_depths_and_odd_sizes(tmp_path, film, codec, form, name):
    size = (64, 48) if form in ("yuv420p10le", "yuv422p10le") and codec != "ffv1" else (61, 47)
    pts = [i * 4 for i in range(12)] if codec == "gif" else None
    base = Fraction(1, 100) if codec == "gif" else Fraction(1, 90_000)
    path = film(tmp_path / name, list(film_frames(12, size)), pts, codec=codec, pixel_format=form, base=base)
    read = Read(path)
    assert read.pixels[0].shape == (size[1], size[0], 3)
    # a palette of 256 fixed colours has few greys
    tolerance = 20 if codec == "gif" else 3
    assert all(abs(grey - (16 + 7 * i)) <= tolerance for i, grey in enumerate(read.greys)), read.greys


@pytest.mark.parametrize(("matrix", "name"), [(1, "709"), (5, "601")])
@pytest.mark.parametrize("full", [False, True])
def test_colours_follow_the_matrix_and_the_range(tmp_path, matrix, name, full):
    """The right colour by the definition: Y = Kr R + Kg G + Kb B, coded here by hand."""
    red, green, blue = colour = (200, 80, 30)
    kr, kb = {1: (0.2126, 0.0722), 5: (0.299, 0.114)}[matrix]
    y = kr * red + (1 - kr - kb) * green + kb * blue
    cb, cr = (blue - y) / (2 - 2 * kb), (red - y) / (2 - 2 * kr)
    values = (y, 128 + cb, 128 + cr) if full else (16 + y * 219 / 255, 128 + cb * 224 / 255, 128 + cr * 224 / 255)
    path = tmp_path / "a.mkv"
    with av.open(str(path), "w") as out:
        stream = out.add_stream("ffv1", rate=30)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv444p"
        stream.codec_context.colorspace, stream.codec_context.color_range = matrix, 2 if full else 1
        planes = np.stack([np.full((48, 64), round(value), np.uint8) for value in values])
        frame = av.VideoFrame.from_ndarray(planes, format="yuv444p")
        frame.colorspace, frame.color_range, frame.pts = matrix, 2 if full else 1, 0
        out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    found = Read(path).pixels[0][20, 20].astype(int)
    assert np.abs(found - colour).max() <= 3, (name, found)


def test_a_missing_length_is_found_by_reading(tmp_path, film):
    class Pipe(io.RawIOBase):  # no seek, so that the length cannot be written afterwards
        def __init__(self):
            self.raw = b""

        def writable(self):
            return True

        def write(self, data):
            self.raw += bytes(data)
            return len(data)

    pipe = Pipe()
    film(pipe, codec="libvpx", base=MS, form="webm")
    assert Read(pipe.raw).head.duration_us is None
    read = Read(pipe.raw, measured=True)
    assert abs(read.head.duration_us - 1_000_000) < 2000 and read.numbers() == list(range(30))


def test_damage_is_reported_and_the_good_frames_are_kept(tmp_path, film):
    rng = np.random.default_rng(1)
    noisy = [
        np.clip(values.astype(int) + rng.integers(-9, 10, values.shape), 0, 255).astype(np.uint8)
        for values in film_frames(30)
    ]
    path = film(tmp_path / "a.mp4", noisy, options={"g": "10", "bf": "0", "x264-params": "scenecut=0"})
    with av.open(str(path)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
    raw = bytearray(path.read_bytes())
    for packet in packets[12:14]:  # frames 12 and 13, in the middle of the second group
        raw[packet.pos + 5 : packet.pos + packet.size] = bytes(packet.size - 5)
    read = Read(bytes(raw))
    (gap,) = read.gaps
    assert gap.packets >= 1 and gap.start_us <= 433_333 and gap.end_us == 666_667
    unsure = {i for i, frame in enumerate(read.frames) if frame.unsure}
    sure = [(round(frame.time_us * 30 / 1e6), n) for i, (frame, n) in enumerate(zip(read.frames, read.numbers(), strict=True)) if i not in unsure]  # fmt: skip
    assert {time for time, _ in sure} >= {*range(12), *range(20, 30)}
    assert all(time == number for time, number in sure)
    assert "damaged packets between" in str(gap) and gap.frames == len(unsure)


def test_a_file_that_was_cut_off_gives_what_is_there(tmp_path, film):
    path = film(tmp_path / "a.mkv", base=MS)
    raw = path.read_bytes()
    read = Read(raw[: len(raw) * 3 // 4])
    assert 5 <= len(read.frames) < 30 and read.numbers() == [round(time * 30 / 1e6) for time in read.times]
    fast = film(tmp_path / "b.mp4", list(film_frames(30)) * 3, form="mp4", options={"g": "1"}).read_bytes()
    with pytest.raises(DecodeError, match="is not a video that can be read.*moov atom not found"):
        Read(fast[: len(fast) // 2])
    head_first = tmp_path / "c.mp4"
    with (
        av.open(str(head_first), "w", options={"movflags": "faststart"}) as out,
        av.open(io.BytesIO(fast)) as source,
    ):
        stream = out.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                out.mux(packet)
    read = Read(head_first.read_bytes()[: len(head_first.read_bytes()) // 2])
    assert 5 < len(read.frames) < 90 and any("although it says to be 3.000 s long" in note for note in read.notes)


def test_sound_alone_and_what_is_no_video(tmp_path):
    path = tmp_path / "a.mp4"
    with av.open(str(path), "w") as out:
        stream = out.add_stream("aac", rate=16000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.sample_rate, frame.pts = 16000, 0
        out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    with pytest.raises(DecodeError, match="a file: holds no video stream, only audio"):
        Read(path)
    for raw in (b"plain words, and nothing else\n" * 50, b"\x89PNG\r\n\x1a\n" + bytes(200), b"%PDF-1.7" + bytes(99)):
        with pytest.raises(DecodeError, match="a file: (is not a video that can be read|has the form).*expected MP4"):
            Read(raw)


def test_lists_that_would_open_other_files_are_refused(tmp_path, film):
    """FFmpeg's playlists name further files; given as media they would read whatever they name."""
    film(tmp_path / "secret.mp4")
    lists = (
        f"#EXTM3U\n#EXT-X-TARGETDURATION:3\n#EXTINF:2.0,\n{tmp_path}/secret.mp4\n#EXT-X-ENDLIST\n",
        f"ffconcat version 1.0\nfile {tmp_path}/secret.mp4\n",
    )
    for words in lists:
        with pytest.raises(DecodeError, match="a file: (is not a video|has the form 'concat')"):
            Read(words.encode())


def test_limits(tmp_path, film):
    path = film(tmp_path / "a.mp4")
    with pytest.raises(DecodeError, match="frames of 64 x 48 are larger than the limit of 3,071 pixels"):
        Read(path, Limits(max_pixels=3071))
    with pytest.raises(DecodeError, match="is 1 s long, more than the limit of 0 s"):
        Read(path, Limits(max_seconds=0.5))
    with pytest.raises(DecodeError, match="more frames than the limit of 7"):
        Read(path, Limits(max_frames=7))
    with pytest.raises(ConfigError, match="video limit max_frames is 0"):
        Limits(max_frames=0)


def test_another_size_on_the_way_is_scaled_and_time_stamps_that_fall_do_not_turn_time_back(tmp_path, film):
    first = film(tmp_path / "a.ts", list(film_frames(10)))
    second = film(tmp_path / "b.ts", list(film_frames(10, (96, 64))))
    read = Read(first.read_bytes() + second.read_bytes())
    assert {pixels.shape for pixels in read.pixels} == {(48, 64, 3)}
    assert any("another size from" in note for note in read.notes)
    assert read.times == sorted(set(read.times)) and len(read.times) >= 19
    assert any("no usable time" in note for note in read.notes)


def test_frames_at_wanted_times_are_those_that_are_shown_then(tmp_path, film):
    path = film(tmp_path / "a.mp4", list(film_frames(len(UNEVEN))), [time * 90 for time in UNEVEN])
    wanted = [0, 39_999, 40_000, 600_000, 600_001, 4_999_999, 70_000_000]
    read = Read(path, wanted=wanted)
    assert read.numbers() == [max(i for i, t in enumerate(UNEVEN) if t * 1000 <= time) for time in wanted]


@given(
    st.lists(st.one_of(st.none(), st.integers(-(2**40), 2**40)), min_size=1, max_size=30),
    st.fractions(Fraction(1, 10**6), Fraction(1, 10)),
)
def test_times_always_rise_and_good_stamps_are_exact(stamps, base):
    clock = FrameClock(base, None)
    if stamps[0] is None:
        with pytest.raises(ValueError, match="no time stamps"):
            clock.stamp(None, None)
        return
    found = [clock.stamp(stamp, None) for stamp in stamps]
    times = [time for time, _ in found]
    assert times[0] == 0 and all(b > a for a, b in zip(times, times[1:], strict=False))
    for (time, guessed), stamp in zip(found, stamps, strict=True):
        if not guessed:
            assert time == round((stamp - stamps[0]) * base * 1_000_000)


def test_no_frame_waits_for_the_collector_of_cycles(tmp_path, film):
    """A hundred frames of a large video would be gigabytes."""
    raw = film(tmp_path / "a.mp4", prepare=lambda s: s.set_display_rotation(90)).read_bytes()
    reader = Reader(io.BytesIO(raw), "a file", Limits())
    gc.collect()
    gc.disable()
    try:
        most = max(sum(type(o) is av.VideoFrame for o in gc.get_objects()) for _ in reader.frames())
    finally:
        gc.enable()
        reader.close()
    assert 1 <= most <= 8

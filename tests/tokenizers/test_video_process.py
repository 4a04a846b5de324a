"""The child that decodes: what it gives, and that its death, its sleep and its hunger are errors and nothing worse."""

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from watersmeet.core.errors import DecodeError
from watersmeet.tokenizers.video.frames import Limits
from watersmeet.tokenizers.video.process import Video
from watersmeet.tokenizers.video.reader import Reader


@pytest.fixture(scope="module")
def files(tmp_path_factory, film):
    """A folder with one video of each container, 64 x 48, 30 frames."""
    folder = tmp_path_factory.mktemp("films")
    film(folder / "a.mp4", options={"g": "10"})
    film(folder / "a.webm", codec="libvpx", options={"g": "10"})
    film(folder / "a.ts")
    return folder


def descriptors():
    gc.collect()
    return sorted(os.listdir("/proc/self/fd"))


def children():
    """Running or not yet waited for; other tests of the same process may have left some."""
    tasks = Path("/proc/self/task").iterdir()
    return {pid for task in tasks for pid in (task / "children").read_text().split()}


@pytest.fixture(autouse=True)
def nothing_leaks():
    """No descriptor and no child is left behind, whatever a test does."""
    before = descriptors(), children()
    yield
    assert descriptors() == before[0]
    assert children() <= before[1]


def test_the_child_gives_what_reading_here_gives(files):
    path = files / "a.mp4"
    with path.open("rb") as file:
        reader = Reader(file, "x", Limits())
        wanted = [(f.index, f.time_us, f.key, f.pixels.copy()) for f in reader.frames()]
        reader.close()
    for source in (path, str(path), path.read_bytes()):
        with Video(source) as video:
            found = [(f.index, f.time_us, f.key, f.pixels.copy()) for f in video.frames()]
        assert (video.head, video.end_us, video.count) == (reader.head, 1_000_000, 30)
        assert [item[:3] for item in found] == [item[:3] for item in wanted]
        assert all(np.array_equal(a[3], b[3]) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("wanted", [None, [0, 400_000, 900_000]])
def test_half_the_size_is_the_mean_of_two_by_two_pixels(files, wanted):
    with Video(files / "a.mp4") as video:
        whole = [(f.index, f.time_us, f.key, f.pixels.astype(np.float64)) for f in video.frames(wanted)]
    with Video(files / "a.mp4") as video:
        halves = [(f.index, f.time_us, f.key, f.pixels.copy()) for f in video.frames(wanted, halved=True)]
        assert (video.head.width, video.head.height) == (64, 48)
    assert [item[:3] for item in whole] == [item[:3] for item in halves]
    for (*_, full), (*_, half) in zip(whole, halves, strict=True):
        assert half.shape == (24, 32, 3)
        assert np.abs(full.reshape(24, 2, 32, 2, 3).mean((1, 3)) - half).max() <= 0.5


def test_frames_are_views_that_nobody_can_write_to_and_may_outlive_the_video(files):
    with Video(files / "a.mp4") as video:
        frame = next(iter(video.frames()))
        with pytest.raises(ValueError, match="read-only"):
            frame.pixels[0, 0, 0] = 1
    assert frame.pixels.shape == (48, 64, 3) and frame.pixels[0, 0, 0] > 200


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_leaving_early_ends_the_child(files, taken):
    with Video(files / "a.mp4") as video:
        for _, _ in zip(range(taken), video.frames(), strict=False):
            pass
        child = video._child
    assert child.returncode is not None


def test_a_crash_of_the_codec_is_an_error(files):
    with Video(files / "a.mp4") as video:
        frames = video.frames()
        next(frames)
        os.kill(video._child.pid, signal.SIGSEGV)
        with pytest.raises(DecodeError, match=r"a\.mp4: the decoder crashed on it \(SIGSEGV\)"):
            for _ in frames:
                pass


def test_a_decoder_that_stands_still_is_given_up(files):
    with Video(files / "a.mp4", Limits(stall_seconds=20)) as video:
        frames = video.frames()
        next(frames)
        os.kill(video._child.pid, signal.SIGSTOP)
        video.limits = Limits(stall_seconds=0.2)
        with pytest.raises(DecodeError, match=r"a\.mp4: decoding stood still for 0.2 s"):
            for _ in frames:
                pass


def test_a_decoder_that_wants_too_much_is_an_error(tmp_path, film):
    # sixteen references of 3840 x 2160 do not fit beside the libraries
    path = film(tmp_path / "big.mp4", [np.zeros((2160, 3840, 3), np.uint8)] * 2)
    with (
        pytest.raises(DecodeError, match="big.mp4: .*(memory|status|crashed)"),
        Video(path, Limits(max_memory=2**28)) as v,
    ):
        for _ in v.frames():
            pass


def test_processor_time_is_bounded(files):
    with Video(files / "a.mp4", Limits(cpu_seconds=7)) as video:
        frames = video.frames()
        next(frames)
        os.kill(video._child.pid, signal.SIGXCPU)  # what the kernel sends then
        with pytest.raises(DecodeError, match="took more than 7 s of processor time"):
            for _ in frames:
                pass
    code = (
        "import resource; from watersmeet.tokenizers.video.child import limit_process; limit_process(2**31, 7);"
        "print([resource.getrlimit(getattr(resource, n))[0] for n in ('RLIMIT_AS', 'RLIMIT_CPU', 'RLIMIT_CORE')])"
    )
    said = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=300)
    assert said.stdout.strip() == str([2**31, 7, 0]), said.stderr


def test_files_that_are_none(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty.mp4").touch()
    for name, says in (
        ("pipe", "is no ordinary file"),
        ("empty.mp4", r"is empty \(0 bytes\)"),
        ("none.mp4", "No such file"),
        (".", "is a folder"),
    ):
        with pytest.raises(DecodeError, match=says):
            Video(tmp_path / name)
    with pytest.raises(DecodeError, match=r"video of 0 bytes: is empty"):
        Video(b"")
    with pytest.raises(DecodeError, match="video of 5 bytes: is not a video that can be read"):
        Video(b"hello")


def read_or_refuse(raw, measured):
    """Frames of the stated size with rising times, or a DecodeError of one sentence."""
    last = -1
    try:
        with Video(raw, Limits(cpu_seconds=120, max_pixels=10**6), measured=measured) as video:
            for frame in video.frames():
                assert frame.pixels.shape == (video.head.height, video.head.width, 3) and frame.time_us > last
                last = frame.time_us
        assert video.end_us >= last and all(gap.start_us <= gap.end_us for gap in video.gaps)
    except DecodeError as error:
        assert str(error).startswith(f"video of {len(raw):,} bytes: ") and "\n" not in str(error)


@pytest.mark.parametrize("share", [0.02, 0.3, 0.9])
def test_a_file_with_a_hole_is_read_or_refused(files, share):
    raw = bytearray((files / "a.webm").read_bytes())
    start = round(len(raw) * share)
    raw[start : start + 30] = bytes(30)
    read_or_refuse(bytes(raw), share > 0.5)


@pytest.mark.slow
@settings(
    max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)
@given(st.data())
def test_damaged_bytes_are_read_or_refused(files, data):
    """Whatever is overwritten, cut out or cut off."""
    name = data.draw(st.sampled_from(["a.mp4", "a.webm", "a.ts"]))
    raw = bytearray((files / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        start = data.draw(st.integers(0, len(raw) - 1))
        new = data.draw(st.binary(min_size=0, max_size=40))
        raw[start : start + data.draw(st.integers(0, 40))] = new
    if data.draw(st.booleans()):
        del raw[data.draw(st.integers(1, len(raw))) :]
    read_or_refuse(bytes(raw), data.draw(st.booleans()))

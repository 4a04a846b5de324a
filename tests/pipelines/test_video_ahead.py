"""Frames that are decoded ahead are those of the file, come in order, and leave nothing behind, whatever goes wrong."""

import os
import signal
import tempfile
import threading
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest

from watersmeet.core.errors import DecodeError
from watersmeet.pipelines.video_to_spec import ahead
from watersmeet.pipelines.video_to_spec.ahead import Ahead
from watersmeet.pipelines.video_to_spec.keyframes import frames_of
from watersmeet.plugins.registry import get_registry

COUNT = 24
TIMES = tuple(i * 40_000 + (i % 3) * 9_000 for i in range(COUNT))


@pytest.fixture(scope="module")
def video(tmp_path_factory, film):
    """Each frame has a brightness of its own."""
    pixels = [np.full((120, 160, 3), 10 * i, np.uint8) for i in range(COUNT)]
    return film(tmp_path_factory.mktemp("video") / "a.mp4", pixels, TIMES, base=Fraction(1, 1_000_000))


@pytest.fixture
def encoder():
    return get_registry().encoder("video", {})


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = threading.active_count()
    yield
    assert not list(tmp_path.iterdir()) and threading.active_count() == before


def sight(*frames):
    """A recording with one turn whose moments are these frames."""
    moments = [SimpleNamespace(frame=i) for i in frames]
    return SimpleNamespace(times_us=TIMES, turns=[SimpleNamespace(observed=SimpleNamespace(moments=moments))])


def taken(frames, times_s):
    with frames(times_s) as frame_at:
        return [np.asarray(frame_at(t_s)) for t_s in times_s]


@pytest.mark.parametrize(
    ("times_s", "decoded"),
    [
        ([TIMES[2] / 1e6, TIMES[5] / 1e6], 1),
        ([(TIMES[5] + 20_000) / 1e6, TIMES[20] / 1e6], 1),  # what is shown then began earlier
        ([TIMES[2] / 1e6, TIMES[3] / 1e6], 2),  # one that no turn names
        ([], 1),
    ],
)
def test_frames_are_those_of_a_later_pass(video, encoder, times_s, decoded, monkeypatch):
    opened = []
    plain = type(encoder).video
    monkeypatch.setattr(type(encoder), "video", lambda self, item: opened.append(item) or plain(self, item))
    with Ahead(encoder, video, sight(20, 2, 5, 2)) as one:
        found = taken(one.frames, times_s)
    assert len(opened) == decoded
    expected = taken(lambda times: frames_of(encoder, video, times), times_s)
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True)) and len(found) == len(times_s)


def test_of_too_many_none_are_kept(video, encoder, monkeypatch):
    monkeypatch.setattr(ahead, "MOST", 2)
    with Ahead(encoder, video, sight(2, 5, 20)) as one:
        assert one.numbers == ()
        found = taken(one.frames, [TIMES[5] / 1e6])
    assert abs(int(found[0].mean()) - 50) <= 3


def test_a_file_that_fails_says_so_when_a_frame_is_asked_for(tmp_path_factory, encoder):
    path = tmp_path_factory.mktemp("bad") / "a.mp4"
    path.write_bytes(b"no video")
    with Ahead(encoder, path, sight(2, 5)) as one, pytest.raises(DecodeError, match="is not a video"):
        taken(one.frames, [TIMES[2] / 1e6])
    # nobody asked: nothing to say
    with Ahead(encoder, path, sight(2, 5)):
        pass


def test_it_does_not_wait_for_a_frame_that_does_not_come(video, encoder, monkeypatch):
    """The child stands still behind the first frame; only its end can end the thread that waits for the second."""
    real = type(encoder).video
    reached = threading.Event()

    class Slow:
        def __init__(self, inner):
            self.inner = inner

        def __enter__(self):
            return self

        def __exit__(self, *reason):
            self.inner.close()

        def abort(self):
            self.inner.abort()

        def frames(self, times):
            found = self.inner.frames(times)
            yield next(found)
            os.kill(self.inner._child.pid, signal.SIGSTOP)
            reached.set()
            yield from found

    monkeypatch.setattr(type(encoder), "video", lambda self, item: Slow(real(self, item)))
    with Ahead(encoder, video, sight(*range(COUNT))):
        assert reached.wait(20)


def test_whatever_fails_beside_it_ends_it(video, encoder):
    with pytest.raises(KeyError), Ahead(encoder, video, sight(*range(COUNT))):
        raise KeyError("the model failed")

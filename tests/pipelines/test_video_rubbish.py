"""Inputs that are no recordings, and recordings of nothing, through the command line: one sentence or a specification, and nothing
half-written."""

import json
import struct

import av
import numpy as np
import pytest
from PIL import Image

from watersmeet.__main__ import main
from watersmeet.pipelines.video_to_spec.spec import read_spec


def grey(count, size=(160, 120)):
    return [np.full((size[1], size[0], 3), 3 * i, np.uint8) for i in range(count)]


def sound(path):
    with av.open(str(path), "w", format="mp4") as out:
        stream = out.add_stream("aac", rate=44_100)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 44_100
        for i in range(20):
            frame.pts = 1024 * i
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))


def huge(path, film):
    """A header that promises frames of 60,000 x 60,000 px."""
    film(path, grey(3), codec="rawvideo", form="avi")
    raw = bytearray(path.read_bytes())
    at = raw.index(b"strf") + 8
    assert struct.unpack_from("<ii", raw, at + 4) == (160, 120)
    struct.pack_into("<ii", raw, at + 4, 60_000, 60_000)
    path.write_bytes(raw)


def cut(path, film):
    film(path, grey(30))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


RUBBISH = {
    "text": (lambda path, film: path.write_text("hello\n" * 100), "is not a video that can be read"),
    "empty": (lambda path, film: path.write_bytes(b""), "is empty (0 bytes)"),
    "sound": (lambda path, film: sound(path), "holds no video stream, only audio"),
    "picture": (lambda path, film: Image.new("RGB", (160, 120), "red").save(path, "PNG"), "has the form 'png_pipe'"),
    "cut off": (cut, "is not a video that can be read"),
    "folder": (lambda path, film: path.mkdir(), "is a folder, expected a video file"),
    "missing": (lambda path, film: None, "there is no file"),
    "huge": (huge, "holds no frame that can be decoded"),
}


def run(path, out, url, capsys):
    code = main(["run", "video-to-spec", str(path), "--out", str(out), "--model", f"openai:big@{url}"])
    return code, capsys.readouterr()


@pytest.mark.parametrize("kind", RUBBISH)
def test_rubbish_is_one_sentence_and_leaves_nothing(kind, film, serve, tmp_path, capsys):
    make, says = RUBBISH[kind]
    path = tmp_path / "in.mp4"
    make(path, film)
    before = sorted(tmp_path.iterdir())
    url, asked = serve(500, b"")
    code, said = run(path, tmp_path / "deep" / "out", url, capsys)
    *told, sentence = said.err.strip().splitlines()
    assert code in (1, 2) and said.out == "" and says in sentence and "in.mp4" in sentence
    assert not any("watersmeet:" in line or "Traceback" in line for line in told)
    assert sorted(tmp_path.iterdir()) == before and asked == []


def noise(count):
    draw = np.random.default_rng(1)
    return [draw.integers(0, 256, (120, 160, 3), dtype=np.uint8) for _ in range(count)]


@pytest.mark.parametrize("pixels", [grey(1), noise(30)], ids=["one frame", "noise"])
def test_a_recording_of_nothing_is_its_one_screen(pixels, film, serve, tmp_path, capsys):
    film(tmp_path / "in.mp4", pixels)
    answer = json.dumps({"screens": [{"id": "a", "title": "Noise", "first_seen_s": 0.0}], "steps": []})
    url, _ = serve(200, {"choices": [{"message": {"content": answer}}]})
    code, said = run(tmp_path / "in.mp4", tmp_path / "out", url, capsys)
    assert code == 0, said.err
    spec = read_spec(tmp_path / "out/spec.json")
    assert spec.source.frames == len(pixels) and [one.title for one in spec.screens] == ["Noise"] and not spec.steps

"""`watersmeet bench video-to-spec`: one table of readers, going on after a stop, and what is refused."""

import json
from dataclasses import asdict
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest

from watersmeet.__main__ import main
from watersmeet.core.errors import DecodeError
from watersmeet.pipelines.video_to_spec import bench
from watersmeet.pipelines.video_to_spec.score import Counts
from watersmeet.pipelines.video_to_spec.spec import Evidence, Screen, Source, Spec, Step, read_spec
from watersmeet.pipelines.video_to_spec.truth import Truth, write_truth

RATE, FRAMES = 10, 60
TIMES = tuple(round(i * 1e6 / RATE) for i in range(FRAMES))


def spec_of(name, *frames, action="click"):
    steps = tuple(
        Step(
            index=i + 1, start_s=TIMES[frame] / 1e6, end_s=TIMES[frame] / 1e6, action=action, target="Save", text=None,
            box=None, from_screen="s1", to_screen="s1", evidence=(Evidence(t_s=TIMES[frame] / 1e6, frame=frame),),
            confidence=1.0,
        )
        for i, frame in enumerate(frames)
    )  # fmt: skip
    source = Source(path=name, duration_s=FRAMES / RATE, frames=FRAMES, width=64, height=48)
    screen = Screen(id="s1", title="One", first_seen_s=0.0, thumbnail="frames/s1.png")
    return Spec(source=source, screens=(screen,), steps=steps, features=(), patterns=(), open_questions=())


@pytest.fixture
def data(tmp_path, film):
    """Three recordings: grey until 2 s, then white; a click at 1.9 s, and in two of them another one that shows nothing."""
    folder = tmp_path / "data"
    folder.mkdir()
    for name, frames, variations in (
        ("a", (19,), ("busy",)),
        ("b", (19, 50), ()),
        ("c", (19, 50), ("busy", "spinner")),
    ):
        pixels = [np.full((48, 64, 3), 40 if i < 20 else 240, np.uint8) for i in range(FRAMES)]
        film(folder / f"{name}.mp4", pixels, TIMES, base=Fraction(1, 1_000_000))
        truth = Truth(
            spec=spec_of(f"{name}.mp4", *frames), times_us=TIMES, shown=(), cursor=True, variations=variations,
            pages=("generated",), split="val", seed=1,
        )  # fmt: skip
        write_truth(truth, folder / f"{name}.json")
    (folder / "d.json").write_text("{}")  # one that is being written
    return folder


@pytest.fixture
def model(monkeypatch):
    """A reader that finds every step but for what `found` says, and nothing without its picture; counts what is asked of it."""
    calls = SimpleNamespace(watched=[], asked=[], found={})

    def watch(path, encoders, progress):
        calls.watched.append(path.stem)
        if isinstance(calls.found.get(path.stem), Exception):
            raise calls.found[path.stem]
        return SimpleNamespace(name=path.stem)

    def ask_steps(model, sight, *, blank=False, max_tokens=48, progress):
        calls.asked.append((sight.name, blank))
        frames = () if blank else calls.found.get(sight.name, (19, 50))
        return SimpleNamespace(spec=spec_of(f"{sight.name}.mp4", *frames), warnings=())

    monkeypatch.setattr(bench, "watch", watch)
    monkeypatch.setattr(bench, "ask_steps", ask_steps)
    monkeypatch.setattr(bench, "encoders_of", lambda model: {})
    monkeypatch.setattr(bench, "load_local", lambda name: name)
    monkeypatch.setattr(bench, "model_state", lambda name: f"state of {name}")
    return calls


def test_readers_are_scored_by_their_sums(data, model, tmp_path):
    out = tmp_path / "out"
    model.found = {"a": (19,), "c": DecodeError("c is damaged")}
    text = bench.run(models=["ours"], data=data, out_dir=out, blank=True)
    table = json.loads((out / "table.json").read_text())
    assert list(table["readers"]) == [bench.NAIVE, "ours", "ours, picture blanked"]
    assert (table["recordings"], table["true_steps"]) == (3, 5)
    ours, naive, blank = (table["readers"][name] for name in ("ours", bench.NAIVE, "ours, picture blanked"))
    # 3 of 3 found and of 5 true steps; what failed counts as nothing found
    assert ours["step_f1"] == ours["whole"] == pytest.approx(6 / 8) and ours["failures"] == blank["failures"] == 1
    assert ours["screens_exact"] == pytest.approx(2 / 3) and ours["start_error_s"] == 0.0
    # one step of each, 0.1 s late and without the target
    assert naive["step_f1"] == pytest.approx(6 / 8) and naive["whole"] == 0.0
    assert naive["start_error_s"] == pytest.approx(0.1) and naive["unproven"] == 0
    assert blank["step_f1"] == 0.0
    assert table["variations"]["busy"]["readers"]["ours"]["step_f1"] == pytest.approx(2 * 1 / (3 + 1))
    assert table["variations"]["spinner"]["recordings"] == 1
    assert (
        "| ours | 0.75 | 0.75 | 1.00 |" in text
        and "ours failed on 1." in text
        and text == (out / "table.md").read_text()
    )
    # what is seen is seen once for both
    assert model.watched == ["a", "b", "c"] and model.asked == [(n, b) for n in "ab" for b in (False, True)]
    assert len(read_spec(out / "specs/ours/b.json").steps) == 2
    assert (out / "specs/ours-picture-blanked/b.json").is_file()


def test_a_run_goes_on_where_it_was_stopped(data, model, tmp_path):
    out = tmp_path / "out"
    options = {"models": ["ours"], "data": data, "out_dir": out, "with_baseline": False}
    text = bench.run(**options)
    assert len(model.watched) == 3 and list(json.loads((out / "table.json").read_text())["readers"]) == ["ours"]
    assert bench.run(**options) == text and len(model.watched) == 3
    lines = (out / "rows.jsonl").read_text().splitlines()
    (out / "rows.jsonl").write_text("\n".join([*lines[:2], lines[2][:30]]))
    again = bench.run(**options)
    assert again.split("|")[3:5] == text.split("|")[3:5] and model.watched[3:] == ["b", "c"]
    bench.run(**options | {"blank": True})
    assert len(model.watched) == 8
    bench.run(**options | {"limit": 1})
    assert len(model.watched) == 9


def test_rows_are_read_as_they_were_written():
    row = bench.Row(
        recording="a", reader="r", counts=Counts(matched=2, late_s=0.5), seconds=1.5, length_s=6.0, variations=("busy",)
    )
    assert bench.Row.of(json.loads(json.dumps(asdict(row)))) == row


def test_what_is_missing_is_said(tmp_path, capsys):
    words = ["bench", "video-to-spec", "--data", str(tmp_path), "--out", str(tmp_path / "out")]
    assert main(words) == 2
    assert "no recordings with their truth" in (said := capsys.readouterr().err) and "data recordings" in said
    assert main([*words, "--model", "nano", "--model", "nano"]) == 2
    assert "--model names nano twice" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()

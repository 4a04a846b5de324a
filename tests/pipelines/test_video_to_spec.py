"""`run video-to-spec` around its model: files, key frames, large models and their answers, errors. What plain code sees and what
our own model says are given here; both have tests of their own."""

import base64
import io
import json
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import watersmeet
from watersmeet.core.errors import DecodeError, RemoteError, UsageError
from watersmeet.core.geometry import Box
from watersmeet.pipelines.models.asked import AskedModel
from watersmeet.pipelines.models.local import LocalModel
from watersmeet.pipelines.models.remote import RemoteModel
from watersmeet.pipelines.video_to_spec import keyframes, markup, pipeline
from watersmeet.pipelines.video_to_spec.plugin import register_pipelines
from watersmeet.pipelines.video_to_spec.spec import Evidence, Screen, Source, Spec, Step, read_spec
from watersmeet.pipelines.video_to_spec.truth import Shown, Truth, write_truth
from watersmeet.pipelines.video_to_spec.watch.sight import Sight
from watersmeet.plugins.registry import get_registry

COUNT, SIZE = 40, (320, 240)
TIMES = tuple(i * 33_000 + (i % 3) * 7_000 for i in range(COUNT))  # uneven: number over rate is no time
SOURCE = Source(path="demo.mp4", duration_s=1.4, frames=COUNT, width=SIZE[0], height=SIZE[1])
CHANGE = 12  # the frame from which another colour is shown


@pytest.fixture(scope="module")
def video(tmp_path_factory, film):
    """Grey at first; from frame 12 on white, and red in a corner."""
    pixels = [np.full((SIZE[1], SIZE[0], 3), 250 if i >= CHANGE else 90, np.uint8) for i in range(COUNT)]
    for picture in pixels[CHANGE:]:
        picture[:100, :100] = 220, 20, 20
    return film(tmp_path_factory.mktemp("video") / "demo.mp4", pixels, TIMES, base=Fraction(1, 1_000_000))


def turn(first, last):
    """A change with its press at frame `first`, its end at frame `last`, and another change before."""
    moments = [SimpleNamespace(frame=i, time_us=TIMES[i]) for i in (first, (first + last) // 2, last, 0)]
    patches = SimpleNamespace(time_us=np.zeros(7))
    save = SimpleNamespace(text="Save “all”", box=Box(x0=10, y0=20, x1=90, y1=40))
    return SimpleNamespace(
        observed=SimpleNamespace(moments=moments),
        patches=patches,
        areas=(Box(x0=0, y0=0, x1=100, y1=100),),
        under=(save,),
        before=(save,),
        after=(),
    )


def sight_of(*turns, notes=(), source=SOURCE):
    return Sight(source=source, times_us=TIMES, turns=turns, notes=notes, pointer=True)


def test_times_are_those_of_the_file(video):
    with get_registry().encoder("video", {}).video(video) as opened:
        assert tuple(frame.time_us for frame in opened.frames()) == TIMES


@pytest.fixture
def seen(monkeypatch, video):
    """What plain code sees of the recording."""

    def look(path, *, encoders, progress):
        assert {"video", "regions"} <= set(encoders)
        progress(1.0)
        source = Source(**{**vars(SOURCE), "path": str(path)})
        return sight_of(turn(CHANGE - 2, CHANGE), notes=("the end is missing",), source=source)

    monkeypatch.setattr(pipeline, "look", look)
    return video


def cite(frame):
    return Evidence(t_s=TIMES[frame] / 1e6, frame=frame)


def spec_of(source, *, steps=True):
    screen = Screen(id="s1", title="Grey", first_seen_s=0.0, thumbnail="frames/s1.png")
    step = Step(
        index=1,
        start_s=TIMES[CHANGE - 1] / 1e6,
        end_s=TIMES[CHANGE] / 1e6,
        action="click",
        target="Save",
        text=None,
        box=(10.0, 20.0, 90.0, 40.0),
        from_screen="s1",
        to_screen="s1",
        evidence=(cite(CHANGE - 1), cite(CHANGE)),
        confidence=0.9,
    )
    return Spec(
        source=source, screens=(screen,), steps=(step,) if steps else (), features=(), patterns=(), open_questions=()
    )


@pytest.fixture
def own(monkeypatch):
    """A model that says what `own.says` is, whatever it sees."""
    registry = get_registry()
    symbols = {name: i for i, name in enumerate(markup.symbols())}
    encoders = {name: registry.encoder(name, {}) for name in ("video", "regions")}
    encoders["text"] = SimpleNamespace(symbols=symbols, settings={})
    model = LocalModel(
        name="own", model=SimpleNamespace(config=SimpleNamespace(output_modality="text")), encoders=encoders, recipe={}
    )
    said = SimpleNamespace(model=model, says=lambda sight: spec_of(sight.source), asked=[])

    def ask_steps(model, sight, *, blank=False, max_tokens=48, progress):
        said.asked.append((model, max_tokens, blank))
        progress(1.0)
        return SimpleNamespace(spec=said.says(sight), warnings=("one symbol was dropped",), read=90, written=10)

    monkeypatch.setattr(pipeline, "ask_steps", ask_steps)
    return said


def run(path, model, out, **settings):
    told = []
    result = pipeline.VideoToSpec(settings).run([path], model, out, lambda what, share: told.append((what, share)))
    shares = [share for _, share in told]
    assert shares == sorted(shares) and shares[-1] == 1.0
    assert {str(p.relative_to(out)) for p in out.rglob("*") if p.is_file()} == set(result.files)
    assert sorted(p.name for p in out.parent.iterdir()) == [out.name]
    return result


def test_all_is_written_and_frames_are_those_of_their_times(seen, own, tmp_path):
    result = run(seen, own.model, tmp_path / "out", max_tokens=99)
    assert own.asked == [(own.model, 99, False)]
    spec = read_spec(tmp_path / "out/spec.json")
    assert spec == spec_of(SOURCE) and spec.source.path == "demo.mp4"
    record = json.loads((tmp_path / "out/scores.json").read_text())
    assert (record["frames"], record["tokens"]) == (COUNT, {"patches": 7, "stream": 100, "written": 10})
    assert {"report.html", "spec.md", "spec.json", "flow.spec.ts", "scores.json", "frames/s1.png"} <= set(result.files)
    assert result.files[0] == "report.html" and "1 screens, 1 steps" in result.summary
    assert result.warnings == ("the end is missing", "one symbol was dropped") and result.scores == {}
    grey = Image.open(tmp_path / f"out/frames/frame-{CHANGE - 1:06d}.png").convert("RGB")
    white = Image.open(tmp_path / f"out/frames/frame-{CHANGE:06d}.png").convert("RGB")
    assert grey.size == white.size == SIZE
    for picture, colour in ((grey, (90, 90, 90)), (white, (250, 250, 250))):
        assert np.abs(np.asarray(picture.getpixel((300, 200))) - colour).max() < 6


def test_a_recording_without_a_step_is_its_one_screen(seen, own, tmp_path):
    own.says = lambda sight: spec_of(sight.source, steps=False)
    run(seen, own.model, tmp_path / "out")
    spec = read_spec(tmp_path / "out/spec.json")
    assert len(spec.screens) == 1 and not spec.steps


def test_a_failure_leaves_nothing_behind(seen, own, tmp_path, monkeypatch):
    def fail(sight):
        raise DecodeError("no")

    own.says = fail
    with pytest.raises(DecodeError, match="no"):
        run(seen, own.model, tmp_path / "deep/out")
    assert list(tmp_path.iterdir()) == []


def test_the_truth_scores_it(seen, own, tmp_path):
    truth = Truth(
        spec=spec_of(SOURCE), times_us=TIMES, shown=(Shown(kind="dropdown", start_s=0.1, end_s=0.4),), cursor=True,
        variations=(), pages=("generated",), split="val", seed=1,
    )  # fmt: skip
    write_truth(truth, tmp_path / "truth.json")
    own.says = lambda sight: spec_of(sight.source)
    (tmp_path / "a").mkdir()
    result = run(seen, own.model, tmp_path / "a/out", truth=str(tmp_path / "truth.json"))
    assert result.scores == {
        "step_f1": 1.0, "whole": 1.0, "action": 1.0, "target": 1.0, "typed": None, "screens_exact": 1.0, "dropdowns": 0.0
    }  # fmt: skip
    assert json.loads((tmp_path / "a/out/scores.json").read_text())["scores"]["start_error_s"] == 0.0
    short = Truth(
        **{**vars(truth), "times_us": TIMES[:-1], "spec": spec_of(Source(**{**vars(SOURCE), "frames": COUNT - 1}))}
    )
    write_truth(short, tmp_path / "other.json")
    with pytest.raises(UsageError, match=r"recording of 39 frames, but this one has 40"):
        run(seen, own.model, tmp_path / "a/b", truth=str(tmp_path / "other.json"))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"max_token": 3}, "no setting 'max_token'; did you mean 'max_tokens'"),
        ({"max_tokens": 3}, "max_tokens is 3, expected at least 16"),
        ({"key_frames": "many"}, "key_frames is 'many', expected a whole number"),
        ({"target": "html"}, "no setting 'target'"),
    ],
)
def test_wrong_settings_are_named(settings, says):
    with pytest.raises(UsageError, match=says):
        pipeline.VideoToSpec(settings)


def test_a_model_that_cannot_do_it_is_refused_before_anything_is_read(seen, own, tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "look", lambda *a, **k: pytest.fail("the recording was read"))
    own.model.encoders["text"].symbols.pop("<do-hover>")
    with pytest.raises(
        UsageError, match=r"'own' has no symbol <do-hover> in its vocabulary.*; give a model that was taught"
    ):
        run(seen, own.model, tmp_path / "out")
    del own.model.encoders["video"]
    with pytest.raises(
        UsageError, match=r"'own' has no video modality, which video-to-spec needs; it has regions, text"
    ):
        run(seen, own.model, tmp_path / "out")
    with pytest.raises(UsageError, match="one recording, 2 were given"):
        pipeline.VideoToSpec().run([seen, seen], own.model, tmp_path / "out", print)


def test_it_is_for_what_the_video_modality_reads():
    (spec,) = register_pipelines()
    assert spec.inputs == get_registry().modality("video").media_types


# ---- large models --------------------------------------------------------------------------------------------------


def answered(content):
    return {"choices": [{"message": {"role": "assistant", "content": content}}]}


def claim(frame):
    return {"t_s": round(TIMES[frame] / 1e6, 3), "frame": frame}


def good(**other):
    step = {
        "start_s": 0.4, "end_s": 0.5, "action": "click", "target": "Save", "text": None, "box": [10, 20, 90, 40],
        "from_screen": "a", "to_screen": "b", "evidence": [claim(CHANGE - 2), claim(CHANGE)], "confidence": 0.8,
    }  # fmt: skip
    screens = [
        {"id": "a", "title": "Grey", "first_seen_s": 0},
        {"id": "b", "title": "White", "first_seen_s": claim(CHANGE)["t_s"]},
    ]
    return {"screens": screens, "steps": [step], "features": [], "patterns": [], "open_questions": []} | other


def test_key_frames_go_to_a_server_and_its_answer_is_written(seen, serve, tmp_path):
    url, requests = serve(200, answered(json.dumps(good())))
    result = run(seen, RemoteModel(name="big", url=url), tmp_path / "out")
    spec = read_spec(tmp_path / "out/spec.json")
    assert [one.title for one in spec.screens] == ["Grey", "White"] and spec.steps[0].box == (10, 20, 90, 40)
    assert spec.steps[0].evidence == (cite(CHANGE - 2), cite(CHANGE)) and spec.source == SOURCE
    assert result.scores == {"proven": 1.0} and result.warnings == ("the end is missing",)
    assert json.loads((tmp_path / "out/scores.json").read_text())["claims"] == {
        "claims": 3, "kept": 3, "invented": 0, "dropped": 0, "mended": 0
    }  # fmt: skip
    [(_, body)] = requests
    content = body["messages"][0]["content"]
    assert [part["type"] for part in content] == ["text", "image_url"] * 3 + ["text"]
    lines = [part["text"] for part in content[:-1:2]]
    assert lines[0] == "Frame 0, 0.000 s"
    assert lines[1] == f"Frame {CHANGE - 2}, {TIMES[CHANGE - 2] / 1e6:.3f} s"
    assert lines[2].endswith("; changed since the frame above: [0, 0, 100, 100]")
    shown = [
        Image.open(io.BytesIO(base64.b64decode(part["image_url"]["url"].split(",")[1]))) for part in content[1:-1:2]
    ]
    assert [picture.getpixel((300, 200))[0] > 200 for picture in shown] == [False, False, True]
    schema = body["response_format"]["json_schema"]["schema"]
    assert json.dumps(schema, separators=(",", ":")) in content[-1]["text"]
    assert "source" not in schema["properties"] and "index" not in schema["$defs"]["Step"]["properties"]


def test_it_runs_from_python(seen, serve, tmp_path):
    url, _ = serve(200, answered(json.dumps(good())))
    engine = watersmeet.load(f"openai:big@{url}")
    result = engine.run("video-to-spec", video=seen, out=tmp_path / "out", key_frames=1)
    assert "1 of 1 changes were not shown to the model (see --set key_frames)" in result.warnings
    assert read_spec(tmp_path / "out/spec.json").source.path == "demo.mp4"


def test_the_answer_fits_the_schema_that_was_asked_for():
    import jsonschema

    from watersmeet.pipelines.video_to_spec.server import answer_schema

    jsonschema.Draft202012Validator.check_schema(answer_schema())
    jsonschema.validate(good(), answer_schema())
    assert not jsonschema.Draft202012Validator(answer_schema()).is_valid(good(steps=[{}]))


def test_large_pictures_are_shown_smaller_and_boxes_come_back(seen, serve, tmp_path, monkeypatch):
    monkeypatch.setattr(keyframes, "LONGEST_SIDE", 160)
    url, requests = serve(200, answered(json.dumps(good())))
    run(seen, RemoteModel(name="big", url=url), tmp_path / "out")
    content = requests[0][1]["messages"][0]["content"]
    assert Image.open(io.BytesIO(base64.b64decode(content[1]["image_url"]["url"].split(",")[1]))).size == (160, 120)
    assert "[0, 0, 50, 50]" in content[4]["text"] and "160 x 120" in content[-1]["text"]
    assert read_spec(tmp_path / "out/spec.json").steps[0].box == (20, 40, 180, 80)


def test_invented_frames_are_dropped_counted_and_told(seen, serve, tmp_path):
    invented = [{"t_s": 0.4, "frame": 4000}], [{"t_s": 77.0, "frame": 3}], [{"t_s": 0.005, "frame": 1}]
    steps = [good()["steps"][0] | {"evidence": list(proof)} for proof in invented]
    text = f"Sure, here it is:\n```json\n{json.dumps(good(steps=[*good()['steps'], *steps]))}\n```\nGood luck!"
    url, _ = serve(200, answered(text))
    result = run(seen, RemoteModel(name="big", url=url), tmp_path / "out")
    assert result.scores == {"proven": 0.5}
    assert any("cite a time or a frame" in w and "3 (steps[1], steps[2], steps[3])" in w for w in result.warnings)
    assert len(read_spec(tmp_path / "out/spec.json").steps) == 1


def test_what_the_model_was_not_shown_is_told(seen, serve, tmp_path):
    url, _ = serve(200, answered(json.dumps(good(patterns=[
        {"name": "toast", "description": "A note.", "evidence": [claim(30)]}
    ]))))  # fmt: skip
    result = run(seen, RemoteModel(name="big", url=url), tmp_path / "out")
    assert "1 claims of the model cite frames of the recording that it was not shown" in result.warnings


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (
            200,
            answered("I cannot see videos."),
            "'big' at http.* answered without a specification; it begins 'I cannot",
        ),
        (200, answered("{}"), "without a specification"),
        (200, answered(""), "answered without text"),
        (500, b"boom", "answered 500"),
    ],
)
def test_a_server_without_an_answer_is_one_sentence_and_nothing_is_left(seen, serve, tmp_path, status, body, says):
    url, _ = serve(status, body)
    with pytest.raises(RemoteError, match=says) as caught:
        run(seen, RemoteModel(name="big", url=url), tmp_path / "out")
    assert "\n" not in str(caught.value) and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("sees", [False, True])
def test_a_local_model_that_talks_is_asked_in_words(sees, seen, own, tmp_path, monkeypatch):
    own.model.encoders["text"].settings["tokenizer"] = "tiktoken"
    if sees:
        own.model.encoders["image"] = None
    asked = []

    def ask_parts(self, parts, *, max_tokens, schema):
        asked.append((self.sees, parts, max_tokens))
        return json.dumps(good())

    monkeypatch.setattr(AskedModel, "ask_parts", ask_parts)
    result = run(seen, own.model, tmp_path / "out", max_answer=777)
    [(saw, parts, most)] = asked
    assert saw is sees and most == 777 and result.scores == {"proven": 1.0} and own.asked == []
    assert [isinstance(part, str) for part in parts] == ([True, False] * 3 + [True] if sees else [True] * 4)
    # what was read is told to who cannot read it
    assert ('"Save “all”" [10, 20, 90, 40]' in parts[2 if sees else 1]) is not sees


HOSTILE = [
    json.dumps(good()).replace("0.4", "1e999"),
    json.dumps(good()).replace("0.8", "NaN"),
    json.dumps(good()).replace('"frame": 12', f'"frame": {"9" * 6000}'),
    json.dumps(good(screens=[{"id": "\ud800", "title": "\0\ud800", "first_seen_s": 0}])),
    json.dumps({"screens": 1, "steps": {"a": []}, "features": "x", "patterns": [None], "open_questions": [[]]}),
    json.dumps(good(steps=[good()["steps"][0] | {"target": "<script>" * 900, "box": [1e308, 1, 2, 3]}])),
]


@pytest.mark.parametrize("text", HOSTILE)
def test_whatever_a_server_answers_what_is_written_can_be_read(text, seen, serve, tmp_path):
    url, _ = serve(200, answered(text))
    result = run(seen, RemoteModel(name="big", url=url), tmp_path / "out")
    assert read_spec(tmp_path / "out/spec.json").screens and len(result.warnings) > 1
    assert "<script>" not in (tmp_path / "out/report.html").read_text("utf-8")


@given(st.lists(st.tuples(st.integers(0, COUNT - 2), st.integers(1, 6)), max_size=30), st.integers(1, 20))
def test_chosen_frames_are_few_in_order_and_spread(spans, most):
    turns = [turn(first, min(COUNT - 1, first + length)) for first, length in sorted(spans)]
    chosen = keyframes.choose(sight_of(*turns), most)
    numbers = [one.frame for one in chosen.frames]
    assert numbers == sorted(set(numbers)) and numbers[0] == 0 and len(numbers) <= most
    assert all(one.time_us == TIMES[one.frame] for one in chosen.frames)
    # the ends come first
    before, after = ([one.observed.moments[i].frame for one in turns] for i in (0, 2))
    assert sum(frame not in numbers for frame in after) <= chosen.left_out
    if len({0, *after}) <= most:
        assert chosen.left_out == 0
        assert len(numbers) == min(most, len({0, *before, *after}))
    for one in chosen.frames:
        assert bool(one.changed) == (one.frame in after) and (not one.read or one.frame in before)

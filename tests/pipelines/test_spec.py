"""The specification's types, the published schema, reading and writing, and the scores."""

import itertools
import json
import re
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from watersmeet.core.errors import DecodeError
from watersmeet.pipelines.video_to_spec import baseline, score
from watersmeet.pipelines.video_to_spec import spec as module
from watersmeet.pipelines.video_to_spec.spec import Claim, Evidence, Screen, Source, Spec, Step
from watersmeet.pipelines.video_to_spec.truth import Shown, Truth, read_truth, write_truth

RATE, FRAMES = 30, 900
TIMES = tuple(round(i * 1_000_000 / RATE) for i in range(FRAMES))
SOURCE = Source(path="demo.mp4", duration_s=30.0, frames=FRAMES, width=640, height=360)
SCREENS = (
    Screen(id="s1", title="Orders", first_seen_s=0.0, thumbnail="frames/s1.png"),
    Screen(id="s2", title="New order", first_seen_s=TIMES[90] / 1e6, thumbnail="frames/s2.png"),
)


def cite(frame):
    return Evidence(t_s=TIMES[frame] / 1e6, frame=frame)


def step(index, frame, action="click", target="Save", text=None, **other):
    values = {
        "start_s": TIMES[frame] / 1e6,
        "end_s": TIMES[min(frame + 6, FRAMES - 1)] / 1e6,
        "box": (10.0, 20.0, 110.0, 52.0),
        "from_screen": "s1",
        "to_screen": "s1",
        "evidence": (cite(frame),),
        "confidence": 1.0,
    }
    return Step(index=index, action=action, target=target, text=text, **(values | other))


def spec(*steps, screens=SCREENS, patterns=()):
    return Spec(source=SOURCE, screens=screens, steps=steps, features=(), patterns=patterns, open_questions=())


def truth(made, **other):
    values = {"shown": (), "cursor": True, "variations": (), "pages": ("generated",), "split": "train", "seed": 1}
    return Truth(spec=made, times_us=TIMES, **(values | other))


FULL = Spec(
    source=SOURCE,
    screens=SCREENS,
    steps=(
        step(1, 30, "type", "Name", "Ünal \N{BULLET}\N{BULLET} <b>"),
        step(2, 90, to_screen="s2", evidence=(cite(90), cite(96))),
        step(3, 200, "key", None, "Escape", from_screen="s2", to_screen="s2", box=None),
    ),
    features=(Claim(name="Orders", description="Orders can be added.", evidence=(cite(90),)),),
    patterns=(Claim(name="toast", description="A note comes and goes.", evidence=(cite(120), cite(130))),),
    open_questions=("Step 2 at 3.0 s: a click or a key?",),
)


def test_a_specification_is_read_as_it_was_written(tmp_path):
    module.write_spec(FULL, tmp_path / "spec.json")
    assert module.read_spec(tmp_path / "spec.json") == FULL
    plain = json.loads((tmp_path / "spec.json").read_text("utf-8"))
    assert list(plain) == ["source", "screens", "steps", "features", "patterns", "open_questions"]
    assert plain["source"] == {"path": "demo.mp4", "duration_s": 30.0, "frames": 900, "width": 640, "height": 360}
    assert plain["steps"][0]["box"] == [10.0, 20.0, 110.0, 52.0] and plain["steps"][2]["box"] is None
    assert set(plain["steps"][0]) == set(
        "index start_s end_s action target text box from_screen to_screen evidence confidence".split()
    )


def test_the_published_schema_is_that_of_the_types():
    """After a change of the types, write `json_schema()` to the file again."""
    assert module.published_schema() == json.loads(json.dumps(module.json_schema()))
    jsonschema.Draft202012Validator.check_schema(module.published_schema())
    jsonschema.validate(module.to_json(FULL), module.published_schema())


def test_the_documented_specification_is_one():
    """The example in the documents, read and held against the schema; it is the only JSON there."""
    page = Path(__file__).parents[2] / "docs/video-to-spec.md"
    (example,) = re.findall(r"```json\n(.*?)```", page.read_text("utf-8"), flags=re.DOTALL)
    assert module.to_json(module.parse_spec(example)) == json.loads(example)
    jsonschema.validate(json.loads(example), module.published_schema())


NEW = object()
FAULTS = [
    (("steps", 0, "evidence"), [], "steps[0].evidence", True),
    (("features", 0, "evidence"), [], "features[0].evidence", True),
    (("steps", 1, "action"), "tap", "steps[1].action", True),
    (("steps", 1, "start_s"), "3", "steps[1].start_s", True),
    (("steps", 1, "start_s"), -1, "steps[1].start_s", True),
    (("steps", 1, "confidence"), 1.2, "steps[1].confidence", True),
    (("steps", 1, "box"), [1, 2, 3], "steps[1].box", True),
    (("source", "frames"), 900.5, "source.frames", True),
    (("source", "sound"), NEW, "source.sound", True),
    (("screens", 0, "thumbnail"), "../../secret.png", "screens[0].thumbnail", True),
    (("screens", 0, "title"), " ", "screens[0].title", True),
    # what a schema cannot say
    (("steps", 1, "box"), [1, 2, 641, 50], "steps[1].box", False),
    (("steps", 1, "box"), [50, 2, 50, 50], "steps[1].box", False),
    (("steps", 1, "end_s"), 31.0, "steps[1].end_s", False),
    (("steps", 1, "end_s"), 2.9, "end_s", False),
    (("steps", 1, "text"), "x", "text", False),
    (("steps", 1, "index"), 3, "steps[1].index", False),
    (("steps", 1, "to_screen"), "s9", "steps[1].to_screen", False),
    (("screens", 1, "id"), "s1", "screens[1].id", False),
    (("patterns", 0, "evidence", 0, "frame"), 900, "patterns[0].evidence[0].frame", False),
    (("patterns", 0, "evidence", 0, "t_s"), 30.5, "patterns[0].evidence[0].t_s", False),
    (("patterns", 0, "evidence", 0, "t_s"), 1.0, "frame", False),
]


@pytest.mark.parametrize(("place", "value", "named", "by_schema"), FAULTS)
def test_a_wrong_field_is_named(place, value, named, by_schema):
    data = json.loads(json.dumps(module.to_json(FULL)))
    inner = data
    for part in place[:-1]:
        inner = inner[part]
    inner[place[-1]] = 1 if value is NEW else value
    with pytest.raises(DecodeError) as caught:
        module.parse_spec(json.dumps(data), "x.json")
    assert str(caught.value).startswith("x.json: ") and named in str(caught.value)
    assert jsonschema.Draft202012Validator(module.published_schema()).is_valid(data) is not by_schema


@pytest.mark.parametrize("text", ["", "[]", '{"source": 1}', '{"source"', "\x00", "1e999"])
def test_what_is_no_specification_is_an_error_of_one_sentence(text, tmp_path):
    (tmp_path / "spec.json").write_text(text)
    with pytest.raises(DecodeError, match=r"spec\.json: "):
        module.read_spec(tmp_path / "spec.json")


def test_a_file_that_is_missing_or_too_large_is_an_error(tmp_path, monkeypatch):
    with pytest.raises(DecodeError, match="cannot be read"):
        module.read_spec(tmp_path / "none.json")
    module.write_spec(FULL, tmp_path / "spec.json")
    monkeypatch.setattr(module, "MAX_BYTES", 100)
    with pytest.raises(DecodeError, match="more than the 100 of"):
        module.read_spec(tmp_path / "spec.json")


@pytest.mark.parametrize("evidence", [(), None, [cite(1)], (1,)])
def test_a_claim_without_evidence_cannot_be_made(evidence):
    with pytest.raises(ValidationError):
        Claim(name="a", description="b", evidence=evidence)
    with pytest.raises(ValidationError):
        step(1, 30, evidence=evidence)


def test_what_is_known_of_a_recording_is_read_as_it_was_written(tmp_path):
    made = truth(FULL, shown=(Shown(kind="dropdown", start_s=1.0, end_s=1.3, box=(1.0, 2.0, 3.0, 4.0)),))
    write_truth(made, tmp_path / "a.json")
    assert read_truth(tmp_path / "a.json") == made
    with pytest.raises(ValidationError, match="does not rise"):
        Truth(**(vars(made) | {"times_us": TIMES[:-1] + TIMES[-2:-1]}))
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(DecodeError, match="a.json: spec"):
        read_truth(tmp_path / "a.json")


# ---------------------------------------------------------------------- scores


def numbers(found, made):
    return score.scores_of(score.count(found, made))


def test_a_specification_is_perfect_beside_itself():
    found = numbers(FULL, truth(FULL))
    assert found == score.Scores(
        step_f1=1.0,
        whole=1.0,
        action=1.0,
        target=1.0,
        typed=1.0,
        start_error_s=0.0,
        screens_exact=1.0,
        dropdowns=None,
        unproven=0,
    )


def test_numbers_by_hand():
    """Four true steps, three found: one right, one late by 0.4 s with another text, one of another action."""
    made = spec(step(1, 30), step(2, 120, "type", "Name", "Ada"), step(3, 300), step(4, 600))
    found = spec(
        step(1, 30, target="  Save "),
        step(2, 132, "type", "Name", "Ad"),
        step(3, 300, "hover", "Save"),
        screens=SCREENS[:1],
    )
    got = numbers(found, truth(made))
    assert got.step_f1 == pytest.approx(2 * 2 / 7) and got.whole == pytest.approx(2 * 1 / 7)
    assert got.action == pytest.approx(2 / 3)
    assert got.target == 1.0 and got.typed == 0.0
    assert got.start_error_s == pytest.approx(0.2)
    assert got.screens_exact == 0.0


def test_near_means_one_second_and_no_more():
    assert numbers(spec(step(1, 60)), truth(spec(step(1, 30)))).step_f1 == 1.0
    assert numbers(spec(step(1, 61)), truth(spec(step(1, 30)))).step_f1 == 0.0


def test_nothing_found_and_nothing_to_find():
    assert numbers(spec(), truth(FULL)).step_f1 == 0.0
    assert numbers(spec(), truth(spec())).step_f1 is None
    assert numbers(FULL, truth(spec())).step_f1 == 0.0


def test_a_dropdown_counts_only_while_it_is_open():
    made = truth(
        spec(), shown=(Shown(kind="dropdown", start_s=2.0, end_s=2.3), Shown(kind="toast", start_s=5, end_s=6))
    )

    def claim(*frames, name="dropdown"):
        return spec(patterns=(Claim(name=name, description="d", evidence=tuple(cite(f) for f in frames)),))

    assert numbers(claim(10, 60), made).dropdowns == 1.0
    assert numbers(claim(68), made).dropdowns == 1.0
    assert numbers(claim(59), made).dropdowns == 0.0
    assert numbers(claim(69), made).dropdowns == 0.0
    assert numbers(claim(60, name="modal"), made).dropdowns == 0.0


def test_citations_of_what_is_not_there_are_counted():
    wrong = Evidence(t_s=TIMES[30] / 1e6 + 0.002, frame=30)
    late = (*SCREENS[:1], Screen(id="s2", title="x", first_seen_s=3.01, thumbnail="frames/s2.png"))
    assert numbers(spec(step(1, 30, evidence=(cite(20), wrong))), truth(FULL)).unproven == 1
    assert numbers(spec(screens=late), truth(FULL)).unproven == 1
    rounded = Evidence(t_s=round(TIMES[31] / 1e6, 3), frame=31)
    assert numbers(spec(step(1, 30, evidence=(rounded,))), truth(FULL)).unproven == 0


@st.composite
def step_lists(draw, most=5):
    frames = sorted(draw(st.lists(st.integers(0, 150), max_size=most)))
    return tuple(
        step(i + 1, frame, draw(st.sampled_from(["click", "hover"])), draw(st.sampled_from(["a", "b", None])))
        for i, frame in enumerate(frames)
    )


def best_by_hand(found, true, fits):
    """(most pairs, least total distance) over all one-to-one assignments."""
    best = (0, 0.0)
    small, large = (found, true) if len(found) <= len(true) else (true, found)
    for order in itertools.permutations(range(len(large)), len(small)):
        pairs = [(small[i], large[j]) for i, j in enumerate(order) if fits(small[i], large[j])]
        best = max(best, (len(pairs), -sum(abs(a.start_s - b.start_s) for a, b in pairs)))
    return best


@given(step_lists(), step_lists())
def test_the_assignment_is_the_best_of_all(found, true):
    def near(a, b):
        return a.action == b.action and abs(a.start_s - b.start_s) <= 1.0 + 1e-6

    pairs = score.match_steps(found, true)
    assert len({id(a) for a, _ in pairs}) == len({id(b) for _, b in pairs}) == len(pairs)
    assert all(near(a, b) for a, b in pairs)
    count, distance = best_by_hand(found, true, near)
    assert len(pairs) == count
    assert sum(abs(a.start_s - b.start_s) for a, b in pairs) == pytest.approx(-distance, abs=1e-9)


@given(step_lists(), step_lists(), step_lists())
def test_scores_are_shares_and_sums_weigh_steps_alike(found, true, extra):
    one, two = score.count(spec(*found), truth(spec(*true))), score.count(spec(*extra), truth(spec(*true)))
    for counts in (one, two, one + two):
        made = vars(score.scores_of(counts))
        assert all(v is None or 0 <= v <= 1 for k, v in made.items() if k != "unproven")
        if made["step_f1"] is not None:
            assert made["whole"] <= made["step_f1"]
    both = score.scores_of(one + two)
    steps = one.true_steps + one.found_steps + two.true_steps + two.found_steps
    assert (both.step_f1 or 0.0) * steps == pytest.approx(2 * (one.matched + two.matched))


@given(step_lists(most=4))
def test_a_step_too_many_or_too_few_costs(true):
    made = truth(spec(*true))
    extra = (*true, step(len(true) + 1, 800, "scroll", None, "down"))
    assert numbers(spec(*true), made).step_f1 in (1.0, None)
    assert numbers(spec(*extra), made).step_f1 < 1.0
    assert numbers(spec(*true), truth(spec(*extra))).step_f1 < 1.0


# ---------------------------------------------------------------------- the baseline


def test_the_baseline_sees_changes_between_seconds_and_nothing_else():
    """A box changes at 2.5 s, another blinks from 4.2 to 4.5 s, the whole page at 6.1 s."""

    picture = np.empty((100, 200, 3), dtype=np.uint8)

    def frames():
        for time_us in range(0, 8_000_000, 100_000):
            picture[:] = 240 if time_us < 6_100_000 else 20  # one memory for all frames, as readers do
            picture[:, :, 0] += time_us // 100_000 % 2 * 10  # codec noise
            if 2_500_000 <= time_us < 6_100_000:
                picture[10:30, 40:90] = 100
            if 4_200_000 <= time_us < 4_500_000:
                picture[60:80, 40:90] = 0
            yield time_us, picture

    source = Source(path="a.mp4", duration_s=8.0, frames=80, width=200, height=100)
    found = baseline.difference_baseline(baseline.one_a_second(frames()), source)
    assert [(s.start_s, s.box, s.to_screen) for s in found.steps] == [
        (3.0, (40.0, 10.0, 90.0, 30.0), "s1"),
        (7.0, (0.0, 0.0, 200.0, 100.0), "s2"),
    ]
    assert [s.first_seen_s for s in found.screens] == [0.0, 7.0]
    assert [e.frame for s in found.steps for e in s.evidence] == [30, 70]
    with pytest.raises(DecodeError, match="no frame"):
        baseline.difference_baseline([], source)

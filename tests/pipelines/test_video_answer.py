"""What large models answer about a recording: found wherever it stands, and only what the recording proves is kept."""

import copy
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watersmeet.pipelines.video_to_spec import checked as module
from watersmeet.pipelines.video_to_spec.answer import find_object
from watersmeet.pipelines.video_to_spec.checked import checked
from watersmeet.pipelines.video_to_spec.score import is_shown
from watersmeet.pipelines.video_to_spec.spec import Source, parse_spec, to_json

# uneven on purpose: number over rate is no time here
TIMES = tuple(round(i * 100_000 + (i % 7) * 1234) for i in range(300))
SOURCE = Source(path="demo.mp4", duration_s=30.0, frames=300, width=640, height=360)


def cite(frame):
    return {"t_s": round(TIMES[frame] / 1e6, 3), "frame": frame}


def step(frame, **other):
    values = {
        "start_s": frame / 10,
        "end_s": frame / 10 + 0.5,
        "action": "click",
        "target": "Save",
        "text": None,
        "box": [10, 20, 110, 52],
        "from_screen": "home",
        "to_screen": "home",
        "evidence": [cite(frame), cite(frame + 3)],
        "confidence": 0.9,
    }
    return values | other


GOOD = {
    "screens": [
        {"id": "home", "title": "Orders", "first_seen_s": 0},
        {"id": "new order", "title": "New order", "first_seen_s": cite(33)["t_s"]},
    ],
    "steps": [step(10), step(30, to_screen="new order"), step(90, action="key", text="Escape", box=None, target=None)],
    "features": [{"name": "Orders", "description": "Orders can be added.", "evidence": [cite(33)]}],
    "patterns": [{"name": "toast", "description": "A note comes and goes.", "evidence": [cite(120)]}],
    "open_questions": ["Is it saved at once?"],
}


def read(answer, **options):
    """Checked, and held against what must be true of everything that is written."""
    found = checked(answer, SOURCE, TIMES, **options)
    assert parse_spec(json.dumps(to_json(found.spec))) == found.spec
    assert all(is_shown(one, TIMES) for _, proof in found.spec.proofs() for one in proof)
    assert {screen.first_seen_s for screen in found.spec.screens} <= {time / 1e6 for time in TIMES}
    return found


def test_a_good_answer_is_kept_whole():
    found = read(GOOD)
    spec = found.spec
    assert (found.claims, found.invented, found.dropped, found.mended, found.warnings) == (7, 0, 0, 0, ())
    # the last step says "home", where the one before led away: that is what the model said, and it is a screen
    assert [(one.from_screen, one.to_screen) for one in spec.steps] == [("s1", "s1"), ("s1", "s2"), ("s1", "s1")]
    assert [one.title for one in spec.screens] == ["Orders", "New order"]
    assert spec.steps[0].evidence[1].t_s == TIMES[13] / 1e6 and spec.steps[0].box == (10, 20, 110, 52)
    assert spec.steps[2].text == "Escape" and spec.features[0].name == "Orders"
    assert spec.open_questions == ("Is it saved at once?",)


def test_boxes_are_told_in_the_picture_that_was_shown():
    assert read(GOOD, scale=2.0).spec.steps[0].box == (20, 40, 220, 104)


INVENTED = [
    ("steps", {"evidence": [{"t_s": 1.0, "frame": 300}]}),
    ("steps", {"evidence": [{"t_s": 99.0, "frame": 10}]}),
    ("steps", {"evidence": [cite(10), {"t_s": cite(11)["t_s"], "frame": 10}]}),
    ("steps", {"evidence": [{"t_s": cite(10)["t_s"] + 0.002, "frame": 10}]}),
    ("steps", {"evidence": [{"t_s": -1.0, "frame": -1}]}),
    ("steps", {"evidence": [{"t_s": "1.0", "frame": "10"}]}),
    ("steps", {"evidence": [{"t_s": math.nan, "frame": 10}]}),
    ("steps", {"evidence": [{"t_s": 1.0, "frame": True}]}),
    ("steps", {"evidence": [{"t_s": 1.0, "frame": 10.0}]}),
    ("steps", {"evidence": [{"t_s": 1e300, "frame": 10**17}]}),
    ("steps", {"evidence": ["frame 10"]}),
    ("steps", {"start_s": 30.5}),
    ("steps", {"start_s": -0.1}),
    ("features", {"evidence": [{"t_s": 3.05, "frame": 30}]}),
    ("patterns", {"evidence": [{"t_s": 500.0, "frame": 5000}]}),
    ("screens", {"first_seen_s": 31.0}),
    ("screens", {"first_seen_s": 3.35}),
]


@pytest.mark.parametrize(("field", "change"), INVENTED)
def test_what_cites_a_time_or_frame_that_there_is_not_is_dropped_and_counted(field, change):
    answer = copy.deepcopy(GOOD)
    answer[field][-1].update(change)
    found = read(answer)
    assert (found.claims, found.kept) == (7, 6) and found.invented == found.dropped == 1
    assert len(getattr(found.spec, field)) == len(GOOD[field]) - 1
    place = f"{field}[{len(GOOD[field]) - 1}]"
    assert any(module.NO_FRAME in warning and place in warning for warning in found.warnings)


@pytest.mark.parametrize("evidence", [None, [], {}, 7])
def test_a_claim_without_evidence_is_dropped(evidence):
    found = read(GOOD | {"steps": [step(10, evidence=evidence), step(30)]})
    assert len(found.spec.steps) == 1 and found.dropped == 1 and found.invented == 0
    assert any(module.NO_EVIDENCE in warning for warning in found.warnings)


MENDED = [
    ({"end_s": 0.2}, "end_s", 1.0),
    ({"end_s": 1e9}, "end_s", 30.0),
    ({"end_s": None}, "end_s", 1.0),
    ({"from_screen": "nowhere"}, "from_screen", "s1"),
    ({"to_screen": ["home"]}, "to_screen", "s1"),
    ({"box": [-50, -50, 700, 400]}, "box", (0, 0, 640, 360)),
    ({"box": [700, 10, 800, 20]}, "box", None),
    ({"box": [50, 20, 50, 30]}, "box", None),
    ({"box": [90, 20, 50, 30]}, "box", None),
    ({"box": [1, 2, 3]}, "box", None),
    ({"box": [1, 2, math.inf, 4]}, "box", None),
    ({"box": "1 2 3 4"}, "box", None),
    ({"target": 7}, "target", None),
    ({"target": "a\ud800b\0"}, "target", "a?b"),
    ({"text": "typed"}, "text", None),
    ({"confidence": 7}, "confidence", 0.5),
    ({"confidence": "high"}, "confidence", 0.5),
]


@pytest.mark.parametrize(("change", "field", "value"), MENDED)
def test_what_can_be_mended_is(change, field, value):
    found = read({"screens": GOOD["screens"][:1], "steps": [step(10, **change)]})
    assert getattr(found.spec.steps[0], field) == value
    assert found.dropped == 0 and (found.mended > 0 or field == "target") == bool(found.warnings or field == "target")


def test_steps_out_of_order_are_put_in_order():
    found = read(GOOD | {"steps": [step(30, target="b"), step(10, target="a"), step(50, target="c")]})
    assert [(one.index, one.target) for one in found.spec.steps] == [(1, "a"), (2, "b"), (3, "c")]
    assert found.mended == 1 and "order of start" in found.warnings[0]


def test_what_is_said_twice_or_without_end_is_bounded(monkeypatch):
    monkeypatch.setitem(module.MOST, "steps", 3)
    twice = [*GOOD["screens"], {"id": "home", "title": "Again", "first_seen_s": 0}]
    found = read(GOOD | {"screens": twice, "steps": [step(10, target="x" * 10_000)] * 5})
    assert len(found.spec.steps) == 3 and len(found.spec.screens) == 2 and found.dropped == 3
    assert len(found.spec.steps[0].target) == module.LONGEST
    found = read(GOOD | {"steps": [step(10, evidence=[cite(i) for i in range(10, 60)] * 2)]})
    assert [one.frame for one in found.spec.steps[0].evidence] == list(range(10, 10 + module.MOST_PROOF))


@pytest.mark.parametrize("answer", [{"steps": []}, {"steps": None, "screens": {}}, {"screens": [[], 1, "x", None]}])
def test_an_answer_without_anything_is_the_first_frame(answer):
    found = read(answer)
    assert [one.first_seen_s for one in found.spec.screens] == [0.0] and not found.spec.steps
    assert "the first frame" in found.warnings[-1]


JSON = json.dumps(GOOD)


@pytest.mark.parametrize(
    "text",
    [
        JSON,
        f"Here it is (as {{asked}}):\n```json\n{json.dumps(GOOD, indent=2)}\n```\nAnything else?",
        f'<think>maybe {{"steps": []}}</think>{JSON}',
        f'{{"specification": {JSON}}}',
        f'Settings were {{"a": 1}}. {JSON} {{"steps": 7}}',
    ],
)
def test_the_object_is_found_in_what_is_around_it(text):
    assert find_object(text) == (GOOD, False)


def test_an_answer_that_was_cut_off_is_kept_as_far_as_it_goes():
    text = json.dumps({"screens": GOOD["screens"], "steps": GOOD["steps"]})
    for stop in range(text.index('"steps"') + 12, len(text) - 1, 7):
        answer, cut_off = find_object("So: " + text[:stop])
        assert cut_off and answer["screens"] == GOOD["screens"]
        assert answer.get("steps", []) == GOOD["steps"][: len(answer.get("steps", []))]
    assert find_object(text[:-1]) == ({"screens": GOOD["screens"], "steps": GOOD["steps"]}, True)
    # braces within texts do not count
    odd = {"screens": [{"id": "a}]{", "title": '\\"}', "first_seen_s": 0}], "steps": [1]}
    assert find_object(json.dumps(odd)[:-4]) == ({"screens": odd["screens"]}, True)


@pytest.mark.parametrize("text", ["", "I cannot.", "{}", "[]", '{"a": 1}', "{" * 100_000, '{"steps"', '{"a":' * 50_000])
def test_an_answer_without_a_specification_is_none(text):
    assert find_object(text) is None


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", "9" * 5000, "1" * 30])
def test_numbers_that_are_none_cost_one_claim(number):
    text = json.dumps(GOOD | {"steps": [step(10), step(30)]}).replace('"frame": 30', f'"frame": {number}')
    found = read(find_object(text)[0])
    assert len(found.spec.steps) == 1 and found.invented == 1


def hostile():
    """Plain values of any kind, with the names of fields among the keys."""
    names = st.sampled_from([*GOOD, *step(1), "id", "title", "first_seen_s", "name", "description", "t_s", "frame"])
    plain = (
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text(max_size=5)
        | st.sampled_from(["home", "click"])
    )
    return st.recursive(plain, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=6))


@st.composite
def damaged(draw):
    """A good answer in which some values are others."""
    answer = copy.deepcopy(GOOD)
    for _ in range(draw(st.integers(1, 6))):
        inner = answer
        while True:
            keys = list(inner) if isinstance(inner, dict) else list(range(len(inner)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(inner[key], (dict, list)) and draw(st.integers(0, 4)):
                inner = inner[key]
                continue
            inner[key] = draw(hostile())
            break
    return answer


@given(damaged() | st.dictionaries(st.sampled_from(list(GOOD)), hostile(), max_size=5))
def test_whatever_is_answered_gives_a_specification(answer):
    found = read(answer)
    spec = found.spec
    screens = 0 if any("the first frame is one" in warning for warning in found.warnings) else len(spec.screens)
    assert found.kept == len(spec.steps) + len(spec.features) + len(spec.patterns) + screens
    assert found.kept <= found.claims and found.invented <= found.dropped
    assert bool(found.warnings) == bool(found.dropped or found.mended)

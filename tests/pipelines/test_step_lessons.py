"""Lessons about recordings: kept in files, cut to what fits, and given as streams that say the same every time."""

import json
from dataclasses import asdict

import numpy as np
import pytest
import torch

from watersmeet.pipelines.data.joint import JointDataset
from watersmeet.pipelines.data.samples import DataError
from watersmeet.pipelines.video_to_spec import markup
from watersmeet.pipelines.video_to_spec.learn.dataset import StepDataset, Vary, steps_encoders
from watersmeet.pipelines.video_to_spec.learn.store import read_lesson, write_lesson
from watersmeet.pipelines.video_to_spec.prompt import Memory, follow, prompt_of
from watersmeet.pipelines.video_to_spec.vocabulary import tokenizer_model
from watersmeet.plugins.registry import get_registry

WRITTEN = (
    "<new> <m0> <t0>".split(),
    "<do-click> <m0> <m2> <t0> <go> <new> <m1> <t3>".split(),
    [],
    "<do-type> <m0> <m2> <t1> <is> <t4> <go> <v0>".split(),
)


@pytest.fixture(scope="module")
def encoders():
    return steps_encoders(get_registry().encoder("text", {"model": tokenizer_model()}))


@pytest.fixture
def lessons(seen, encoders, tmp_path):
    folder = tmp_path / "lessons"
    folder.mkdir()
    for name, patches in (("a", 3), ("b", 5)):
        write_lesson(seen(4, patches), WRITTEN, encoders["video"].settings, folder / f"{name}.json")
    return folder


def plain(turn):
    """Everything of a turn as plain values."""
    values = {name: getattr(turn, name) for name in turn.__dataclass_fields__}
    patches = values.pop("patches")
    lists = [patches.data.tolist(), patches.coords.tolist(), patches.time_us.tolist()]
    # a turn without patches keeps no width of them
    return [asdict(values.pop("observed")), values, lists if len(patches.time_us) else [len(patches.time_us)]]


def test_a_lesson_is_read_as_it_was_written(lessons, seen, encoders):
    back = read_lesson(lessons / "b.json")
    assert [plain(turn) for turn in back.turns] == [plain(turn) for turn in seen(4, 5).turns]
    assert back.written == tuple(tuple(one) for one in WRITTEN)
    assert back.settings == json.loads(json.dumps(encoders["video"].settings))
    assert sorted(path.name for path in lessons.iterdir()) == ["a.json", "a.npz", "b.json", "b.npz"]


def test_a_lesson_without_any_patch_is_one_too(seen, encoders, tmp_path):
    write_lesson(seen(3, 0), WRITTEN[:3], encoders["video"].settings, tmp_path / "c.json")
    assert [len(turn.patches.time_us) for turn in read_lesson(tmp_path / "c.json").turns] == [0, 0, 0]


def streams(one, other):
    """Whether two streams are the same in every column."""
    return len(one.spans) == len(other.spans) and all(
        a.modality == b.modality
        and torch.equal(a.data, b.data)
        and all(
            (x is None and y is None) or torch.equal(x, y)
            for x, y in ((getattr(a, name), getattr(b, name)) for name in ("coords", "time_us", "targets", "weight"))
        )
        for a, b in zip(one.spans, other.spans, strict=True)
    )


def taught(stream):
    """Names of what is to be learnt, in order."""
    ids = [int(t) for span in stream.spans if span.targets is not None for t in span.targets if int(t) >= 0]
    text = get_registry().encoder("text", {"model": tokenizer_model()})
    names = {index: name for name, index in text.symbols.items()} | {text.eos_id: "</s>"}
    return [names[i] for i in ids]


def test_the_same_index_and_random_state_give_the_same_stream(lessons, encoders):
    data = StepDataset(lessons, encoders)
    assert len(data) == 2
    for index in range(2):
        for seed in range(4):
            again = [data.sample(index, np.random.default_rng(seed)) for _ in range(2)]
            assert streams(*again)
    varied = [data.sample(0, np.random.default_rng(seed)) for seed in range(6)]
    assert not all(streams(varied[0], one) for one in varied[1:])
    # whatever is varied, what is taught is the same
    expected = [symbol for one in WRITTEN for symbol in (*one, "</s>")]
    assert all(taught(one) == expected for one in varied)


def test_a_validation_sample_is_as_it_is(lessons, encoders, seen):
    data = StepDataset(lessons, encoders, "val")
    one, other = (data.sample(1, np.random.default_rng(seed)) for seed in (1, 2))
    assert streams(one, other)
    memory, expected = Memory(), []
    for turn, written in zip(seen(4, 5).turns, WRITTEN, strict=True):
        expected += [*prompt_of(turn, memory, encoders), encoders["text"].encode_markup([*written, "</s>"])]
        follow(memory, turn, written)
    assert len(one.spans) == len(expected)
    for a, b in zip(one.spans, expected, strict=True):
        assert a.modality == b.modality and torch.equal(a.data, b.data)
    assert torch.equal(one.spans[0].data, torch.from_numpy(seen(4, 5).turns[0].patches.data))


def test_what_is_varied_is_the_patches_and_their_times_alone(lessons, encoders):
    data = StepDataset(lessons, encoders)
    rest = StepDataset(lessons, encoders, "val").sample(0, np.random.default_rng(0))

    def sample(**vary):
        data.vary = Vary(**({"blank": 0.0, "colour": 0.0, "late": 0.0} | vary))
        return data.sample(0, np.random.default_rng(3))

    assert streams(sample(), rest)
    late = sample(late=1.0)
    shifts = {
        int((b.time_us - a.time_us).unique())
        for a, b in zip(rest.spans, late.spans, strict=True)
        if a.modality == "video"
    }
    assert len(shifts) == 1 and 0 <= shifts.pop() < 3_600_000_000
    assert all(torch.equal(a.data, b.data) for a, b in zip(rest.spans, late.spans, strict=True))
    tinted = sample(colour=1.0)
    same = [torch.equal(a.data, b.data) for a, b in zip(rest.spans, tinted.spans, strict=True)]
    assert same == [span.modality != "video" for span in rest.spans]
    blank = sample(blank=1.0)
    assert {s.modality for s in blank.spans} == {"regions", "text"}


def test_what_is_too_long_is_cut_between_turns_and_remembers_what_came_before(lessons, encoders):
    whole = StepDataset(lessons, encoders, "val")
    total = sum(span.n for span in whole.sample(0, np.random.default_rng(0)).spans)
    data = StepDataset(lessons, encoders, "val", max_tokens=total - 1)
    assert [(file.name, first, last) for file, first, last in data.pieces] == [
        ("a.json", 0, 3), ("a.json", 3, 4), ("b.json", 0, 3), ("b.json", 3, 4),
    ]  # fmt: skip
    parts = [data.sample(index, np.random.default_rng(0)) for index in (0, 1)]
    assert all(sum(span.n for span in part.spans) <= total - 1 for part in parts)
    # the later piece says of the screens before what the whole says, and so the two together are the whole
    together = [span for part in parts for span in part.spans]
    for a, b in zip(together, whole.sample(0, np.random.default_rng(0)).spans, strict=True):
        assert a.modality == b.modality and torch.equal(a.data, b.data)
    # one turn is never cut
    assert len(StepDataset(lessons, encoders, "val", max_tokens=1)) == 8


def test_the_memory_follows_what_was_written(seen):
    turns, memory = seen(4).turns, Memory()
    wanted = [(0, 1), (1, 2), (1, 2), (0, 2)]
    for turn, written, (here, count) in zip(turns, WRITTEN, wanted, strict=True):
        follow(memory, turn, written)
        assert (memory.here, len(memory.shown)) == (here, count)
    number, share = memory.alike(turns[0].on_screen)
    assert (number, share) == (0, 1.0) and memory.alike(frozenset({"Elsewhere"})) == (-1, 0.0)
    # four lines of which three are shared, weighed by their lengths
    assert Memory(shown=[[frozenset({"abc", "d"})]], here=0).resembles_here(
        frozenset({"abc", "efgh"})
    ) == pytest.approx(5 / (5 + 3 + 6))


def test_lessons_of_other_settings_or_none_are_refused(lessons, encoders, tmp_path):
    other = {**encoders, "video": get_registry().encoder("video", {"scale": 0.5})}
    with pytest.raises(
        DataError, match=r"a\.json was made with other settings of the video encoder; make the lessons again"
    ):
        StepDataset(lessons, other)
    with pytest.raises(DataError, match="holds no lessons; make some"):
        StepDataset(tmp_path, encoders)


def test_of_both_sets_the_steps_come_as_often_as_was_asked_for():
    class Numbers:
        def __init__(self, name, count):
            self.name, self.count = name, count

        def __len__(self):
            return self.count

        def sample(self, index, rng):
            assert 0 <= index < self.count
            return self.name, index

    joint = JointDataset(Numbers("page", 3), Numbers("film", 2), 2)
    found = [joint.sample(index, np.random.default_rng(0)) for index in range(len(joint))]
    assert found == [("page", i) for i in range(3)] + [("film", 0), ("film", 1)] * 2


def test_every_prompt_has_ten_measures_between_its_opening_and_its_lines(seen, encoders):
    text = encoders["text"]
    names = {index: name for name, index in text.symbols.items()}
    for turn in seen(4).turns:
        first = next(span for span in prompt_of(turn, Memory(), encoders) if span.modality == "text")
        symbols = [names[int(i)] for i in first.data]
        assert symbols[0] == markup.OPEN and len(symbols) == 11 and symbols[-1] == "<v0>"
        assert all(symbol.startswith("<level") for symbol in symbols[1:-1])

"""Lessons about recordings: kept in files, cut to what fits, and given as streams that say the same every time."""

import json
import re
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from watersmeet.pipelines.data.joint import JointDataset
from watersmeet.pipelines.data.samples import DataError
from watersmeet.pipelines.video_to_spec import markup
from watersmeet.pipelines.video_to_spec.hints import near_lines
from watersmeet.pipelines.video_to_spec.learn.dataset import StepDataset, steps_encoders
from watersmeet.pipelines.video_to_spec.learn.store import read_lesson, write_lesson
from watersmeet.pipelines.video_to_spec.learn.vary import Variation, Vary, Words
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


def test_a_lesson_of_another_version_is_refused(lessons):
    record = json.loads((lessons / "a.json").read_text("utf-8"))
    for version in ({"version": 1}, {}):
        rest = {key: value for key, value in record.items() if key != "version"}
        (lessons / "a.json").write_text(json.dumps(rest | version), encoding="utf-8")
        with pytest.raises(DataError, match="make it again with `watersmeet data lessons`"):
            read_lesson(lessons / "a.json")


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
    # lines that were missed change the numbers, and a part may begin later; apart from these what is taught is the same
    expected = [[re.sub("[0-9]+", "", symbol) for symbol in (*one, "</s>")] for one in WRITTEN]
    later = [[symbol for one in expected[first:] for symbol in one] for first in range(4)]
    assert all([re.sub("[0-9]+", "", symbol) for symbol in taught(one)] in later for one in varied)


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


NOTHING = Vary(**dict.fromkeys("blank unmeasured colour late inside words mirror moved tempo missed".split(), 0.0))


def test_colours_times_and_blanks_leave_everything_else_alone(lessons, encoders):
    data = StepDataset(lessons, encoders)
    rest = StepDataset(lessons, encoders, "val").sample(0, np.random.default_rng(0))

    def sample(**vary):
        data.vary = replace(NOTHING, **vary)
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


def test_every_prompt_has_the_same_measures_between_its_opening_and_its_lines(seen, encoders):
    text = encoders["text"]
    names = {index: name for name, index in text.symbols.items()}
    said = []
    for turn in seen(4).turns:
        first = next(span for span in prompt_of(turn, Memory(), encoders) if span.modality == "text")
        symbols = [names[int(i)] for i in first.data]
        assert symbols[0] == markup.OPEN and len(symbols) == 17 and symbols[10] == "<v0>"
        assert symbols[13:] == near_lines(turn)
        said.append((symbols.pop(6), symbols.pop(4)))
        assert all(symbol.startswith("<level") for symbol in [*symbols[1:8], *symbols[9:11]])
        # how long the pointer stood, and from how far it came; 0 is for none
        assert (symbols[9] == symbols[10] == "<level0>") == (turn.still_s is None)
    # scrolling and typing are said with the symbols that are to be written of them
    assert said == [("<level0>", "<level0>")] * 2 + [("<level0>", "<way-up>"), ("<do-type>", "<level0>")]


def test_a_prompt_without_measures_has_the_same_shape_and_nothing_in_their_places(seen, encoders):
    text = encoders["text"]
    nothing = text.symbols["<level0>"]
    for turn in seen(4).turns:
        full = prompt_of(turn, Memory(), encoders)
        bare = prompt_of(turn, Memory(), encoders, unmeasured=True)
        at = next(i for i, span in enumerate(full) if span.modality == "text")
        assert bare[at].data.tolist() == [text.symbols[markup.OPEN]] + [nothing] * (full[at].n - 1)
        for one, other in zip(full[:at] + full[at + 1 :], bare[:at] + bare[at + 1 :], strict=True):
            assert torch.equal(one.data, other.data) and torch.equal(one.coords, other.coords)


def varied(how, turns, *, seed=0, texts=("Blue Whale", "old moon")):
    """(turn, written) of each turn after one variation; patches are 128 px wide."""
    one = Variation(replace(NOTHING, **how), Words(texts), np.random.default_rng(seed), cell=128.0)
    return [one.apply(turn, written) for turn, written in zip(turns, WRITTEN, strict=True)]


def lines_of(turn):
    return [*turn.under, *turn.before, *turn.after]


def test_without_variations_a_turn_stays_as_it_is(seen, encoders):
    turns = seen(4, 5).turns
    memory = Memory()
    for turn, (other, said), written in zip(turns, varied({}, turns), WRITTEN, strict=True):
        assert said == list(written)
        a, b = prompt_of(turn, memory, encoders), prompt_of(other, memory, encoders)
        for one, two in zip(a, b, strict=True):
            assert torch.equal(one.data, two.data) and torch.equal(one.coords, two.coords)


def test_mirroring_is_what_a_mirrored_picture_would_show(seen):
    turns = seen(4, 5).turns
    for turn, (other, _) in zip(turns, varied({"mirror": 1.0}, turns), strict=True):
        for line, there in zip(lines_of(turn), lines_of(other), strict=True):
            # five patches of 128 px cover the 640 px of the recording
            assert (there.box.x0, there.box.x1) == (640 - line.box.x1, 640 - line.box.x0)
            assert there.record["box"] == {"x0": there.box.x0, "y0": line.box.y0, "x1": there.box.x1, "y1": line.box.y1}
        assert other.point == (None if turn.point is None else (640 - turn.point[0], turn.point[1]))
        pixels = turn.patches.data.reshape(-1, 32, 32, 3)
        assert np.array_equal(other.patches.data.reshape(-1, 32, 32, 3), np.flip(pixels, axis=2))
        assert np.array_equal(other.patches.coords[:, 1], 4 - turn.patches.coords[:, 1])
        assert np.array_equal(other.patches.coords[:, 0], turn.patches.coords[:, 0])
    keys = ["<do-key>", "<m0>", "<m2>", "<key-ArrowLeft>"]
    one = Variation(replace(NOTHING, mirror=1.0), Words(()), np.random.default_rng(0), cell=128.0)
    assert one.apply(turns[1], keys)[1][-1] == "<key-ArrowRight>"
    assert one.apply(turns[1], ["<do-scroll>", "<m0>", "<m2>", "<way-down>"])[1][-1] == "<way-down>"


def test_what_is_moved_is_moved_by_whole_patches_together(seen):
    turns = seen(4, 5).turns
    shifts = set()
    for seed in range(8):
        for turn, (other, _) in zip(turns, varied({"moved": 1.0}, turns, seed=seed), strict=True):
            cells = {tuple(row) for row in (other.patches.coords - turn.patches.coords).tolist()}
            for line, there in zip(lines_of(turn), lines_of(other), strict=True):
                cells.add(((there.box.y0 - line.box.y0) / 128, (there.box.x0 - line.box.x0) / 128))
            for box, there in zip(turn.observed.boxes, other.observed.boxes, strict=True):
                cells.add(((there.y0 - box.y0) / 128, (there.x0 - box.x0) / 128))
            assert len(cells) <= 1
            shifts |= cells
    assert len(shifts) > 2 and all(0 <= down <= 2 and 0 <= right <= 3 for down, right in shifts)


def test_words_are_replaced_by_the_same_words_everywhere_and_keep_their_form(seen):
    turns = seen(4, 5).turns
    found = {}
    for seed in range(20):
        for turn, (other, said), written in zip(turns, varied({"words": 1.0}, turns, seed=seed), WRITTEN, strict=True):
            assert said == list(written)
            for line, there in zip(lines_of(turn), lines_of(other), strict=True):
                assert there.record["text"] == there.text
                found.setdefault((seed, line.text), set()).add(there.text)
                assert [c.isupper() for c in (there.text[0], line.text[0])] in ([True, True], [False, False])
                assert re.findall("[0-9]+", there.text) == re.findall("[0-9]+", line.text)
    assert all(len(others) == 1 for others in found.values())
    assert len({next(iter(others)) for (_, text), others in found.items() if text == "Save"}) > 1


def test_lines_that_were_missed_are_never_those_that_are_spoken_of(seen):
    turns = seen(4, 5).turns
    fewer = 0
    for seed in range(20):
        how = {"missed": 1.0, "max_missed": 0.9}
        for turn, (other, said), written in zip(turns, varied(how, turns, seed=seed), WRITTEN, strict=True):
            old, new = [line.text for line in lines_of(turn)], [line.text for line in lines_of(other)]
            fewer += len(old) - len(new)
            assert len(other.patches.time_us) <= len(turn.patches.time_us)
            for before, after in zip(written, said, strict=True):
                if before[1] == "t" and before[2:-1].isdecimal():
                    assert new[int(after[2:-1])] == old[int(before[2:-1])]
                else:
                    assert before == after
    assert fewer > 20


def test_a_slower_recording_is_slower_in_everything_that_is_measured(seen):
    turns = seen(4, 5).turns
    tempos = set()
    for seed in range(6):
        for turn, (other, _) in zip(turns, varied({"tempo": 1.0}, turns, seed=seed), strict=True):
            if turn.pause_s:
                tempos.add(round(other.pause_s / turn.pause_s, 6))
                assert other.lasting_s / turn.lasting_s == pytest.approx(other.pause_s / turn.pause_s)
            if turn.pause_s and len(turn.patches.time_us):
                ratio = other.patches.time_us / turn.patches.time_us
                assert ratio == pytest.approx(other.pause_s / turn.pause_s, rel=1e-5)
    assert len(tempos) == 6 and all(1 / 1.35 <= tempo <= 1.35 for tempo in tempos)

"""A model that learns more symbols and modalities forgets nothing, and answers about recordings in their language."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from watersmeet.core.errors import CheckpointError, ConfigError, UsageError
from watersmeet.core.stream import Stream, pack
from watersmeet.pipelines.data.samples import encoders
from watersmeet.pipelines.layout import markup as layout
from watersmeet.pipelines.layout.prompt import prompt_spans
from watersmeet.pipelines.layout.vocabulary import tokenizer_model as layout_model
from watersmeet.pipelines.models.fresh import new_model
from watersmeet.pipelines.models.local import built_in_folder, load_local
from watersmeet.pipelines.models.widen import widen
from watersmeet.pipelines.video_to_spec import markup
from watersmeet.pipelines.video_to_spec import vocabulary as words
from watersmeet.pipelines.video_to_spec.ask import ask_steps
from watersmeet.pipelines.video_to_spec.prompt import VIDEO
from watersmeet.tokenizers.text.train import with_symbols
from watersmeet.tokenizers.text.vocabulary import load_vocabulary

WORDS = ["Orders Save Name Harbour office opening hours Ünal " * 3]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base") / "model"
    modalities = {"image": {}, "regions": {}}
    new_model(folder, texts=WORDS, symbols=layout.symbols(), modalities=modalities, vocab_size=1100, seed=3)
    return folder


@pytest.fixture(scope="module")
def vocabulary(base):
    return with_symbols((base / "tokenizer.model").read_bytes(), markup.own_symbols())


@pytest.fixture(scope="module")
def wide(base, vocabulary, tmp_path_factory):
    folder = tmp_path_factory.mktemp("wide") / "model"
    widen(str(base), folder, vocabulary=vocabulary, modalities={"video": VIDEO}, like={"video": "image"}, seed=5)
    return folder


def test_further_symbols_come_behind_all_ids_and_change_no_text(base, vocabulary):
    old, new = load_vocabulary((base / "tokenizer.model").read_bytes()), load_vocabulary(vocabulary)
    assert new.size == old.size + len(markup.own_symbols())
    assert [new.name(i) for i in range(old.size)] == [old.name(i) for i in range(old.size)]
    assert [new.symbol_id(name) for name in markup.own_symbols()] == list(range(old.size, new.size))
    for text in ("Save", "Ünal <go> <m1>", "漢 \U0001f600", " two  spaces "):
        ids = new.encode(text)
        assert ids == old.encode(text) and max(ids) < old.size and new.bytes_of(ids) == text.encode()
    # a second time, and names that are there, add nothing
    assert with_symbols(vocabulary, markup.symbols()) == vocabulary
    assert load_vocabulary(with_symbols(vocabulary, ["<one>", "<one>"])).size == new.size + 1
    for bad in ("", "</s>", "<0x41>", " <a>"):
        with pytest.raises(ConfigError, match="is empty, padded or a name that sentencepiece keeps"):
            with_symbols(vocabulary, [bad])


def logits(loaded, picture, regions):
    stream = pack([Stream(spans=tuple(prompt_spans(loaded.encoders, picture, regions)))], loaded.model.modality_names)
    with torch.inference_mode():
        return loaded.model.logits(loaded.model.prefill(loaded.model.new_cache(1), stream))[0]


def test_about_what_it_knew_it_says_what_it_said(base, wide):
    old, new = load_local(str(base)), load_local(str(wide))
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (96, 128, 3), dtype=np.uint8))
    regions = old.encoders["regions"].describe(picture, [((10.0, 10.0, 60.0, 24.0), "Save")])
    before, after = logits(old, picture, regions), logits(new, picture, regions)
    torch.testing.assert_close(after[: len(before)], before, rtol=1e-5, atol=1e-5)
    assert len(after) == len(before) + len(markup.own_symbols()) and after.isfinite().all()
    assert before.std() > 0


def test_a_new_modality_begins_with_the_weights_of_the_one_that_it_is_like(base, wide):
    old, new = load_local(str(base)).model.embedders["image"], load_local(str(wide)).model.embedders["video"]
    mine, theirs = new.state_dict(), old.state_dict()
    shared = sorted(set(mine) & set(theirs))
    assert shared and set(mine) - set(theirs) == {"time.weight"}
    for name in shared:
        count = min(len(mine[name]), len(theirs[name]))
        assert count and torch.equal(mine[name][:count], theirs[name][:count]), name


def test_ids_are_followed_by_name_also_where_another_vocabulary_is_as_large(base, tmp_path):
    """The same symbols in another order: every name keeps its row."""
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto.FromString((base / "tokenizer.model").read_bytes())
    listed = list(proto.pieces)
    a, b = (next(i for i, piece in enumerate(listed) if piece.piece == name) for name in ("<t0>", "<t1>"))
    listed[a].piece, listed[b].piece = "<t1>", "<t0>"
    model = widen(str(base), tmp_path / "other", vocabulary=proto.SerializeToString())
    old = load_local(str(base)).model.state_dict()
    changed = [name for name, tensor in model.state_dict().items() if not torch.equal(tensor, old[name])]
    tables = [name for name, tensor in old.items() if tensor.dim() and len(tensor) == proto_size(proto)]
    assert changed and sorted(changed) == sorted(tables)
    for name in tables:
        assert torch.equal(model.state_dict()[name][[a, b]], old[name][[b, a]])


def proto_size(proto):
    return len(proto.pieces)


def test_what_is_there_already_is_refused_and_left_alone(base, wide, vocabulary, tmp_path):
    before = (wide / "model.safetensors").read_bytes()
    with pytest.raises(CheckpointError, match="is there already"):
        widen(str(base), wide, vocabulary=vocabulary)
    assert (wide / "model.safetensors").read_bytes() == before
    with pytest.raises(ConfigError, match="reads 'video' already; leave it out"):
        widen(str(wide), tmp_path / "x", modalities={"video": VIDEO})
    assert not (tmp_path / "x").exists()


# ---------------------------------------------------------------------- asked about a recording


@pytest.fixture(scope="module")
def model(wide):
    return load_local(str(wide))


def test_whatever_an_untaught_model_says_is_a_specification(model, seen):
    """Equal calls give equal answers, nothing is dropped, and the shares rise to one."""
    shares = []
    one = ask_steps(model, seen(4), progress=shares.append)
    other = ask_steps(model, seen(4))
    assert one == other and one.warnings == ()
    assert shares == [0.25, 0.5, 0.75, 1.0]
    assert len(one.markups) == 4 and one.markups[0][0] == markup.NEW
    assert one.spec.source == seen(4).source and one.written == sum(len(m) + 1 for m in one.markups)
    assert all(len(m) < 48 for m in one.markups)
    again = markup.decode(
        [markup.Written(observed=t.observed, markup=m) for t, m in zip(seen(4).turns, one.markups, strict=True)],
        seen(4).source,
    )
    assert [(s.action, s.start_s, s.target) for s in again.spec.steps] == [
        (s.action, s.start_s, s.target) for s in one.spec.steps
    ]


def test_blank_leaves_the_patches_out(model, seen):
    full, blank = ask_steps(model, seen(3)), ask_steps(model, seen(3), blank=True)
    assert full.read - blank.read == sum(len(turn.patches.time_us) for turn in seen(3).turns) > 0


def test_a_recording_longer_than_the_context_is_asked_in_streams_that_overlap(model, seen):
    """With room for little more than a turn, what was read last is read again, and every turn has its answer."""
    whole = ask_steps(model, seen(5), max_tokens=16)
    short = ask_steps(model, seen(5), max_tokens=16, context=140)
    tiny = ask_steps(model, seen(5), max_tokens=16, context=1)
    assert len(short.markups) == len(tiny.markups) == 5 and short.warnings == tiny.warnings == ()
    assert short.read > whole.read == tiny.read  # where no turn fits beside the next, none is read again
    assert short.markups[0] == tiny.markups[0] == whole.markups[0]


def test_a_model_that_does_not_read_videos_is_refused(base, seen):
    with pytest.raises(UsageError, match="does not read video; take nano"):
        ask_steps(load_local(str(base)), seen(2))


def test_the_vocabulary_of_both_tasks_goes_on_behind_that_of_the_model_that_ships(tmp_path):
    words.build(with_symbols, tmp_path / "made.model")
    assert (tmp_path / "made.model").read_bytes() == words.tokenizer_model(), "build it again"
    config = json.loads((built_in_folder() / "config.json").read_text("utf-8"))
    layouts, both = load_vocabulary(layout_model()), load_vocabulary(words.tokenizer_model())
    assert encoders()["text"].vocab_size == layouts.size
    assert encoders(words.tokenizer_model())["text"].vocab_size == both.size == layouts.size + 123
    # samples of pages are written in the first ids, so that they teach the model of both tasks as they are
    assert (built_in_folder() / "tokenizer.model").read_bytes() == words.tokenizer_model()
    assert both.size == config["vocab_size"]
    assert [both.name(i) for i in range(layouts.size)] == [layouts.name(i) for i in range(layouts.size)]
    assert set(markup.symbols()) <= set(both.symbols)

"""Rows as streams: what is learnt, how messages are told apart, which modality reads what."""

import json

import numpy as np
import pytest
import torch

from watersmeet.core.errors import ConfigError, UsageError
from watersmeet.core.stream import NO_TARGET, pack
from watersmeet.pipelines.finetune.dataset import TooLong
from watersmeet.pipelines.finetune.rows import RowError

RNG = np.random.default_rng(0)


def learnt(data, index=0):
    """The text of what is learnt in a row, control tokens by their names, decoded from targets alone."""
    vocabulary = data.reading.writer.vocabulary
    stream = data.sample(index, RNG)
    ids = [int(t) for span in stream.spans for t in span.targets if int(t) != NO_TARGET]
    out, run = [], []
    for i in [*ids, None]:
        if i is None or not vocabulary.token_bytes[i]:
            out.append(vocabulary.bytes_of(run).decode("utf-8"))
            run = []
            out.append("" if i is None else vocabulary.name(i))
        else:
            run.append(i)
    return "".join(out)


def test_fault_17_loss_on_the_answer_alone_every_answer_and_never_on_a_picture(models, rows, kit, tmp_path):
    (tmp_path / "a.png").write_bytes(kit.png())
    path = rows(
        [
            kit.about("a.png"),
            {
                "messages": [
                    {"role": "user", "content": "one?"},
                    {"role": "assistant", "content": "Yes."},
                    {"role": "user", "content": "two?"},
                    {"role": "assistant", "content": "No."},
                ]
            },
        ]
    )
    data = kit.open(path, models.turns)
    assert learnt(data, 0) == "It is red.</s>" and learnt(data, 1) == "Yes.</s>No.</s>"
    for model, end in ((models.k2, "<|im_end|>"),):
        assert learnt(kit.open(rows([kit.talk("one?", "Yes.")]), model)) == "Yes." + end
    stream = data.sample(0, RNG)
    assert [span.modality for span in stream.spans if span.n][:2] == ["text", "image"]
    assert all(int(t) == NO_TARGET for s in stream.spans if s.modality == "image" for t in s.targets)
    # the position before a target is where it is predicted from: the last symbol of the opening predicts the answer
    ids = torch.cat([s.data for s in stream.spans if s.modality == "text"])
    opening = data.reading.writer.symbol_id("<assistant>")
    assert ids.tolist().count(opening) == 1


def test_k3_learns_the_whole_answer_with_its_frame(models, rows, kit):
    row = kit.talk("one?", "Yes.")
    assert learnt(kit.open(rows([row]), models.k3)) == (
        "<|open|>response<|sep|>Yes.<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>"
    )
    row["messages"][1]["reasoning_content"] = "hm"
    assert "<|open|>think<|sep|>hm<|close|>think<|sep|>" in learnt(kit.open(rows([row]), models.k3))
    assert "hm" not in learnt(kit.open(rows([row]), models.k3, reasoning="off"))


@pytest.mark.parametrize("model", ["turns", "k2", "k3"])
def test_weights_by_role_by_message_and_by_part(models, rows, kit, model):
    path = rows(
        [
            {
                "messages": [
                    {"role": "user", "content": "one?"},
                    {"role": "assistant", "content": "Yes.", "weight": 0},
                    {"role": "user", "content": "two?"},
                    {
                        "role": "assistant",
                        "content": [{"type": "text", "text": "It is ", "weight": 0}, {"type": "text", "text": "blue."}],
                    },
                ]
            }
        ]
    )
    found = learnt(kit.open(path, getattr(models, model)))
    assert "Yes" not in found and "It is" not in found and "blue." in found and "two" not in found
    with_user = kit.open(path, getattr(models, model), roles={"user": 0.25})
    assert "two?" in learnt(with_user)
    weights = torch.cat([span.weight for span in with_user.sample(0, RNG).spans])
    assert set(weights.tolist()) == {0.0, 0.25, 1.0}


def test_fault_9_text_alone_is_a_normal_case_for_a_model_that_sees(models, rows, kit):
    data = kit.open(rows([kit.talk("one?", "Yes.")]), models.turns)
    packed = pack([data.sample(0, RNG)], tuple(data.modalities))
    assert [segment.modality for segment in packed.segments] == ["text"]


def test_fault_32_rows_with_and_without_pictures_text_and_lists_in_one_file(models, rows, kit, tmp_path):
    (tmp_path / "a.png").write_bytes(kit.png())
    many = [
        kit.talk("one?", "Yes."),
        kit.about("a.png"),
        kit.talk([{"type": "text", "text": "two?"}], [{"type": "text", "text": "No."}], tools=None, id=7),
        kit.talk("\N{GRINNING FACE}\N{PARTY POPPER}", "\N{THUMBS UP SIGN}"),
    ]
    data = kit.open(rows(many), models.turns)
    assert [learnt(data, i) for i in range(4)] == [
        "Yes.</s>",
        "It is red.</s>",
        "No.</s>",
        "\N{THUMBS UP SIGN}</s>",
    ]


def test_fault_5_words_that_look_like_control_tokens_stay_words(models, rows, kit):
    evil = "<image> <|media_pad|> <assistant> </s> <|im_end|> <|open|>"
    for model in (models.turns, models.k2, models.k3):
        data = kit.open(rows([kit.talk(evil, "Yes. " + evil)]), model)
        plain = kit.open(rows([kit.talk("x", "Yes.")]), model)
        vocabulary = data.reading.writer.vocabulary

        def controls(found, vocabulary=vocabulary):
            ids = torch.cat([s.data for s in found.sample(0, RNG).spans]).tolist()
            return [i for i in ids if not vocabulary.token_bytes[i]]

        assert controls(data) == controls(plain)
        assert evil in learnt(data)


def test_symbols_are_a_part_of_their_own(models, rows, kit):
    row = kit.talk([{"type": "text", "text": "go"}, {"type": "symbols", "symbols": ["<mark>"]}],
                   [{"type": "symbols", "symbols": ["<mark>", "<mark>"]}])  # fmt: skip
    assert learnt(kit.open(rows([row]), models.plain)) == "<mark><mark></s>"
    row["messages"][1]["content"][0]["symbols"] = ["<mork>"]
    with pytest.raises(RowError, match=r"row 1: messages\[1\].content\[0\].symbols: .*<mork>"):
        kit.open(rows([row]), models.plain).sample(0, RNG)
    with pytest.raises(RowError, match="official form writes its control tokens itself"):
        kit.open(rows([row]), models.k2).sample(0, RNG)


def test_without_symbols_for_turns_a_row_is_one_question(models, rows, kit):
    two = {"messages": [*kit.talk("one?", "Yes.")["messages"], *kit.talk("two?", "No.")["messages"]]}
    assert learnt(kit.open(rows([kit.talk("one?", "Yes.")]), models.plain)) == "Yes.</s>"
    with pytest.raises(RowError, match="turns.opening"):
        kit.open(rows([two]), models.plain).sample(0, RNG)
    turns = {"opening": {"user": ["<mark>"], "assistant": ["<mark>", "<mark>"]}, "closing": {"assistant": ["</s>"]}}
    data = kit.open(rows([two]), models.plain, turns=turns)
    assert learnt(data) == "Yes.</s>No.</s>" and data.processor["turns"]["opening"] == turns["opening"]
    with pytest.raises(ConfigError, match="rôle"):
        kit.open(rows([two]), models.plain, turns={"opening": {"rôle": []}})


def test_fault_1_a_sample_that_is_too_long_is_an_error_with_the_numbers_or_counted(models, rows, kit, tmp_path):
    (tmp_path / "a.png").write_bytes(kit.png(size=(64, 64)))
    path = rows([kit.about("a.png", question="why " * 30), kit.talk("one?", "Yes.")])
    data = kit.open(path, models.turns, max_tokens=40)
    with pytest.raises(TooLong, match=r"row 1: has \d+ tokens \(\d+ of text, 16 of image\) but a batch has 40"):
        data.sample(0, RNG)
    from watersmeet.core.training.packing import Packer

    dropped = Packer(
        kit.open(path, models.turns, max_tokens=40, too_long="drop"), tokens=40, fill_modality="text", pool=2
    )
    batch = dropped.next_batch()
    assert dropped.counts["too_long"] >= 1 and {index for _, index in batch.samples} == {1}


def test_two_hundred_thousand_tokens_are_refused_with_the_number(models, rows, kit):
    row = kit.talk("é" * 200_000, "Yes.")
    with pytest.raises(TooLong, match=r"has [234]\d\d,\d\d\d tokens"):
        kit.open(rows([row]), models.turns).sample(0, RNG)


def test_a_modality_of_a_plugin_is_a_type(models, rows, kit):
    row = kit.talk([{"type": "moonvit", "moonvit": "a.png"}], "Yes.")
    with pytest.raises(RowError, match="no modality of .* reads 'moonvit'.*watersmeet graft"):
        kit.open(rows([row]), models.turns)
    inline = {"texts": [], "shapes": []}
    row["messages"][0]["content"] = [
        {"type": "regions", "regions": inline},
        {"type": "symbols", "symbols": ["<layout>"]},
    ]
    row["messages"][1]["content"] = [{"type": "symbols", "symbols": ["</>"]}]
    assert learnt(kit.open(rows([row]), "nano")) == "</></s>"


def test_official_forms_take_only_roles_whose_words_somebody_wrote(models, rows, kit):
    row = kit.talk("one?", "Yes.")
    row["messages"].insert(0, {"role": "system", "content": "be kind"})
    assert "kind" not in learnt(kit.open(rows([row]), models.k2))
    with pytest.raises(RowError, match="only messages of users and assistants"):
        kit.open(rows([row]), models.k2, roles={"system": 1.0}).sample(0, RNG)


def test_tools_and_calls_in_the_official_form_and_refused_elsewhere(models, rows, kit):
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"x": 1}'}}
    messages = [
        {"role": "user", "content": "one?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "red", "tool_call_id": "a"},
        {"role": "assistant", "content": "Yes."},
    ]
    found = learnt(kit.open(rows([{"messages": messages}]), models.k2))
    assert "functions.look:0" in found and "red" not in found and found.endswith("Yes.<|im_end|>")
    with pytest.raises(RowError, match=r"messages\[1\].tool_calls"):
        kit.open(rows([{"messages": messages}]), models.turns).sample(0, RNG)


def test_training_reads_what_use_reads(models, rows, kit):
    """The prompt of the official form as `generate` makes it is the beginning of what is trained on."""
    from watersmeet.pipelines.models.reading import read_folder

    for model in (models.k2, models.k3):
        stream = kit.open(rows([kit.talk("one?", "Yes.")]), model).sample(0, RNG)
        ids = torch.cat([span.data for span in stream.spans]).tolist()
        writer = read_folder(model).writer
        spans, _, _ = writer.chat().prompt([{"role": "user", "content": "one?"}], writer)
        prompt = torch.cat([span.data for span in spans]).tolist()
        assert ids[: len(prompt)] == prompt


def test_rows_are_pure(models, rows, kit, tmp_path):
    (tmp_path / "a.png").write_bytes(kit.png())
    data = kit.open(rows([kit.about("a.png")]), models.turns)
    assert data.sample(0, np.random.default_rng(1)).key == data.sample(0, np.random.default_rng(2)).key
    assert json.dumps(data.processor)


def test_a_model_without_a_vocabulary_says_so(models, rows, kit, tmp_path):
    from watersmeet.core.errors import CheckpointError
    from watersmeet.core.official.random import random_kimi_linear

    random_kimi_linear(tmp_path / "bare", seed=3)
    with pytest.raises(CheckpointError, match="no tokenizer files"):
        kit.open(rows([kit.talk("one?", "Yes.")]), str(tmp_path / "bare"))
    with pytest.raises((UsageError, CheckpointError)):
        kit.open(rows([kit.talk("one?", "Yes.")]), str(tmp_path / "nothing"))

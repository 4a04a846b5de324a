"""Other people's files as rows of ours."""

import json

import numpy as np
import pytest

from watersmeet.__main__ import main
from watersmeet.pipelines.finetune.convert import convert, from_other
from watersmeet.pipelines.finetune.rows import RowError

LLAVA = {
    "id": "7",
    "image": "a.png",
    "conversations": [
        {"from": "human", "value": "<image>\nWhat colour?"},
        {"from": "gpt", "value": "It is red."},
        {"from": "human", "value": "Sure?"},
        {"from": "gpt", "value": "Yes."},
    ],
}


def test_llava_rows_are_the_messages_they_mean(models, kit, tmp_path):
    (tmp_path / "a.png").write_bytes(kit.png())
    (tmp_path / "in.json").write_text(json.dumps([LLAVA, LLAVA]))
    assert main(["data", "convert", str(tmp_path / "in.json"), "--out", str(tmp_path / "out.jsonl")]) == 0
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert lines == 2 * [
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "image", "image": "a.png"}, {"type": "text", "text": "What colour?"}],
                },
                {"role": "assistant", "content": "It is red."},
                {"role": "user", "content": "Sure?"},
                {"role": "assistant", "content": "Yes."},
            ]
        }
    ]
    stream = kit.open(tmp_path / "out.jsonl", models.turns).sample(0, np.random.default_rng(0))
    assert [span.modality for span in stream.spans].count("image") == 1


def test_several_pictures_go_to_their_places_in_order():
    row = from_other(
        {
            "images": ["a", "b"],
            "conversations": [
                {"from": "system", "value": "Look."},
                {"from": "human", "value": "left <image> and <image>right"},
                {"from": "gpt", "value": "no"},
            ],
        },
        "x row 1",
    )
    assert row["messages"][1]["content"] == [
        {"type": "text", "text": "left "},
        {"type": "image", "image": "a"},
        {"type": "text", "text": " and "},
        {"type": "image", "image": "b"},
        {"type": "text", "text": "right"},
    ]
    ours = {"messages": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "<image>?"}]}]}
    assert from_other({**ours, "images": ["a"]}, "x")["messages"][0]["content"][0] == {"type": "image", "image": "a"}
    plain = {"messages": [{"role": "user", "content": "what does <image> mean?"}]}
    assert from_other(plain, "x") == plain


def say(*turns, **more):
    return {"conversations": [{"from": who, "value": text} for who, text in turns], **more}


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (say(("human", "<image> a"), ("gpt", "b")), r"conversations\[0\]: the text says <image> but there is no image"),
        (say(("human", "a"), ("gpt", "b"), image="x.png"), "1 more image"),
        (say(("human", "<image>"), ("gpt", "b"), image="x", images=["y"]), "both 'image' and 'images'"),
        (say(("robot", "a"), ("gpt", "b")), r"conversations\[0\].from is 'robot'"),
        ({"conversations": [{"from": "human", "value": 7}]}, "a text 'value'"),
        ({"conversations": []}, "expected a list of messages"),
        ({"text": "a"}, "a field 'text'"),
        (say(("human", "a"), ("gpt", "")), r"messages\[1\].content of the assistant is empty"),
        (say(("human", "a"), ("gpt", "b"), messages=[]), "one of 'messages' and 'conversations'"),
        ([], "is a list"),
    ],
)
def test_fault_2_and_5_what_does_not_fit_is_an_error_with_its_row(tmp_path, row, words):
    good = say(("human", "a"), ("gpt", "b"))
    (tmp_path / "in.jsonl").write_text(json.dumps(good) + "\n" + json.dumps(row) + "\n")
    with pytest.raises(RowError, match=f"in.jsonl row 2: .*{words}"):
        convert(tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    assert [p.name for p in tmp_path.iterdir()] == ["in.jsonl"]


def test_parquet_with_bytes_in_a_struct(models, kit, tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    def messages(question, answer):
        return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]

    table = pa.table(
        {
            "messages": [messages("<image>\nWhat?", "It is red."), messages("one?", "Yes.")],
            "images": [[{"bytes": kit.png(), "path": None}], None],
        }
    )
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=1)
    assert convert(tmp_path / "in.parquet", tmp_path / "out.jsonl") == 2
    data = kit.open(tmp_path / "out.jsonl", models.turns)
    counts = [[span.modality for span in data.sample(i, np.random.default_rng(0)).spans].count("image") for i in (0, 1)]
    assert counts == [1, 0]
    [stored] = [p for p in (tmp_path / "out.media").rglob("*") if p.is_file()]
    assert stored.read_bytes() == kit.png()
    (tmp_path / "in.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(RowError, match="cannot be read as parquet"):
        convert(tmp_path / "in.parquet", tmp_path / "other.jsonl")

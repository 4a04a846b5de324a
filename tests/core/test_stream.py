import dataclasses
import subprocess
import sys

import numpy as np
import pytest
import torch

from watersmeet.core.errors import WatersmeetError
from watersmeet.core.stream import NO_TARGET, Span, Stream, StreamError, content_key, pack, supervise

KEY = content_key("test")


def ids(*values, **more):
    return Span(modality="words", data=torch.tensor(values, dtype=torch.int64), key=KEY, **more)


def tiles(n, width=4, **more):
    return Span(
        modality="tiles",
        data=torch.arange(n * width, dtype=torch.float32).reshape(n, width),
        coords=torch.stack([torch.arange(n), torch.arange(n)], dim=1),
        key=KEY,
        **more,
    )


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("coords", torch.zeros(2, 2, dtype=torch.int64), ["coords", "2", "3"]),
        ("time_us", torch.zeros(4, dtype=torch.int64), ["time_us", "4", "3"]),
        ("block", torch.zeros(5, dtype=torch.int64), ["block", "5", "3"]),
        ("targets", torch.zeros(1, dtype=torch.int64), ["targets", "1", "3"]),
        ("weight", torch.zeros(0), ["weight", "0", "3"]),
        ("source", ((0, 1),), ["source", "1", "3"]),
        ("weight", torch.zeros(3, dtype=torch.float64), ["weight", "float64", "float32"]),
        ("time_us", torch.zeros(3), ["time_us", "float32", "int64"]),
        ("coords", torch.zeros(3, dtype=torch.int64), ["coords", "2 dimension"]),
        ("key", b"short", ["key", "5 bytes", "32"]),
        ("block", [0, 0, 0], ["block", "list"]),
        ("modality", "", ["modality"]),
    ],
)
def test_a_column_that_disagrees_is_named_with_its_numbers(column, value, words):
    with pytest.raises(StreamError) as caught:
        dataclasses.replace(ids(1, 2, 3), **{column: value})
    assert isinstance(caught.value, WatersmeetError)
    for word in words:
        assert word in str(caught.value)


def test_defaults_are_causal_weight_one_and_no_coordinates():
    span = ids(1, 2, 3)
    assert span.n == 3 and span.coords.shape == (3, 0) and span.targets is None
    assert span.block.tolist() == [-1] * 3 and span.weight.tolist() == [1.0] * 3
    assert Stream(spans=(span, ids())).n == 3


def test_pack_puts_every_token_where_its_stream_has_it():
    first = Stream(spans=(tiles(2), ids(7, 8, 9), tiles(1)))
    second = Stream(spans=(ids(5), ids(), tiles(3)))
    packed = pack([first, second])
    assert packed.T == 10 and packed.cu_seqlens.tolist() == [0, 6, 10] and packed.cu_seqlens.dtype == torch.int32
    assert packed.modality_names == ("tiles", "words") and packed.num_streams == 2
    words, squares = packed.segment("words"), packed.segment("tiles")
    assert words.positions.tolist() == [2, 3, 4, 6] and words.data.tolist() == [7, 8, 9, 5]
    assert squares.positions.tolist() == [0, 1, 5, 7, 8, 9]
    assert torch.equal(squares.data, torch.cat([tiles(2).data, tiles(1).data, tiles(3).data]))
    # every position belongs to exactly one segment, and modality_ids says which
    owner = torch.full((packed.T,), -1)
    for segment in packed.segments:
        assert (owner[segment.positions] == -1).all()
        owner[segment.positions] = packed.modality_names.index(segment.modality)
    assert torch.equal(owner, packed.modality_ids)
    assert packed.targets.tolist() == [NO_TARGET] * 10 and packed.weight.sum() == 0
    moved = packed.to("cpu")
    assert moved.T == packed.T and torch.equal(moved.segment("words").data, words.data)


def test_given_names_fix_the_numbering():
    packed = pack([Stream(spans=(ids(1),))], modality_names=["tiles", "other", "words"])
    assert packed.modality_ids.tolist() == [2] and [s.modality for s in packed.segments] == ["words"]
    with pytest.raises(StreamError, match="'words' is not among .*tiles"):
        pack([Stream(spans=(ids(1),))], modality_names=["tiles"])
    with pytest.raises(StreamError, match="twice"):
        pack([Stream(spans=(ids(1),))], modality_names=["words", "words"])


def test_blocks_of_different_spans_never_meet():
    both = torch.zeros(2, dtype=torch.int64)
    mixed = torch.tensor([5, -1, 9])
    packed = pack([Stream(spans=(tiles(2, block=both), tiles(2, block=both))), Stream(spans=(tiles(3, block=mixed),))])
    block = packed.block.tolist()
    assert block[0] == block[1] and block[2] == block[3] and block[5] == -1
    assert len({block[0], block[2], block[4], block[6]}) == 4 and min(block[:4]) >= 0


def test_what_does_not_fit_together_is_refused():
    timed = tiles(1, time_us=torch.tensor([5]))
    with pytest.raises(StreamError, match="time_us is None in stream 1 span 0 but given in stream 0 span 0"):
        pack([Stream(spans=(timed,)), Stream(spans=(tiles(1),))])
    with pytest.raises(StreamError, match=r"\(5,\).*\(4,\)"):
        pack([Stream(spans=(tiles(1),)), Stream(spans=(tiles(1, width=5),))])
    with pytest.raises(StreamError, match="0 coordinates .* 2"):
        pack([Stream(spans=(tiles(1), dataclasses.replace(tiles(1), coords=torch.zeros(1, 0, dtype=torch.int64))))])
    with pytest.raises(StreamError, match="0 streams"):
        pack([])
    with pytest.raises(StreamError, match="stream 1 has 0 tokens"):
        pack([Stream(spans=(ids(1),)), Stream(spans=(ids(),))])
    with pytest.raises(StreamError, match=r"spans\[1\] is a str"):
        Stream(spans=(ids(1), "x"))


def test_weight_counts_only_where_there_is_a_target():
    span = ids(1, 2, 3, targets=torch.tensor([2, NO_TARGET, 4]), weight=torch.tensor([0.5, 7.0, 2.0]))
    packed = pack([Stream(spans=(span,))])
    assert packed.targets.tolist() == [2, NO_TARGET, 4] and packed.weight.tolist() == [0.5, 0.0, 2.0]


def test_supervise_makes_the_position_before_predict_each_learnt_id():
    stream = supervise([ids(10, 11), tiles(2), ids(20, 21, 22), ids(30)], [True, False, True, False])
    targets = pack([stream]).targets.tolist()
    everything = [10, 11, None, None, 20, 21, 22, 30]
    learnt = [True, True, False, False, True, True, True, False]
    expected = [everything[i + 1] if i + 1 < 8 and learnt[i + 1] else NO_TARGET for i in range(8)]
    assert targets == expected
    assert supervise([], []).n == 0
    with pytest.raises(StreamError, match="only int64 ids"):
        supervise([tiles(1)], [True])
    with pytest.raises(StreamError, match="2 spans but 1"):
        supervise([ids(1), ids(2)], [True])


def test_content_key_tells_different_values_apart_and_equal_ones_not():
    values = [
        ("ab", "c"), ("a", "bc"), ("abc",), (b"abc",), (["a", "bc"],), (1,), (1.0,), (True,), ("1",), (None,), (),
        ([],), ({},), ([[], []],), ({"a": 1},), ({"a": 2},), ({"b": 1},), (np.arange(3),), (np.arange(3, dtype=np.int32),),
        (torch.zeros(2, 3),), (torch.zeros(3, 2),), (torch.zeros(6),), (torch.zeros(6, dtype=torch.bfloat16),),
    ]  # fmt: skip
    keys = [content_key(*value) for value in values]
    assert len(set(keys)) == len(values) and all(len(key) == 32 for key in keys)
    assert content_key({"a": 1, "b": 2}) == content_key({"b": 2, "a": 1})
    assert content_key((1, 2)) == content_key([1, 2])
    assert content_key(torch.arange(6).reshape(2, 3).T) == content_key(torch.tensor([[0, 3], [1, 4], [2, 5]]))
    assert content_key(np.arange(3)) == content_key(torch.arange(3))
    with pytest.raises(TypeError, match="object"):
        content_key(object())


def test_content_key_is_the_same_in_another_process():
    code = "from watersmeet.core.stream import content_key; print(content_key('x', {'k': [1, 2.5, None]}).hex())"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert other == content_key("x", {"k": [1, 2.5, None]}).hex()


def test_stream_key_follows_order_and_content():
    one, two = ids(1), dataclasses.replace(ids(2), key=content_key("two"))
    assert Stream(spans=(one, two)).key != Stream(spans=(two, one)).key
    assert Stream(spans=(one, two)).key == Stream(spans=(one, two)).key

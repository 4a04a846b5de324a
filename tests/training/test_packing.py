"""Packing to a fixed length: nothing split, nothing mixed, nothing lost, and a cursor that can be written down."""

import json

import numpy as np
import pytest
import torch

from watersmeet.core.errors import DecodeError, WatersmeetError
from watersmeet.core.stream import Span, Stream, content_key, supervise
from watersmeet.core.training.loader import Loader
from watersmeet.core.training.packing import Packer, fixed_batches


class Numbers:
    """Sample i is a prompt of "dots" and an answer of "ids", all made of the number i; lengths vary with i."""

    def __init__(self, count=40, bad=(), long=()):
        self.count, self.bad, self.long = count, set(bad), set(long)

    def __len__(self):
        return self.count

    def sample(self, index, rng):
        if index in self.bad:
            raise DecodeError(f"picture {index} is broken")
        n = 500 if index in self.long else 3 + index % 7
        noise = torch.from_numpy(rng.random((4, 2)).astype(np.float32))
        dots = Span(
            modality="dots",
            data=torch.full((4, 2), float(index)) + noise * 0.1,
            coords=torch.zeros(4, 1, dtype=torch.int64),
            key=content_key(index),
        )
        ids = Span(modality="ids", data=torch.full((n,), index), key=content_key("ids", index))
        return supervise([dots, ids], [False, True])


def packer(dataset=None, **options):
    return Packer(
        dataset or Numbers(),
        **{"tokens": 64, "fill_modality": "ids", "modality_names": ("dots", "ids"), "pool": 8, "seed": 5, **options},
    )


def streams_of(batch):
    """(ids, dots) of every real sequence of a batch, cut at cu_seqlens."""
    bounds = batch.packed.cu_seqlens.tolist()
    found = []
    for start, end in zip(bounds, bounds[1:], strict=False):
        if start >= batch.real_tokens:
            continue
        rows = []
        for name in ("dots", "ids"):
            segment = batch.packed.segment(name)
            inside = (segment.positions >= start) & (segment.positions < end)
            rows.append(segment.data[inside])
        found.append(rows)
    return found


def test_batches_have_exactly_t_positions_and_whole_samples():
    source, seen = packer(), []
    while source.epoch < 2:
        batch = source.next_batch()
        assert batch.packed.T == 64 and batch.packed.cu_seqlens[-1] == 64
        streams = streams_of(batch)
        assert len(streams) == len(batch.samples)
        for (_, index), (dots, ids) in zip(batch.samples, streams, strict=True):
            assert ids.tolist() == [index] * (3 + index % 7)  # whole, and of one sample only
            assert dots.shape == (4, 2) and bool((dots.round() == index).all())
        seen += [index for epoch, index in batch.samples if epoch == 0]
    assert sorted(seen) == list(range(40))  # every sample of an epoch once


def test_filling_has_no_weight_and_targets_are_the_next_ids():
    source = packer()
    filled = 0
    for _ in range(10):
        batch = source.next_batch()
        packed = batch.packed
        assert float(packed.weight[batch.real_tokens :].sum()) == 0
        assert bool((packed.targets[batch.real_tokens :] == -100).all())
        filled += 64 - batch.real_tokens
        ids = torch.full((64,), -1)
        segment = packed.segment("ids")
        ids[segment.positions] = segment.data
        where = packed.targets != -100
        # each target is the id at the next position, inside the same sequence
        assert torch.equal(packed.targets[where], ids.roll(-1)[where])
        assert bool((packed.weight[where] == 1).all()) and float(packed.weight.sum()) == int(where.sum())
        ends = packed.cu_seqlens[1:].long() - 1
        assert bool((packed.targets[ends] == -100).all())
    assert 0 < filled < 0.15 * 640


def test_order_depends_on_seed_and_epoch_only():
    first = [packer().next_batch().samples for _ in range(2)]
    assert first[0] == first[1]
    assert packer(seed=6).next_batch().samples != first[0]


def test_cursor_resumes_at_any_batch_also_twice():
    source = packer()
    whole = [source.next_batch() for _ in range(14)]
    for stop in (1, 6, 13):
        again = packer()
        again.load_state(json.loads(json.dumps(whole[stop - 1].cursor)))
        mid = again.next_batch()
        assert mid.samples == whole[stop].samples
        if stop + 1 < 14:
            third = packer()
            third.load_state(json.loads(json.dumps(mid.cursor)))
            batch = third.next_batch()
            assert batch.samples == whole[stop + 1].samples
            # the sample's own randomness too
            assert torch.equal(batch.packed.segment("dots").data, whole[stop + 1].packed.segment("dots").data)


def test_too_long_and_broken_samples_are_counted_and_named():
    source = packer(Numbers(count=60, bad=[7], long=[3, 4]))
    notes = []
    while source.epoch < 1:
        notes += source.next_batch().bad
    assert source.counts["too_long"] >= 2 and source.counts["bad"] >= 1
    assert any("sample 7" in note and "broken" in note for note in notes)


def test_rotten_or_unusable_data_is_refused():
    with pytest.raises(WatersmeetError, match="max_bad_fraction"):
        source = packer(Numbers(count=40, bad=range(0, 40, 3)))
        for _ in range(20):
            source.next_batch()
    with pytest.raises(WatersmeetError, match="no usable sample"):
        packer(Numbers(count=4, long=range(4))).next_batch()


def test_processes_share_an_epoch_without_overlap():
    seen = []
    for rank in range(2):
        source = packer(rank=rank, world=2)
        while source.epoch < 1:
            seen += [index for epoch, index in source.next_batch().samples if epoch == 0]
        seen += [index for epoch, index, _ in source._pool if epoch == 0]
    assert sorted(seen) == list(range(40))


def test_loader_gives_the_same_batches_in_order_and_forwards_errors():
    plain, source = packer(), Loader(packer(), ahead=3)
    for _ in range(8):
        assert source.next().samples == plain.next_batch().samples
    source.close()
    broken = Loader(packer(Numbers(count=4, long=range(4))), ahead=2)
    with pytest.raises(WatersmeetError, match="no usable sample"):
        broken.next()
    broken.close()


def test_evaluation_batches_are_fixed_and_end_with_the_data():
    options = {"tokens": 64, "fill_modality": "ids", "modality_names": ("dots", "ids")}
    first = [b.samples for b in fixed_batches(Numbers(count=12), 50, **options)]
    second = [b.samples for b in fixed_batches(Numbers(count=12), 50, **options)]
    assert first == second and all(epoch == 0 for samples in first for epoch, _ in samples)
    assert sorted(index for samples in first for _, index in samples) == list(range(12))


def test_empty_span_only_stream_is_not_packed():
    class Hollow(Numbers):
        def sample(self, index, rng):
            return Stream(spans=()) if index == 0 else super().sample(index, rng)

    source = packer(Hollow(count=10))
    seen = {index for _ in range(6) for _, index in source.next_batch().samples}
    assert 0 not in seen

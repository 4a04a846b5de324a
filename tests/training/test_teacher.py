"""An older model as a teacher: its part of the loss written out in float64, and whose streams it speaks of."""

import sys
from pathlib import Path

import pytest
import torch

from watersmeet.core.config import preset
from watersmeet.core.errors import ConfigError
from watersmeet.core.model.model import Model
from watersmeet.core.stream import NO_TARGET, Span, Stream, StreamError, content_key, pack, pick
from watersmeet.core.training.resume import differences
from watersmeet.core.training.teacher import Teacher
from watersmeet.core.training.trainer import Trainer, seed_everything

sys.path.insert(0, str(Path(__file__).parent))
from test_trainer import recipe
from tiny_data import VOCAB, Echo, Ids, micro_model

FEW = 12


def text_model(vocab=FEW, seed=5):
    """A model that reads ids alone, and only the first `vocab` of them."""
    torch.manual_seed(seed)
    config = preset("micro").replace(vocab_size=vocab, output_modality="ids")
    return Model(config, {"ids": Ids(config.hidden_size)})


def stream(*spans):
    out = []
    for name, ids, targets in spans:
        data = torch.zeros(len(ids), 10) if name == "dots" else torch.tensor(ids)
        wanted = torch.tensor(targets if targets else [NO_TARGET] * len(ids))
        out.append(Span(modality=name, data=data, targets=wanted, key=content_key(name, ids)))
    return Stream(spans=tuple(out))


def mixed():
    return pack(
        [
            stream(("dots", [0, 0], []), ("ids", [1, 2, 3], [2, 3, 4])),  # has dots
            stream(("ids", [5, 6, 7, 8], [6, 7, NO_TARGET, 9])),  # readable
            stream(("ids", [5, 20, 7], [7, 7, 7])),  # an id that the teacher has not
            stream(("ids", [1, 1], [1, 20])),  # a target that it has not
            stream(("ids", [4, 4, 4], [])),  # nothing to learn
            stream(("ids", [9, 3], [3, 1])),  # readable
        ],
        ("dots", "ids"),
    )


def divergence(student, teacher, ids, targets, share):
    """What a stream of ids should cost, one position at a time in float64."""
    one = pack([stream(("ids", ids, targets))], ("dots", "ids"))
    other = pack([stream(("ids", ids, targets))], ("ids",))
    q = student.logits(student(one)).double().log_softmax(-1)
    p = teacher.logits(teacher(other)).double().softmax(-1)
    total = 0.0
    for t, target in enumerate(targets):
        if target == NO_TARGET:
            continue
        kl = sum(p[t, v] * (p[t, v].log() - q[t, v]) for v in range(p.shape[1]))
        total = total + (1 - share) * -q[t, target] + share * kl
    return total


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_the_loss_is_the_one_written_out_and_reaches_only_what_the_teacher_can_read(share):
    student, older = micro_model().eval(), text_model()
    teacher = Teacher(older, student, share)
    packed = mixed()
    plain = student.loss(packed)
    blended = teacher.blend(plain, packed, student)
    alone = [
        student.loss(pack([one], ("dots", "ids"))).loss_sum.double()
        for one in (
            stream(("dots", [0, 0], []), ("ids", [1, 2, 3], [2, 3, 4])),
            stream(("ids", [5, 20, 7], [7, 7, 7])),
            stream(("ids", [1, 1], [1, 20])),
        )
    ]
    shared = [
        divergence(student, older, [5, 6, 7, 8], [6, 7, NO_TARGET, 9], share),
        divergence(student, older, [9, 3], [3, 1], share),
    ]
    expected = sum(alone) + sum(shared)
    assert blended.loss_sum.item() == pytest.approx(expected.item(), rel=2e-5)
    assert blended.loss.item() == pytest.approx(expected.item() / 13, rel=2e-5)
    # what is said of each modality stays the cross entropy
    assert torch.equal(blended.modality_loss, plain.modality_loss)
    want = torch.autograd.grad(expected, student.lm_head.weight, retain_graph=True)[0]
    got = torch.autograd.grad(blended.loss_sum, student.lm_head.weight)[0]
    assert torch.allclose(got, want.to(got.dtype), rtol=1e-3, atol=1e-6)


def test_a_student_that_says_what_the_teacher_says_has_nothing_to_learn_from_it():
    older = text_model(VOCAB)
    student = text_model(VOCAB)
    packed = pack([stream(("ids", [5, 6, 7, 8], [6, 7, 1, 9]))], ("ids",))
    out = Teacher(older, student, 1.0).blend(student.loss(packed), packed, student)
    assert out.loss_sum.item() == pytest.approx(0.0, abs=1e-5)
    out.loss_sum.backward()
    assert max(float(p.grad.abs().max()) for p in student.parameters() if p.grad is not None) < 1e-5
    assert all(p.grad is None and not p.requires_grad for p in older.parameters())


def test_a_batch_without_anything_for_the_teacher_is_left_alone():
    student = micro_model()
    packed = pack([stream(("dots", [0, 0], []), ("ids", [1, 2], [2, 3]))], ("dots", "ids"))
    plain = student.loss(packed)
    assert Teacher(text_model(), student, 0.5).blend(plain, packed, student) is plain


def test_a_teacher_that_knows_more_ids_is_refused():
    with pytest.raises(ConfigError, match=f"vocabulary of {VOCAB} ids and the model one of {FEW}"):
        Teacher(micro_model(), text_model(), 0.5)


def test_streams_are_picked_as_if_the_others_had_never_been_there():
    streams = [
        stream(("ids", [5, 6], [6, 7])),
        stream(("dots", [0, 0], []), ("ids", [1], [2])),
        stream(("ids", [1, 2, 3], [2, 3, 4])),
    ]
    whole = pack(streams, ("dots", "ids"))
    picked, where = pick(whole, torch.tensor([True, False, True]), ("ids",))
    alone = pack([streams[0], streams[2]], ("ids",))
    for name in ("cu_seqlens", "targets", "weight", "block", "modality_ids"):
        assert torch.equal(getattr(picked, name), getattr(alone, name)), name
    assert (picked.T, picked.modality_names) == (alone.T, alone.modality_names)
    for one, other in zip(picked.segments, alone.segments, strict=True):
        assert one.modality == other.modality and one.time_us is None
        assert torch.equal(one.data, other.data) and torch.equal(one.positions, other.positions)
    assert where.tolist() == [0, 1, 5, 6, 7]
    with pytest.raises(StreamError, match="pick got 0 streams"):
        pick(whole, torch.tensor([False] * 3), ("ids",))
    with pytest.raises(StreamError, match="modality 'dots' is not among ids"):
        pick(whole, torch.tensor([True] * 3), ("ids",))


def test_a_run_with_a_teacher_stays_nearer_to_it(tmp_path):
    def drift(teacher, **changes):
        config = recipe(tmp_path / str(len(list(tmp_path.iterdir()))), **changes)
        seed_everything(config.seed)
        run = Trainer(micro_model(), config, Echo(), device="cpu", report=lambda line: None, teacher=teacher)
        run.run()
        packed = run._packer().next_batch().packed
        run.model.eval()
        ids = (packed.weight != 0).nonzero().squeeze(1)
        q = run.model.logits(run.model(packed)[ids]).log_softmax(-1)
        first = micro_model().eval()
        p = first.logits(first(packed)[ids]).softmax(-1)
        return float((p * (p.log() - q)).sum(-1).mean())

    free = drift(None)
    kept = drift(micro_model(), **{"loss.teacher": "the one above", "loss.teacher_share": 1.0})
    assert kept < 0.2 * free


@pytest.mark.parametrize("share", [0.0, -1.0, 1.1])
def test_a_share_that_is_none_is_refused(tmp_path, share):
    with pytest.raises(ConfigError, match=r"loss\.teacher_share is .*, expected 0 < x <= 1"):
        recipe(tmp_path, **{"loss.teacher_share": share})


def test_a_resume_compares_the_teacher_and_recipes_without_one_are_as_before(tmp_path):
    then, now = (
        {"config": recipe(tmp_path, **changes).to_dict(), "model": {}, "samples": 1}
        for changes in ({}, {"loss.teacher": "nano"})
    )
    assert then["config"]["loss"] == {"weights": {}}
    assert "config.loss.teacher" in differences(then, now)[0]

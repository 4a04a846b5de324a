"""Losses by modality and their combination by configured weights, computed by hand in float64."""

import math
import sys
from pathlib import Path

import pytest
import torch

from watersmeet.core.errors import ConfigError
from watersmeet.core.model.loss import subject_ids
from watersmeet.core.stream import NO_TARGET, Span, Stream, content_key, pack
from watersmeet.core.training.packing import Packer
from watersmeet.core.training.resume import differences

sys.path.insert(0, str(Path(__file__).parent))
from test_four_equalities import as_batch, step_gradients
from test_trainer import recipe, trainer

EXACT = {"run.precision": "fp32", "optimizer.clip_norm": 0.0}


def run_spans(*parts):
    """A stream of (modality, length) spans that predict token 1 everywhere."""
    spans = []
    for modality, n in parts:
        data = torch.zeros(n, 10) if modality == "dots" else torch.ones(n, dtype=torch.int64)
        spans.append(Span(modality=modality, data=data, targets=torch.ones(n, dtype=torch.int64), key=content_key("k")))
    return Stream(spans=tuple(spans))


def test_a_target_belongs_to_what_was_read_last_in_its_own_stream():
    streams = [
        run_spans(("ids", 2), ("dots", 2), ("ids", 3)),
        run_spans(("ids", 4)),  # what came before is another sample
        run_spans(("marks", 1), ("ids", 1), ("dots", 1), ("ids", 2)),
    ]
    packed = pack(streams, ("dots", "ids", "marks"))
    names = [packed.modality_names[i] for i in subject_ids(packed, "ids").tolist()]
    assert names == ["ids"] * 2 + ["dots"] * 5 + ["ids"] * 4 + ["marks"] * 2 + ["dots"] * 3


def by_hand(run, batches, weights):
    """Loss of every modality, their combination, and the combination's gradient: cross entropies written out in float64."""
    sums, counts = {}, {}
    total = 0.0
    for batch in batches:
        packed = batch.packed
        logits = run.model.logits(run.model(packed)).double()
        kind, stream = None, 0
        for t in range(packed.T):
            if t == int(packed.cu_seqlens[stream]):
                kind, stream = "ids", stream + 1
            name = packed.modality_names[int(packed.modality_ids[t])]
            kind = kind if name == "ids" else name
            if packed.targets[t] == NO_TARGET:
                continue
            nll = torch.logsumexp(logits[t], 0) - logits[t, packed.targets[t]]
            own = float(packed.weight[t])
            sums[kind] = sums.get(kind, 0.0) + own * float(nll.detach())
            counts[kind] = counts.get(kind, 0.0) + own
            total = total + weights.get(kind, 1.0) * own * nll
    norm = sum(weights.get(kind, 1.0) * counts[kind] for kind in counts)
    loss = total / norm
    loss.backward()
    grads = {name: p.grad.clone() for name, p in run.model.named_parameters() if p.grad is not None}
    for param in run.model.parameters():
        param.grad = None
    run.balance.discard()
    means = {kind: sums[kind] / counts[kind] for kind in sums if weights.get(kind, 1.0)}
    return float(loss.detach()), means, grads


def mixed_batches(run):
    """Samples with dots and samples of ids alone, with weights of their own, in two packs."""
    packer = Packer(run.train_set, seed=1, **run._packing())
    streams = [packer._read(0, index) for index in range(6)]
    alone = [Stream(spans=(next(s for s in stream.spans if s.modality == "ids"),)) for stream in streams[:3]]
    batches = [as_batch([*streams[:2], *alone[:1]]), as_batch([*alone[1:], *streams[2:]])]
    batches[0].packed.weight[:] *= torch.linspace(0.5, 1.5, batches[0].packed.T)
    return batches


@pytest.mark.parametrize("weights", [{}, {"dots": 3.0}, {"ids": 0.25, "dots": 1.5}, {"ids": 0.0}], ids=str)
def test_the_trained_and_reported_loss_is_the_configured_combination(tmp_path, weights):
    run = trainer(tmp_path, **EXACT, **{"loss.weights": weights})
    batches = mixed_batches(run)
    wanted, means, expected = by_hand(run, batches, weights)
    grads, record, _ = step_gradients(run, batches)
    assert record["loss"] == pytest.approx(wanted, rel=1e-5)
    assert record["loss_by_modality"] == pytest.approx(means, rel=1e-5)
    for name, grad in expected.items():
        torch.testing.assert_close(
            grads[name], grad, rtol=1e-3, atol=2e-6, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_weights_change_what_is_trained_and_held_out_losses_alike(tmp_path):
    plain = trainer(tmp_path / "a", val=True, **EXACT)
    heavy = trainer(tmp_path / "b", val=True, **EXACT, **{"loss.weights": {"dots": 4.0}})
    one, other = (step_gradients(run, mixed_batches(run))[1] for run in (plain, heavy))
    assert one["loss_by_modality"] == pytest.approx(other["loss_by_modality"], rel=1e-6)
    for name in ("loss", "grad_norm"):
        assert not math.isclose(one[name], other[name], rel_tol=1e-5)
    # all held-out samples have dots, so a factor for them changes nothing
    assert plain.evaluate()["loss"] == pytest.approx(heavy.evaluate()["loss"], rel=1e-6)


@pytest.mark.parametrize("bad", [{"dots": -1}, {"dots": math.nan}, {"dots": math.inf}, {"dots": "2"}, {"dots": True}])
def test_weights_that_are_no_weights_are_refused(tmp_path, bad):
    with pytest.raises(ConfigError, match=r"loss\.weights\.dots .* expected a number of at least 0"):
        recipe(tmp_path, **{"loss.weights": bad})


def test_weights_for_what_the_model_does_not_read_are_refused_and_a_resume_compares_them(tmp_path):
    with pytest.raises(ConfigError, match=r"names 'dot', but the model reads dots, ids"):
        trainer(tmp_path, **{"loss.weights": {"dot": 2.0}})
    then, now = (
        {"config": recipe(tmp_path, **{"loss.weights": w}).to_dict(), "model": {}, "samples": 1}
        for w in ({"dots": 2.0}, {"dots": 3.0})
    )
    assert differences(then, now) == ["config.loss.weights.dots was 2.0, is 3.0"]

"""QK-Clip against the definition in float64, and what it must leave alone."""

import sys
from pathlib import Path

import pytest
import torch

from watersmeet.core.model.logits import ROWS, LogitMeter, logit_bound, logit_maximum
from watersmeet.core.model.mla import attention_mask
from watersmeet.core.training.packing import Packer
from watersmeet.core.training.qk_clip import QKClip, scale_heads

sys.path.insert(0, str(Path(__file__).parent))
from test_trainer import trainer
from tiny_data import Echo, micro_model


def definition(q, k, block, scale):
    """All logits of one stream in float64, and the largest that may be looked at, per head."""
    logits = torch.einsum("lhk,shk->hls", q.double(), k.double()) * scale
    return logits.masked_fill(~attention_mask(len(q), 0, block, q.device), -torch.inf).amax((1, 2))


def loud_model(**changes):
    """A model whose attention logits differ by head and exceed 100 in one of them."""
    model = micro_model(**changes)
    layer = model.layers[3].self_attn
    query = layer.q_b_proj if layer.q_lora else layer.q_proj
    with torch.no_grad():
        query.weight.normal_(std=0.3)
        layer.kv_b_proj.weight.normal_(std=0.3)
        layer.kv_a_proj_with_mqa.weight.normal_(std=0.3)
        query.weight[: layer.head_dim] *= 300
    return model, layer, query


def batches(count=2, tokens=96):
    packer = Packer(Echo(), tokens=tokens, pool=4, fill_modality="ids", modality_names=("dots", "ids"))
    return [packer.next_batch() for _ in range(count)]


@pytest.mark.parametrize("length", [1, 7, ROWS - 1, ROWS + 1, 2 * ROWS + 30])
@pytest.mark.parametrize("two_way", [False, True])
def test_maximum_equals_the_definition_and_the_bound_holds(length, two_way):
    generator = torch.Generator().manual_seed(length)
    q, k = (torch.randn(length, 3, 8, generator=generator) * 5 for _ in range(2))
    block = None
    if two_way:
        block = (torch.arange(length) // 5) % 4 - 1  # groups of five rows; every fourth of them looks back only
    found = logit_maximum(q, k, block, 0.3)
    torch.testing.assert_close(found.double(), definition(q, k, block, 0.3), rtol=1e-6, atol=1e-6)
    assert bool((logit_bound(q, k, 0.3) >= found).all())


def test_heads_below_the_bound_are_not_multiplied_out():
    q = torch.randn(20, 2, 4)
    q[:, 1] *= 1000
    meter = LogitMeter(threshold=100.0)
    meter.see(q, torch.randn(20, 2, 4), None, 0.5)
    assert meter.maxima[0] == -torch.inf and meter.maxima[1].isfinite()


@pytest.mark.parametrize("changes", [{}, {"q_lora_rank": None}])
def test_pitfall_43_qk_clip_leaves_shared_key_and_values_alone_and_forgets_old_maxima(changes):
    model, layer, query = loud_model(**changes)
    clip = QKClip(model, 100.0)
    model.train()
    clip.begin(exact=True)
    ours = batches()
    for batch in ours:
        model.loss(batch.packed, real_tokens=batch.real_tokens)
    before = clip.maxima()
    assert before.shape == (1, 2) and before[0, 0] > 100 and before[0, 1] < 100
    old = {name: value.detach().clone() for name, value in layer.named_parameters()}
    assert clip.clip(before) == 1
    heads_q = query.weight.view(2, layer.head_dim, -1)
    heads_kv = layer.kv_b_proj.weight.view(2, layer.nope + layer.v_dim, -1)
    name = "q_b_proj.weight" if layer.q_lora else "q_proj.weight"
    old_q, old_kv = old[name].view_as(heads_q), old["kv_b_proj.weight"].view_as(heads_kv)
    gamma = 100 / before[0, 0]
    torch.testing.assert_close(heads_q[0, : layer.nope], old_q[0, : layer.nope] * gamma.sqrt())
    torch.testing.assert_close(heads_q[0, layer.nope :], old_q[0, layer.nope :] * gamma)
    torch.testing.assert_close(heads_kv[0, : layer.nope], old_kv[0, : layer.nope] * gamma.sqrt())
    assert torch.equal(heads_kv[:, layer.nope :], old_kv[:, layer.nope :]), "values are not queries or keys"
    assert torch.equal(heads_q[1], old_q[1]) and torch.equal(heads_kv[1], old_kv[1]), "a quiet head was touched"
    for name, value in layer.named_parameters():
        if not name.startswith(("q_b_proj", "q_proj", "kv_b_proj")):
            assert torch.equal(value, old[name]), name
    # the same batches now have this maximum exactly, and the larger one of before is forgotten
    clip.begin(exact=True)
    for batch in ours:
        model.loss(batch.packed, real_tokens=batch.real_tokens)
    after = clip.maxima()
    assert float(after[0, 0]) == pytest.approx(100.0, rel=1e-4) and after[0, 1] == before[0, 1]
    clip.begin(exact=True)
    assert bool((clip.maxima() == -torch.inf).all())
    assert clip.clip(clip.maxima()) == 0


def test_maxima_are_of_all_micro_batches_and_of_real_rows_only():
    model, layer, _ = loud_model()
    clip = QKClip(model, 100.0)
    model.train()
    ours = batches()
    alone = []
    for batch in ours:
        clip.begin(exact=True)
        model.loss(batch.packed, real_tokens=batch.real_tokens)
        alone.append(clip.maxima())
    clip.begin(exact=True)
    for batch in ours:
        model.loss(batch.packed, real_tokens=batch.real_tokens)
    assert torch.equal(clip.maxima(), torch.maximum(*alone))
    # filling rows have logits of their own; they belong to no sample and must not clip anything
    clip.begin(exact=True)
    model.loss(ours[0].packed, real_tokens=int(ours[0].packed.cu_seqlens[1]))
    one = clip.maxima()
    seen = []
    layer.meter.see = lambda q, *_: seen.append(len(q))
    model.loss(ours[0].packed, real_tokens=ours[0].real_tokens)
    assert sum(seen) == ours[0].real_tokens < ours[0].packed.T and bool((one <= alone[0]).all())


def test_nothing_is_measured_in_evaluation_and_negative_maxima_never_clip():
    model, layer, _ = loud_model()
    clip = QKClip(model, 100.0)
    clip.begin(exact=True)
    model.eval()
    model.loss(batches(1)[0].packed)
    assert layer.meter.maxima is None
    before = layer.kv_b_proj.weight.detach().clone()
    assert clip.clip(torch.tensor([[-500.0, float("-inf")]])) == 0
    assert torch.equal(before, layer.kv_b_proj.weight)


def test_a_gamma_scales_the_logits_of_its_head_alone():
    model, layer, _ = loud_model()
    x = torch.randn(30, model.config.hidden_size)

    def logits():
        q, latent, shared, _ = layer._project(x)
        k, _ = layer._expand(latent, shared)
        return torch.einsum("lhk,shk->hls", q, k)

    before = logits()
    scale_heads(layer, torch.tensor([0.25, 1.0]))
    after = logits()
    torch.testing.assert_close(after[0], before[0] * 0.25, rtol=1e-4, atol=1e-2)
    assert torch.equal(after[1], before[1])


@pytest.mark.parametrize("passes", [0, 2])
def test_more_passes_hold_the_logits_of_the_new_weights_too(tmp_path, passes):
    """A huge rate: the update itself takes a clipped head above the threshold again, unless the step looks once more."""
    run = trainer(
        tmp_path, **{"optimizer.qk_passes": passes, "optimizer.lr": 20.0, "schedule.warmup": 0, "run.precision": "fp32"}
    )
    batch = Packer(run.train_set, seed=1, **run._packing()).next_batch()
    layer = run.model.layers[3].self_attn
    with torch.no_grad():
        for matrix in (layer.q_b_proj, layer.kv_b_proj, layer.kv_a_proj_with_mqa):
            matrix.weight.normal_(std=0.3)
        layer.q_b_proj.weight *= 300
    record = run._step([batch])
    assert record["qk_clipped"] >= 2 and int(sum(router.counts.sum() for router in run.balance.routers)) == 0
    run.qk_clip.begin(exact=True)
    run.model.loss(batch.packed, real_tokens=batch.real_tokens)
    after = float(run.qk_clip.maxima().max())
    assert after <= 100.02 if passes else after > 110

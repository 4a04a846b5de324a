"""Quantile Balancing: the histogram against the exact quantile, sharding, convergence; and the load statistics."""

import torch

from watersmeet.core.balancing import bin_range, exact_quantile_bias, quantile_bias, required_bias_histogram
from watersmeet.core.model.moe import Router


def scores(m, n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    favour = torch.linspace(-1.5, 1.5, n)
    return torch.sigmoid(torch.randn(m, n, generator=generator) + favour)


def cutoff(score, bias, k):
    return (score + bias).sort(dim=-1, descending=True).values[:, k]


def loads(score, bias, k):
    return torch.bincount((score + bias).topk(k).indices.flatten(), minlength=score.shape[1])


def test_range_holds_every_required_bias():
    score, bias = scores(4000, 8), torch.randn(8, generator=torch.Generator().manual_seed(1))
    low, high = bin_range(bias)
    required = cutoff(score, bias, 2)[:, None] - score
    assert low <= required.min() and required.max() <= high
    assert required_bias_histogram(score, cutoff(score, bias, 2), bias, 1000).sum(1).tolist() == [4000] * 8


def test_histogram_is_within_a_bin_and_one_order_statistic_of_the_exact_quantile():
    score, bias, k, m = scores(4096, 8), torch.randn(8, generator=torch.Generator().manual_seed(2)) * 0.1, 2, 4096
    alpha = cutoff(score, bias, k)
    got = quantile_bias(required_bias_histogram(score, alpha, bias, 1000), bias, m * k / 8)
    exact = exact_quantile_bias(score, alpha, k)
    low, high = bin_range(bias)
    ordered = (alpha[:, None] - score).sort(dim=0).values
    gap = (ordered[m * k // 8] - ordered[m * k // 8 - 1]).max()
    # centring moves both by a mean of such errors
    assert (got - exact).abs().max() <= 2 * ((high - low) / 1000 + gap)
    assert abs(got.mean()) < 1e-6


def test_counts_do_not_depend_on_how_tokens_are_split():
    score, bias = scores(1000, 6), torch.zeros(6)
    alpha = cutoff(score, bias, 2)
    whole = required_bias_histogram(score, alpha, bias, 100)
    parts = sum(required_bias_histogram(score[i : i + 77], alpha[i : i + 77], bias, 100) for i in range(0, 1000, 77))
    assert torch.equal(whole, parts)


def test_repeated_updates_balance_a_skewed_router():
    score, k, n = scores(2048, 8), 2, 8
    bias = torch.zeros(n)
    target = len(score) * k / n
    assert loads(score, bias, k).max() > 1.8 * target
    for _ in range(8):
        counts = required_bias_histogram(score, cutoff(score, bias, k), bias, 1000)
        bias = quantile_bias(counts, bias, target)
    assert loads(score, bias, k).max() < 1.1 * target


def test_structural_ties_do_not_oscillate():
    """Where the target rank falls among tokens whose cutoff is the expert itself, the bias rests."""
    score = torch.tensor([[0.9, 0.5, 0.4], [0.5, 0.9, 0.4], [0.4, 0.5, 0.9]]).repeat(40, 1)
    bias = torch.zeros(3)
    for _ in range(3):
        bias = quantile_bias(required_bias_histogram(score, cutoff(score, bias, 1), bias, 1000), bias, 40.0)
    before = bias
    for _ in range(5):
        bias = quantile_bias(required_bias_histogram(score, cutoff(score, bias, 1), bias, 1000), bias, 40.0)
    assert (bias - before).abs().max() < 0.02
    assert loads(score, bias, 1).tolist() == [40, 40, 40]


def test_the_bias_picks_but_does_not_weigh(kit):
    router = kit.model().layers[1].block_sparse_moe.gate
    x = torch.randn(30, 48, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        router.e_score_correction_bias.zero_()
        router.e_score_correction_bias[3] = 5.0
        picked, weight = router(x)
        score = torch.sigmoid(x @ router.weight.T)
    assert (picked == 3).any(1).all()
    own = score.gather(1, picked)
    torch.testing.assert_close(weight, own / own.sum(1, keepdim=True), rtol=1e-4, atol=1e-6)


def test_pitfall_28_only_training_counts_and_only_real_tokens(kit):
    model = kit.model()
    routers = [m for m in model.modules() if isinstance(m, Router)]
    packed = kit.pack(kit.stream(30, 0), kit.stream(20, 1))
    model.loss(packed)
    assert all(r.counts.sum().item() == 50 * 6 for r in routers)
    model.discard_balancing()
    out = model.loss(packed, real_tokens=30)
    assert all(r.counts.sum().item() == 30 * 6 for r in routers)
    assert out.expert_load.shape == (3, 2, 6) and out.expert_load.sum((1, 2)).tolist() == [60] * 3
    model.eval()
    model.loss(packed)
    assert all(r.counts.sum().item() == 30 * 6 for r in routers)
    before = [r.e_score_correction_bias.clone() for r in routers]
    model.update_balancing()
    assert all(not torch.equal(r.e_score_correction_bias, old) for r, old in zip(routers, before, strict=True))
    assert not any(r.counts.any() for r in routers)
    now = [r.e_score_correction_bias.clone() for r in routers]
    model.update_balancing()
    assert all(torch.equal(r.e_score_correction_bias, old) for r, old in zip(routers, now, strict=True))


def test_load_is_counted_by_modality(kit):
    model = kit.model().eval()
    with torch.no_grad():
        out = model.loss(kit.pack(kit.stream(30, 0)))
    text, planes = out.modality_names.index("text"), out.modality_names.index("planes")
    assert out.expert_load[:, planes].sum(1).tolist() == [3 * 2] * 3
    assert out.expert_load[:, text].sum(1).tolist() == [27 * 2] * 3


def test_pitfall_28_two_halves_reduce_to_the_whole(kit):
    """What one process counts over two micro-batches, two processes count together."""
    one, first, second = (kit.model() for _ in range(3))
    a, b = kit.pack(kit.stream(40, 0)), kit.pack(kit.stream(25, 1))
    one.loss(a), one.loss(b), first.loss(a), second.loss(b)
    others = iter([m.counts for m in second.modules() if isinstance(m, Router)])
    one.update_balancing()
    first.update_balancing(lambda counts: counts + next(others))
    for p, q in zip(one.buffers(), first.buffers(), strict=True):
        assert torch.equal(p, q)

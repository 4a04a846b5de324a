"""Kimi-Linear-shaped models against transformers 5.24: logits, caches, greedy ids, gradients, bfloat16."""

import pytest
import torch

from watersmeet.core.generate import generate
from watersmeet.core.model.moe import Router
from watersmeet.core.stream import Span, Stream, content_key

SHAPES = {
    "direct queries": {},
    "LoRA queries, two dense layers": dict(
        q_lora_rank=20, num_attention_heads=4, qk_nope_head_dim=12, qk_rope_head_dim=4, v_head_dim=16, kda_num_heads=2,
        kda_head_dim=32, kda_gate_rank=32, first_k_dense_replace=2, num_shared_experts=3,
    ),
    "no dense layer, attention first, many experts": dict(
        num_hidden_layers=4, full_attention_layers=(0, 2), first_k_dense_replace=0, num_experts=16,
        num_experts_per_token=4, routed_scaling_factor=1.0, short_conv_kernel_size=3, num_attention_heads=1,
    ),
    "wide heads": dict(
        hidden_size=96, num_hidden_layers=3, kda_num_heads=1, kda_head_dim=64, kda_gate_rank=64, kv_lora_rank=48,
        v_head_dim=32, qk_nope_head_dim=32, qk_rope_head_dim=16, moe_intermediate_size=48, num_shared_experts=2,
    ),
}  # fmt: skip
LENGTHS = (1, 63, 64, 65, 200)


@pytest.fixture(scope="module", params=SHAPES, ids=lambda name: name.replace(" ", "-"))
def pair(parity, request):
    return parity.pair(parity.linear.replace(**SHAPES[request.param]), seed=list(SHAPES).index(request.param))


def sources(ids):
    return Stream(spans=(Span(modality="text", data=ids, key=content_key("text", ids)),))


@pytest.mark.parametrize("length", LENGTHS)
def test_logits_of_a_whole_sequence(parity, pair, length):
    model, peer = pair
    ids = parity.ids(length, seed=length)
    with torch.no_grad():
        wanted = peer(ids[None], use_cache=False).logits[0]
        got = model.logits(model(parity.packed(ids)))
    assert wanted.std() > 0.5  # lively: a bound on differences says something
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize("length", [64, 200])
def test_pitfall_27_near_tied_experts_are_compared_under_the_routing_of_the_peer(parity, pair, length):
    """Logits under forced picks, and apart from them the share of tokens whose own picks agree."""
    model, peer = pair
    ids = parity.ids(length, seed=length + 1)
    with torch.no_grad():
        wanted, picks = parity.picks(peer, ids)
        with parity.forced(model, picks) as agreed:
            got = model.logits(model(parity.packed(ids)))
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-4)
    assert torch.cat(agreed).float().mean() >= 0.999


def test_pitfall_5_prefill_then_decoding_through_both_caches(parity, pair):
    """65 tokens read at once, 40 more one by one; every step's logits."""
    model, peer = pair
    ids = parity.ids(105, seed=3)
    with torch.inference_mode(), model.fused():
        out = peer(ids[None, :65], use_cache=True)
        cache = model.new_cache(1)
        hidden = model.prefill(cache, parity.packed(ids[:65]))
        torch.testing.assert_close(model.logits(hidden)[0], out.logits[0, -1], rtol=0, atol=1e-4)
        for token in ids[65:]:
            out = peer(token[None, None], cache=out.cache, use_cache=True)
            hidden = model.step(model.embed_ids(token[None]), cache)
            torch.testing.assert_close(model.logits(hidden)[0], out.logits[0, -1], rtol=0, atol=1e-4)


def test_one_token_at_a_time_from_the_first_on(parity, pair):
    model, peer = pair
    ids = parity.ids(70, seed=4)
    with torch.inference_mode(), model.fused():
        wanted = peer(ids[None], use_cache=False).logits[0]
        cache = model.new_cache(1)
        got = torch.cat([model.logits(model.step(model.embed_ids(token[None]), cache)) for token in ids])
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize("length", [1, 30])
def test_64_greedy_ids_are_the_same(parity, pair, length):
    model, peer = pair
    ids = parity.ids(length, seed=5)
    with torch.inference_mode():
        wanted = peer.generate(ids[None], max_new_tokens=64, min_new_tokens=64, do_sample=False)[0, length:].tolist()
    [got] = generate(model, [sources(ids)], max_new_tokens=64, eos_id=None)
    assert got.ids == wanted and len(set(wanted)) > 8


@pytest.mark.parametrize("length", [1, 65])
def test_gradients_of_every_parameter(parity, pair, length):
    model, peer = pair
    ids = parity.ids(length, seed=6)
    cotangent = torch.randn(length, 160, generator=torch.Generator().manual_seed(7))
    model.zero_grad()
    peer.zero_grad()
    wanted, picks = parity.picks(peer, ids)
    (wanted * cotangent).sum().backward()
    with parity.forced(model, picks):
        (model.logits(model(parity.packed(ids))) * cotangent).sum().backward()
    ours = parity.theirs({name: p.grad for name, p in model.named_parameters()})
    theirs = {name: p.grad for name, p in peer.named_parameters()}
    assert ours.keys() == theirs.keys()
    # some are zero in exact arithmetic (the decay of a first token, the keys of a lone row): rounding is all there is then
    noise = 1e-6 * max(grad.norm() for grad in theirs.values())
    for name, grad in theirs.items():
        assert (ours[name] - grad).norm() <= 1e-3 * grad.norm() + noise, name


def test_pitfall_30_two_sequences_are_two_rows_of_a_batch(parity, pair):
    model, peer = pair
    first, second = parity.ids(37, seed=8), parity.ids(37, seed=9)
    with torch.no_grad():
        wanted = peer(torch.stack([first, second]), use_cache=False).logits
        got = model.logits(model(parity.packed(first, second))).view(2, 37, -1)
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize("part", ["kv_a_proj_with_mqa", "q_a_proj", "q_proj", "k_proj", "embedders"])
def test_pitfall_40_small_activations_show_where_every_eps_stands(parity, part):
    """With rows of about 1e-3 before a norm its eps decides: 1e-6 in latents and unit vectors, 1e-5 in layers."""
    model = parity.ours(parity.linear.replace(q_lora_rank=20), seed=30)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if f"{part}." in name:
                parameter.mul_(1e-3)
    peer = parity.peer(model.config)
    peer.load_state_dict(parity.theirs(model.state_dict()))
    ids = parity.ids(65, seed=11)
    with torch.no_grad():
        wanted, picks = parity.picks(peer, ids)
        with parity.forced(model, picks):
            got = model.logits(model(parity.packed(ids)))
            torch.testing.assert_close(got, wanted, rtol=0, atol=2e-4)
            cache = model.new_cache(1)
        with model.fused():
            steps = torch.cat([model.logits(model.step(model.embed_ids(token[None]), cache)) for token in ids])
        torch.testing.assert_close(steps, wanted, rtol=0, atol=2e-4)


def relative(a, b):
    return ((a.float() - b.float()).norm() / b.float().norm()).item()


@pytest.mark.parametrize("length", [65, 200])
def test_bfloat16_is_as_close_to_float32_as_the_peer_is(parity, pair, length):
    """Weights that bfloat16 holds exactly, so that only arithmetic differs; the bound is the peer's own error.

    bfloat16 has 8 bits: one rounding is a relative 2^-9, and a few dozen in a row make some percent.
    """
    config = pair[0].config
    model, peer = parity.pair(config, seed=21)
    with torch.no_grad():
        for parameter in (*model.parameters(), *peer.parameters()):
            parameter.copy_(parameter.bfloat16().float())
        ids = parity.ids(length, seed=10)
        exact, picks = parity.picks(peer, ids)
        peer.bfloat16()
        for layer in peer.model.layers:  # what transformers itself keeps wide when it loads
            if hasattr(layer.mlp, "gate"):
                layer.mlp.gate.float()
        gates = [layer.mlp.gate for layer in peer.model.layers if hasattr(layer.mlp, "gate")]
        originals = [gate.forward for gate in gates]

        def with_picks(gate, picked):
            def forward(hidden):
                score = torch.sigmoid(hidden.reshape(-1, hidden.shape[-1]).float() @ gate.weight.float().T)
                chosen = score.gather(1, picked)
                share = chosen / (chosen.sum(-1, keepdim=True) + 1e-20) * gate.routed_scaling_factor
                return score, share, picked

            return forward

        for gate, picked in zip(gates, picks, strict=True):
            gate.forward = with_picks(gate, picked)
        theirs = peer(ids[None], use_cache=False).logits[0]
        for gate, original in zip(gates, originals, strict=True):
            gate.forward = original
        model.to_dtype(torch.bfloat16)
        with parity.forced(model, picks) as agreed:
            ours = model.logits(model(parity.packed(ids)))
    error, peers = relative(ours, exact), relative(theirs, exact)
    assert error < 0.05 and error < 1.25 * peers, (error, peers)
    assert relative(ours, theirs) < 0.05
    # in bfloat16 near-tied experts do flip, which is why the comparison above forces them
    assert torch.cat(agreed).float().mean() > 0.9


def test_the_router_runs_in_float32_whatever_the_activations(parity):
    """Pitfall 27 from inside: the same bfloat16 rows get the picks and weights of their float32 values."""
    model = parity.ours(parity.linear)
    router = next(m for m in model.modules() if isinstance(m, Router))
    rows = torch.randn(300, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    with torch.no_grad():
        narrow, wide = router(rows), router(rows.float())
        assert torch.equal(narrow[0], wide[0]) and narrow[1].dtype == torch.float32
        torch.testing.assert_close(narrow[1], wide[1], rtol=1e-6, atol=1e-7)

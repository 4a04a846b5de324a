"""The whole model: packing, causality to the last bit, caches, two-way blocks, gradients."""

import pytest
import torch

from watersmeet.core.errors import ConfigError, WatersmeetError
from watersmeet.core.model import Model
from watersmeet.core.stream import Stream
from watersmeet.kernels.dispatch import forced

LENGTHS = (9, 1, 70, 2, 33)


@pytest.fixture(scope="module")
def model(kit):
    return kit.model().eval()


@pytest.fixture(scope="module")
def streams(kit):
    return [kit.stream(n, seed) for seed, n in enumerate(LENGTHS)]


def test_pitfall_29_packed_streams_equal_separate_ones(kit, model, streams):
    with torch.inference_mode():
        together = model(kit.pack(*streams)).split(LENGTHS)
        for one, stream in zip(together, streams, strict=True):
            torch.testing.assert_close(one, model(kit.pack(stream)), rtol=1e-4, atol=1e-5)


def test_pitfall_29_packed_gradients_equal_the_sum_of_separate_ones(kit, streams):
    model = kit.model()
    model.loss(kit.pack(*streams)).loss_sum.backward()
    together = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    for stream in streams:
        if any(span.targets is not None for span in stream.spans):
            model.loss(kit.pack(stream)).loss_sum.backward()
    for name, parameter in model.named_parameters():
        if name in together:
            error = (together[name] - parameter.grad).norm() / (parameter.grad.norm() + 1e-6)
            assert error < 2e-3, name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pitfall_6_a_later_token_never_changes_an_earlier_result_bitwise(kit, dtype):
    """Through KDA, attention, norms and experts: which expert later tokens choose must not touch the last bit."""
    model = kit.model().to_dtype(dtype).eval()
    ids = torch.randint(0, 64, (90,), generator=torch.Generator().manual_seed(3)).tolist()
    with torch.inference_mode():
        base = model(kit.pack(kit.stream(9, 1), Stream(spans=(kit.text(*ids),))))
        for position in (0, 1, 30, 63, 64, 77, 89):
            changed = list(ids)
            changed[position] = (changed[position] + 17) % 64
            other = model(kit.pack(kit.stream(9, 1), Stream(spans=(kit.text(*changed),))))
            assert torch.equal(base[: 9 + position], other[: 9 + position]), position
            assert not torch.equal(base[9 + position :], other[9 + position :])


@pytest.mark.parametrize("chunk", [1000, 64, 7])
def test_prefill_in_pieces_equals_the_whole(kit, model, streams, chunk):
    packed = kit.pack(*streams)
    with torch.inference_mode():
        whole = model(packed)
        cache = model.new_cache(len(streams))
        last = model.prefill(cache, packed, chunk=chunk)
    ends = packed.cu_seqlens[1:].long() - 1
    torch.testing.assert_close(last, whole[ends], rtol=1e-4, atol=2e-5)
    assert cache.lengths == list(LENGTHS)


@pytest.mark.parametrize(("fused", "form"), [(False, None), (True, None), (True, "chunked")])
def test_pitfall_5_decoding_equals_reading(kit, model, streams, fused, form):
    """Streams of different lengths, one token each a step; one leaves on the way. With and without native operators."""
    more = torch.randint(0, 64, (4, len(streams)), generator=torch.Generator().manual_seed(8))
    with torch.inference_mode():
        cache = model.new_cache(len(streams))
        model.prefill(cache, kit.pack(*streams), chunk=50)
        rows = list(range(len(streams)))
        context = model.fused() if fused else torch.no_grad()
        with context, forced(form):
            for step in range(4):
                if step == 2:
                    cache.select([0, 2, 3, 4])
                    rows.remove(1)
                hidden = model.step(model.embed_ids(more[step, rows]), cache)
        for row, got in zip(rows, hidden, strict=True):
            longer = Stream(spans=(*streams[row].spans, kit.text(*more[:, row].tolist())))
            torch.testing.assert_close(got, model(kit.pack(longer))[-1], rtol=1e-3, atol=5e-5)


def test_a_block_looks_both_ways_and_only_inside_itself(kit, model):
    def run(last_row, block):
        span = kit.planes(8, block=block)
        span.data[7] = last_row
        packed = kit.pack(Stream(spans=(kit.text(1, 2, 3), span, kit.text(4))))
        return model(packed)

    one, other = torch.zeros(6), torch.ones(6)
    with torch.inference_mode():
        causal = run(one, -1), run(other, -1)
        both = run(one, 0), run(other, 0)
        assert torch.equal(causal[0][:10], causal[1][:10])
        assert torch.equal(both[0][:3], both[1][:3])
        assert not torch.equal(both[0][3:10], both[1][3:10])


def test_prefill_never_cuts_a_block(kit, model):
    packed = kit.pack(Stream(spans=(kit.text(1, 2, 3), kit.planes(9, block=0), kit.text(4, 5))), kit.stream(6, 2))
    with torch.inference_mode():
        cache = model.new_cache(2)
        last = model.prefill(cache, packed, chunk=5)
        torch.testing.assert_close(last, model(packed)[[13, 19]], rtol=1e-4, atol=2e-5)


def test_every_parameter_has_a_gradient_even_without_its_modality(kit):
    model = kit.model()
    model.loss(kit.pack(kit.stream(3, 0), Stream(spans=(kit.text(1, 2),)))).loss_sum.backward()
    without = {name for name, p in model.named_parameters() if p.grad is None}
    # the very first residual read has one source, so K3 has these two parameters without a gradient too
    assert without == {"layers.0.self_attention_res_norm.weight", "layers.0.self_attention_res_proj.weight"}
    assert not model.embedders["planes"].map.weight.grad.any()


def test_loss_is_the_weighted_cross_entropy(kit):
    model = kit.model()
    packed = kit.pack(kit.stream(12, 0), kit.stream(20, 1))
    packed.weight[5] = 0.25
    out = model.loss(packed)
    logits = model.logits(model(packed))
    nll = torch.nn.functional.cross_entropy(logits, packed.targets, ignore_index=-100, reduction="none")
    expected = (nll * packed.weight).sum()
    torch.testing.assert_close(out.loss_sum, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out.loss, expected / packed.weight.sum(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out.modality_loss.sum(), expected.detach(), rtol=1e-5, atol=1e-5)
    # both streams begin with planes, so all targets come after some; tests/training/test_loss_weights.py has other cases
    torch.testing.assert_close(out.modality_weight, torch.stack([packed.weight.sum() * 0, packed.weight.sum()]))
    grads = torch.autograd.grad(out.loss_sum, [model.lm_head.weight, model.norm.weight])
    wanted = torch.autograd.grad(expected, [model.lm_head.weight, model.norm.weight])
    for one, other in zip(grads, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_bfloat16_activations_train_float32_parameters(kit):
    model = kit.model()
    packed = kit.pack(kit.stream(40, 0))
    exact = model.loss(packed).loss.item()
    model.compute_dtype = torch.bfloat16
    out = model.loss(packed)
    out.loss.backward()
    assert out.loss.item() == pytest.approx(exact, rel=0.03)
    assert all(
        p.dtype == torch.float32 and (p.grad is None or p.grad.dtype == torch.float32) for p in model.parameters()
    )


def test_ordinary_residuals_and_unbounded_gates_of_kimi_linear(kit):
    config = kit.micro.replace(
        attn_res_block_size=None,
        gate_lower_bound=None,
        kda_gate_rank=16,
        mla_output_gate=False,
        q_lora_rank=None,
        routed_expert_hidden_size=None,
        hidden_act="silu",
        num_shared_experts=1,
        v_head_dim=12,
    )
    model = kit.model(config)
    streams = [kit.stream(20, 0), kit.stream(5, 1)]
    model.loss(kit.pack(*streams)).loss_sum.backward()
    assert all(p.grad is not None for p in model.parameters())
    with torch.inference_mode():
        cache = model.new_cache(2)
        last = model.prefill(cache, kit.pack(*streams), chunk=8)
        torch.testing.assert_close(last, model(kit.pack(*streams))[[19, 24]], rtol=1e-4, atol=2e-5)
        step = model.step(model.embed_ids(torch.tensor([3, 4])), cache)
        longer = [Stream(spans=(*s.spans, kit.text(i))) for s, i in zip(streams, (3, 4), strict=True)]
        torch.testing.assert_close(step, model(kit.pack(*longer))[[20, 26]], rtol=1e-3, atol=5e-5)


def test_errors_say_what_to_change(kit, model):
    with pytest.raises(ConfigError, match="output_modality"):
        Model(kit.micro, {"planes": kit.flat(48)})
    stranger = Model(kit.micro, {"text": kit.ids(64, 48)})
    with pytest.raises(WatersmeetError, match="3 tokens of modality 'planes'"):
        stranger(kit.pack(Stream(spans=(kit.planes(3),))))
    with pytest.raises(WatersmeetError, match="2 streams but the cache has 1"):
        model(kit.pack(kit.stream(3, 0), kit.stream(4, 1)), cache=model.new_cache(1))

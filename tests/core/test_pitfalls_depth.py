"""Known ways to get the path through depth, experts and memory wrong, by their numbers in docs/official.md."""

import gc

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from watersmeet.core.model.layer import Residual
from watersmeet.core.model.moe import LatentMoE, Router
from watersmeet.core.model.ops import Layout
from watersmeet.core.stream import Stream
from watersmeet.kernels import native
from watersmeet.kernels.dispatch import forced


@pytest.fixture
def poisoned():
    """Inside, memory that torch hands out uninitialised is full of NaN."""
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


def results(kit, form=None):
    """Loss, gradients, and hidden states of decoding uneven streams."""
    model, streams = kit.model(), [kit.stream(n, n) for n in (9, 1, 40)]
    with forced(form):
        loss = model.loss(kit.pack(*streams), real_tokens=50).loss_sum
        loss.backward()
        out = [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]
        for fused in (False, True):
            with torch.inference_mode(), model.fused() if fused else torch.no_grad():
                cache = model.new_cache(3)
                out.append(model.prefill(cache, kit.pack(*streams), chunk=16))
                for step in range(2):
                    out.append(model.step(model.embed_ids(torch.tensor([step, 3, 5])), cache))
                cache.select([2, 0])
                out.append(model.step(model.embed_ids(torch.tensor([1, 2])), cache))
    return out


@pytest.mark.parametrize("form", [None, "chunked"])
def test_pitfall_13_nothing_reads_memory_that_nobody_wrote(kit, form, poisoned):
    """Rows that fill groups of experts up, slots of shorter streams, outputs of native operators."""
    got = results(kit, form)
    torch.use_deterministic_algorithms(False)
    gc.collect()
    for one, other in zip(got, results(kit, form), strict=True):
        assert one.isfinite().all()
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_pitfall_13_a_row_of_nan_stays_in_its_stream(kit):
    """Rows that fill up the groups of experts are copies of the first token; those must not leak."""
    model = kit.model().eval()
    bad = kit.planes(4)
    bad.data.fill_(float("nan"))
    with torch.inference_mode():
        hidden = model(kit.pack(Stream(spans=(bad,)), kit.stream(20, 0)))
        assert hidden[:4].isnan().all()
        torch.testing.assert_close(hidden[4:], model(kit.pack(kit.stream(20, 0))), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", [None, "chunked"])
def test_pitfall_16_training_keeps_no_wide_copy_of_the_sources(kit, form):
    """Under bfloat16 activations, no mix keeps float32 tensors of the size of two sources or more."""
    model, rows = kit.model(kit.micro.replace(num_hidden_layers=8, attn_res_block_size=1)), 512
    model.compute_dtype = torch.bfloat16
    sources = [torch.randn(rows, 48).bfloat16().requires_grad_() for _ in range(7)]
    held = []
    layer = model.layers[7]
    with forced(form), torch.autograd.graph.saved_tensors_hooks(lambda t: held.append(t) or t, lambda t: t):
        residual = Residual(tuple(sources[:-1]), sources[-1])
        residual.read(layer.input_layernorm, (layer.self_attention_res_norm, layer.self_attention_res_proj))
    own = {source.data_ptr() for source in sources}
    extra = sum(t.numel() * t.element_size() for t in held if t.data_ptr() not in own)
    one = rows * 48 * 4
    # the torch form keeps the sources stacked, in their own dtype, and some float32 of one source for the norm behind
    assert extra < one * (0.2 if form is None and native.library(sources[0]) is not None else 7 / 2 + 4), extra / one
    assert not any(t.dtype == torch.float32 and t.numel() >= 2 * rows * 48 for t in held)


def test_pitfall_20_snapshots_are_never_written_again_and_all_are_read_at_the_end(kit):
    config = kit.micro.replace(num_hidden_layers=7, attn_res_block_size=2)
    model, seen = kit.model(config).eval(), []

    def remember(module, args, out):
        seen.append((out, [t.clone() for t in (*out.bank, out.running, out.update)]))

    for layer in model.layers:
        layer.register_forward_hook(remember)
    with torch.inference_mode():
        packed = kit.pack(kit.stream(30, 0))
        final = model(packed)
        for residual, copies in seen:
            now = (*residual.bank, residual.running, residual.update)
            assert all(torch.equal(a, b) for a, b in zip(now, copies, strict=True))
        last = seen[-1][0]
        assert len(last.bank) == 4 and torch.equal(last.bank[0], model.embed(packed))
        # the head reads a mix of four snapshots and the sum of the short last block, not that sum alone
        sources = torch.stack([*last.bank, last.running + last.update])
        query, gain = model.output_attn_res_proj.weight[0], model.output_attn_res_norm.weight
        unit = sources * torch.rsqrt(sources.square().mean(-1, keepdim=True) + 1e-5)
        mixed = ((unit * gain * query).sum(-1, keepdim=True).softmax(0) * sources).sum(0)
        torch.testing.assert_close(final, model.norm(mixed), rtol=1e-4, atol=1e-5)
        assert not torch.allclose(final, model.norm(sources[-1]), atol=0.1)


@pytest.mark.parametrize("block", [2, 3, None])
def test_pitfall_17_the_trunk_can_be_cut_between_any_two_layers(kit, block):
    """What goes over a cut is one tensor a snapshot and the running sum, so its width grows with depth."""
    model = kit.model(kit.micro.replace(num_hidden_layers=7, attn_res_block_size=block)).eval()
    packed = kit.pack(kit.stream(30, 0), kit.stream(5, 1))
    layout = Layout.of(packed.cu_seqlens, packed.block)
    with torch.inference_mode():
        whole = model(packed)
        for cut in range(8):
            residual = Residual((), model.embed(packed))
            for layer in model.layers[:cut]:
                residual = layer(residual, layout)
            running = residual.running if residual.update is None else residual.running + residual.update
            payload = torch.cat([*residual.bank, running], dim=-1)
            assert payload.shape[1] == 48 * (1 + (0 if block is None else -(-cut // block)))
            *bank, running = (part.contiguous() for part in payload.split(48, dim=-1))
            residual = Residual(tuple(bank), running)
            for layer in model.layers[cut:]:
                residual = layer(residual, layout)
            torch.testing.assert_close(model._output(residual), whole, rtol=1e-4, atol=1e-5)


def test_pitfall_21_the_latent_norm_stands_after_the_sum_over_all_ranks(kit):
    """Two halves of the experts on two imagined ranks: sum first, then norm. Norms of partial sums are something else."""
    layer = next(m for m in kit.model().modules() if isinstance(m, LatentMoE))
    x = torch.randn(40, 48, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        picked, share = layer.gate(x)
        z = layer.routed_expert_down_proj(x)

        def rank(low, high):
            mine = share * ((picked >= low) & (picked < high))
            return native.routed_experts(z, mine, picked, *layer.experts.weights(), None, betas=layer.betas, eps=0.0)

        parts = rank(0, 3), rank(3, 6)
        norm, up, shared = layer.routed_expert_norm, layer.routed_expert_up_proj, layer.shared_experts(x)
        torch.testing.assert_close(up(norm(sum(parts))) + shared, layer(x), rtol=1e-4, atol=1e-5)
        wrong = up(sum(norm(part) for part in parts)) + shared
        assert (wrong - layer(x)).abs().max() > 0.1


def test_pitfall_28_recomputed_layers_count_their_tokens_once(kit):
    plain, saving = kit.model(), kit.model()
    for layer in saving.layers:
        own = layer.forward
        layer.forward = lambda *a, own=own: Residual(*checkpoint(own, *a, use_reentrant=False))
    packed = kit.pack(kit.stream(30, 0), kit.stream(20, 1))
    outs = [model.loss(packed, real_tokens=40) for model in (plain, saving)]
    for out in outs:
        out.loss_sum.backward()
    assert torch.equal(outs[0].expert_load, outs[1].expert_load)
    routers = [[m for m in model.modules() if isinstance(m, Router)] for model in (plain, saving)]
    for one, other in zip(*routers, strict=True):
        assert torch.equal(one.counts, other.counts) and int(one.counts.sum()) == 40 * 6
    for (name, a), b in zip(plain.named_parameters(), saving.parameters(), strict=True):
        if a.grad is not None:
            torch.testing.assert_close(b.grad, a.grad, rtol=1e-4, atol=1e-5, msg=name)

"""A whole step as one native call against the same step layer by layer, for every graph of the family."""

import pytest
import torch

from watersmeet.kernels.dispatch import forced
from watersmeet.kernels.native import MANY, few_rows, library

pytestmark = pytest.mark.skipif(library(torch.zeros(1)) is None, reason="no C++ compiler here")

LINEAR = {
    "gate_lower_bound": None, "kda_gate_rank": 12, "q_lora_rank": None, "mla_output_gate": False, "hidden_act": "silu",
    "attn_res_block_size": None, "routed_expert_hidden_size": None, "routed_scaling_factor": 2.446, "num_shared_experts": 1,
}  # fmt: skip
GRAPHS = {
    "k3": {},
    "linear": LINEAR,
    "odd sizes": {
        "hidden_size": 52, "kda_num_heads": 3, "kda_head_dim": 20, "short_conv_kernel_size": 3, "kv_lora_rank": 27,
        "q_lora_rank": 21, "num_attention_heads": 5, "qk_nope_head_dim": 7, "qk_rope_head_dim": 3, "v_head_dim": 9,
        "moe_intermediate_size": 37, "routed_expert_hidden_size": 33, "intermediate_size": 70, "vocab_size": 51,
    },
    "linear, odd sizes": LINEAR | {"hidden_size": 44, "kda_num_heads": 1, "moe_intermediate_size": 23, "qk_rope_head_dim": 0},
    "no shared experts": {"num_shared_experts": 0},
    "latent sum without a norm": {"latent_norm": False},
    "situ without a bound on the linear half": {"situ_linear_beta": None, "short_conv_kernel_size": 1},
    "gated but direct": {"q_lora_rank": None, "attn_res_block_size": 1},
}  # fmt: skip


def walk(model, cache, tokens_SN):
    """Hidden states [S, N, D] of steps and the logits of the last."""
    out = [model.step(model.embed_ids(tokens_N), cache) for tokens_N in tokens_SN]
    return torch.stack(out), model.logits(out[-1])


def prefilled(model, kit, lengths):
    cache = model.new_cache(len(lengths))
    model.prefill(cache, kit.pack(*(kit.stream(n, seed, vocab=50) for seed, n in enumerate(lengths))))
    return cache


def states(cache):
    for layer in cache.layers:
        yield from (layer.rows,) if hasattr(layer, "rows") else (layer.recurrent, layer.conv)


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("lengths", [(9,), (70, 3, 12, 1, 5)])
def test_native_step_equals_the_layers(kit, graph, lengths):
    model = kit.model(kit.micro.replace(**GRAPHS[graph]))
    tokens = torch.randint(0, 50, (4, len(lengths)), generator=torch.Generator().manual_seed(5))
    with torch.inference_mode():
        with model.fused():
            assert model._plan is not None
            native = prefilled(model, kit, lengths)
            got, logits = walk(model, native, tokens)
        definition = prefilled(model, kit, lengths)
        wanted, wanted_logits = walk(model, definition, tokens)
    torch.testing.assert_close(got, wanted, rtol=2e-4, atol=2e-5)
    torch.testing.assert_close(logits, wanted_logits, rtol=2e-4, atol=1e-3)
    assert native.lengths == definition.lengths
    for one, other in zip(states(native), states(definition), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("graph", ["k3", "linear"])
def test_bfloat16_step_is_no_further_from_the_truth_than_the_layers_are(kit, graph):
    """The truth: the same rounded weights in float32. The native step rounds less often, so it must not be worse."""
    config = kit.micro.replace(**GRAPHS[graph])
    lengths, errors = (40, 7), {"native": [], "layers": []}
    tokens = torch.randint(0, 50, (6, 2), generator=torch.Generator().manual_seed(5))
    for seed in range(4):
        half = kit.model(config, seed=seed, lively=False).to_dtype(torch.bfloat16)
        full = kit.model(config, lively=False)
        full.load_state_dict(half.state_dict())
        with torch.inference_mode():
            truth, _ = walk(full, prefilled(full, kit, lengths), tokens)
            layers, _ = walk(half, prefilled(half, kit, lengths), tokens)
            with half.fused():
                native, _ = walk(half, prefilled(half, kit, lengths), tokens)
        for name, found in (("native", native), ("layers", layers)):
            errors[name].append(((found.float() - truth).norm() / truth.norm()).item())
    assert sum(errors["native"]) <= 1.1 * sum(errors["layers"]) <= 4 * 0.02, errors


@pytest.mark.parametrize("graph", ["k3", "linear"])
def test_a_stream_does_not_depend_on_its_neighbours_in_a_single_bit(kit, graph):
    model = kit.model(kit.micro.replace(**GRAPHS[graph]))
    tokens = torch.randint(0, 50, (3, 6), generator=torch.Generator().manual_seed(5))
    with torch.inference_mode(), model.fused():
        empty = model.new_cache(6)
        together, logits = walk(model, empty, tokens)
        for stream in range(6):
            alone, own = walk(model, model.new_cache(1), tokens[:, stream : stream + 1])
            assert torch.equal(alone[:, 0], together[:, stream])
            assert torch.equal(own[0], logits[stream])


def test_more_streams_than_the_native_step_takes(kit):
    model = kit.model()
    tokens = torch.randint(0, 50, (2, MANY + 1), generator=torch.Generator().manual_seed(5))
    with torch.inference_mode():
        with model.fused():
            got, _ = walk(model, model.new_cache(MANY + 1), tokens)
        wanted, _ = walk(model, model.new_cache(MANY + 1), tokens)
    torch.testing.assert_close(got, wanted, rtol=2e-4, atol=2e-5)


def test_layers_run_one_by_one_where_they_are_watched_or_native_forms_are_off(kit):
    model = kit.model()
    with model.fused():
        assert model._plan is not None
    assert model._plan is None
    with forced("chunked"), model.fused():
        assert model._plan is None
    handle = model.layers[1].register_forward_hook(lambda *a: None)
    with model.fused():
        assert model._plan is None
    handle.remove()


def test_float32_parameters_step_in_bfloat16(kit):
    """As they do when a training run writes samples: the plan holds rounded copies."""
    model = kit.model(lively=False)
    model.compute_dtype = torch.bfloat16
    tokens = torch.randint(0, 50, (3, 2), generator=torch.Generator().manual_seed(5))
    with torch.inference_mode():
        with model.fused():
            got, logits = walk(model, model.new_cache(2), tokens)
        wanted, wanted_logits = walk(model, model.new_cache(2), tokens)
    assert got.dtype == torch.bfloat16
    assert logits.dtype == torch.float32
    assert (got - wanted).float().norm() <= 0.02 * wanted.float().norm()
    assert (logits - wanted_logits).norm() <= 0.02 * wanted_logits.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 7, 3), (1, 64, 1000), (5, 100, 33), (13, 257, 9)])
def test_few_rows_is_a_product(dtype, shape):
    n, inner, rows = shape
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(a, inner, generator=generator).to(dtype) for a in (n, rows))
    got = few_rows(x, w)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), x.double() @ w.double().T, rtol=1e-4, atol=1e-4)

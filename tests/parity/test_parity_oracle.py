"""The model in float32 against the float64 oracle: every pair of graph options, whole, decoded, and with gradients."""

import itertools
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from watersmeet.core.config import ModelConfig
from watersmeet.core.model.stored import stored_views

sys.path.insert(0, str(Path(__file__).parent))
import k3_oracle  # a helper beside the tests

OPTIONS = {
    "gate_lower_bound": (-5.0, None, -2.0),
    "kda_gate_rank": (None, 16),
    "q_lora_rank": (20, None),
    "mla_output_gate": (True, False),
    "act": (("situ", 25.0), ("silu", 25.0), ("situ", None)),
    "latent": ((24, True), (None, True), (24, False)),
    "attn_res_block_size": (2, None, 3),
    "num_shared_experts": (2, 0, 1),
}
K3 = ModelConfig(
    hidden_size=32,
    num_hidden_layers=5,
    vocab_size=48,
    full_attention_layers=(1, 4),
    attn_res_block_size=2,
    kda_num_heads=2,
    kda_head_dim=16,
    num_attention_heads=2,
    q_lora_rank=20,
    kv_lora_rank=24,
    qk_nope_head_dim=12,
    qk_rope_head_dim=4,
    v_head_dim=16,
    intermediate_size=40,
    num_experts=6,
    num_experts_per_token=2,
    num_shared_experts=2,
    moe_intermediate_size=16,
    routed_expert_hidden_size=24,
    routed_scaling_factor=1.5,
    output_modality="text",
)


def covering(options):
    """A short list of choices in which every pair of values of two options occurs."""
    names = list(options)
    open_pairs = {
        (a, i, b, j)
        for a, b in itertools.combinations(range(len(names)), 2)
        for i in range(len(options[names[a]]))
        for j in range(len(options[names[b]]))
    }
    chosen = []

    def gain(row):
        return sum((a, row[a], b, row[b]) in open_pairs for a, b in itertools.combinations(range(len(names)), 2))

    everything = list(itertools.product(*(range(len(values)) for values in options.values())))
    while open_pairs:
        best = max(everything, key=gain) if chosen else tuple(0 for _ in names)
        chosen.append(best)
        open_pairs -= {(a, best[a], b, best[b]) for a, b in itertools.combinations(range(len(names)), 2)}
    return [{name: options[name][i] for name, i in zip(names, row, strict=True)} for row in chosen]


CASES = covering(OPTIONS)


def configured(case):
    values = dict(case)
    act, linear_beta = values.pop("act")
    latent, norm = values.pop("latent")
    return K3.replace(
        **values, hidden_act=act, situ_linear_beta=linear_beta, routed_expert_hidden_size=latent, latent_norm=norm
    )


def settings(c):
    return SimpleNamespace(
        layers=c.num_hidden_layers, full_attention=set(c.full_attention_layers), block=c.attn_res_block_size,
        dense=c.first_k_dense_replace, eps=c.rms_norm_eps, mla_eps=c.mla_norm_eps, kda_heads=c.kda_num_heads,
        kda_dim=c.kda_head_dim, bound=c.gate_lower_bound, heads=c.num_attention_heads, kv_rank=c.kv_lora_rank,
        nope=c.qk_nope_head_dim, rope=c.qk_rope_head_dim, v_dim=c.v_head_dim, mla_gate=c.mla_output_gate,
        picked=c.num_experts_per_token, scaling=c.routed_scaling_factor, latent=c.routed_expert_hidden_size is not None,
        latent_norm=c.latent_norm, shared=c.num_shared_experts > 0, act=c.hidden_act, situ_beta=c.situ_beta,
        situ_linear_beta=c.situ_linear_beta,
    )  # fmt: skip


def official(tensors):
    """Our tensors under official names: experts one by one, the embedding by its own name."""
    out = {}
    for name, tensor in stored_views(tensors.items()).items():
        if name == "embedders.text.table.weight":
            out["embed_tokens.weight"] = tensor
        elif ".experts.w" in name:
            stem, which = name.rsplit(".", 1)
            out.update({f"{stem}.{e}.{which}.weight": part for e, part in enumerate(tensor)})
        else:
            out[name] = tensor
    return out


def both(parity, config, length, seed):
    """Our model, the ids, and the oracle's logits with its float64 leaves."""
    model, ids = parity.ours(config, seed), parity.ids(length, config.vocab_size, seed)
    leaves = {name: t.detach().double().requires_grad_() for name, t in official(model.state_dict()).items()}
    logits = k3_oracle.forward(leaves["embed_tokens.weight"][ids], leaves, settings(config))
    return model, ids, leaves, logits


def check_gradients(parity, model, ids, leaves, logits):
    cotangent = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    (logits * cotangent).sum().backward()
    (model.logits(model(parity.packed(ids))) * cotangent.float()).sum().backward()
    got = official({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    unused = {name for name, leaf in leaves.items() if leaf.grad is None}
    # the bias never has one; of unpicked experts there is none to compare; the first read has one source
    known = (
        "e_score_correction_bias",
        "layers.0.self_attention_res_norm.weight",
        "layers.0.self_attention_res_proj.weight",
    )
    assert all(name.endswith(known) or ".experts." in name for name in unused), unused
    noise = 1e-6 * max(leaf.grad.norm() for leaf in leaves.values() if leaf.grad is not None)
    for name, leaf in leaves.items():
        if leaf.grad is None:
            assert name not in got or not got[name].any(), name
            continue
        assert (got[name].double() - leaf.grad).norm() <= 1e-3 * leaf.grad.norm() + noise, name


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(str(value) for value in case.values()))
def test_every_pair_of_options_equals_the_oracle(parity, case):
    """Logits, the same logits through the cache, gradients of every parameter."""
    config = configured(case)
    model, ids, leaves, logits = both(parity, config, 19, CASES.index(case))
    wanted = logits.detach().float()
    assert wanted.std() > 0.5
    with torch.inference_mode():
        torch.testing.assert_close(model.logits(model(parity.packed(ids))), wanted, rtol=0, atol=1e-4)
        for steps in (model.fused, nullcontext):  # as one native call a token, and layer by layer
            with steps():
                cache = model.new_cache(1)
                rows = [model.prefill(cache, parity.packed(ids[:9]), chunk=4)]
                rows += [model.step(model.embed_ids(token[None]), cache) for token in ids[9:]]
            torch.testing.assert_close(model.logits(torch.cat(rows)), wanted[8:], rtol=0, atol=1e-4)
    check_gradients(parity, model, ids, leaves, logits)


def test_the_cases_hold_every_pair_of_options():
    for one, other in itertools.combinations(OPTIONS, 2):
        assert {(case[one], case[other]) for case in CASES} == set(itertools.product(OPTIONS[one], OPTIONS[other]))
    assert len(CASES) < 20


def distance(got, wanted):
    return ((got.double() - wanted).norm() / wanted.norm()).item()


def test_k3_shape_over_chunk_borders_equals_the_oracle(parity):
    """Nine layers in blocks of four with a short last block, adjacent full attention at the end, 70 tokens.

    Eighteen mixes amplify float32's rounding, so the bound is on the whole: single logits differ by a few 1e-4.
    """
    config = K3.replace(num_hidden_layers=9, full_attention_layers=(3, 7, 8), attn_res_block_size=4)
    model, ids, leaves, logits = both(parity, config, 70, 3)
    with torch.inference_mode(), model.fused():
        assert distance(model.logits(model(parity.packed(ids))), logits) < 1e-4
        cache = model.new_cache(1)
        rows = torch.cat([model.step(model.embed_ids(token[None]), cache) for token in ids])
        assert distance(model.logits(rows), logits) < 1e-4
    check_gradients(parity, model, ids, leaves, logits)


def test_pitfall_40_small_rows_show_where_every_eps_of_a_mix_stands(parity):
    """Everything that enters the residual stream is about 1e-3, so each mix and norm works where its eps decides."""
    model, ids = parity.ours(K3, 8), parity.ids(19, K3.vocab_size, 8)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("table.weight", "o_proj.weight", "down_proj.weight", "routed_expert_up_proj.weight")):
                parameter.mul_(1e-3)
        weights = {name: t.double() for name, t in official(model.state_dict()).items()}
        wanted = k3_oracle.forward(weights["embed_tokens.weight"][ids], weights, settings(K3))
        other = settings(K3.replace(rms_norm_eps=1.1e-5))
        assert distance(k3_oracle.forward(weights["embed_tokens.weight"][ids], weights, other), wanted) > 1e-2
        assert distance(model.logits(model(parity.packed(ids))), wanted) < 1e-4


def test_torch_forms_equal_the_oracle_too(parity):
    """The definitions that run where there is no compiler or another device."""
    from watersmeet.kernels.dispatch import forced

    for form in ("reference", "chunked"):
        model, ids, leaves, logits = both(parity, K3, 21, 5)
        with forced(form):
            with torch.inference_mode():
                got = model.logits(model(parity.packed(ids)))
            torch.testing.assert_close(got, logits.detach().float(), rtol=0, atol=1e-4)
            check_gradients(parity, model, ids, leaves, logits)


def test_the_oracle_equals_transformers(parity):
    """On the graph both know: so the oracle itself is checked by code that nobody here wrote."""
    model, peer = parity.pair(parity.linear, seed=2)
    ids = parity.ids(40, seed=2)
    weights = {name: t.double() for name, t in official(model.state_dict()).items()}
    with torch.no_grad():
        wanted = peer(ids[None], use_cache=False).logits[0]
        got = k3_oracle.forward(weights["embed_tokens.weight"][ids], weights, settings(parity.linear))
    torch.testing.assert_close(got.float(), wanted, rtol=0, atol=5e-5)

"""Single layers at the head sizes of the published models, against the formulas of the oracle."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from watersmeet.core.config import preset
from watersmeet.core.model.kda import KimiDeltaAttention
from watersmeet.core.model.mla import LatentAttention
from watersmeet.core.model.moe import GLU, activation
from watersmeet.core.model.ops import Layout
from watersmeet.kernels.dispatch import forced

sys.path.insert(0, str(Path(__file__).parent))
import k3_oracle  # a helper beside the tests

SMALL = {"hidden_size": 64, "num_hidden_layers": 4, "vocab_size": 8, "kda_num_heads": 2, "num_attention_heads": 2}
LENGTH = 21


def drawn(module, seed=0):
    """The module with random weights, and the same weights in float64."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            spread = 0.3 if parameter.ndim < 2 else 1.5 * parameter[0].numel() ** -0.5
            parameter.copy_(noise * spread + ("norm" in name))
    return module, {name: p.detach().double() for name, p in module.named_parameters()}


def rows_of(seed=1):
    return torch.randn(LENGTH, 64, generator=torch.Generator().manual_seed(seed))


def layout(block=None):
    return Layout.of(torch.tensor([0, LENGTH], dtype=torch.int32), block)


def close(got, wanted):
    torch.testing.assert_close(got, torch.stack(wanted).float(), rtol=1e-4, atol=1e-5 * torch.stack(wanted).abs().max())


@pytest.mark.parametrize("name", ["k3", "kimi-linear-48b"])
def test_attention_with_published_head_sizes(name):
    """128 own and 64 shared key channels, in this order in query and key; scores times 192^-0.5; values after keys."""
    config = preset(name).replace(**SMALL)
    assert (config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim) == (128, 64, 128)
    layer, weights = drawn(LatentAttention(config))
    assert layer.scale == 192**-0.5
    settings = SimpleNamespace(heads=2, kv_rank=512, nope=128, rope=64, v_dim=128, mla_eps=1e-6,
                               mla_gate=config.mla_output_gate)  # fmt: skip
    x = rows_of()
    with torch.no_grad():
        close(layer(x, layout()), k3_oracle.latent_attention(list(x.double()), weights, "", settings))
        # pitfall 32: without a mask, in any order
        order = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(2))
        both_ways = layer(x, layout(torch.zeros(LENGTH, dtype=torch.int64)))
        wanted = k3_oracle.latent_attention(list(x.double()), weights, "", settings, sees=lambda t, j: True)
        close(both_ways, wanted)
        close(layer(x[order], layout(torch.zeros(LENGTH, dtype=torch.int64))), [wanted[i] for i in order])


@pytest.mark.parametrize("name", ["k3", "kimi-linear-48b"])
def test_delta_attention_with_published_head_sizes(name):
    config = preset(name).replace(**SMALL)
    layer, weights = drawn(KimiDeltaAttention(config), seed=3)
    settings = SimpleNamespace(kda_heads=2, kda_dim=128, bound=config.gate_lower_bound, eps=1e-5)
    x = rows_of()
    with torch.no_grad():
        close(layer(x, layout()), k3_oracle.delta_attention(list(x.double()), weights, "", settings))


@pytest.mark.parametrize("form", [None, "chunked", "reference"])
@pytest.mark.parametrize("bound", [None, -5.0])
@pytest.mark.parametrize("strength", ["as initialised", "long memory", "forgets at once", "all kinds"])
def test_decays_of_every_strength_with_gradients(form, bound, strength):
    """Log decays from -1e-4 to -300 a token, over more than a chunk: outputs and all gradients against the recurrence."""
    config = preset("k3").replace(**SMALL, kda_head_dim=16, gate_lower_bound=bound)
    layer, _ = drawn(KimiDeltaAttention(config), seed=5)
    generator = torch.Generator().manual_seed(6)
    low, high, dt = {
        "as initialised": (0.0, 2.77, -4.0),
        "long memory": (-1.0, 0.5, -9.0),
        "forgets at once": (2.5, 3.5, 8.0),
        "all kinds": (-3.0, 3.0, 0.0),
    }[strength]
    with torch.no_grad():
        layer.A_log.copy_(low + (high - low) * torch.rand(2, generator=generator))
        layer.dt_bias.copy_(dt + (3.0 if strength == "all kinds" else 0.5) * torch.randn(32, generator=generator))
    x = torch.randn(70, 64, generator=generator)
    weights = {name: p.detach().double().requires_grad_() for name, p in layer.named_parameters()}
    settings = SimpleNamespace(kda_heads=2, kda_dim=16, bound=bound, eps=1e-5)
    wanted = torch.stack(k3_oracle.delta_attention(list(x.double()), weights, "", settings))
    cotangent = torch.randn(wanted.shape, generator=generator)
    (wanted * cotangent.double()).sum().backward()
    with forced(form):
        got = layer(x, Layout.of(torch.tensor([0, 70], dtype=torch.int32), None))
        (got * cotangent).sum().backward()
    assert (got.double() - wanted).norm() / wanted.norm() < 2e-5
    # where all is forgotten at once the decay has no gradient; the chunked forms form it as a difference of equal sums,
    # which leaves their rounding, and the rate (here 170) multiplies that
    noise = (2e-5 if strength == "forgets at once" else 1e-6) * max(w.grad.norm() for w in weights.values())
    for name, parameter in layer.named_parameters():
        grad = weights[name].grad
        assert (parameter.grad.double() - grad).norm() <= 1e-3 * grad.norm() + noise, name


def test_pitfall_22_glus_of_k3_are_situ_with_4_and_25_and_not_swiglu():
    config = preset("k3").replace(**SMALL)
    act = activation(config)
    layer, weights = drawn(GLU(64, 48, act), seed=4)
    with torch.no_grad():
        for name, factor in (("gate_proj.weight", 8.0), ("up_proj.weight", 40.0)):
            layer.get_parameter(name).mul_(factor)  # far into both bends
            weights[name] *= factor
        x = rows_of()
        situ = SimpleNamespace(act="situ", situ_beta=4.0, situ_linear_beta=25.0)
        wanted = [k3_oracle.glu(row, weights, "", situ) for row in x.double()]
        close(layer(x), wanted)
        swiglu = torch.stack([k3_oracle.glu(row, weights, "", SimpleNamespace(act="silu")) for row in x.double()])
        assert (swiglu - torch.stack(wanted)).norm() > torch.stack(wanted).norm()
        assert act(torch.full((1, 2), 1e4)).item() == pytest.approx(100.0)

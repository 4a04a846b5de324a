"""Each kind of layer against its formulas, written here a second time in float64."""

import math

import pytest
import torch

from watersmeet.core.model.kda import KimiDeltaAttention
from watersmeet.core.model.mla import LatentAttention, attention_mask
from watersmeet.core.model.moe import LatentMoE
from watersmeet.core.model.ops import Layout
from watersmeet.core.model.stored import stored_views


def layer_of(kit, kind, **changes):
    model = kit.model(kit.micro.replace(**changes) if changes else None)
    return next(m for m in model.modules() if isinstance(m, kind))


def layout(*lengths):
    bounds = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    return Layout.of(bounds, None)


def inputs(n, width=48, seed=0):
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed))


def kda_by_formula(layer: KimiDeltaAttention, x, bound):
    """Sections 2.1.1 of the K3 report, token by token, head by head, in float64."""
    p = {name: value.detach().double() for name, value in layer.named_parameters()}
    x, h, k = x.double(), layer.num_heads, layer.head_dim

    def branch(name):
        raw, taps = x @ p[f"{name}_proj.weight"].T, p[f"{name}_conv1d.weight"][:, 0]
        out = torch.zeros_like(raw)
        for t in range(len(x)):
            for j in range(taps.shape[1]):
                if t - (taps.shape[1] - 1) + j >= 0:
                    out[t] += taps[:, j] * raw[t - (taps.shape[1] - 1) + j]
        return (out / (1 + torch.exp(-out))).view(-1, h, k)

    q, key, v = branch("q"), branch("k"), branch("v")
    q = q / torch.sqrt((q**2).sum(-1, keepdim=True) + 1e-6) / math.sqrt(k)
    key = key / torch.sqrt((key**2).sum(-1, keepdim=True) + 1e-6)
    beta = torch.sigmoid(x @ p["b_proj.weight"].T)
    z = ((x @ p["f_a_proj.weight"].T) @ p["f_b_proj.weight"].T + p["dt_bias"]).view(-1, h, k)
    rate = p["A_log"].exp()[:, None]
    alpha = torch.exp(bound * torch.sigmoid(rate * z) if bound else -rate * torch.log1p(torch.exp(z)))
    out = torch.zeros(len(x), h, k, dtype=torch.float64)
    for head in range(h):
        state = torch.zeros(k, k, dtype=torch.float64)
        for t in range(len(x)):
            state = alpha[t, head][:, None] * state
            error = v[t, head] - state.T @ key[t, head]
            state = state + beta[t, head] * torch.outer(key[t, head], error)
            out[t, head] = state.T @ q[t, head]
    gate = x @ p["g_proj.weight"].T if "g_proj.weight" in p else x @ p["g_a_proj.weight"].T @ p["g_b_proj.weight"].T
    out = out / torch.sqrt((out**2).mean(-1, keepdim=True) + layer.o_norm.eps) * p["o_norm.weight"]
    return (out.reshape(len(x), -1) * torch.sigmoid(gate)) @ p["o_proj.weight"].T


@pytest.mark.parametrize(("bound", "rank"), [(-5.0, None), (None, 16)])
def test_kda_layer_equals_the_recurrence(kit, bound, rank):
    layer = layer_of(kit, KimiDeltaAttention, gate_lower_bound=bound, kda_gate_rank=rank)
    x = inputs(70)
    with torch.no_grad():
        got = layer(x, layout(70))
        both = layer(torch.cat([x, x[:20]]), layout(70, 20))
    wanted = kda_by_formula(layer, x, bound).float()
    torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(both[70:], wanted[:20], rtol=1e-3, atol=1e-4)


def mla_by_formula(layer: LatentAttention, x, mask):
    p = {name: value.detach().double() for name, value in layer.named_parameters()}
    x, h = x.double(), layer.num_heads

    def norm(value, gain):
        return value / torch.sqrt((value**2).mean(-1, keepdim=True) + 1e-6) * gain

    q = norm(x @ p["q_a_proj.weight"].T, p["q_a_layernorm.weight"]) @ p["q_b_proj.weight"].T
    down = x @ p["kv_a_proj_with_mqa.weight"].T
    latent, shared = norm(down[:, : layer.rank], p["kv_a_layernorm.weight"]), down[:, layer.rank :]
    rows = p["kv_b_proj.weight"].view(h, layer.nope + layer.v_dim, layer.rank)
    out = []
    for head in range(h):
        query = q.view(len(x), h, -1)[:, head]
        key, value = latent @ rows[head, : layer.nope].T, latent @ rows[head, layer.nope :].T
        score = query[:, : layer.nope] @ key.T + query[:, layer.nope :] @ shared.T
        score = (score / math.sqrt(layer.nope + layer.shared)).masked_fill(~mask, -math.inf)
        out.append(score.softmax(-1) @ value)
    return (torch.cat(out, -1) * torch.sigmoid(x @ p["g_proj.weight"].T)) @ p["o_proj.weight"].T


@pytest.mark.parametrize("v_head_dim", [16, 10])
def test_latent_attention_equals_its_formula(kit, v_head_dim):
    layer, x = layer_of(kit, LatentAttention, v_head_dim=v_head_dim), inputs(21)
    with torch.no_grad():
        got = layer(x, layout(21))
    wanted = mla_by_formula(layer, x, torch.ones(21, 21, dtype=torch.bool).tril()).float()
    torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-4)


def test_pitfall_32_without_a_mask_attention_does_not_know_the_order(kit):
    """Nothing is rotated: one two-way block over all rows makes the layer permutation-equivariant."""
    layer, x = layer_of(kit, LatentAttention), inputs(19)
    order = torch.randperm(19, generator=torch.Generator().manual_seed(1))
    whole = Layout.of(torch.tensor([0, 19], dtype=torch.int32), torch.zeros(19, dtype=torch.int64))
    with torch.no_grad():
        torch.testing.assert_close(layer(x[order], whole), layer(x, whole)[order], rtol=1e-4, atol=1e-5)
        causal = layer(x[order], layout(19)) - layer(x, layout(19))[order]
        assert causal.abs().max() > 1e-2


def test_attention_mask_by_hand():
    block = torch.tensor([-1, 0, 0, 1])
    mask = attention_mask(4, 2, block, torch.device("cpu"))
    wanted = [[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]]
    assert mask.int().tolist() == wanted


def moe_by_formula(layer: LatentMoE, x, k):
    p = {name: value.detach().double() for name, value in stored_views(layer.state_dict().items()).items()}
    x = x.double()

    def situ(gate, up):
        return 4 * torch.tanh(gate / 4) * torch.sigmoid(gate) * 25 * torch.tanh(up / 25)

    out = []
    for row in x:
        score = torch.sigmoid(p["gate.weight"] @ row)
        biased = score + p["gate.e_score_correction_bias"]
        chosen = sorted(range(len(score)), key=lambda e: -biased[e])[:k]
        total = sum(score[e] for e in chosen)
        z = p["routed_expert_down_proj.weight"] @ row
        mixed = torch.zeros_like(z)
        for e in chosen:
            inner = situ(p["experts.w1"][e] @ z, p["experts.w3"][e] @ z)
            mixed += score[e] / total * (p["experts.w2"][e] @ inner)
        mixed = mixed / torch.sqrt((mixed**2).mean() + 1e-5) * p["routed_expert_norm.weight"]
        shared = situ(p["shared_experts.gate_proj.weight"] @ row, p["shared_experts.up_proj.weight"] @ row)
        out.append(p["routed_expert_up_proj.weight"] @ mixed + p["shared_experts.down_proj.weight"] @ shared)
    return torch.stack(out)


def test_latent_experts_equal_a_loop_over_tokens(kit):
    layer, x = layer_of(kit, LatentMoE), inputs(50)
    with torch.no_grad():
        got, few = layer(x), layer(x[:3])
    wanted = moe_by_formula(layer, x, 2).float()
    torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(few, wanted[:3], rtol=1e-3, atol=1e-4)


def test_pitfall_15_zero_queries_read_the_mean_at_step_zero(kit):
    """The first feed-forward then reads the mean of the embedding and the first attention output."""
    model = kit.model(lively=False)
    seen = {}
    model.layers[0].self_attn.register_forward_hook(lambda m, a, out: seen.update(attention=out))
    model.layers[0].mlp.register_forward_pre_hook(lambda m, a: seen.update(read=a[0]))
    packed = kit.pack(kit.stream(9, 0))
    with torch.no_grad():
        model(packed)
        mean = (model.embed(packed) + seen["attention"]) / 2
        torch.testing.assert_close(seen["read"], model.layers[0].post_attention_layernorm(mean), rtol=1e-4, atol=1e-5)


def test_pitfall_14_initial_values(kit):
    model = kit.model(lively=False)
    layer = next(m for m in model.modules() if isinstance(m, KimiDeltaAttention))
    assert not layer.A_log.any()
    dt = torch.nn.functional.softplus(layer.dt_bias.double())
    assert dt.min() > 0.9e-3 and dt.max() < 0.11 and dt.max() / dt.min() > 5
    queries = [p for name, p in model.named_parameters() if "res_proj" in name]
    assert len(queries) == 2 * 4 + 1 and not any(q.any() for q in queries)

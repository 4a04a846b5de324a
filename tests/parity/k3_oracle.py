"""The Kimi K3 / Kimi Linear graph written a second time: float64, one token and one formula at a time, nothing fast.

It shares no code with the model that it checks. Weights have the names of the official files without their prefix
(experts one by one, `A_log` with one value a head); settings are the fields of a plain namespace. Everything is
differentiable by autograd. Formulas are those of the Kimi K3 report (arXiv:2607.24653, eq. 1-13), the Kimi Linear
report (arXiv:2510.26692) and the Attention Residuals report (arXiv:2603.15031).
"""

import math

import torch


def rms_norm(v, gain, eps):
    """v / sqrt(mean(v^2) + eps) * gain, eps inside the root."""
    return v / torch.sqrt((v * v).mean() + eps) * gain


def unit(v):
    """v / sqrt(sum(v^2) + 1e-6): eps is added to the sum."""
    return v / torch.sqrt((v * v).sum() + 1e-6)


def sigmoid(v):
    return 1 / (1 + torch.exp(-v))


def silu(v):
    return v * sigmoid(v)


def log_decay(a_log, z, bound):
    """K3: bound * sigmoid(e^A z); Kimi Linear (no bound): -e^A log(1 + e^z)."""
    rate = torch.exp(a_log)
    return -rate * torch.log(1 + torch.exp(z)) if bound is None else bound * sigmoid(rate * z)


def activation(gate, up, s):
    """SiTU: b tanh(g/b) sigmoid(g) * l tanh(u/l); without l the up branch is linear. SwiGLU: silu(g) u."""
    if s.act == "silu":
        return silu(gate) * up
    if s.situ_linear_beta is not None:
        up = s.situ_linear_beta * torch.tanh(up / s.situ_linear_beta)
    return s.situ_beta * torch.tanh(gate / s.situ_beta) * sigmoid(gate) * up


def delta_attention(rows, p, at, s):
    """KDA of a list of normalised rows."""
    heads, width = s.kda_heads, s.kda_dim

    def branch(name):
        raw = [p[f"{at}{name}_proj.weight"] @ x for x in rows]
        taps = p[f"{at}{name}_conv1d.weight"][:, 0]
        out = []
        for t in range(len(rows)):
            total = torch.zeros_like(raw[0])
            for j in range(taps.shape[1]):
                source = t - (taps.shape[1] - 1) + j  # the last tap meets the current token
                if source >= 0:
                    total = total + taps[:, j] * raw[source]
            out.append(silu(total))
        return out

    queries, keys, values = branch("q"), branch("k"), branch("v")
    states = [torch.zeros(width, width, dtype=torch.float64) for _ in range(heads)]
    results = []
    for t, x in enumerate(rows):
        beta = sigmoid(p[f"{at}b_proj.weight"] @ x)
        z = p[f"{at}f_b_proj.weight"] @ (p[f"{at}f_a_proj.weight"] @ x) + p[f"{at}dt_bias"]
        if f"{at}g_proj.weight" in p:
            gate = p[f"{at}g_proj.weight"] @ x
        else:
            gate = p[f"{at}g_b_proj.weight"] @ (p[f"{at}g_a_proj.weight"] @ x)
        joined = []
        for h in range(heads):
            mine = slice(h * width, (h + 1) * width)
            q, k, v = unit(queries[t][mine]) / math.sqrt(width), unit(keys[t][mine]), values[t][mine]
            alpha = torch.exp(log_decay(p[f"{at}A_log"][h], z[mine], s.bound))
            decayed = alpha[:, None] * states[h]
            missing = v - decayed.T @ k
            states[h] = decayed + beta[h] * torch.outer(k, missing)
            o = states[h].T @ q
            joined.append(rms_norm(o, p[f"{at}o_norm.weight"], s.eps) * sigmoid(gate[mine]))
        results.append(p[f"{at}o_proj.weight"] @ torch.cat(joined))
    return results


def latent_attention(rows, p, at, s, sees=lambda t, j: j <= t):
    """MLA without positions of a list of normalised rows; `sees(t, j)`: may row t look at row j."""
    latents, shared, queries = [], [], []
    for x in rows:
        down = p[f"{at}kv_a_proj_with_mqa.weight"] @ x
        latents.append(rms_norm(down[: s.kv_rank], p[f"{at}kv_a_layernorm.weight"], s.mla_eps))
        shared.append(down[s.kv_rank :])
        if f"{at}q_proj.weight" in p:
            queries.append(p[f"{at}q_proj.weight"] @ x)
        else:
            small = rms_norm(p[f"{at}q_a_proj.weight"] @ x, p[f"{at}q_a_layernorm.weight"], s.mla_eps)
            queries.append(p[f"{at}q_b_proj.weight"] @ small)
    up, per_query, per_row = p[f"{at}kv_b_proj.weight"], s.nope + s.rope, s.nope + s.v_dim
    results = []
    for t, x in enumerate(rows):
        joined = []
        for h in range(s.heads):
            q = queries[t][h * per_query : (h + 1) * per_query]
            key_rows = up[h * per_row : h * per_row + s.nope]
            value_rows = up[h * per_row + s.nope : (h + 1) * per_row]
            seen = [j for j in range(len(rows)) if sees(t, j)]
            scores = [q[: s.nope] @ (key_rows @ latents[j]) + q[s.nope :] @ shared[j] for j in seen]
            share = torch.softmax(torch.stack(scores) / math.sqrt(per_query), dim=0)
            joined.append(sum(a * (value_rows @ latents[j]) for a, j in zip(share, seen, strict=True)))
        o = torch.cat(joined)
        if s.mla_gate:
            o = o * sigmoid(p[f"{at}g_proj.weight"] @ x)
        results.append(p[f"{at}o_proj.weight"] @ o)
    return results


def glu(x, p, at, s):
    """A GLU at full width."""
    inner = activation(p[f"{at}gate_proj.weight"] @ x, p[f"{at}up_proj.weight"] @ x, s)
    return p[f"{at}down_proj.weight"] @ inner


def pick(x, p, at, s):
    """Raw scores, and the k experts of the largest biased score; equal ones by the lower index."""
    score = sigmoid(p[f"{at}gate.weight"] @ x)
    biased = (score + p[f"{at}gate.e_score_correction_bias"]).tolist()
    return score, sorted(range(len(biased)), key=lambda e: (-biased[e], e))[: s.picked]


def experts(x, p, at, s):
    """Experts in their latent space (if there is one), normalised after the sum, and the shared ones."""
    score, chosen = pick(x, p, at, s)
    total = sum(score[e] for e in chosen) + 1e-20
    z = p[f"{at}routed_expert_down_proj.weight"] @ x if s.latent else x
    mixed = torch.zeros_like(z)
    for e in chosen:
        gate, up = p[f"{at}experts.{e}.w1.weight"] @ z, p[f"{at}experts.{e}.w3.weight"] @ z
        mixed = mixed + score[e] / total * s.scaling * (p[f"{at}experts.{e}.w2.weight"] @ activation(gate, up, s))
    if s.latent:
        if s.latent_norm:
            mixed = rms_norm(mixed, p[f"{at}routed_expert_norm.weight"], s.eps)
        mixed = p[f"{at}routed_expert_up_proj.weight"] @ mixed
    return mixed + glu(x, p, f"{at}shared_experts.", s) if s.shared else mixed


def mix(sources, p, name, s):
    """Attention Residuals: softmax_i(w . RMSNorm(V_i)) over the sources, applied to the raw sources."""
    query, gain = p[f"{name}_proj.weight"][0], p[f"{name}_norm.weight"]
    scores = torch.stack([query @ rms_norm(v, gain, s.eps) for v in sources])
    return sum(a * v for a, v in zip(torch.softmax(scores, dim=0), sources, strict=True))


def forward(embedded, p, s):
    """Logits [T, V] of embedded rows [T, D]."""
    tokens = range(len(embedded))
    running = [embedded[t] for t in tokens]
    bank = [[] for _ in tokens]
    for layer in range(s.layers):
        at = f"layers.{layer}."
        if s.block is None or not bank[0]:
            read = running
        else:
            read = [mix([*bank[t], running[t]], p, f"{at}self_attention_res", s) for t in tokens]
        if s.block is not None and layer % s.block == 0:
            for t in tokens:
                bank[t].append(running[t])
            running = [None] * len(embedded)
        rows = [rms_norm(x, p[f"{at}input_layernorm.weight"], s.eps) for x in read]
        mixer = latent_attention if layer in s.full_attention else delta_attention
        out = mixer(rows, p, f"{at}self_attn.", s)
        running = [o if r is None else r + o for r, o in zip(running, out, strict=True)]
        if s.block is None:
            read = running
        else:
            read = [mix([*bank[t], running[t]], p, f"{at}mlp_res", s) for t in tokens]
        rows = [rms_norm(x, p[f"{at}post_attention_layernorm.weight"], s.eps) for x in read]
        if layer < s.dense:
            out = [glu(x, p, f"{at}mlp.", s) for x in rows]
        else:
            out = [experts(x, p, f"{at}block_sparse_moe.", s) for x in rows]
        running = [r + o for r, o in zip(running, out, strict=True)]
    if s.block is not None:
        running = [mix([*bank[t], running[t]], p, "output_attn_res", s) for t in tokens]
    return torch.stack([p["lm_head.weight"] @ rms_norm(x, p["norm.weight"], s.eps) for x in running])

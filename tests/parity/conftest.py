"""One set of random weights in two models: ours, and the `kimi_linear` of transformers, which nobody here wrote."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from watersmeet.core.config import ModelConfig
from watersmeet.core.model import Model
from watersmeet.core.model.moe import Router
from watersmeet.core.stream import Span, Stream, content_key, pack

LINEAR = ModelConfig(
    hidden_size=64,
    num_hidden_layers=5,
    vocab_size=160,
    attn_res_block_size=None,
    kda_num_heads=3,
    kda_head_dim=16,
    gate_lower_bound=None,
    kda_gate_rank=16,
    num_attention_heads=2,
    kv_lora_rank=24,
    qk_nope_head_dim=16,
    qk_rope_head_dim=8,
    v_head_dim=20,
    mla_output_gate=False,
    intermediate_size=96,
    num_experts=8,
    num_experts_per_token=2,
    num_shared_experts=1,
    moe_intermediate_size=32,
    routed_scaling_factor=2.446,
    hidden_act="silu",
    output_modality="text",
)


class Ids(nn.Module):
    def __init__(self, vocab, width):
        super().__init__()
        self.table = nn.Embedding(vocab, width)

    def forward(self, data, coords, time_us):
        return self.table(data)


def randomise(model, seed):
    """Every parameter and every router bias random, none near its initial value."""
    generator = torch.Generator().manual_seed(seed)

    def normal(tensor, std):
        tensor.copy_(torch.randn(tensor.shape, generator=generator) * std)

    def uniform(tensor, low, high):
        tensor.copy_(torch.rand(tensor.shape, generator=generator) * (high - low) + low)

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "res_proj" in name:
                normal(parameter, 0.3)
            elif "norm" in name:
                uniform(parameter, 0.5, 1.5)
            elif name.endswith("A_log"):
                uniform(parameter, -1.5, 1.0)
            elif name.endswith("dt_bias"):
                uniform(parameter, -4.0, 1.0)
            elif "conv1d" in name:
                uniform(parameter, -0.7, 0.7)
            else:
                normal(parameter, 1.2 * parameter.shape[-1] ** -0.5 if "table" not in name else 0.8)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                normal(buffer, 0.1)
    return model


def peer_of(config):
    """An uninitialised model of transformers for the same graph, layers given by kind and not by its default."""
    from transformers.models.kimi_linear import KimiLinearConfig, KimiLinearForCausalLM

    kinds = [
        "full_attention" if config.is_full_attention(i) else "linear_attention" for i in range(config.num_hidden_layers)
    ]
    peer = KimiLinearForCausalLM(
        KimiLinearConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            moe_intermediate_size=config.moe_intermediate_size,
            num_hidden_layers=config.num_hidden_layers,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=config.num_attention_heads,
            n_shared_experts=config.num_shared_experts,
            routed_scaling_factor=config.routed_scaling_factor,
            kv_lora_rank=config.kv_lora_rank,
            q_lora_rank=config.q_lora_rank,
            qk_rope_head_dim=config.qk_rope_head_dim,
            qk_nope_head_dim=config.qk_nope_head_dim,
            v_head_dim=config.v_head_dim,
            num_experts_per_tok=config.num_experts_per_token,
            num_local_experts=config.num_experts,
            rms_norm_eps=config.rms_norm_eps,
            linear_head_dim=config.kda_head_dim,
            linear_num_heads=config.kda_num_heads,
            linear_conv_kernel_dim=config.short_conv_kernel_size,
            layer_types=kinds,
            mlp_layer_types=["sparse" if config.is_moe(i) else "dense" for i in range(config.num_hidden_layers)],
            pad_token_id=None,
            bos_token_id=None,
            eos_token_id=None,
            tie_word_embeddings=False,
        )
    ).eval()
    # its mask of padding, and nothing else, needs a choice here: the written-out attention
    peer.set_attn_implementation("eager")
    return peer


def in_their_names(tensors):
    """Our tensors (weights or gradients) under the names and in the shapes of transformers."""
    out = {}
    for name, tensor in tensors.items():
        if name == "embedders.text.table.weight":
            out["model.embed_tokens.weight"] = tensor
        elif name.startswith("lm_head"):
            out[name] = tensor
        elif "k_conv1d" in name or "v_conv1d" in name:
            continue
        elif "q_conv1d" in name:
            three = [tensors[name.replace("q_conv1d", f"{which}_conv1d")] for which in "qkv"]
            out["model." + name.replace("q_conv1d", "conv1d")] = torch.cat(three)
        else:
            theirs = "model." + name.replace("block_sparse_moe", "mlp")
            theirs = theirs.replace("experts.w13", "experts.gate_up_proj").replace("experts.w2", "experts.down_proj")
            for own in ("A_log", "dt_bias", "f_a_proj", "f_b_proj"):
                theirs = theirs.replace(f"self_attn.{own}", f"self_attn.forget_gate.{own}")
            out[theirs] = tensor[None, None, :, None] if name.endswith("A_log") else tensor
    return out


@contextmanager
def forced_routing(model, picks):
    """Inside, the routers of our model pick what `picks` says (one [T, k] a MoE layer, in order) and weigh by themselves."""
    routers = [module for module in model.modules() if isinstance(module, Router)]
    own, given = Router.forward, dict(zip(map(id, routers), picks, strict=True))
    asked = []

    def forward(self, x_TD, record=None):
        picked_Tk = given[id(self)]
        score_TE = torch.sigmoid(x_TD.float() @ self.weight.float().T)
        biased = score_TE + self.e_score_correction_bias
        asked.append((biased.topk(self.k).indices.sort().values == picked_Tk.sort().values).all(1))
        chosen_Tk = score_TE.gather(1, picked_Tk)
        return picked_Tk, chosen_Tk / (chosen_Tk.sum(-1, keepdim=True) + 1e-20) * self.scaling

    Router.forward = forward
    try:
        yield asked
    finally:
        Router.forward = own


def packed_of(*lists):
    streams = []
    for ids in lists:
        data = torch.as_tensor(ids, dtype=torch.int64)
        streams.append(Stream(spans=(Span(modality="text", data=data, key=content_key("text", data)),)))
    return pack(streams, ("text",))


@pytest.fixture(scope="session")
def parity():
    """`linear` config; `ours(config, seed)`; `pair(config, seed)`; helpers."""

    def ours(config, seed=0):
        torch.manual_seed(seed)
        return randomise(Model(config, {"text": Ids(config.vocab_size, config.hidden_size)}), seed).eval()

    def pair(config, seed=0):
        model, peer = ours(config, seed), peer_of(config)
        missing, unexpected = peer.load_state_dict(in_their_names(model.state_dict()), strict=True)
        assert not missing and not unexpected
        return model, peer

    def peer_picks(peer, ids):
        """Logits of transformers and what its routers picked, [T, k] a MoE layer."""
        picks, hooks = [], []
        for layer in peer.model.layers:
            if hasattr(layer.mlp, "gate"):
                hooks.append(layer.mlp.gate.register_forward_hook(lambda m, a, out: picks.append(out[2].detach())))
        logits = peer(ids[None], use_cache=False).logits[0]
        for hook in hooks:
            hook.remove()
        return logits, picks

    return SimpleNamespace(
        linear=LINEAR,
        ours=ours,
        pair=pair,
        peer=peer_of,
        theirs=in_their_names,
        forced=forced_routing,
        picks=peer_picks,
        packed=packed_of,
        ids=lambda n, vocab=160, seed=0: torch.randint(0, vocab, (n,), generator=torch.Generator().manual_seed(seed)),
    )

"""Loading against transformers, against the files themselves, and in every form of keeping the weights."""

import json
import subprocess
import sys
import textwrap

import pytest
import torch

from watersmeet.core.errors import CheckpointError
from watersmeet.core.model.moe import Experts
from watersmeet.core.model.packed import PackedExperts
from watersmeet.core.official.names import canonical
from watersmeet.core.official.random import random_k3, random_kimi_linear
from watersmeet.kernels import mxfp4_decode


def test_logits_are_those_of_transformers(shapes, tools):
    transformers = pytest.importorskip("transformers")
    peer = transformers.KimiLinearForCausalLM.from_pretrained(shapes.linear, dtype=torch.float32).eval()
    ids = tools.ids(70)
    with torch.no_grad():
        want = peer(torch.tensor([ids])).logits[0]
    model = tools.load(shapes.linear).model
    torch.testing.assert_close(tools.logits(model, ids)[0], want, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(tools.steps(model, ids), want, atol=1e-4, rtol=1e-4)


def test_what_transformers_writes_loads_as_well(tmp_path, tools):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    config = transformers.KimiLinearConfig(
        vocab_size=130,
        hidden_size=48,
        intermediate_size=80,
        moe_intermediate_size=32,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=2,
        kv_lora_rank=16,
        q_lora_rank=24,
        qk_rope_head_dim=8,
        qk_nope_head_dim=12,
        v_head_dim=20,
        num_experts_per_tok=1,
        num_local_experts=5,
        linear_head_dim=16,
        linear_num_heads=3,
        layer_types=["full_attention", "linear_attention", "linear_attention", "full_attention"],
        mlp_layer_types=["dense", "dense", "sparse", "sparse"],
        eos_token_id=[2, 7],
        bos_token_id=1,
        pad_token_id=0,
    )
    peer = transformers.KimiLinearForCausalLM(config).eval()
    with torch.no_grad():
        for name, value in [*peer.named_parameters(), *peer.named_buffers()]:
            if value.is_floating_point() and "inv_freq" not in name:
                value.uniform_(0.5, 1.5) if "norm" in name else value.add_(0.1 * torch.randn_like(value))
    peer.save_pretrained(tmp_path)
    loaded = tools.load(tmp_path)
    ids = tools.ids(40)
    with torch.no_grad():
        want = peer(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(tools.logits(loaded.model, ids)[0], want, atol=1e-4, rtol=1e-4)
    assert loaded.processor["official"]["eos_ids"] == [2, 7]
    assert loaded.config.q_lora_rank == 24 and loaded.config.first_k_dense_replace == 2


@pytest.mark.parametrize("kind", ["linear", "k3"])
def test_every_tensor_arrives_where_it_belongs(kind, shapes, tools):
    model = tools.load(getattr(shapes, kind)).model
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    seen = set()
    for name, tensor in tools.tensors(getattr(shapes, kind)).items():
        own = name.removeprefix("language_model.").removeprefix("model.")
        if ".experts." in own:
            head, rest = own.split(".experts.")
            expert, part = int(rest.split(".")[0]), rest.split(".")[1]
            whole = state[f"{head}.experts.{'w2' if part == 'w2' else 'w13'}"][expert]
            inner = whole.shape[0] // 2
            got = {"w1": whole[:inner], "w3": whole[inner:], "w2": whole}[part]
        elif own == "embed_tokens.weight":
            got = state["embedders.text.embedding.weight"]
        else:
            got = state[own]
        if own.endswith("A_log"):
            tensor = tensor.reshape(-1)[: len(got)]
        assert torch.equal(got, tensor), name
        seen.add(name)
    assert len(seen) == len(tools.tensors(getattr(shapes, kind)))


def test_pitfall_23_gate_and_up_are_not_swapped(shapes, copy, tools):
    """Loading files in which w1 and w3 changed places gives other logits, and the file's w1 is the gate."""
    ids = tools.ids(20)
    right = tools.logits(tools.load(shapes.k3).model, ids)[0]
    swapped = copy(shapes.k3)
    tools.edit(swapped, lambda name, t: {name.replace(".w1.", ".x.").replace(".w3.", ".w1.").replace(".x.", ".w3."): t})
    assert (tools.logits(tools.load(swapped).model, ids)[0] - right).abs().max() > 1e-2


@pytest.mark.parametrize("tail", [0.0, 1e-6])
def test_pitfall_3_decay_may_be_longer_than_the_heads_if_the_rest_is_zero(tail, shapes, copy, tools):
    directory = copy(shapes.k3)

    def longer(name, tensor):
        if not name.endswith("layers.1.self_attn.A_log"):
            return {name: tensor}
        out = torch.zeros(128)
        out[:3] = tensor[:3]
        out[100] = tail
        return {name: out}

    tools.edit(directory, longer)
    if tail:
        with pytest.raises(CheckpointError, match=r"layers\.1\.self_attn\.A_log.*not zero"):
            tools.load(directory)
    else:
        ids = tools.ids(9)
        want = tools.logits(tools.load(shapes.k3).model, ids)[0]
        assert torch.equal(tools.logits(tools.load(directory).model, ids)[0], want)


@pytest.mark.parametrize("shape", [(3,), (1, 1, 3, 1), (3, 1), (5,)])
def test_pitfall_3_decay_in_other_shapes(shape, shapes, copy, tools):
    directory = copy(shapes.linear)
    original = tools.tensors(directory)

    def change(name, tensor):
        if not name.endswith("A_log"):
            return {name: tensor}
        flat = torch.zeros(max(shape))
        flat[:3] = tensor.flatten()
        return {name: flat.view(shape)}

    tools.edit(directory, change)
    model = tools.load(directory).model
    assert torch.equal(model.layers[0].self_attn.A_log, original["model.layers.0.self_attn.A_log"].flatten())


def test_pitfall_38_filters_without_the_middle_axis_are_not_transposed(shapes, copy, tools):
    directory = copy(shapes.linear)
    tools.edit(directory, lambda name, t: {name: t[:, 0].contiguous() if "conv1d" in name else t})
    ids = tools.ids(12)
    want = tools.logits(tools.load(shapes.linear).model, ids)[0]
    assert torch.equal(tools.logits(tools.load(directory).model, ids)[0], want)
    tools.edit(directory, lambda name, t: {name: t.T.contiguous() if "conv1d" in name else t})
    with pytest.raises(CheckpointError, match="of another shape"):
        tools.load(directory)


def test_packed_experts_decode_to_the_same_weights(shapes, tools):
    plain = tools.load(shapes.k3_packed).model
    packed = tools.load(shapes.k3_packed, packed_experts=True).model
    files = tools.tensors(shapes.k3_packed)
    stem = "language_model.model.layers.2.block_sparse_moe.experts.5."
    want = {p: mxfp4_decode(files[f"{stem}{p}.weight_packed"], files[f"{stem}{p}.weight_scale"], dtype=torch.float32)
            for p in ("w1", "w2", "w3")}  # fmt: skip
    experts = plain.layers[2].block_sparse_moe.experts
    assert type(experts) is Experts
    assert torch.equal(experts.w13[5], torch.cat([want["w1"], want["w3"]])) and torch.equal(experts.w2[5], want["w2"])
    kept = packed.layers[2].block_sparse_moe.experts
    assert isinstance(kept, PackedExperts)
    w13, w2 = kept.decode(5, torch.float32)
    assert torch.equal(w13, experts.w13[5]) and torch.equal(w2, experts.w2[5])
    ids = tools.ids(30)
    torch.testing.assert_close(tools.logits(packed, ids)[0], tools.logits(plain, ids)[0], atol=2e-3, rtol=1e-3)
    torch.testing.assert_close(tools.steps(packed, ids[:8]), tools.logits(plain, ids[:8])[0], atol=2e-3, rtol=1e-3)


def test_packed_experts_one_layer_against_plain_ones_with_gradients(shapes, tools):
    plain, packed = (tools.load(shapes.k3_packed, packed_experts=on).model.layers[3].block_sparse_moe for on in (0, 1))
    x = torch.randn(40, 96, generator=torch.Generator().manual_seed(0))
    results = []
    for module in (plain, packed):
        leaf = x.clone().requires_grad_()
        y = module(leaf)
        results.append((y.detach(), torch.autograd.grad(y.square().sum(), leaf)[0]))
    for got, want in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(got, want, atol=1e-4 * float(want.abs().max()), rtol=1e-4)


def test_packed_experts_take_little_memory(shapes, tools):
    packed = tools.load(shapes.k3_packed, packed_experts=True, dtype=torch.bfloat16).model
    experts = [m for m in packed.modules() if isinstance(m, PackedExperts)]
    values = sum(8 * 3 * 32 * 64 for _ in experts)
    assert experts and sum(b.nbytes for m in experts for b in m.buffers()) == values * 17 // 32
    assert not list(experts[0].parameters())


def test_pitfall_26_the_names_say_what_is_packed_not_the_declaration(shapes, copy, tools):
    """A declaration without any packed tensor, and one that calls the latent projections 4-bit, both load."""
    directory = copy(shapes.k3)
    raw = json.loads((directory / "config.json").read_text())
    packed = json.loads((shapes.k3_packed / "config.json").read_text())
    raw["text_config"]["quantization_config"] = packed["text_config"]["quantization_config"]
    raw["text_config"]["quantization_config"]["ignore"] = ["re:.*lm_head.*"]
    (directory / "config.json").write_text(json.dumps(raw))
    ids = tools.ids(5)
    assert torch.equal(
        tools.logits(tools.load(directory).model, ids)[0], tools.logits(tools.load(shapes.k3).model, ids)[0]
    )
    with pytest.raises(CheckpointError, match="nothing to keep packed"):
        tools.load(directory, packed_experts=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dtypes_of_what_is_loaded(dtype, shapes, tools):
    model = tools.load(shapes.k3, dtype=dtype).model
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if name.endswith("counts"):
            continue
        always = name.endswith(("conv1d.weight", "A_log", "dt_bias", "o_norm.weight", "e_score_correction_bias"))
        assert tensor.dtype == (torch.float32 if always else dtype), name
    assert model.compute_dtype == dtype and model.layers[0].self_attn.o_norm.weight.dtype == torch.float32


def test_one_file_without_an_index(tmp_path, tools):
    random_kimi_linear(tmp_path / "one", shards=0, seed=3)
    random_kimi_linear(tmp_path / "many", shards=4, seed=3)
    assert [f.name for f in (tmp_path / "one").glob("*.safetensors")] == ["model.safetensors"]
    ids = tools.ids(6)
    one, many = (tools.logits(tools.load(tmp_path / name).model, ids)[0] for name in ("one", "many"))
    assert torch.equal(one, many)


def test_other_spellings_of_names(shapes, copy, tools):
    directory = copy(shapes.linear)
    tools.edit(
        directory,
        lambda name, t: {
            name.replace("gate.e_score", "e_score")
            if "layers.2" in name
            else name.replace("block_sparse_moe", "mlp"): t
        },
    )
    ids = tools.ids(6)
    want = tools.logits(tools.load(shapes.linear).model, ids)[0]
    assert torch.equal(tools.logits(tools.load(directory).model, ids)[0], want)
    assert canonical("layers.0.mlp.gate_proj.weight") == "layers.0.mlp.gate_proj.weight"


@pytest.mark.parametrize("packed", [False, True])
def test_layers_on_disk_give_the_same_logits(packed, shapes, tools):
    directory, ids = shapes.k3_packed if packed else shapes.k3, tools.ids(11)
    whole = tools.load(directory, packed_experts=packed).model
    away = tools.load(
        directory,
        packed_experts=packed,
        device_map={"": "cpu", "layers.0": "disk", "layers.3": "disk", "layers.5": "disk"},
    ).model
    assert all(p.is_meta for p in away.layers[3].parameters()) and not any(
        p.is_meta for p in away.layers[1].parameters()
    )
    assert torch.equal(tools.logits(away, ids)[0], tools.logits(whole, ids)[0])
    torch.testing.assert_close(tools.steps(away, ids), tools.steps(whole, ids), atol=1e-4, rtol=1e-4)
    with torch.inference_mode(), away.fused():
        torch.testing.assert_close(tools.steps(away, ids), tools.steps(whole, ids), atol=1e-4, rtol=1e-4)
    assert all(p.is_meta for p in away.layers[3].parameters())


def test_a_map_by_memory(shapes, tools):
    ids, layer = tools.ids(7), 4 * sum(p.numel() for p in tools.load(shapes.k3).model.layers[4].parameters())
    whole = tools.load(shapes.k3).model
    outside = sum(p.nbytes for n, p in whole.named_parameters() if not n.startswith("layers."))
    for room, expected in ((outside + 4 * layer, range(1, 8)), (1 << 40, [0])):
        model = tools.load(shapes.k3, device_map="auto", max_memory={"cpu": room}).model
        away = sum(any(p.is_meta for p in each.parameters()) for each in model.layers)
        assert away in expected
        assert torch.equal(tools.logits(model, ids)[0], tools.logits(whole, ids)[0])


@pytest.mark.parametrize(
    "device_map", [{"layers.99": "disk"}, {"lm_head": "disk"}, {"layers.0": "cpu", "layers.1": "meta"}, "balanced"]
)
def test_maps_that_make_no_sense(device_map, shapes, tools):
    with pytest.raises(Exception, match="device_map"):
        tools.load(shapes.k3, device_map=device_map)


@pytest.mark.slow
def test_peak_memory_is_below_the_weights_and_one_shard(tmp_path):
    """In a process of its own: what the peak grew by while loading, float32 files into bfloat16 and as they are."""
    sizes = {
        "hidden_size": 512,
        "num_hidden_layers": 8,
        "vocab_size": 4096,
        "num_experts": 16,
        "moe_intermediate_size": 256,
    }
    random_kimi_linear(tmp_path, shards=8, dtype=torch.bfloat16, **sizes)
    total = sum(file.stat().st_size for file in tmp_path.glob("*.safetensors"))
    shard = max(file.stat().st_size for file in tmp_path.glob("*.safetensors"))
    program = textwrap.dedent(f"""
        import resource, sys, torch
        from watersmeet.pipelines.models.local import load_local
        load_local("nano")
        def peak():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        def now():
            return int(open("/proc/self/statm").read().split()[1]) * 4096
        before = now()
        held = bytearray(peak() - before)  # so that growth shows at once
        held[:] = b"x" * len(held)
        start = peak()
        model = load_local({str(tmp_path)!r}, dtype=torch.bfloat16).model
        print(peak() - start)
    """)
    out = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    grown = int(out.stdout.split()[-1])
    assert total > 80e6 and grown <= total + shard + 16e6, (grown, total, shard)


def test_k3_without_norm_in_the_latent_space_and_low_rank_gate(tmp_path, tools):
    """Choices that the released files do not make, but that their fields can say."""
    official = random_k3(
        tmp_path,
        latent_norm=False,
        kda_gate_rank=16,
        mla_output_gate=False,
        gate_lower_bound=-3.5,
        situ_linear_beta=None,
    )
    raw = json.loads((tmp_path / "config.json").read_text())["text_config"]
    assert raw["latent_moe_use_norm"] is False and raw["linear_attn_config"]["use_full_rank_gate"] is False
    loaded = tools.load(tmp_path)
    assert loaded.config == official.model.replace(output_modality="text")
    assert tools.logits(loaded.model, tools.ids(5))[0].isfinite().all()

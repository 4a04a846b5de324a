"""Reading in any pieces, and mixing reading with steps, ends in the state and the result of one pass."""

import pytest
import torch

from watersmeet.core.cache import KdaState, LatentBuffer
from watersmeet.core.model.mla import LatentAttention
from watersmeet.core.model.ops import Layout, Step
from watersmeet.core.stream import Stream

LINEAR = {
    "gate_lower_bound": None, "kda_gate_rank": 16, "q_lora_rank": None, "mla_output_gate": False, "hidden_act": "silu",
    "attn_res_block_size": None, "routed_expert_hidden_size": None, "num_shared_experts": 1, "v_head_dim": 12,
}  # fmt: skip


@pytest.fixture(scope="module", params=["k3", "linear"])
def model(kit, request):
    return kit.model(kit.micro if request.param == "k3" else kit.micro.replace(**LINEAR)).eval()


def ids_of(n, seed):
    return torch.randint(0, 64, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


def read(kit, model, lists, cache=None):
    return model(kit.pack(*(Stream(spans=(kit.text(*ids),)) for ids in lists)), cache=cache)


def check_state(cache, other):
    assert cache.lengths == other.lengths
    for one, two in zip(cache.layers, other.layers, strict=True):
        if isinstance(one, KdaState):
            torch.testing.assert_close(one.recurrent, two.recurrent, rtol=1e-3, atol=5e-5)
            torch.testing.assert_close(one.conv, two.conv, rtol=1e-3, atol=5e-5)
        else:
            assert isinstance(one, LatentBuffer)
            for row, length in enumerate(cache.lengths):
                torch.testing.assert_close(one.rows[row, :length], two.rows[row, :length], rtol=1e-3, atol=5e-5)


@pytest.mark.parametrize("seed", range(6))
def test_any_split_of_a_prefill_is_one_prefill(kit, model, seed):
    """Two streams in pieces of random lengths: every row's result and the state at the end."""
    generator = torch.Generator().manual_seed(seed)
    lists = [ids_of(83, seed), ids_of(83, seed + 50)]
    cuts = sorted({0, 83, *torch.randint(1, 83, (1 + 3 * seed,), generator=generator).tolist()})
    with torch.inference_mode():
        whole = read(kit, model, lists).view(2, 83, -1)
        at_once, pieces = model.new_cache(2), model.new_cache(2)
        read(kit, model, lists, at_once)
        got = [
            read(kit, model, [ids[a:b] for ids in lists], pieces).view(2, b - a, -1)
            for a, b in zip(cuts[:-1], cuts[1:], strict=True)
        ]
    torch.testing.assert_close(torch.cat(got, dim=1), whole, rtol=1e-3, atol=5e-5)
    check_state(pieces, at_once)


@pytest.mark.parametrize("cut", [1, 2, 3, 4, 15, 16, 17, 63, 64, 65, 69])
def test_a_cut_anywhere_near_a_border(kit, model, cut):
    ids = ids_of(70, cut)
    with torch.inference_mode():
        cache = model.new_cache(1)
        parts = [read(kit, model, [ids[:cut]], cache), read(kit, model, [ids[cut:]], cache)]
        torch.testing.assert_close(torch.cat(parts), read(kit, model, [ids]), rtol=1e-3, atol=5e-5)


@pytest.mark.parametrize("fused", [False, True])
def test_steps_between_pieces(kit, model, fused):
    """Read, step, read on, step: as a conversation does, with streams of different lengths."""
    first, more, then = [ids_of(30, 1), ids_of(9, 2)], [ids_of(5, 3), ids_of(5, 4)], [ids_of(7, 5), ids_of(40, 6)]
    end = [ids_of(2, 7), ids_of(2, 8)]
    with torch.inference_mode():
        cache = model.new_cache(2)
        read(kit, model, first, cache)
        with model.fused() if fused else torch.no_grad():
            for column in zip(*more, strict=True):
                model.step(model.embed_ids(torch.tensor(column)), cache)
            read(kit, model, then, cache)
            for column in zip(*end, strict=True):
                hidden = model.step(model.embed_ids(torch.tensor(column)), cache)
        everything = [a + b + c + d for a, b, c, d in zip(first, more, then, end, strict=True)]
        whole = read(kit, model, everything)
        torch.testing.assert_close(hidden, whole[[43, 44 + 55]], rtol=1e-3, atol=5e-5)
        at_once = model.new_cache(2)
        read(kit, model, everything, at_once)
    check_state(cache, at_once)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(("v_dim", "lora"), [(16, 20), (10, None)])
def test_absorbed_attention_equals_expanded_attention(kit, gated, v_dim, lora):
    """The step folds the key and value matrices into query and output; reading forms keys and values of every head."""
    config = kit.micro.replace(mla_output_gate=gated, v_head_dim=v_dim, q_lora_rank=lora)
    layer = next(m for m in kit.model(config).modules() if isinstance(m, LatentAttention))
    x = torch.randn(40, 48, generator=torch.Generator().manual_seed(0))
    layout = Layout.of(torch.tensor([0, 40], dtype=torch.int32), None)
    with torch.inference_mode():
        expanded = layer(x, layout)
        state = LatentBuffer(1, config, torch.float32, torch.device("cpu"))
        absorbed = torch.cat([layer(x[t : t + 1], Step.after([t], x.device), state) for t in range(40)])
    torch.testing.assert_close(absorbed, expanded, rtol=1e-4, atol=1e-5)


def test_layouts_and_steps_move_to_a_device():
    """What a layer is given besides tensors goes where the layer lies, for models on several devices."""
    layout = Layout.of(torch.tensor([0, 3, 5], dtype=torch.int32), torch.tensor([-1, 0, 0, -1, -1])).after([4, 0])
    moved = layout.to("meta")
    assert moved.cu_seqlens.is_meta and moved.place.is_meta and moved.block is not None and moved.block.is_meta
    assert (moved.bounds, moved.past, moved.first) == (layout.bounds, [4, 0], 0)
    step = Step.after([2, 5], torch.device("cpu")).to("meta")
    assert step.past_N.is_meta and step.mask_NS is not None and step.mask_NS.is_meta and step.longest == 6
    assert Step.after([3, 3], torch.device("cpu")).mask_NS is None

"""The tower against its formulas written out as loops in float64, and against the parts that a peer has in common."""

import math

import numpy as np
import pytest
import torch
from PIL import Image

from watersmeet.core.stream import Stream, StreamError, pack
from watersmeet.tokenizers.moonvit import tower as parts
from watersmeet.tokenizers.moonvit.embedder import Embedder
from watersmeet.tokenizers.moonvit.encoder import Encoder

TINY = {"width": 24, "layers": 2, "heads": 2, "head_dim": 8, "mlp": 40, "grid": 6}
HIDDEN = 20


def build(seed=0, dtype=torch.float64, **changes):
    """An embedder whose parameters are all far from special values."""
    torch.manual_seed(seed)
    net = Embedder(HIDDEN, TINY | changes)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
    return net.to(dtype)


def noise(width, height, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


# ---- the oracle: one loop a formula, nothing shared with the code under test --------------------------------------------


def root_mean_square(x, gain, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * gain


def bilinear(grid, rows, columns):
    """Half-pixel centres, borders repeated."""
    height, width, _ = grid.shape
    out = np.empty((rows, columns, grid.shape[2]))
    for r in range(rows):
        for c in range(columns):
            y = min(max((r + 0.5) * height / rows - 0.5, 0), height - 1)
            x = min(max((c + 0.5) * width / columns - 0.5, 0), width - 1)
            y0, x0 = int(y), int(x)
            y1, x1 = min(y0 + 1, height - 1), min(x0 + 1, width - 1)
            fy, fx = y - y0, x - x0
            out[r, c] = (1 - fy) * ((1 - fx) * grid[y0, x0] + fx * grid[y0, x1])
            out[r, c] += fy * ((1 - fx) * grid[y1, x0] + fx * grid[y1, x1])
    return out


def oracle(net, frames, settings, eps):
    """[tokens, D] of one item; `frames` are pixel arrays that need neither resizing nor padding."""
    w = {name: value.detach().double().numpy() for name, value in net.state_dict().items()}
    width, heads, dim, p = settings["width"], settings["heads"], settings["head_dim"], 14
    rows, columns = frames[0].shape[0] // p, frames[0].shape[1] // p
    grid = bilinear(w["tower.patch_embed.pos_emb.weight"], rows, columns)
    x, where = [], []
    for t, pixels in enumerate(frames):
        for r in range(rows):
            for c in range(columns):
                patch = (pixels[r * p : r * p + p, c * p : c * p + p].astype(float) / 255 - 0.5) / 0.5
                vector = np.einsum("oijk,jki->o", w["tower.patch_embed.proj.weight"], patch) + grid[r, c]
                if len(frames) > 1:
                    for i in range(width // 2):
                        omega = 10000 ** (-i / (width // 2))
                        vector[i] += math.sin(t * omega)
                        vector[width // 2 + i] += math.cos(t * omega)
                x.append(vector)
                where.append((r, c))
    x = np.stack(x)
    turn = np.empty((len(where), dim // 2), dtype=complex)
    for n, (r, c) in enumerate(where):
        for i in range(dim // 4):
            frequency = 10000 ** (-4 * i / dim)
            turn[n, 2 * i] = np.exp(1j * c * frequency)
            turn[n, 2 * i + 1] = np.exp(1j * r * frequency)
    for b in range(settings["layers"]):
        name = f"tower.encoder.blocks.{b}."
        h = root_mean_square(x, w[name + "norm0.weight"], eps) @ w[name + "wqkv.weight"].T
        h = h.reshape(len(x), 3, heads, dim)
        mixed = np.empty((len(x), heads, dim))
        for head in range(heads):
            q, k = (((h[:, j, head, 0::2] + 1j * h[:, j, head, 1::2]) * turn) for j in (0, 1))
            score = (q @ k.conj().T).real * dim**-0.5
            score = np.exp(score - score.max(1, keepdims=True))
            mixed[:, head] = score / score.sum(1, keepdims=True) @ h[:, 2, head]
        x = x + mixed.reshape(len(x), -1) @ w[name + "wo.weight"].T
        h = root_mean_square(x, w[name + "norm1.weight"], eps) @ w[name + "mlp.fc0.weight"].T
        h = 0.5 * h * (1 + np.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))
        x = x + h @ w[name + "mlp.fc1.weight"].T
    x = root_mean_square(x, w["tower.encoder.final_layernorm.weight"], eps)
    x = x.reshape(len(frames), rows, columns, width).mean(0)
    tokens = []
    for r in range(0, rows, 2):
        for c in range(0, columns, 2):
            tokens.append(np.concatenate([x[r, c], x[r, c + 1], x[r + 1, c], x[r + 1, c + 1]]))
    h = np.stack(tokens) @ w["projector.proj.0.weight"].T
    h = 0.5 * h * (1 + np.vectorize(math.erf)(h / math.sqrt(2)))
    return root_mean_square(h @ w["projector.proj.2.weight"].T, w["projector.post_norm.weight"], 1e-5)


EPS64 = float(np.finfo(np.float64).eps)


@pytest.mark.parametrize("size", [(28, 28), (84, 56), (56, 196)])
def test_pitfall_48_the_whole_tower_is_the_formula(size):
    net = build()
    pixels = noise(*size)
    span = Encoder(TINY).encode(pixels)[0]
    found = net(span.data, span.coords)
    assert np.abs(found.detach().numpy() - oracle(net, [pixels], TINY, EPS64)).max() < 1e-10


@pytest.mark.slow
def test_pitfall_48_the_whole_tower_at_448_by_448():
    """A size at which seams and swapped axes show; 1,024 patches, stretched from a grid of another size."""
    net = build()
    pixels = noise(448, 448)
    span = Encoder(TINY).encode(pixels)[0]
    assert span.n == 256
    assert np.abs(net(span.data, span.coords).detach().numpy() - oracle(net, [pixels], TINY, EPS64)).max() < 1e-9


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_frames_of_a_group_see_each_other_and_are_averaged(count):
    settings = TINY | {"frames": 4}
    net = build(frames=4)
    frames = [noise(56, 84, seed) for seed in range(count)]
    (span,) = Encoder(settings).encode(frames)
    found = net(span.data, span.coords).detach().numpy()
    assert found.shape == (6, HIDDEN)
    assert np.abs(found - oracle(net, frames, TINY, EPS64)).max() < 1e-10


def test_the_projector_uses_the_exact_gelu_and_the_blocks_the_tanh_form():
    """Pitfall 47: the oracle above would not notice a swap if both forms agreed to its tolerance; they do not."""
    x = torch.linspace(-3, 3, 50, dtype=torch.float64)
    assert float((torch.nn.functional.gelu(x) - torch.nn.functional.gelu(x, approximate="tanh")).abs().max()) > 1e-4


def test_pitfall_47_the_position_grid_is_stretched_bilinearly():
    net = build().tower.patch_embed
    weight = net.pos_emb["weight"].detach()
    assert net.positions(6, 6) is net.pos_emb["weight"]
    for rows, columns in ((3, 9), (12, 4), (7, 6), (4, 4)):
        found = net.positions(rows, columns).detach().numpy()
        assert np.abs(found - bilinear(weight.numpy(), rows, columns)).max() < 1e-12
        cubic = torch.nn.functional.interpolate(
            weight.permute(2, 0, 1)[None], size=(rows, columns), mode="bicubic", align_corners=False
        )
        assert np.abs(found - cubic[0].permute(1, 2, 0).numpy()).max() > 1e-3


@pytest.mark.parametrize(
    ("dtype", "eps"), [(torch.bfloat16, 2.0**-7), (torch.float16, 2.0**-10), (torch.float32, 2.0**-23)]
)
def test_pitfall_44_the_eps_of_the_norm_follows_the_dtype_of_its_input(dtype, eps):
    x = (torch.randn(5, 16) * 0.05).to(dtype)
    norm = parts.MachineNorm(16).to(dtype)
    wide = x.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt()
    with torch.no_grad():
        assert float((norm(x).double() - expected).abs().max()) < 8 * eps
    if dtype == torch.bfloat16:  # small activations shrink to half their size, which eps = 1e-6 would not do
        with torch.no_grad():
            assert float(norm(x).float().square().mean().sqrt()) < 0.75
            same = parts.MachineNorm(16, 2.0**-7)
            assert float((same(x.float()) - norm(x).float()).abs().max()) < 0.02


def test_pitfall_44_float32_can_compute_what_bfloat16_computes():
    """The same weights are another function in float32 unless the eps is set."""
    net16 = build(dtype=torch.bfloat16)
    net32, fixed = build(dtype=torch.float32), build(dtype=torch.float32, norm_eps=2.0**-7)
    with torch.no_grad():
        for net in (net16, net32, fixed):
            net.tower.patch_embed.proj.weight.mul_(0.02)
            net.tower.patch_embed.pos_emb["weight"].mul_(0.02)
    span = Encoder(TINY).encode(noise(84, 84))[0]
    with torch.no_grad():
        half, plain, same = (net(span.data, span.coords).float() for net in (net16, net32, fixed))
    assert float((half - same).norm()) < 0.3 * float((half - plain).norm())


def test_rotary_positions_put_the_column_on_even_pairs():
    """With one axis at zero, its pairs stay as they are."""
    x = torch.randn(1, 1, 8, dtype=torch.float64)
    zero, five = torch.tensor([0]), torch.tensor([5])
    by_column = parts.rotate(x, parts.rotation(zero, five, 8))[0, 0]
    assert torch.equal(by_column[[2, 3, 6, 7]], x[0, 0, [2, 3, 6, 7]]) and not torch.allclose(
        by_column[:2], x[0, 0, :2]
    )
    by_row = parts.rotate(x, parts.rotation(five, zero, 8))[0, 0]
    assert torch.equal(by_row[[0, 1, 4, 5]], x[0, 0, [0, 1, 4, 5]])
    assert float((by_row[2:4].norm() - x[0, 0, 2:4].norm()).abs()) < 1e-12


def test_pitfall_46_nothing_is_remembered_from_an_earlier_call():
    """A dry run on another size, dtype and under inference mode leaves no table behind."""
    span, other = Encoder(TINY).encode(noise(84, 56))[0], Encoder(TINY).encode(noise(28, 168))[0]
    fresh, used = build(dtype=torch.float32), build(dtype=torch.float32)
    with torch.inference_mode():
        used.bfloat16()(other.data, other.coords)
    used.load_state_dict(fresh.state_dict())
    used.float()
    used.load_state_dict(fresh.state_dict())
    assert torch.equal(used(span.data, span.coords), fresh(span.data, span.coords))
    assert not list(fresh.buffers())


def test_items_in_a_batch_do_not_see_each_other():
    net, encoder = build(), Encoder(TINY)
    pictures = [noise(56, 84, 1), noise(28, 28, 2), noise(84, 56, 3)]
    streams = [Stream(spans=tuple(encoder.encode(picture))) for picture in pictures]
    segment = pack(streams).segment("moonvit")
    together = net(segment.data, segment.coords)
    alone = torch.cat([net(stream.spans[0].data, stream.spans[0].coords) for stream in streams])
    assert torch.allclose(together, alone, atol=1e-12)


def test_an_item_that_is_not_whole_is_refused():
    net, span = build(), Encoder(TINY).encode(noise(84, 84))[0]
    for wrong in (slice(0, 8), slice(1, 9), [0, 1, 2, 3, 4, 5, 6, 8, 7]):
        with pytest.raises(StreamError, match="3 x 3 cells"):
            net(span.data[wrong], span.coords[wrong])
    clips = Encoder(TINY | {"frames": 4}).encode([noise(28, 28)] * 2)[0]
    with pytest.raises(StreamError, match="2 frames"):
        net(clips.data[:, :1], clips.coords)


def test_no_token_at_all_still_reaches_every_parameter():
    for frames in (1, 4):
        net = build(frames=frames)
        out = net(torch.zeros(0, frames, 4, 588, dtype=torch.uint8), torch.zeros(0, 5, dtype=torch.int64))
        assert out.shape == (0, HIDDEN)
        out.sum().backward()
        assert all(p.grad is not None and not p.grad.any() for p in net.parameters())
        filling = net(torch.zeros(3, frames, 4, 588, dtype=torch.uint8), torch.zeros(3, 5, dtype=torch.int64))
        assert filling.shape == (3, HIDDEN) and bool(filling.isfinite().all())


def test_every_parameter_gets_a_gradient():
    net, span = build(), Encoder(TINY).encode(noise(84, 84))[0]
    (net(span.data, span.coords) * torch.randn(9, HIDDEN)).sum().backward()
    assert all(bool(p.grad.any()) for p in net.parameters())


def test_the_released_sizes_have_the_published_number_of_parameters():
    with torch.device("meta"):
        net = Embedder(7168, {})
    assert sum(p.numel() for p in net.tower.parameters()) == 401_214_464
    assert sum(p.numel() for p in net.projector.parameters()) == 46_144_512
    shapes = {name: tuple(p.shape) for name, p in net.named_parameters()}
    for name, shape in {
        "tower.patch_embed.proj.weight": (1024, 3, 14, 14),
        "tower.patch_embed.pos_emb.weight": (64, 64, 1024),
        "tower.encoder.blocks.26.wqkv.weight": (4608, 1024),
        "tower.encoder.blocks.26.wo.weight": (1024, 1536),
        "tower.encoder.blocks.26.mlp.fc0.weight": (4096, 1024),
        "tower.encoder.final_layernorm.weight": (1024,),
        "projector.proj.0.weight": (4096, 4096),
        "projector.proj.2.weight": (7168, 4096),
        "projector.post_norm.weight": (7168,),
    }.items():
        assert shapes[name] == shape
    assert len(shapes) == 2 + 27 * 6 + 1 + 3


def test_a_new_embedder_starts_as_large_as_text():
    torch.manual_seed(0)
    span = Encoder(TINY).encode(noise(84, 84))[0]
    with torch.no_grad():
        out = Embedder(256, TINY)(span.data, span.coords)
    assert 0.015 < float(out.square().mean().sqrt()) < 0.025


# ---- a peer: the sister model of transformers has other norms and other resizing, but the same geometry ------------------


def test_rotary_positions_agree_with_the_peer():
    pytest.importorskip("transformers")
    from transformers.models.kimi_k25.configuration_kimi_k25 import Kimi_K25VisionConfig
    from transformers.models.kimi_k25.modeling_kimi_k25 import Kimi_K25VisionRotaryEmbedding

    config = Kimi_K25VisionConfig(
        hidden_size=32, num_attention_heads=2, rope_parameters={"rope_type": "axial", "rope_theta": 10000.0}
    )
    rows, columns = torch.tensor([0, 3, 500, 17]), torch.tensor([0, 511, 2, 17])
    # the peer turns channels i and K/2 + i together where ours are neighbours; the angles are the same
    cos, sin = Kimi_K25VisionRotaryEmbedding(config)(torch.zeros(1), torch.stack([rows, columns], dim=1))
    for ours, theirs in zip(parts.rotation(rows, columns, 16), (cos, sin), strict=True):
        assert ours.shape == (4, 8) and torch.allclose(ours.float(), theirs[:, :8], atol=1e-4)


def test_time_and_merging_order_agree_with_the_peer():
    pytest.importorskip("transformers")
    from transformers.models.kimi_k25 import modeling_kimi_k25 as peer
    from transformers.models.kimi_k25.configuration_kimi_k25 import Kimi_K25VisionConfig

    config = Kimi_K25VisionConfig(hidden_size=24, pos_emb_height=6, pos_emb_width=6)
    table = peer.Kimi_K25VisionPositionEmbeddings(config).compute_pos_embed()
    assert torch.allclose(parts.frame_waves(4, 24, torch.zeros(1)), table[1:], atol=1e-6)
    # patches of two frames, row by row, carry their own number; where do they go?
    grid = torch.tensor([[2, 4, 6]])
    index, weight, count = peer.get_vision_temporal_merge_index(grid, 2, 2)
    assert count == 6 and set(weight.tolist()) == {0.5}
    frames = [np.zeros((56, 84, 3), dtype=np.uint8) for _ in range(2)]
    for t, frame in enumerate(frames):
        for row in range(4):
            for column in range(6):
                frame[row * 14 : row * 14 + 14, column * 14 : column * 14 + 14] = t * 24 + row * 6 + column
    (span,) = Encoder(TINY | {"frames": 4}).encode([Image.fromarray(frame) for frame in frames])
    for patch, place in enumerate(index.tolist()):
        assert int(span.data[place // 4, patch // 24, place % 4, 0]) == patch

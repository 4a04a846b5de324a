"""The optimizer's native steps against their formulas in float64 and torch's AdamW; the same bits whole and in pieces."""

import numpy as np
import pytest
import torch

from watersmeet.kernels import native
from watersmeet.kernels.native import build
from watersmeet.kernels.native.muon import LARGEST, Block, MuonBlocks
from watersmeet.kernels.newton_schulz import newton_schulz
from watersmeet.kernels.newton_schulz.reference import newton_schulz_reference

pytestmark = pytest.mark.skipif(native.library(torch.empty(0)) is None, reason="there is no C++ compiler here")


def draw(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


@pytest.mark.parametrize("shape", [(2, 2), (3, 1, 9), (5, 16, 16), (2, 37, 101), (3, 101, 37), (1, 64, 64), (2, 65, 129), (2, 200, 130)])  # fmt: skip
def test_newton_schulz_of_every_shape(shape):
    x = draw(*shape)
    true = newton_schulz_reference(x.double(), steps=5)
    got = newton_schulz(x)
    assert got.shape == x.shape and got.is_contiguous()
    torch.testing.assert_close(got.double(), true, atol=5e-6, rtol=0)
    # a matrix does not feel the others of its batch, nor the number of threads
    if len(shape) == 3:
        assert torch.equal(newton_schulz(x[1:2] if len(x) > 1 else x[:1]), got[1:2] if len(x) > 1 else got[:1])


def test_newton_schulz_of_zeros_of_tiny_and_of_huge_numbers():
    x = torch.stack([torch.zeros(8, 20), draw(8, 20, scale=1e-12), draw(8, 20, scale=1e12)])
    got = newton_schulz(x)
    assert not got[0].any() and got.isfinite().all()
    torch.testing.assert_close(got.double(), newton_schulz_reference(x.double(), steps=5), atol=5e-6, rtol=0)


def test_larger_blocks_are_left_to_the_library(monkeypatch):
    assert build.library(torch.empty(0)) is not None
    assert native.native_newton_schulz(draw(4, LARGEST // 4 + 1), 1) is None
    assert native.native_newton_schulz(draw(4, 4).double(), 1) is None


def parts() -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor], list[Block]]:
    """Weights, gradients, momenta: heads of 7 rows of [21, 33], a key and a value part, and tall blocks of [2, 40, 18]."""
    shapes = [(21, 33), (24, 19), (2, 40, 18)]
    tensors = [[draw(*shape, seed=10 * i + j) for j, shape in enumerate(shapes)] for i in range(3)]
    blocks = [Block(tensor=0, offset=7 * 33 * i, rows=7, cols=33) for i in range(3)]
    blocks += [
        Block(tensor=1, offset=start * 19, rows=rows, cols=19) for start, rows in ((0, 5), (5, 7), (12, 5), (17, 7))
    ]
    blocks += [Block(tensor=2, offset=720 * i, rows=40, cols=18) for i in range(2)]
    return (*tensors, blocks)  # type: ignore[return-value]


def cut(tensor: torch.Tensor, block: Block) -> torch.Tensor:
    return tensor.view(-1)[block.offset : block.offset + block.rows * block.cols].view(block.rows, block.cols)


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("with_factors", [True, False])
def test_a_step_of_all_blocks(nesterov, with_factors):
    weights, grads, momenta, blocks = parts()
    factors = torch.rand(len(blocks)) + 0.5 if with_factors else None
    wanted, moved, squares = [], [], {}
    for number, block in enumerate(blocks):
        w, g, m = (cut(tensors[block.tensor], block).double() for tensors in (weights, grads, momenta))
        m = 0.95 * m + g
        x = newton_schulz_reference(g + 0.95 * m if nesterov else m, steps=5)
        rate = 0.01 * max(block.rows, block.cols) ** 0.5 * (1.0 if factors is None else float(factors[number]))
        wanted.append(0.98 * w - rate * x)
        moved.append(m)
        squares[number] = float(x.square().sum())
    plan = MuonBlocks(blocks)
    kept = [g.clone() for g in grads]
    found = plan.step(
        weights, grads, momenta, rate=0.01, factors=factors, decay=0.98, momentum=0.95, nesterov=nesterov, steps=5
    )
    for block, w, m in zip(blocks, wanted, moved, strict=True):
        torch.testing.assert_close(cut(weights[block.tensor], block).double(), w, atol=2e-6, rtol=0)
        torch.testing.assert_close(cut(momenta[block.tensor], block).double(), m, atol=1e-6, rtol=1e-6)
    assert all(torch.equal(a, b) for a, b in zip(grads, kept, strict=True))
    np.testing.assert_allclose(found, [squares[i] for i in plan.order], rtol=1e-5)


def test_the_step_in_pieces_gives_the_same_bits():
    """What an owner and a shard compute between exchanges is what one process computes in one call."""
    weights, grads, momenta, blocks = parts()
    plan, rate = MuonBlocks(blocks), 0.02 * 0.2
    others = [t.clone() for t in weights], [t.clone() for t in grads], [t.clone() for t in momenta]
    plan.step(weights, grads, momenta, rate=rate, factors=None, decay=0.99, momentum=0.9, nesterov=True, steps=5)
    native.momentum_step(others[1], others[2], momentum=0.9, nesterov=True)
    torch._foreach_mul_(others[0], 0.99)
    for block in blocks:
        x = newton_schulz(cut(others[1][block.tensor], block)[None])[0]
        native.add_scaled(cut(others[0][block.tensor], block), x, -(rate * max(block.rows, block.cols) ** 0.5))
    for one, other in zip((*weights, *momenta), (*others[0], *others[2]), strict=True):
        assert torch.equal(one, other)


def test_adamw_is_torchs():
    shapes = [(3,), (1, 17), (130, 257), (40000,)]
    ours = [draw(*shape, seed=i) for i, shape in enumerate(shapes)]
    theirs = [torch.nn.Parameter(t.double()) for t in ours]
    peer = torch.optim.AdamW(theirs, lr=3e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    first, second = ([torch.zeros_like(t) for t in ours] for _ in range(2))
    for step in range(1, 5):
        grads = [draw(*shape, seed=100 * step + i, scale=10.0 ** (step - 3)) for i, shape in enumerate(shapes)]
        for p, g in zip(theirs, grads, strict=True):
            p.grad = g.double()
        peer.step()
        native.adamw_step(
            ours, grads, first, second, lr=3e-3, decay=1 - 3e-4, betas=(0.9, 0.95), eps=1e-8, updates=step
        )
    for mine, true in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.double(), true.detach(), atol=2e-6, rtol=0)


def test_an_element_does_not_feel_where_it_lies():
    whole = [draw(1000, seed=i) for i in range(4)]
    pieces = [[one[:333].clone(), one[333:].clone()] for one in whole]
    whole[3].square_()
    for piece in pieces[3]:
        piece.square_()
    options = {"lr": 0.1, "decay": 0.9, "betas": (0.9, 0.95), "eps": 1e-8, "updates": 3}
    native.adamw_step(*([one] for one in whole), **options)
    native.adamw_step(*pieces, **options)
    for one, (a, b) in zip(whole, pieces, strict=True):
        assert torch.equal(one, torch.cat([a, b]))

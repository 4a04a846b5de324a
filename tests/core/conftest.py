"""Small models and streams for the tests of the core."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from watersmeet.core.config import preset
from watersmeet.core.model import Model
from watersmeet.core.stream import Span, Stream, content_key, pack, supervise


class _Ids(nn.Module):
    def __init__(self, vocab: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab, width)
        nn.init.normal_(self.table.weight, std=0.5)

    def forward(self, data, coords, time_us):
        return self.table(data)


class _Planes(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.map = nn.Linear(6, width)

    def forward(self, data, coords, time_us):
        return self.map(data)


def _build(config, seed: int = 0, lively: bool = True) -> Model:
    """A model whose parameters are far from their initial values, so that no term hides behind a zero."""
    torch.manual_seed(seed)
    model = Model(config, {"text": _Ids(config.vocab_size, config.hidden_size), "planes": _Planes(config.hidden_size)})
    if lively:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "res_proj" in name:
                    parameter.normal_(std=0.3)
                elif "norm" in name:
                    parameter.uniform_(0.5, 1.5)
                elif "A_log" in name:
                    parameter.uniform_(-0.5, 0.5)
                elif parameter.ndim >= 2 and "conv1d" not in name and "embedders" not in name:
                    parameter.mul_(6.0)
            for name, buffer in model.named_buffers():
                if "e_score_correction_bias" in name:
                    buffer.normal_(std=0.1)
    return model


def _text(*ids: int) -> Span:
    data = torch.tensor(ids, dtype=torch.int64)
    return Span(modality="text", data=data, key=content_key("text", data))


def _planes(n: int, seed: int = 0, block: int = -1) -> Span:
    data = torch.randn(n, 6, generator=torch.Generator().manual_seed(seed))
    return Span(modality="planes", data=data, block=torch.full((n,), block), key=content_key("planes", data))


def _random_stream(n: int, seed: int, vocab: int = 64) -> Stream:
    ids = torch.randint(0, vocab, (n,), generator=torch.Generator().manual_seed(seed)).tolist()
    if n < 4:
        return Stream(spans=(_text(*ids),))
    return supervise([_planes(3, seed), _text(*ids[3:])], [False, True])


@pytest.fixture(scope="session")
def kit():
    """Factories: `model(config=micro)`, `text(*ids)`, `planes(n)`, `stream(n, seed)`, `pack(streams)`; `micro` itself."""
    return SimpleNamespace(
        micro=preset("micro").replace(output_modality="text"),
        model=lambda config=None, **options: _build(
            (config or preset("micro")).replace(output_modality="text"), **options
        ),
        text=_text,
        planes=_planes,
        stream=_random_stream,
        pack=lambda *streams: pack(streams, ("text", "planes")),
        ids=_Ids,
        flat=_Planes,
    )

"""A dataset and embedders small enough to train in seconds; imported by tests and by the processes they start."""

import numpy as np
import torch
from torch import nn

from watersmeet.core.config import preset
from watersmeet.core.model.model import Model
from watersmeet.core.stream import Span, content_key, supervise

VOCAB = 24


class Echo:
    """Prompt: dots that show digits; answer: the digits as ids, then an end id. A model can learn it by heart."""

    def __init__(self, split="train", count=64):
        self.modalities = {"dots": {}, "ids": {}}
        self.count, self.offset = count, 0 if split == "train" else 1000

    def __len__(self):
        return self.count

    def sample(self, index, rng):
        digits = np.random.default_rng(self.offset + index).integers(0, 10, size=3 + index % 6)
        noise = rng.normal(size=(len(digits), 1)) * 0.01
        dots = np.eye(10)[digits] + noise
        answer = torch.tensor([20, *digits.tolist(), 21])
        return supervise(
            [
                Span(modality="dots", data=torch.from_numpy(dots.astype(np.float32)), key=content_key("d", index)),
                Span(modality="ids", data=answer, key=content_key("i", index)),
            ],
            [False, True],
        )


class Dots(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.project = nn.Linear(10, size)

    def forward(self, data, coords, time_us):
        return self.project(data)


class Ids(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.table = nn.Embedding(VOCAB, size)

    def forward(self, data, coords, time_us):
        return self.table(data)


def micro_model(seed=0, **changes):
    """The micro preset over the two modalities above."""
    config = preset("micro").replace(vocab_size=VOCAB, output_modality="ids", **changes)
    torch.manual_seed(seed)
    return Model(config, {"dots": Dots(config.hidden_size), "ids": Ids(config.hidden_size)})


class Letters:
    """Counting up in one modality that is always installed; what `watersmeet train` is tested with."""

    def __init__(self, split="train", count=32):
        self.split, self.count, self.vocab_size = split, count, VOCAB
        self.modalities = {"text": {"vocab_size": VOCAB}}
        self.files = {"letters.txt": b"abc"}

    def __len__(self):
        return self.count

    def sample(self, index, rng):
        ids = (torch.arange(6 + index % 5) + int(rng.integers(VOCAB))) % VOCAB
        return supervise([Span(modality="text", data=ids, key=content_key(self.split, index))], [True])

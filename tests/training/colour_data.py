"""Pictures of one colour and the id that names it: what a new embedder can learn in a minute."""

import numpy as np
import torch

from watersmeet.core.stream import Span, content_key, supervise
from watersmeet.tokenizers.image.encoder import Encoder

IMAGE = {"scale": 1.0, "patch": 16, "channels": 4, "max_rows": 4, "max_columns": 4}
COLOURS = np.array([[250, 10, 10], [10, 250, 10], [10, 10, 250], [240, 240, 240]])


class Colours:
    """Prompt: a picture of four patches; answer: the id of its colour."""

    def __init__(self, split="train", count=64, vocab_size=160):
        self.count, self.offset, self.vocab_size = count, 0 if split == "train" else 1000, vocab_size
        self.modalities = {"text": {"vocab_size": vocab_size}, "image": IMAGE}
        self.encoder = Encoder(IMAGE)

    def __len__(self):
        return self.count

    def sample(self, index, rng):
        colour = (self.offset + index) % len(COLOURS)
        pixels = np.clip(COLOURS[colour] + rng.integers(-10, 11, (32, 32, 3)), 0, 255).astype(np.uint8)
        answer = Span(modality="text", data=torch.tensor([20 + 7 * colour]), key=content_key("c", colour))
        return supervise([*self.encoder.encode(pixels), answer], [False, True])

"""The vocabulary that layout models are trained with: the markup's symbols, bytes, and some English pieces.

The model file lies beside this module, so that training anywhere starts from the same ids; `build` made it from a word
list and writes it again when symbols change.
"""

from collections.abc import Callable, Iterable
from importlib import resources
from pathlib import Path

from watersmeet.pipelines.layout import markup

FILE = "tokenizer.model"
SIZE = 1536


def tokenizer_model() -> bytes:
    """Bytes of the sentencepiece model."""
    return resources.files("watersmeet.pipelines.layout").joinpath(FILE).read_bytes()


def build(words: Iterable[str], train: Callable[..., bytes], out_path: Path) -> None:
    """Train the vocabulary on `words` with `train` (the text modality's `train_tokenizer`) and write it to `out_path`."""
    listed = list(words)
    lines = (" ".join(listed[i : i + 12]) for i in range(0, len(listed), 12))
    train(lines, markup.symbols(), SIZE, out_path)

"""A small vocabulary of the official layout, and the two generations over it."""

import json

import pytest

from watersmeet.tokenizers.text.encoder import Encoder
from watersmeet.tokenizers.tiktoken.train import train_ranks

WORDS = (
    "the weather in Paris is what it's today message role user assistant system tool think response tools call "
    "argument key type string number index name functions get_weather city Hello HELLO world 你好世界 日本語 1234567 "
    'naïve café Привет мир =" " } { : , \n\n \t  '
)


@pytest.fixture(scope="session")
def ranks():
    """The bytes of a `tiktoken.model` with about 600 ranks."""
    return train_ranks([WORDS * 3, " ".join(f"{word} {word}s {word}ing" for word in WORDS.split())], 600)


@pytest.fixture(scope="session")
def official(ranks):
    """`official(generation, **files)`: a text encoder over those ranks."""

    def build(generation, **files):
        named = {
            name.replace("__", "."): json.dumps(v).encode() if isinstance(v, dict) else v for name, v in files.items()
        }
        return Encoder({"tokenizer": "tiktoken", "model": ranks, "generation": generation, "files": named})

    return build

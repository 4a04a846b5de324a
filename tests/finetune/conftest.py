"""Small models of every kind that fine-tuning meets, and files of rows."""

import io
import json
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from watersmeet.core.checkpoint import save_checkpoint
from watersmeet.core.config import preset
from watersmeet.core.model import Model
from watersmeet.core.official.random import random_k3, random_kimi_linear
from watersmeet.pipelines.finetune.dataset import open_conversations
from watersmeet.plugins.registry import get_registry
from watersmeet.tokenizers.text.encoder import Encoder
from watersmeet.tokenizers.tiktoken.train import train_ranks

WORDS = ["What colour is this picture? It is red. It is blue. Yes and no, user assistant system"] * 20
IMAGE = {"scale": 1.0, "patch": 8, "max_patches": 16, "channels": 4}
RANKS = train_ranks(WORDS, 320)


def native(folder, symbols, with_image=True, seed=0):
    """A model of our own layout over text with these symbols, and pictures."""
    encoder = Encoder.train(WORDS, symbols, 360)
    settings = {"text": encoder.settings}
    if with_image:
        settings["image"] = get_registry().encoder("image", IMAGE).settings
    config = preset("micro").replace(vocab_size=encoder.vocab_size, output_modality="text")
    torch.manual_seed(seed)
    model = Model(config, {name: get_registry().embedder(name, config.hidden_size, s) for name, s in settings.items()})
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and "conv" not in name:
                parameter.mul_(4)
    save_checkpoint(folder, model, config, {"modalities": settings}, encoder.files)
    return folder


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """`turns`: symbols for users and assistants; `plain`: none; `k2` and `k3`: official forms, text alone."""
    root = tmp_path_factory.mktemp("finetune-models")
    native(root / "turns", ["<user>", "<assistant>", "<mark>"])
    native(root / "plain", ["<mark>"])
    size = RANKS.count(b"\n") + 256
    random_kimi_linear(root / "k2", seed=1, vocab_size=size)
    random_k3(root / "k3", seed=2, vocab_size=size)
    for name in ("k2", "k3"):
        (root / name / "tiktoken.model").write_bytes(RANKS)
    return SimpleNamespace(**{name: str(root / name) for name in ("turns", "plain", "k2", "k3")})


def png(colour="red", size=(16, 16), **save):
    """Bytes of a small picture."""
    out = io.BytesIO()
    Image.new("RGB", size, colour).save(out, "PNG", **save)
    return out.getvalue()


def talk(question, answer, **more):
    """A row of one question and one answer."""
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}], **more}


def about(picture, answer="It is red.", question="What colour is this picture?"):
    """A row about a picture."""
    return talk([{"type": "image", "image": picture}, {"type": "text", "text": question}], answer)


@pytest.fixture
def rows(tmp_path):
    """`write(list of rows, name)` gives the path of a JSONL file; a row may be text, which is written as it stands."""

    count = iter(range(100))

    def write(found, name=None):
        path = tmp_path / (name or f"rows-{next(count)}.jsonl")
        path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in found), "utf-8")
        return path

    return write


@pytest.fixture(scope="session")
def kit():
    """The helpers above, and `open(path, model, **options)` for a data set."""
    return SimpleNamespace(
        png=png,
        talk=talk,
        about=about,
        native=native,
        open=lambda path, model, **options: open_conversations("train", path=str(path), model=model, **options),
    )

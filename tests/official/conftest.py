"""Random checkpoints in the published layouts, and reading ids through them."""

import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from watersmeet.core.official.load import load_official
from watersmeet.core.official.random import random_k3, random_kimi_linear
from watersmeet.core.stream import Span, Stream, content_key, pack
from watersmeet.tokenizers.text.embedder import Embedder


def _load(directory, **options):
    raw = json.loads((directory / "config.json").read_text())
    text = raw.get("text_config", raw)
    with torch.device("meta"):
        embedder = Embedder(text["hidden_size"], {"vocab_size": text["vocab_size"]})
    return load_official(directory, embedders={"text": embedder}, output_modality="text", **options)


def _stream(ids):
    data = torch.tensor(ids, dtype=torch.int64)
    return Stream(spans=(Span(modality="text", data=data, key=content_key("text", data)),))


@torch.inference_mode()
def _logits(model, *many):
    """[T, V] of every list of ids, all lists in one packed batch."""
    packed = pack([_stream(ids) for ids in many], ("text",))
    return list(model.logits(model(packed)).split([len(ids) for ids in many]))


@torch.inference_mode()
def _steps(model, ids):
    """[T, V] with one token at a time through the cache."""
    cache, rows = model.new_cache(1), []
    for index in ids:
        hidden = model.step(model.embed_ids(torch.tensor([index])), cache)
        rows.append(model.logits(hidden)[0])
    return torch.stack(rows)


def _edit(directory, change):
    """Rewrite the shard files: `change(name, tensor)` gives {name: tensor} in the place of each tensor."""
    placed = {}
    for file in sorted(directory.glob("*.safetensors")):
        out = {}
        for name, tensor in load_file(file).items():
            out.update(change(name, tensor))
        save_file(out, file, metadata={"format": "pt"})
        placed.update(dict.fromkeys(out, file.name))
    index = directory / "model.safetensors.index.json"
    if index.exists():
        index.write_text(json.dumps({"metadata": {}, "weight_map": placed}))


def _tensors(directory):
    out = {}
    for file in sorted(directory.glob("*.safetensors")):
        out.update(load_file(file))
    return out


@pytest.fixture(scope="session")
def shapes(tmp_path_factory):
    """Directories that tests only read: `linear`, `k3`, and `k3_packed` with MXFP4 experts in bfloat16."""
    root = tmp_path_factory.mktemp("official")
    random_kimi_linear(root / "linear", seed=3)
    random_k3(root / "k3", seed=4)
    random_k3(root / "k3_packed", seed=5, dtype=torch.bfloat16, mxfp4=True)
    return SimpleNamespace(linear=root / "linear", k3=root / "k3", k3_packed=root / "k3_packed")


@pytest.fixture
def copy(tmp_path):
    """Copy a directory, so that it can be changed."""
    counter = iter(range(100))

    def make(directory):
        return shutil.copytree(directory, tmp_path / f"copy-{next(counter)}")

    return make


@pytest.fixture(scope="session")
def tools():
    """`load`, `logits`, `steps`, `edit`, `tensors`, `ids(n)`."""
    return SimpleNamespace(
        load=_load,
        logits=_logits,
        steps=_steps,
        edit=_edit,
        tensors=_tensors,
        ids=lambda n, vocab=128, seed=0: torch.randint(
            0, vocab, (n,), generator=torch.Generator().manual_seed(seed)
        ).tolist(),
    )

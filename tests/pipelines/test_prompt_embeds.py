"""Mixed prompts as embeddings: what we write, given to somebody else's language model, is our own forward pass."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open

from watersmeet.cli.app import run_command_line
from watersmeet.cli.embed import embed_command
from watersmeet.cli.export import export_command
from watersmeet.cli.graft import graft_command
from watersmeet.core.errors import DecodeError, UsageError
from watersmeet.core.official.random import random_kimi_linear
from watersmeet.core.stream import Stream, pack
from watersmeet.pipelines.models.local import load_local
from watersmeet.pipelines.models.prompt import read_prompt

TOWER = [
    f"moonvit.{k}={v}" for k, v in {"width": 24, "layers": 1, "heads": 2, "head_dim": 8, "mlp": 32, "grid": 4}.items()
]
SETTINGS = ["image.scale=1", "image.patch=16", "image.channels=4", *TOWER]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """`base` (official, no tokenizer), `grafted` (reads two kinds of picture), a picture and a list of ids."""
    root = tmp_path_factory.mktemp("embeds")
    random_kimi_linear(root / "base", seed=11)
    graft_command(str(root / "base"), "image,moonvit", root / "grafted", assignments=SETTINGS)
    pixels = np.random.default_rng(0).integers(0, 256, (60, 50, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(root / "shot.png")
    (root / "ids.json").write_text(json.dumps([3, 99, 17, 4, 140]))
    (root / "more.json").write_text(json.dumps([[8, 1, 150]]))
    return root


def words(place):
    return [
        f"ids:{place / 'ids.json'}",
        f"image:{place / 'shot.png'}",
        f"moonvit:{place / 'shot.png'}",
        f"ids:{place / 'more.json'}",
    ]


def read(path):
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118  (not a dict)


@pytest.mark.parametrize("exported", [False, True])
def test_the_language_model_of_transformers_goes_on_from_our_embeddings(place, tmp_path, exported):
    """The peer loads the grafted directory itself, or what it was exported to; our embedders' output in, our logits out."""
    transformers = pytest.importorskip("transformers")
    embed_command(str(place / "grafted"), words(place), tmp_path / "p.safetensors", dtype="float32")
    embeds = read(tmp_path / "p.safetensors")[0]["inputs_embeds"]
    folder = place / "grafted"
    if exported:
        folder = tmp_path / "exported"
        export_command(str(place / "grafted"), folder, dtype="auto", mxfp4=False, rule="packer")
    peer = transformers.KimiLinearForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        theirs = peer(inputs_embeds=embeds[None], use_cache=False).logits[0]
    local = load_local(str(place / "grafted"))
    spans = [span for _, span in read_prompt(local, words(place))]
    with torch.no_grad():
        ours = local.model.logits(local.model(pack([Stream(spans=tuple(spans))], local.model.modality_names)))
    assert ours.shape == theirs.shape == (len(embeds), 160)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    # and the pictures are not ignored
    with torch.no_grad():
        blind = peer(inputs_embeds=torch.cat([embeds[:5], embeds[-3:]])[None], use_cache=False).logits[0]
    assert float((blind[-1] - theirs[-1]).abs().max()) > 1e-3


def test_what_the_file_holds(place, tmp_path):
    line = embed_command(str(place / "grafted"), words(place), tmp_path / "p.safetensors")
    tensors, metadata = read(tmp_path / "p.safetensors")
    embeds, ids = tensors["inputs_embeds"], tensors["ids"]
    spans = json.loads(metadata["spans"])
    assert metadata["format"] == "watersmeet-embeds-1" and embeds.dtype == torch.bfloat16
    assert [span["modality"] for span in spans] == ["text", "image", "moonvit", "text"]
    assert [span["input"] for span in spans] == [0, 1, 2, 3]
    assert spans[0]["start"] == 0 and all(a["end"] == b["start"] for a, b in zip(spans, spans[1:], strict=False))
    assert spans[-1]["end"] == len(embeds) == len(ids)
    assert [span["end"] - span["start"] for span in spans] == [5, 4 * 4, 2 * 3, 3]
    assert ids[:5].tolist() == [3, 99, 17, 4, 140] and ids[-3:].tolist() == [8, 1, 150]
    assert (ids[5:-3] == -1).all()
    table = load_local(str(place / "base"), dtype=torch.bfloat16).model.embedders["text"].weight
    assert torch.equal(embeds[:5], table[ids[:5]]), "ids are rows of the table, as an engine would look them up"
    assert f"{len(embeds)} positions of width 64 in bfloat16, 4 spans" in line
    assert [path.name for path in tmp_path.iterdir()] == ["p.safetensors"]


def test_only_the_embedders_are_read(place):
    """A model of many gigabytes must not be loaded for the sake of its smallest part."""
    local = load_local(str(place / "grafted"), embedders_alone=True)
    whole = load_local(str(place / "grafted"))
    read = {name for name, p in local.model.named_parameters() if not p.is_meta and p.numel()}
    assert read == {name for name, _ in whole.model.named_parameters() if name.startswith("embedders.")}
    packed = pack(
        [Stream(spans=tuple(span for _, span in read_prompt(local, words(place))))], local.model.modality_names
    )
    with torch.inference_mode():
        assert torch.equal(local.model.embed(packed), whole.model.embed(packed))


@pytest.mark.parametrize(
    ("word", "error", "says"),
    [
        ("text:hello", UsageError, "no tokenizer files"),
        (
            "nowhere.png",
            UsageError,
            "no file nowhere.png; an input is a file or one of text:WORDS, ids:FILE.json, image:FILE",
        ),
        ("image:nowhere.png", DecodeError, "no file nowhere.png"),
        ("{root}/shot.png", UsageError, "image and moonvit read files of type image/png"),
        ("ids:{root}/shot.png", DecodeError, "not JSON"),
        ("ids:{root}/big.json", DecodeError, "ids from 0 to 159"),
        ("{root}/shot.zip", UsageError, "no modality of this model reads files of type application/zip"),
        ("ids:{root}/empty.json", UsageError, "prompt is empty"),
    ],
)
def test_words_that_cannot_be_read_are_explained(place, word, error, says, tmp_path):
    (place / "big.json").write_text("[1, 160]")
    (place / "empty.json").write_text("[]")
    (place / "shot.zip").write_bytes(b"PK")
    with pytest.raises(error, match=says):
        embed_command(str(place / "grafted"), [word.format(root=place)], tmp_path / "p.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_file_alone_goes_to_the_one_modality_that_reads_it(place, tmp_path):
    graft_command(str(place / "base"), "image", tmp_path / "one", assignments=SETTINGS[:3])
    embed_command(str(tmp_path / "one"), [str(place / "shot.png")], tmp_path / "p.safetensors")
    assert json.loads(read(tmp_path / "p.safetensors")[1]["spans"])[0]["modality"] == "image"


def test_text_of_a_model_with_a_tokenizer(tmp_path):
    (tmp_path / "words.txt").write_text("a page")
    embed_command("nano", ["text:a page", str(tmp_path / "words.txt")], tmp_path / "p.safetensors")
    tensors, metadata = read(tmp_path / "p.safetensors")
    half = len(tensors["ids"]) // 2
    assert torch.equal(tensors["ids"][:half], tensors["ids"][half:]) and half > 0
    assert len(json.loads(metadata["spans"])) == 2


def test_what_is_read_in_both_directions_cannot_be_given_to_an_engine(place, tmp_path):
    graft_command(str(place / "base"), "image", tmp_path / "both", assignments=[*SETTINGS[:3], "image.both_ways=true"])
    with pytest.raises(UsageError, match="both directions"):
        embed_command(str(tmp_path / "both"), [f"image:{place / 'shot.png'}"], tmp_path / "p.safetensors")


def test_the_commands(place, tmp_path, capsys):
    out = tmp_path / "g"
    arguments = ["graft", "--base", str(place / "base"), "--modality", "image", "--out", str(out)]
    assert run_command_line([*arguments, "--set", "image.patch=16", "--set", "image.channels=4"]) == 0
    assert "image (" in capsys.readouterr().out
    assert run_command_line(arguments) == 1
    assert "there already" in capsys.readouterr().err
    embedding = ["embed", "--model", str(out), f"image:{place / 'shot.png'}", "--out", str(tmp_path / "p.safetensors")]
    assert run_command_line(embedding) == 0
    assert run_command_line([*embedding, "--dtype", "int4"]) == 2
    assert run_command_line([*embedding[:-1], str(tmp_path / "p.pt")]) == 2


@pytest.mark.parametrize(
    ("modality", "assignments", "says"),
    [
        ("image,sound", [], r"no modality 'sound'.*can be added: image, moonvit, regions, text, video"),
        ("image,", [], "not a list of different names"),
        ("image,image", [], "not a list of different names"),
        ("text", [], "reads 'text' already"),
        ("image", ["scale=1"], "MODALITY.KEY=VALUE"),
        ("image", ["moonvit.width=8"], "MODALITY.KEY=VALUE"),
    ],
)
def test_what_cannot_be_grafted_is_explained(place, tmp_path, modality, assignments, says):
    with pytest.raises(UsageError, match=says):
        graft_command(str(place / "base"), modality, tmp_path / "out", assignments=assignments)
    assert not list(tmp_path.iterdir())


def test_a_modality_that_is_registered_later_can_be_grafted(place, tmp_path, monkeypatch):
    """Any plugin's modality, under any name that is free."""
    from watersmeet.cli import graft as command
    from watersmeet.pipelines.models import local, modalities
    from watersmeet.plugins import ModalitySpec, Registry, get_registry
    from watersmeet.plugins.loader import LOADED, PluginRecord

    spec = ModalitySpec(
        name="film",
        media_types=("video/mp4",),
        encoder="watersmeet.tokenizers.image.encoder:Encoder",
        embedder="watersmeet.tokenizers.image.embedder:Embedder",
    )
    record = PluginRecord(
        plugin="later", target="later.plugin", distribution="later", version="1", state=LOADED, modalities=(spec,)
    )
    registry = Registry([*get_registry().records(), record])
    for module in (command, local, modalities):
        monkeypatch.setattr(module, "get_registry", lambda: registry)
    graft_command(str(place / "base"), "film,regions", tmp_path / "out", assignments=["film.patch=16"])
    assert set(load_local(str(tmp_path / "out")).model.embedders) == {"text", "film", "regions"}


def test_seeds_give_equal_and_different_weights(place, tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        graft_command(str(place / "base"), "image", tmp_path / name, assignments=SETTINGS[:3], seed=seed)
    a, b, c = ((tmp_path / name / "embedders.safetensors").read_bytes() for name in "abc")
    assert a == b != c

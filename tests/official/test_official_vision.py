"""The vision tower of Kimi K3's files: loaded strictly by their own names, and read with what the files state."""

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from watersmeet.cli.export import export_command
from watersmeet.cli.graft import graft_command
from watersmeet.core.errors import CheckpointError, ConfigError
from watersmeet.core.generate import generate
from watersmeet.core.official.random import random_k3, random_kimi_linear
from watersmeet.core.stream import Span, Stream, content_key, pack
from watersmeet.pipelines.models.local import load_local
from watersmeet.pipelines.models.modalities import model_facts
from watersmeet.plugins import get_registry
from watersmeet.tokenizers.moonvit.embedder import Embedder

SIZES = {"width": 32, "layers": 2, "heads": 2, "head_dim": 8, "mlp": 48, "grid": 6}
VISION_CONFIG = {
    "vt_hidden_size": 32,
    "vt_num_attention_heads": 2,
    "merge_type": "sd2_tpool",
    "mm_projector_type": "patchmergerv2",
}


def vision_tensors(hidden_size, dtype=torch.float32, seed=3):
    """Random tensors of a small tower and projector under their published names."""
    torch.manual_seed(seed)
    net = Embedder(hidden_size, SIZES)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
    named = {}
    for published, own in Embedder.checkpoint_names.items():
        for name, parameter in net.state_dict().items():
            if name.startswith(own):
                named[published + name.removeprefix(own)] = parameter.to(dtype)
    assert len(named) == len(net.state_dict())
    return named


def write(folder, dtype=torch.float32, vision=None, config=VISION_CONFIG, **options):
    """A K3-shaped directory with a tower."""
    extra = vision_tensors(96, dtype) if vision is None else vision
    random_k3(folder, dtype=dtype, extra=extra, outer_changes={"vision_config": config}, **options)
    return extra


def picture(width=84, height=56, channels=3):
    return np.random.default_rng(0).integers(0, 256, (height, width, channels), dtype=np.uint8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_tower_comes_with_the_model(tmp_path, dtype):
    extra = write(tmp_path / "k3", dtype)
    local = load_local(str(tmp_path / "k3"), dtype=dtype)
    assert set(local.model.embedders) == {"text", "moonvit"} and "moonvit" in local.encoders
    net = local.model.embedders["moonvit"]
    for published, own in Embedder.checkpoint_names.items():
        for name, tensor in extra.items():
            if name.startswith(published):
                found = net.state_dict()[own + name.removeprefix(published)]
                # computed in the dtype of the model, on which the eps of its norms depends
                assert found.dtype == dtype and torch.equal(found, tensor)
    assert local.encoders["moonvit"].settings | SIZES == local.encoders["moonvit"].settings
    assert model_facts(tmp_path / "k3").modalities == ("text", "moonvit")


def test_a_picture_changes_what_follows_it(tmp_path):
    write(tmp_path / "k3")
    local = load_local(str(tmp_path / "k3"))
    text = Span(modality="text", data=torch.tensor([5, 6, 7]), key=content_key("t"))
    one, two = (local.encoders["moonvit"].encode(pixels) for pixels in (picture(), 255 - picture()))
    with torch.no_grad():
        a, b = (
            local.model.logits(local.model(pack([Stream(spans=(*spans, text))], local.model.modality_names)))
            for spans in (one, two)
        )
    assert a.shape == (9, 192) and not torch.allclose(a[-1], b[-1])
    written = generate(local.model, [Stream(spans=(*one, text))], max_new_tokens=3, eos_id=None)
    assert len(written[0].ids) == 3


def test_text_is_what_it_is_without_the_tower(tmp_path):
    write(tmp_path / "with")
    random_k3(tmp_path / "without")
    models = [load_local(str(tmp_path / name)).model for name in ("with", "without")]
    stream = Stream(spans=(Span(modality="text", data=torch.arange(20), key=content_key("t")),))
    with torch.no_grad():
        one, two = (model.logits(model(pack([stream], model.modality_names))) for model in models)
    assert torch.equal(one, two)


def damage(folder, change):
    """Rewrite the shard that holds the tower after `change(tensors)`, and the index with it."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    name = next(file for tensor, file in index["weight_map"].items() if tensor.startswith("vision_tower."))
    tensors = load_file(folder / name)
    change(tensors)
    save_file(tensors, folder / name)
    kept = {tensor: file for tensor, file in index["weight_map"].items() if file != name}
    index["weight_map"] = kept | dict.fromkeys(tensors, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda t: t.pop("vision_tower.encoder.final_layernorm.weight"),
            r"missing \(vision_tower\.encoder\.final_layernorm",
        ),
        (lambda t: t.update({"mm_projector.proj.9.weight": torch.zeros(1)}), r"unknown \(mm_projector\.proj\.9"),
        (
            lambda t: t.update({"mm_projector.post_norm.weight": torch.zeros(5)}),
            r"another shape \(mm_projector\.post_norm",
        ),
    ],
)
def test_every_tensor_is_used_and_every_parameter_filled(tmp_path, change, words):
    write(tmp_path / "k3", shards=1)
    damage(tmp_path / "k3", change)
    with pytest.raises(CheckpointError, match=words):
        load_local(str(tmp_path / "k3"))


def test_the_tower_of_an_older_generation_is_refused(tmp_path):
    write(tmp_path / "k25", config={**VISION_CONFIG, "mm_projector_type": "patchmerger"})
    with pytest.raises(ConfigError, match="mm_projector_type is 'patchmerger', expected 'patchmergerv2'"):
        load_local(str(tmp_path / "k25"))


def test_what_the_files_state_about_pictures_is_followed(tmp_path):
    write(tmp_path / "k3")
    stated = {"media_proc_cfg": {"in_patch_limit": 16, "transparent_bg_config": {"pattern": "white"}}}
    (tmp_path / "k3" / "preprocessor_config.json").write_text(json.dumps(stated))
    encoder = load_local(str(tmp_path / "k3")).encoders["moonvit"]
    assert encoder.settings["patch_limit"] == 16 and encoder.settings["background"] == "white"
    assert encoder.encode(picture(200, 200))[0].n == 9, "57 pixels on a side; 64 tokens without the limit"


def test_without_the_plugin_text_is_read_and_the_tower_is_left_out(tmp_path, monkeypatch):
    from watersmeet.plugins import loader, registry

    write(tmp_path / "k3")
    monkeypatch.setenv(loader.VARIABLE, "-moonvit")
    registry.reset_registry()
    try:
        assert "moonvit" not in [spec.name for spec in get_registry().modalities()]
        assert set(load_local(str(tmp_path / "k3")).model.embedders) == {"text"}
    finally:
        monkeypatch.undo()
        registry.reset_registry()


def test_packed_experts_and_the_tower_go_together(tmp_path):
    write(tmp_path / "k3", torch.bfloat16, mxfp4=True)
    names = set()
    for path in (tmp_path / "k3").glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            names |= set(file.keys())
    assert any(name.endswith("weight_packed") for name in names)
    local = load_local(str(tmp_path / "k3"), dtype=torch.bfloat16, packed_experts=True)
    assert local.model.embedders["moonvit"].projector.post_norm.weight.dtype == torch.bfloat16


def every_tensor(folder):
    found = {}
    for path in folder.glob("*.safetensors"):
        found |= load_file(path)
    return found


@pytest.mark.parametrize(("dtype", "mxfp4"), [(torch.float32, False), (torch.bfloat16, False), (torch.bfloat16, True)])
def test_the_tower_goes_back_to_the_bit(tmp_path, dtype, mxfp4):
    """Load, export, load, export: the tensors of the source, under their names and in their dtypes."""
    write(tmp_path / "k3", dtype, mxfp4=mxfp4)
    source = every_tensor(tmp_path / "k3")
    vision = {name for name in source if name.startswith(("vision_tower.", "mm_projector."))}
    for before, after in (("k3", "one"), ("one", "two")):
        lines = export_command(str(tmp_path / before), tmp_path / after, dtype="auto", mxfp4=mxfp4, rule="packer")
        assert len(lines) == 1, "nothing is left out"
        found = every_tensor(tmp_path / after)
        assert vision == {name for name in found if name.startswith(("vision_tower.", "mm_projector."))}
        for name in vision:
            assert found[name].dtype == dtype and torch.equal(found[name], source[name]), name
    config = json.loads((tmp_path / "two" / "config.json").read_text())
    assert config["vision_config"] == VISION_CONFIG
    one, two = (load_local(str(tmp_path / name), dtype=dtype).model for name in ("k3", "two"))
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True))


def test_a_tower_that_was_added_stays_beside_the_text_model(tmp_path):
    """A text model's configuration says nothing of a tower, so readers of it would stumble over its tensors."""
    random_kimi_linear(tmp_path / "base")
    sizes = [f"moonvit.{key}={value}" for key, value in SIZES.items()]
    graft_command(str(tmp_path / "base"), "moonvit,image", tmp_path / "more", assignments=sizes)
    lines = export_command(str(tmp_path / "more"), tmp_path / "out", dtype="auto", mxfp4=False, rule="packer")
    assert "moonvit, image" in lines[1] or "image, moonvit" in lines[1]
    names = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())["weight_map"]
    assert not [name for name in names if name.startswith(("vision_tower.", "mm_projector."))]
    one, two = (load_local(str(tmp_path / name)).model for name in ("more", "out"))
    spans = load_local(str(tmp_path / "out")).encoders["moonvit"].encode(picture())
    with torch.no_grad():
        a, b = (model(pack([Stream(spans=tuple(spans))], model.modality_names)) for model in (one, two))
    assert torch.equal(a, b)

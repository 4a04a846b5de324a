"""Adding embedders: the base is not touched, text keeps its numbers, nothing is left half written."""

import os

import pytest
import torch
from safetensors.torch import load_file, save_file

from watersmeet.core import graft
from watersmeet.core.checkpoint import load_checkpoint, save_checkpoint
from watersmeet.core.errors import CheckpointError
from watersmeet.core.graft import Graft, grafted_names, write_graft, write_trained
from watersmeet.core.stream import Stream, pack

PROCESSOR = {"modalities": {"text": {"vocab_size": 64}}, "note": "kept"}


class Lines(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.map = torch.nn.Linear(6, width)

    def forward(self, data, coords, time_us):
        return self.map(data)


@pytest.fixture()
def factory(kit):
    def build(name, width, settings):
        return kit.ids(settings["vocab_size"], width) if name == "text" else Lines(width)

    return build


@pytest.fixture()
def base(kit, tmp_path):
    """A text model on disk."""
    model = kit.model()
    del model.embedders["planes"]
    save_checkpoint(tmp_path / "base", model, kit.micro, PROCESSOR, {"words.bin": b"\x00\x01"}, dtype=torch.bfloat16)
    return tmp_path / "base"


def new(**files):
    torch.manual_seed(5)
    return Graft(settings={"a": 1}, files=files, embedder=Lines(48))


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_text_gives_the_same_numbers_to_the_bit(kit, base, factory, tmp_path, dtype):
    before = contents(base)
    write_graft(base, tmp_path / "more", {"planes": new()})
    assert contents(base) == before
    plain, more = (load_checkpoint(folder, factory, dtype).model for folder in (base, tmp_path / "more"))
    stream = Stream(spans=(kit.text(*range(20, 50)),))
    with torch.no_grad():
        one = plain.logits(plain(pack([stream], plain.modality_names)))
        two = more.logits(more(pack([stream], more.modality_names)))
        mixed = more(kit.pack(Stream(spans=(kit.planes(4), kit.text(1, 2, 3)))))
    assert torch.equal(one, two) and one.dtype == torch.float32
    assert bool(mixed.isfinite().all()) and more.embedders["planes"].map.weight.dtype == torch.float32


def test_the_weights_are_a_second_name_and_the_rest_is_copied(base, factory, tmp_path):
    write_graft(base, tmp_path / "more", {"planes": new(**{"lines.bin": b"x"})})
    out = tmp_path / "more"
    assert os.path.samefile(base / "model.safetensors", out / "model.safetensors")
    assert not os.path.samefile(base / "config.json", out / "config.json")
    assert set(load_file(out / "embedders.safetensors")) == {"embedders.planes.map.weight", "embedders.planes.map.bias"}
    loaded = load_checkpoint(out, factory)
    assert loaded.processor["modalities"]["planes"] == {"a": 1} and loaded.processor["note"] == "kept"
    assert loaded.files == {"words.bin": b"\x00\x01", "lines.bin": b"x"} and grafted_names(out) == ("planes",)


def test_without_hard_links_weights_are_copied_and_links_are_followed(base, factory, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError("not here")

    monkeypatch.setattr(graft.os, "link", refuse)
    linked = tmp_path / "linked"
    linked.mkdir()
    for path in base.iterdir():
        (linked / path.name).symlink_to(path)
    (linked / "pytorch_model.bin").write_bytes(b"never read")
    write_graft(linked, tmp_path / "more", {"planes": new()})
    assert not any(path.is_symlink() for path in (tmp_path / "more").iterdir())
    assert not (tmp_path / "more" / "pytorch_model.bin").exists()
    load_checkpoint(tmp_path / "more", factory)


def test_what_was_added_can_be_added_to(base, factory, tmp_path):
    write_graft(base, tmp_path / "one", {"planes": new()})
    write_graft(tmp_path / "one", tmp_path / "two", {"waves": new()})
    assert grafted_names(tmp_path / "two") == ("planes", "waves")
    assert set(load_checkpoint(tmp_path / "two", factory).model.embedders) == {"text", "planes", "waves"}
    with pytest.raises(CheckpointError, match="reads 'planes' already"):
        write_graft(tmp_path / "one", tmp_path / "three", {"planes": new()})


def test_trained_values_go_into_a_directory_of_the_same_base(kit, base, factory, tmp_path):
    write_graft(base, tmp_path / "one", {"planes": new()})
    model = load_checkpoint(tmp_path / "one", factory).model
    with torch.no_grad():
        model.embedders["planes"].map.weight.add_(1)
    for _ in range(2):
        write_trained(tmp_path / "one", tmp_path / "two", model.embedders, replace=True)
    again = load_checkpoint(tmp_path / "two", factory).model
    assert torch.equal(again.embedders["planes"].map.weight, model.embedders["planes"].map.weight)
    assert os.path.samefile(base / "model.safetensors", tmp_path / "two" / "model.safetensors")
    with pytest.raises(CheckpointError, match="already"):
        write_trained(tmp_path / "one", tmp_path / "two", model.embedders)


def test_nothing_is_left_half_written(base, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(graft, "save_file", fail)
    with pytest.raises(OSError, match="No space"):
        write_graft(base, tmp_path / "more", {"planes": new()})
    assert [path.name for path in tmp_path.iterdir()] == ["base"]


def test_what_cannot_be_added_is_told(base, tmp_path):
    (tmp_path / "there").mkdir()
    with pytest.raises(CheckpointError, match="there already"):
        write_graft(base, tmp_path / "there", {"planes": new()})
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        write_graft(tmp_path / "there", tmp_path / "more", {"planes": new()})
    for name in ("words.bin", "config.json", "../x"):
        with pytest.raises(CheckpointError, match="taken or not a plain one"):
            write_graft(base, tmp_path / "more", {"planes": new(**{name: b"other"})})
    write_graft(base, tmp_path / "more", {"planes": new(**{"words.bin": b"\x00\x01"})})


def test_damaged_parts_are_named(base, factory, tmp_path):
    write_graft(base, tmp_path / "more", {"planes": new()})
    path = tmp_path / "more" / "embedders.safetensors"
    good = load_file(path)

    def refused(tensors):
        save_file(tensors, path)
        with pytest.raises(CheckpointError) as caught:
            load_checkpoint(tmp_path / "more", factory)
        with pytest.raises(CheckpointError) as added:
            graft.add_grafted(torch.nn.ModuleDict(), tmp_path / "more", 48, factory)
        return str(caught.value), str(added.value)

    bias, weight = "embedders.planes.map.bias", "embedders.planes.map.weight"
    for words in refused({weight: good[weight]}):
        assert "missing" in words and bias in words
    for words in refused({**good, "embedders.planes.more": torch.zeros(1)}):
        assert "unknown" in words and "embedders.planes.more" in words
    for words in refused({**good, bias: torch.zeros(7)}):
        assert "another shape" in words and bias in words
    assert "embedders.<modality>" in refused({**good, "stranger": torch.zeros(1)})[0]
    path.write_bytes(b"no weights")
    with pytest.raises(CheckpointError, match="safetensors"):
        load_checkpoint(tmp_path / "more", factory)
    save_file(good, path)
    (tmp_path / "more" / "processor.json").write_text("[]")
    with pytest.raises(CheckpointError, match=r"processor\.json"):
        graft.read_processor(tmp_path / "more")

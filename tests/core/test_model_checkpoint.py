"""Checkpoints: bit-exact round trip, strict loading, nothing half written."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from watersmeet.core.checkpoint import load_checkpoint, save_checkpoint
from watersmeet.core.errors import CheckpointError
from watersmeet.core.generate import generate

PROCESSOR = {"modalities": {"text": {"vocab_size": 64}, "planes": {}}, "note": "kept"}


@pytest.fixture()
def factory(kit):
    return lambda name, width, settings: kit.ids(settings["vocab_size"], width) if name == "text" else kit.flat(width)


def test_round_trip_is_bit_exact(kit, factory, tmp_path):
    model = kit.model()
    model.loss(kit.pack(kit.stream(40, 0)))
    model.update_balancing()
    save_checkpoint(tmp_path / "m", model, kit.micro, PROCESSOR, {"words.bin": b"\x00\x01"})
    loaded = load_checkpoint(tmp_path / "m", factory)
    assert loaded.config == kit.micro and loaded.processor == PROCESSOR and loaded.files == {"words.bin": b"\x00\x01"}
    ours, theirs = model.state_dict(), loaded.model.state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert not loaded.model.training and all(p.requires_grad for p in loaded.model.parameters())
    packed = kit.pack(kit.stream(12, 1))
    assert torch.equal(model(packed), loaded.model(packed))
    loaded.model.train().loss(packed).loss.backward()  # counters and all are real tensors again


def test_bfloat16_export_keeps_what_k3_keeps_in_float32(kit, factory, tmp_path):
    model = kit.model()
    save_checkpoint(tmp_path / "half", model, kit.micro, PROCESSOR, dtype=torch.bfloat16)
    stored = load_file(tmp_path / "half" / "model.safetensors")
    wide = {name for name, tensor in stored.items() if tensor.dtype == torch.float32}
    endings = {name.split(".", 2)[-1].split("self_attn.")[-1].split("gate.")[-1] for name in wide}
    assert endings == {
        "A_log", "dt_bias", "o_norm.weight", "q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight", "e_score_correction_bias",
    }  # fmt: skip
    loaded = load_checkpoint(tmp_path / "half", factory, torch.bfloat16)
    assert loaded.model.compute_dtype == torch.bfloat16
    assert loaded.model.embedders["text"].table.weight.dtype == torch.float32
    save_checkpoint(tmp_path / "again", loaded.model, processor=PROCESSOR, dtype=torch.bfloat16)
    again = load_file(tmp_path / "again" / "model.safetensors")
    assert all(torch.equal(stored[name], again[name]) for name in stored)
    assert len(generate(loaded.model, [kit.stream(9, 0)], max_new_tokens=3, eos_id=None)[0].ids) == 3


def test_strict_loading_lists_names(kit, factory, tmp_path):
    save_checkpoint(tmp_path / "m", kit.model(), kit.micro, PROCESSOR)
    path = tmp_path / "m" / "model.safetensors"
    tensors = load_file(path)
    tensors["stranger"] = tensors.pop("norm.weight")
    tensors["lm_head.weight"] = tensors["lm_head.weight"][:10].clone()
    save_file(tensors, path)
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(tmp_path / "m", factory)
    for words in ("missing (norm.weight)", "unknown (stranger)", "lm_head.weight [10, 48] instead of [64, 48]"):
        assert words in str(caught.value)


def test_damaged_and_absent_files(kit, factory, tmp_path):
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_checkpoint(tmp_path / "none", factory)
    save_checkpoint(tmp_path / "m", kit.model(), kit.micro, PROCESSOR)
    (tmp_path / "m" / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(CheckpointError, match="safetensors"):
        load_checkpoint(tmp_path / "m", factory)
    (tmp_path / "m" / "processor.json").write_text(json.dumps([]))
    with pytest.raises(CheckpointError, match=r"processor\.json"):
        load_checkpoint(tmp_path / "m", factory)


def test_replacing_leaves_nothing_behind_and_failure_keeps_the_old(kit, factory, tmp_path):
    save_checkpoint(tmp_path / "m", kit.model(seed=1), kit.micro, PROCESSOR, {"old.txt": b"1"})
    second = kit.model(seed=2)
    save_checkpoint(tmp_path / "m", second, kit.micro, PROCESSOR, {"new.txt": b"2"})
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
    assert load_checkpoint(tmp_path / "m", factory).files == {"new.txt": b"2"}
    with pytest.raises(TypeError):
        save_checkpoint(tmp_path / "m", second, kit.micro, {"modalities": {"text": object()}})
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
    assert load_checkpoint(tmp_path / "m", factory).files == {"new.txt": b"2"}
    with pytest.raises(CheckpointError, match="reserved"):
        save_checkpoint(tmp_path / "m", second, kit.micro, PROCESSOR, {"config.json": b""})

"""Damaged and strange directories: one clear error each, before any weight is read."""

import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from watersmeet.cli.app import run_command_line
from watersmeet.core.errors import CheckpointError, WatersmeetError
from watersmeet.core.official.random import random_kimi_linear
from watersmeet.core.official.shards import INDEX, Shards


@pytest.fixture
def unread(monkeypatch):
    """Reading a weight fails the test: every error must come before that."""

    def read(self, name):
        raise AssertionError(f"{name} was read")

    monkeypatch.setattr(Shards, "read", read)


def shard(directory, number=2):
    return sorted(directory.glob("*.safetensors"))[number - 1]


def cut(directory):
    file = shard(directory)
    file.write_bytes(file.read_bytes()[:-100])
    return "model-00002-of-000003.safetensors: the file is cut short"


def cut_to_nothing(directory):
    shard(directory).write_bytes(b"\x10\x00")
    return "not a safetensors file"


def cut_header(directory):
    file = shard(directory)
    file.write_bytes(file.read_bytes()[:200])
    return "cut short: 200 bytes"


def longer(directory):
    file = shard(directory)
    file.write_bytes(file.read_bytes() + b"\0" * 8)
    return "longer than its header says"


def gone(directory):
    shard(directory).unlink()
    return "1 shards of the index are not there (model-00002-of-000003.safetensors)"


def index_names_more(directory):
    path = directory / INDEX
    index = json.loads(path.read_text())
    for i in range(12):
        index["weight_map"][f"model.layers.9.extra.{i:02}"] = shard(directory).name
    path.write_text(json.dumps(index))
    return "names 12 tensors that are not in their shards (model.layers.9.extra.00, "


def index_names_less(directory):
    path = directory / INDEX
    index = json.loads(path.read_text())
    del index["weight_map"]["model.norm.weight"]
    path.write_text(json.dumps(index))
    return "hold 1 tensors that model.safetensors.index.json does not name (model.norm.weight)"


def index_leads_away(directory):
    path = directory / INDEX
    index = json.loads(path.read_text())
    index["weight_map"]["model.norm.weight"] = "../../elsewhere.safetensors"
    path.write_text(json.dumps(index))
    return "plain name of a file"


def index_is_no_json(directory):
    (directory / INDEX).write_text("{")
    return "not an index of shards"


def no_index(directory):
    (directory / INDEX).unlink()
    return "there are shards (model-00001-of-000003.safetensors"


def pickled(directory):
    for file in directory.glob("*.safetensors"):
        file.unlink()
    (directory / INDEX).unlink()
    torch.save({"a": torch.zeros(1)}, directory / "pytorch_model.bin")
    return "pickle files (pytorch_model.bin), which are never opened"


def pickle_under_another_name(directory):
    shard(directory).write_bytes(pickle.dumps({"a": 1}))
    return "not a safetensors file"


def torch_file_as_shard(directory):
    torch.save({"a": torch.zeros(1)}, shard(directory))
    return "a pickle file, not safetensors"


def pitfall_59_gguf(directory):
    for file in directory.glob("*.safetensors"):
        file.unlink()
    (directory / INDEX).unlink()
    (directory / "model.gguf").write_bytes(b"GGUF")
    return "GGUF files (model.gguf), which are not read"


def no_weights(directory):
    for file in directory.glob("*.safetensors"):
        file.unlink()
    (directory / INDEX).unlink()
    return "there are no weights"


def config_is_no_json(directory):
    (directory / "config.json").write_text("{,}")
    return "not JSON"


def other_family(directory):
    (directory / "config.json").write_text('{"model_type": "llama", "hidden_size": 64}')
    return "model_type is 'llama', a model of another family"


def config_is_a_tower_of_brackets(directory):
    (directory / "config.json").write_text("[" * 100_000)
    return "not JSON"


def index_is_a_tower_of_brackets(directory):
    (directory / INDEX).write_text("[" * 100_000)
    return "not an index of shards"


def header_is_a_tower_of_brackets(directory):
    text = b"[" * 100_000
    shard(directory).write_bytes(len(text).to_bytes(8, "little") + text)
    return "its header is no JSON"


def generation_config_is_a_list(directory):
    (directory / "generation_config.json").write_text("[]")
    return "generation_config.json: holds a list, expected an object"


def change_config(directory, **fields):
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


STRANGE = {
    "qk_nope_head_dim": ({"qk_nope_head_dim": "16", "qk_head_dim": 24}, "qk_nope_head_dim is '16'"),
    "layer_types": ({"layer_types": [["full_attention"]] * 4}, "layer_types is [["),
    "mlp_layer_types": ({"mlp_layer_types": [["dense"]] * 4}, "mlp_layer_types is [["),
    "first_k_dense_replace": (
        {"first_k_dense_replace": "1", "mlp_layer_types": ["dense", *["sparse"] * 3]},
        "first_k_dense_replace is '1', expected an integer",
    ),
    "model_max_length": ({"model_max_length": "lots"}, "model_max_length is 'lots', expected a positive integer"),
    "groups": (
        {"quantization_config": {"format": "mxfp4-pack-quantized", "config_groups": [1]}},
        "quantization_config.config_groups holds [1]",
    ),
    "group": (
        {"quantization_config": {"format": "mxfp4-pack-quantized", "config_groups": {"a": {"weights": 3}}}},
        "quantization_config.config_groups holds 3",
    ),
}


@pytest.mark.parametrize("field", STRANGE)
def test_fields_of_another_type(field, shapes, copy, tools, unread):
    directory = copy(shapes.linear)
    fields, says = STRANGE[field]
    change_config(directory, **fields)
    with pytest.raises(WatersmeetError) as caught:
        tools.load(directory)
    assert says in str(caught.value)


def a_field_stands_twice(directory):
    path = directory / "config.json"
    path.write_text(path.read_text().rstrip().removesuffix("}") + ', "rms_norm_eps": 0.1}')
    return "rms_norm_eps stands there more than once"


def more_layers_than_memory(directory):
    change_config(directory, num_hidden_layers=10**9)
    return "0 times, expected every layer of 1..1000000000 exactly once"


def more_experts_than_memory(directory):
    change_config(directory, num_experts=10**7)
    return "num_experts is 10000000, but the tensors name"


def wider_than_memory(directory):
    change_config(directory, hidden_size=10**30)
    return "hidden_size is 1000000000000000000000000000000, expected at most"


def scale_is_no_number(directory):
    change_config(directory, routed_scaling_factor=float("nan"))
    return "routed_scaling_factor is nan, expected a finite number"


@pytest.mark.parametrize(
    "damage",
    [
        cut, cut_to_nothing, cut_header, longer, gone, index_names_more, index_names_less, index_leads_away,
        index_is_no_json, no_index, pickled, pickle_under_another_name, torch_file_as_shard, pitfall_59_gguf, no_weights,
        config_is_no_json, other_family, config_is_a_tower_of_brackets, index_is_a_tower_of_brackets,
        header_is_a_tower_of_brackets, generation_config_is_a_list, more_layers_than_memory, more_experts_than_memory,
        wider_than_memory, scale_is_no_number, a_field_stands_twice,
    ],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_files(damage, shapes, copy, capsys, tmp_path, unread):
    directory = copy(shapes.linear)
    says = damage(directory)
    (tmp_path / "ids.json").write_text("[[1, 2]]")
    out = tmp_path / "o.safetensors"
    code = run_command_line(
        ["models", "logits", str(directory), "--ids", str(tmp_path / "ids.json"), "--out", str(out)]
    )
    err = capsys.readouterr().err
    assert code == 1 and says in err and err.count("\n") == 1 and "Traceback" not in err and "unexpected" not in err


CHANGES = {
    "missing": (lambda n, t: {} if n.endswith("layers.2.self_attn.o_proj.weight") else {n: t},
                "1 tensors missing (model.layers.2.self_attn.o_proj.weight)"),
    "extra": (lambda n, t: {n: t, n + ".lora": t.clone()} if n == "model.norm.weight" else {n: t},
              "1 tensors unknown (model.norm.weight.lora)"),
    "shape": (lambda n, t: {n: t[:-1].clone() if n == "lm_head.weight" else t},
              "1 tensors of another shape (lm_head.weight [159, 64] instead of [160, 64])"),
    "table": (lambda n, t: {n: t[:-1].clone() if "embed_tokens" in n else t}, "model.embed_tokens.weight [159, 64]"),
    "no table": (lambda n, t: {} if "embed_tokens" in n else {n: t}, "missing (model.embed_tokens.weight)"),
    "dtype": (lambda n, t: {n: t.to(torch.int8) if "layers.1.self_attn.q_proj" in n else t},
              "1 tensors of a dtype that is no weight's (model.layers.1.self_attn.q_proj.weight I8)"),
    "float8": (lambda n, t: {n: t.to(torch.float8_e4m3fn) if n == "lm_head.weight" else t}, "lm_head.weight F8_E4M3"),
    "many": (lambda n, t: {} if ".experts." in n else {n: t}, "96 tensors missing (model.layers.1.block_sparse_moe.experts.0"),
    "transposed": (lambda n, t: {n: t.T.contiguous() if "experts.3.w2" in n else t}, "4 tensors of another shape"),
    "prefix": (lambda n, t: {"module." + n: t}, "tensors missing (model.layers.0"),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_tensors(change, shapes, copy, tools, unread):
    directory = copy(shapes.linear)
    function, says = CHANGES[change]
    tools.edit(directory, function)
    with pytest.raises(WatersmeetError) as caught:
        tools.load(directory)
    text = str(caught.value)
    assert says in text and "\n" not in text
    if change == "many":  # the first ten names and how many more
        assert "and 86 more" in text and text.count(".experts.") == 10


def test_several_faults_are_one_error(shapes, copy, tools, unread):
    directory = copy(shapes.linear)
    for name in ("missing", "extra", "shape"):
        tools.edit(directory, CHANGES[name][0])
    with pytest.raises(CheckpointError) as caught:
        tools.load(directory)
    assert all(word in str(caught.value) for word in ("missing (", "unknown (", "of another shape ("))


PACKED = {
    "pitfall_25_renamed": (lambda n, t: {n.replace("weight_packed", "weight_quantized"): t}, "tensors missing"),
    "scale gone": (lambda n, t: {} if "experts.1.w1.weight_scale" in n else {n: t}, "experts.1.w1.weight_scale"),
    "both": (lambda n, t: {n: t, n.replace("_packed", ""): torch.zeros(32, 64)} if "layers.1." in n and "experts.0.w1.weight_packed" in n else {n: t},
             "stored both plain and packed"),
    "pitfall_24_group_of_16": (lambda n, t: {n: t.repeat(1, 2) if "weight_scale" in n else t}, "of another shape"),
    "scale dtype": (lambda n, t: {n: t.to(torch.float8_e4m3fn) if "weight_scale" in n else t}, "of another dtype than U8"),
    "pitfall_21_norm_gone": (lambda n, t: {} if "routed_expert_norm" in n else {n: t}, "latent_moe_use_norm is true"),
    "one norm gone": (lambda n, t: {} if "layers.3.block_sparse_moe.routed_expert_norm" in n else {n: t}, "1 tensors missing"),
}  # fmt: skip


@pytest.mark.parametrize("change", PACKED)
@pytest.mark.parametrize("packed", [False, True])
def test_packed_tensors(change, packed, shapes, copy, tools, unread):
    directory = copy(shapes.k3_packed)
    function, says = PACKED[change]
    tools.edit(directory, function)
    with pytest.raises(WatersmeetError) as caught:
        tools.load(directory, packed_experts=packed)
    assert says in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [INDEX, "generation_config.json"])
def test_a_file_without_the_right_to_read_it(name, shapes, copy, tools, monkeypatch):
    directory = copy(shapes.linear)
    (directory / "generation_config.json").write_text("{}")
    read = Path.read_bytes

    def refuse(path):
        if path.name == name:
            raise PermissionError(13, "Permission denied", str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(CheckpointError, match=rf"{name}: cannot be read \(Permission denied\)"):
        tools.load(directory)


def test_a_directory_without_the_right_to_look_into_it(tmp_path, monkeypatch, capsys):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refuse)
    with pytest.raises(CheckpointError, match=r"cannot be read \(Permission denied\)"):
        Shards(tmp_path)
    assert run_command_line(["models", "show", str(tmp_path)]) == 1
    assert f"{tmp_path}: cannot be read (Permission denied)" in capsys.readouterr().err


def test_a_tensor_in_two_shards(shapes, copy, tools):
    directory = copy(shapes.linear)
    first, second = shard(directory, 1), shard(directory, 2)
    tensors = load_file(second)
    save_file({**tensors, "model.embed_tokens.weight": torch.zeros(160, 64)}, second)
    with pytest.raises(CheckpointError, match=rf"embed_tokens\.weight is in {first.name} and in {second.name}"):
        tools.load(directory)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_named_in_a_warning(value, shapes, copy, tools, caplog):
    directory = copy(shapes.linear)

    def spoil(name, tensor):
        if name.endswith(("layers.1.self_attn.k_proj.weight", "layers.2.block_sparse_moe.experts.4.w2.weight")):
            tensor.view(-1)[7] = value
        return {name: tensor}

    tools.edit(directory, spoil)
    tools.load(directory)
    text = caplog.text
    assert "2 tensors hold NaN or infinity" in text and "experts.4.w2.weight" in text and "k_proj.weight" in text


def test_packed_scales_that_are_no_numbers_are_named(shapes, copy, tools, caplog):
    directory = copy(shapes.k3_packed)

    def spoil(name, tensor):
        if name.endswith("layers.2.block_sparse_moe.experts.4.w2.weight_scale"):
            tensor[3, 0] = 255
        return {name: tensor}

    tools.edit(directory, spoil)
    for packed in (False, True):
        caplog.clear()
        tools.load(directory, packed_experts=packed)
        assert "1 tensors hold NaN" in caplog.text and "experts.4.w2" in caplog.text


def test_sound_files_say_nothing(shapes, tools, caplog):
    tools.load(shapes.k3_packed)
    assert caplog.text == ""


def test_a_tokenizer_file_of_the_wrong_size(shapes, copy, capsys, tmp_path, unread):
    directory = copy(shapes.linear)
    (directory / "tiktoken.model").write_bytes(b"aGVsbG8= 0\nd29ybGQ= 1\n")
    (tmp_path / "ids.json").write_text("[[1]]")
    out = tmp_path / "o.safetensors"
    code = run_command_line(
        ["models", "logits", str(directory), "--ids", str(tmp_path / "ids.json"), "--out", str(out)]
    )
    err = capsys.readouterr().err
    assert code == 1 and "tiktoken.model" in err and err.count("\n") == 1


def test_a_file_in_the_place_of_a_directory(tmp_path, capsys):
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02")
    assert run_command_line(["models", "show", str(tmp_path / "pytorch_model.bin")]) == 1
    assert "there is no model" in capsys.readouterr().err


def test_embedders_that_are_in_no_file(shapes, tools):
    from watersmeet.core.official.load import load_official
    from watersmeet.tokenizers.text.embedder import Embedder

    with torch.device("meta"):
        text, other = Embedder(64, {"vocab_size": 160}), torch.nn.Linear(3, 64)
    with pytest.raises(CheckpointError, match=r"in no file and have no values \(embedders\.other\.weight"):
        load_official(shapes.linear, embedders={"text": text, "other": other}, output_modality="text")


def test_the_header_of_a_file_that_lies_about_sizes(tmp_path, tools):
    random_kimi_linear(tmp_path, shards=0)
    file = tmp_path / "model.safetensors"
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header["model.norm.weight"]["shape"] = [65]
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight has 256 bytes, but F32 \[65\] has 260"):
        tools.load(tmp_path)

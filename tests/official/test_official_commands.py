"""`models`, `models show`, `models logits`: numbers against the published ones, logits against the model, refusals."""

import json
import re

import pytest
import torch
from safetensors.torch import load_file

from watersmeet.cli.app import run_command_line
from watersmeet.core.config import preset
from watersmeet.core.model import Model
from watersmeet.core.official.census import census, stream_memory
from watersmeet.core.official.names import entries


def run(capsys, *words):
    code = run_command_line([str(word) for word in words])
    out, err = capsys.readouterr()
    return code, out, err


def numbers(text):
    return {int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*\d", text)}


def test_published_counts_and_sizes_of_k3(capsys):
    code, out, err = run(capsys, "models", "show", "k3")
    assert (code, err) == (0, "")
    found = numbers(out)
    # total of the published files with vision, 69 decays padded by 32; then the sizes of state and cache
    assert {2_779_931_837_184, 401_214_464 + 46_144_512, 69 * 32} <= found
    assert {434_110_464, 15_261_696, 27_648, 449_372_160 + 27_648 * 1_048_576} <= found
    assert "K delta attention (69)" in out and "M latent attention (24)" in out
    assert (
        re.search(r"84-92 +KKKM KKKM M$", out, flags=re.MULTILINE) and len(re.findall(r"[kK]KKM KKKM KKKM", out)) == 7
    )
    assert stream_memory(preset("k3")).state == 449_372_160
    assert stream_memory(preset("k3"), recurrent_item=2).state == 232_316_928
    assert round(census(preset("k3")).active / 1e9, 2) == 104.19


def test_published_counts_and_sizes_of_kimi_linear(capsys):
    code, out, _ = run(capsys, "models", "show", "kimi-linear-48b")
    assert code == 0 and {49_122_681_728, 41_943_040, 1_474_560, 8_064} <= numbers(out)
    assert round(census(preset("kimi-linear-48b")).active / 1e9, 1) == 3.1


@pytest.mark.parametrize("name", ["kimi-linear-48b", "k3"])
def test_the_model_itself_has_as_many_parameters(name):
    """Built on the meta device, which has no memory; the table is an embedder's, the router's bias a buffer."""
    config = preset(name).replace(output_modality="ids")
    with torch.device("meta"):
        model = Model(config, {"ids": torch.nn.Embedding(config.vocab_size, config.hidden_size)})
    tensors = [*model.parameters(), *(b for n, b in model.named_buffers() if n.endswith("correction_bias"))]
    assert sum(tensor.numel() for tensor in tensors) == census(config).total
    assert all(tensor.is_meta for tensor in tensors)


def test_the_number_of_tensors_of_k3():
    """The published census: 497,220 tensors; experts hold six each, of codes and scales, and 168 are the vision's."""
    counted = {"expert": 0, "": 0}
    for entry in entries(preset("k3"), first_experts=1):
        counted["expert" if entry.kind == "expert" else ""] += 1
    vision = 2 + 27 * 6 + 1 + 3
    assert counted["expert"] * 896 * 2 == 494_592
    assert counted[""] + vision == 497_220 - 494_592 == 2_122 + 506


@pytest.mark.parametrize("kind", ["linear", "k3", "k3_packed"])
def test_show_counts_what_is_in_a_directory(kind, shapes, tools, capsys):
    directory = getattr(shapes, kind)
    code, out, _ = run(capsys, "models", "show", directory)
    tensors = tools.tensors(directory)
    assert code == 0 and f"{len(tensors):,} tensors in 3 files" in out
    if kind == "linear":
        assert sum(t.numel() for t in tensors.values()) in numbers(out)
    assert "k3" in out if "k3" in kind else "kimi_linear" in out


def test_show_and_list_of_built_in_models(capsys):
    assert "embedders.regions" in run(capsys, "models", "show", "nano")[1]
    assert "nano" in run(capsys, "models")[1] and "openai:NAME@URL" in run(capsys, "models")[1]
    code, _, err = run(capsys, "models", "show", "nowhere")
    assert code == 1 and "there is no model 'nowhere'" in err


@pytest.mark.parametrize("kind", ["linear", "k3", "nano"])
def test_logits_of_lists_and_through_the_cache(kind, shapes, tools, capsys, tmp_path):
    directory = "nano" if kind == "nano" else getattr(shapes, kind)
    many = [tools.ids(17), tools.ids(1, seed=1), tools.ids(30, seed=2)]
    (tmp_path / "ids.json").write_text(json.dumps(many))
    found = {}
    for name, options in {"whole": [], "cache": ["--cache"], "half": ["--dtype", "bfloat16"]}.items():
        out = tmp_path / f"{name}.safetensors"
        words = ("models", "logits", directory, "--ids", tmp_path / "ids.json", "--out", out, *options)
        assert run(capsys, *words)[0] == 0
        found[name] = load_file(out)
        assert sorted(found[name]) == ["logits.0", "logits.1", "logits.2"]
    for i, ids in enumerate(many):
        whole, cache, half = (found[name][f"logits.{i}"] for name in ("whole", "cache", "half"))
        assert whole.dtype == half.dtype == torch.float32 and len(whole) == len(ids)
        torch.testing.assert_close(cache, whole, atol=2e-4, rtol=1e-4)
        if kind == "linear":  # where experts are few and random, bfloat16 often picks others
            assert torch.nn.functional.cosine_similarity(half, whole, dim=-1).median() > 0.98
        if kind != "nano":
            want = tools.logits(tools.load(directory).model, ids)[0]
            torch.testing.assert_close(whole, want, atol=1e-5, rtol=1e-5)


def test_logits_with_packed_experts(shapes, capsys, tmp_path):
    (tmp_path / "ids.json").write_text("[[5, 6, 7]]")
    words = ["models", "logits", shapes.k3_packed, "--ids", tmp_path / "ids.json", "--out", tmp_path / "a.safetensors"]
    assert run(capsys, *words)[0] == 0
    assert run(capsys, *words[:-1], tmp_path / "b.safetensors", "--packed")[0] == 0
    a, b = (load_file(tmp_path / f"{n}.safetensors")["logits.0"] for n in "ab")
    torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(
    "text,says",
    [
        ("[[1, 2", "not JSON"),
        ("[]", "at least one list"),
        ("{}", "list of lists"),
        ("[1, 2]", "list of lists"),
        ("[[]]", "list 0 is empty"),
        ("[[1], []]", "list 1 is empty"),
        ("[[1, 2], [3, 160]]", "id 160 at place 1, expected 0..159"),
        ("[[-1]]", "id -1"),
        ("[[1.5]]", "1.5"),
        ("[[true]]", "True"),
        ('[["a"]]', "'a'"),
        (None, "cannot be read"),
    ],
)
def test_ids_that_make_no_sense(text, says, shapes, capsys, tmp_path):
    if text is not None:
        (tmp_path / "ids.json").write_text(text)
    code, _, err = run(
        capsys, "models", "logits", shapes.linear, "--ids", tmp_path / "ids.json", "--out", tmp_path / "o.safetensors"
    )
    assert code == 2 and says in err and err.count("\n") == 1 and not (tmp_path / "o.safetensors").exists()

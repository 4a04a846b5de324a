"""From a text model to one that reads pictures: graft, train the new part alone, and what was there stays as it was."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from watersmeet.cli.graft import graft_command
from watersmeet.cli.train import run_recipe
from watersmeet.core.checkpoint import save_checkpoint
from watersmeet.core.errors import ConfigError
from watersmeet.core.official.random import random_kimi_linear
from watersmeet.core.stream import Span, Stream, content_key, pack
from watersmeet.core.training.config import config_from_dict
from watersmeet.core.training.log import read_log
from watersmeet.pipelines.models.local import load_local

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from colour_data import IMAGE, Colours  # noqa: E402
from tiny_data import micro_model  # noqa: E402


def native_base(folder):
    """A text model in our own layout, whose trunk has a voice of its own."""
    from watersmeet.core.model.model import Model
    from watersmeet.tokenizers.text.embedder import Embedder
    from watersmeet.tokenizers.text.encoder import Encoder

    encoder = Encoder.train(["a line of text", "another one"], ["<a>"], 320)
    config = micro_model().config.replace(vocab_size=encoder.vocab_size, output_modality="text")
    torch.manual_seed(0)
    model = Model(config, {"text": Embedder(config.hidden_size, encoder.settings)})
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and "conv" not in name:
                parameter.mul_(4)
    save_checkpoint(
        folder, model, config, {"modalities": {"text": encoder.settings}}, encoder.files, dtype=torch.bfloat16
    )
    return encoder.vocab_size


def recipe(init, out, vocab, **changes):
    return config_from_dict(
        {
            "dataset": "colour_data:Colours",
            "dataset_options": {"vocab_size": vocab},
            "trainable": ["embedders.image"],
            "model": {"init": str(init)},
            "batch": {"tokens": 64, "pool": 8},
            "optimizer": {"adamw_lr": 0.02},
            "schedule": {"steps": 60, "warmup": 2, "decay": 10},
            "run": {"out": str(out), "threads": 1, "save_every": 0, "save_minutes": 0, "eval_every": 0},
        }
    ).with_values(**changes)


def text_logits(folder, dtype):
    model = load_local(str(folder), dtype=dtype).model
    ids = torch.arange(5, 40)
    stream = Stream(spans=(Span(modality="text", data=ids, key=content_key(ids)),))
    with torch.no_grad():
        return model.logits(model(pack([stream], model.modality_names)))


SETTINGS = [f"image.{key}={value}" for key, value in IMAGE.items()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "precision"), [("native", "fp32"), ("native", "bf16"), ("official", "fp32"), ("official", "bf16")]
)
def test_a_grafted_embedder_learns_and_text_stays(tmp_path, layout, precision):
    if layout == "native":
        vocab = native_base(tmp_path / "base")
    else:
        vocab = random_kimi_linear(tmp_path / "base", dtype=torch.bfloat16).model.vocab_size
    before = {path.name: path.read_bytes() for path in (tmp_path / "base").iterdir()}
    graft_command(str(tmp_path / "base"), "image", tmp_path / "grafted", assignments=SETTINGS)
    run_recipe(
        recipe(tmp_path / "grafted", tmp_path / "run", vocab, **{"run.precision": precision}),
        device="cpu",
        report=lambda line: None,
    )
    losses = [r["loss"] for r in read_log(tmp_path / "run" / "log.jsonl") if r["kind"] == "train"]
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5]), losses
    assert {path.name: path.read_bytes() for path in (tmp_path / "base").iterdir()} == before
    for dtype in (torch.float32, torch.bfloat16):
        plain = text_logits(tmp_path / "base", dtype)
        assert torch.equal(plain, text_logits(tmp_path / "grafted", dtype))
        assert torch.equal(plain, text_logits(tmp_path / "run" / "model", dtype))
    # what was learned is in the directory that the run wrote: a picture is named
    local = load_local(str(tmp_path / "run" / "model"))
    packed = pack([Colours(vocab_size=vocab).sample(1, np.random.default_rng(0))], local.model.modality_names)
    with torch.no_grad():
        guess = int(local.model.logits(local.model(packed))[3].argmax())
    assert guess == 27


def test_a_grafted_embedder_takes_a_step_and_text_stays(tmp_path):
    """The quick form of the test above."""
    vocab = random_kimi_linear(tmp_path / "base", dtype=torch.bfloat16).model.vocab_size
    graft_command(str(tmp_path / "base"), "image", tmp_path / "grafted", assignments=SETTINGS)
    changes = {"schedule.steps": 2, "run.precision": "fp32"}
    run_recipe(recipe(tmp_path / "grafted", tmp_path / "run", vocab, **changes), device="cpu", report=lambda line: None)
    plain = text_logits(tmp_path / "base", torch.float32)
    assert torch.equal(plain, text_logits(tmp_path / "grafted", torch.float32))
    assert torch.equal(plain, text_logits(tmp_path / "run" / "model", torch.float32))
    old, new = (load_file(tmp_path / name / "embedders.safetensors") for name in ("grafted", "run/model"))
    assert old.keys() == new.keys() and not torch.equal(*(t["embedders.image.project.weight"] for t in (old, new)))


@pytest.mark.parametrize("layout", ["native", "official"])
def test_a_run_can_start_from_a_model_and_train_all_of_it(tmp_path, layout):
    if layout == "native":
        vocab = native_base(tmp_path / "base")
    else:
        vocab = random_kimi_linear(tmp_path / "base").model.vocab_size
    graft_command(str(tmp_path / "base"), "image", tmp_path / "grafted", assignments=SETTINGS)
    changes = {"trainable": (), "schedule.steps": 2}
    run_recipe(recipe(tmp_path / "grafted", tmp_path / "run", vocab, **changes), device="cpu", report=lambda line: None)
    local = load_local(str(tmp_path / "run" / "model"))
    assert (
        set(local.model.embedders) == {"text", "image"} and not (tmp_path / "run/model/embedders.safetensors").exists()
    )


def test_what_does_not_fit_is_told(tmp_path):
    vocab = native_base(tmp_path / "base")
    graft_command(str(tmp_path / "base"), "image", tmp_path / "other")

    def refused(init, **changes):
        with pytest.raises(ConfigError) as caught:
            run_recipe(recipe(init, tmp_path / "run", vocab, **changes), device="cpu", report=lambda line: None)
        return str(caught.value)

    assert "watersmeet graft" in refused(tmp_path / "base")
    assert "patch = 16" in refused(tmp_path / "other") or "scale = 1.0" in refused(tmp_path / "other")
    assert "model.overrides (hidden_size)" in refused(tmp_path / "other", **{"model.overrides": {"hidden_size": 8}})

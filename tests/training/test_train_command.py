"""`watersmeet train` from a recipe file to a checkpoint that loads again."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from watersmeet.cli.train import train_command
from watersmeet.core.checkpoint import load_checkpoint
from watersmeet.core.errors import CheckpointError, ConfigError
from watersmeet.core.model.stored import stored_views
from watersmeet.core.stream import pack
from watersmeet.core.training import state
from watersmeet.plugins.registry import get_registry

sys.path.insert(0, str(Path(__file__).parent))
from tiny_data import Letters  # a helper beside the tests; the recipe names it

RECIPE = """
seed = 3
dataset = "tiny_data:Letters"
[dataset_options]
count = 24
[model]
preset = "micro"
overrides = {{ num_hidden_layers = 2, full_attention_layers = [1] }}
[batch]
tokens = 96
[schedule]
steps = 4
warmup = 1
[run]
out = "{out}"
eval_every = 2
eval_batches = 1
{more}
"""


def recipe(tmp_path, more=""):
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE.format(out=tmp_path / "run", more=more))
    return path


def test_recipe_to_checkpoint_resume_extend_and_fresh(tmp_path):
    lines = []
    summary = train_command(recipe(tmp_path), device="cpu", report=lines.append)
    assert summary.step == 4 and summary.stopped == "done"
    assert any("KDA q/k/v per head" in line for line in lines)
    run = tmp_path / "run"
    assert (run / "curve.png").stat().st_size > 1000 and (run / "log.jsonl").exists()

    loaded = load_checkpoint(run / "model", get_registry().embedder)
    assert loaded.processor == {"modalities": {"text": {"vocab_size": 24}}} and loaded.files == {"letters.txt": b"abc"}
    assert loaded.config.vocab_size == 24 and loaded.config.full_attention_layers == (1,)
    masters = state.load_state(summary.checkpoint)[0]["model"]
    for name, tensor in stored_views(loaded.model.state_dict().items()).items():
        assert torch.allclose(tensor, masters[name], rtol=2**-8, atol=1e-30), name  # bf16 rounding and no more
    packed = pack([Letters().sample(0, np.random.default_rng(0))], loaded.model.modality_names)
    assert bool(loaded.model.loss(packed).loss.isfinite())

    lines.clear()
    assert train_command(recipe(tmp_path), steps=6, device="cpu", report=lines.append).step == 6
    assert "resumed at step 4 of 6" in lines
    with pytest.raises(CheckpointError, match="seed"):
        train_command(recipe(tmp_path), seed=9, device="cpu", report=lines.append)
    assert train_command(recipe(tmp_path), seed=9, steps=2, fresh=True, device="cpu", report=lines.append).step == 2
    assert (run / "checkpoints.before-1").is_dir() and (run / "log.jsonl.before-1").exists()


@pytest.mark.parametrize(
    "old, new, word",
    [
        ("tiny_data:Letters", "tiny_data:Lettres", "Lettres"),
        ("tiny_data:Letters", "no_such_module:x", "no_such_module"),
        ("count = 24", "colour = 1", "colour"),
        ('preset = "micro"', 'preset = "mikro"', "mikro"),
        ("num_hidden_layers = 2", "layers = 2", "layers"),
    ],
)
def test_wrong_recipes_say_what_is_wrong(tmp_path, old, new, word):
    path = recipe(tmp_path)
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ConfigError, match=word):
        train_command(path, device="cpu", report=lambda line: None)
    assert not (tmp_path / "run" / "model").exists()

"""The recipe reader, the schedule, the log and the curve."""

import json
from pathlib import Path

import pytest

from watersmeet.core.errors import ConfigError, UsageError
from watersmeet.core.training.config import ScheduleSection, TrainConfig, config_from_dict, read_config
from watersmeet.core.training.log import JsonlLog, read_log
from watersmeet.core.training.plot import plot_log
from watersmeet.core.training.schedule import lr_factor


def write(tmp_path, text):
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    return path


def test_reads_values_and_keeps_defaults(tmp_path):
    path = write(
        tmp_path,
        'dataset = "a.b:c"\nseed = 7\n[dataset_options]\nfolder = "x"\n[model]\npreset = "micro"\n'
        "overrides = {vocab_size = 10}\n[optimizer]\nlr = 1\nbetas = [0.8, 0.9]\n",
    )
    config = read_config(path)
    assert (config.seed, config.dataset_options, config.model.overrides) == (7, {"folder": "x"}, {"vocab_size": 10})
    assert config.optimizer.lr == 1.0 and isinstance(config.optimizer.lr, float)
    assert config.optimizer.betas == (0.8, 0.9)
    assert config.batch.tokens == 4096
    assert config_from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize(
    "text, words",
    [
        ('dataset = "a:b"\n[optimizer]\nweight_decey = 1.0', ["optimizer.weight_decey", "weight_decay"]),
        ('dataset = "a:b"\nsede = 1', ["sede", "seed"]),
        ("seed = 1", ["dataset", "missing"]),
        ('dataset = "a:b"\nseed = "one"', ["seed", "int"]),
        ('dataset = "a:b"\nseed = true', ["seed", "int"]),
        ('dataset = "a:b"\nbatch = 3', ["batch", "table"]),
        ('dataset = "ab"', ["dataset", "module:attr"]),
        ('dataset = "a:b"\n[schedule]\nkind = "step"', ["schedule.kind", "wsd"]),
        ('dataset = "a:b"\n[optimizer]\nlr = -1.0', ["optimizer.lr", ">= 0"]),
        ('dataset = "a:b"\n[run', ["TOML"]),
    ],
)
def test_errors_name_the_key(tmp_path, text, words):
    with pytest.raises(ConfigError) as caught:
        read_config(write(tmp_path, text))
    assert "recipe.toml" in str(caught.value)
    for word in words:
        assert word.split(":")[0] in str(caught.value)


def test_shipped_recipe_is_valid():
    config = read_config(Path(__file__).parents[2] / "configs" / "nano.toml")
    assert config.model.preset == "nano" and config.run.keep >= 2


def test_missing_file_is_one_sentence(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        read_config(tmp_path / "none.toml")


def test_with_values_changes_nested_fields():
    config = TrainConfig(dataset="a:b").with_values(**{"schedule.steps": 5000, "seed": 9})
    assert (config.schedule.steps, config.seed, config.schedule.kind) == (5000, 9, "wsd")


def test_wsd_shape():
    schedule = ScheduleSection(kind="wsd", steps=100, warmup=10, decay=0.2, final=0.1)
    factors = [lr_factor(schedule, step) for step in range(110)]
    assert factors[0] == pytest.approx(0.1) and factors[9] == 1.0
    assert all(factor == 1.0 for factor in factors[9:80])
    assert factors[80] == pytest.approx(1 - 0.9 / 20)
    assert factors[99] == pytest.approx(0.1) and factors[109] == pytest.approx(0.1)
    assert all(a >= b for a, b in zip(factors[79:], factors[80:], strict=False))


def test_cosine_shape():
    schedule = ScheduleSection(kind="cosine", steps=100, warmup=10, final=0.0)
    factors = [lr_factor(schedule, step) for step in range(101)]
    assert factors[9] == 1.0 and factors[99] == pytest.approx(0.0)
    assert factors[54] == pytest.approx(0.5, abs=0.01)


def test_short_runs_warm_up_and_decay_all_the_same():
    for kind in ("wsd", "cosine", "constant"):
        factors = [lr_factor(ScheduleSection(kind=kind, steps=5, warmup=10, decay=3), step) for step in range(5)]
        assert all(0 < factor <= 0.5 for factor in factors)


def test_extending_a_plateau_changes_nothing_before_the_old_decay():
    short = ScheduleSection(steps=100, warmup=10, decay=20)
    long = ScheduleSection(steps=300, warmup=10, decay=20)
    assert [lr_factor(short, s) for s in range(80)] == [lr_factor(long, s) for s in range(80)]


def test_log_is_cut_back_and_torn_lines_vanish(tmp_path):
    log = JsonlLog(tmp_path / "log.jsonl")
    for step in range(1, 6):
        log.append("train", step, loss=float("nan") if step == 2 else 1.0 / step)
    with log.path.open("a") as file:
        file.write('{"kind": "train", "st')
    log.cut_after(3)
    log.append("train", 4, loss=0.1)
    assert [record["step"] for record in read_log(log.path)] == [1, 2, 3, 4]
    for line in log.path.read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_plot_draws_a_picture(tmp_path):
    log = JsonlLog(tmp_path / "log.jsonl")
    with pytest.raises(UsageError):
        log.append("note", 0)
        plot_log(log.path, tmp_path / "curve.png")
    for step in range(1, 30):
        log.append("train", step, loss=5 / step, lr=0.01, adamw_lr=0.02, load_max=1.5, load_min=0.5)
    log.append("eval", 20, loss=1.0)
    picture = plot_log(log.path, tmp_path / "curve.png")
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and picture.stat().st_size > 10_000

"""`run.precision = "auto"`: what this machine is quick in, written down, so that a run goes on as it began."""

from dataclasses import replace

import pytest
import torch

from watersmeet.core.errors import ConfigError
from watersmeet.core.training import precision
from watersmeet.core.training.config import RunSection, TrainConfig
from watersmeet.core.training.resume import differences

CPU = torch.device("cpu")


@pytest.mark.parametrize(("units", "name", "dtype"), [(True, "bf16", torch.bfloat16), (False, "fp32", torch.float32)])
def test_auto_is_what_the_processor_has_units_for(units, name, dtype, monkeypatch):
    monkeypatch.setattr(precision, "bfloat16_units", lambda: units)
    assert RunSection().precision == "auto"
    assert precision.fast_matmul_dtype(CPU) is dtype
    config = TrainConfig(dataset="d:e")
    assert precision.settled(config, CPU).run.precision == name
    assert precision.settled(config, "cuda").run.precision == "bf16"


@pytest.mark.parametrize("name", ["bf16", "fp32"])
def test_a_precision_that_is_named_stays(name):
    config = TrainConfig(dataset="d:e", run=RunSection(precision=name))
    assert precision.settled(config, CPU) == config
    with pytest.raises(ConfigError, match="expected 'auto', 'bf16' or 'fp32'"):
        replace(config.run, precision="fp16")


def test_a_run_does_not_go_on_in_another_precision():
    then, now = (
        {"config": TrainConfig(dataset="d:e", run=RunSection(precision=name)).to_dict(), "model": {}, "samples": 1}
        for name in ("bf16", "fp32")
    )
    assert differences(then, now) == ["config.run.precision was 'bf16', is 'fp32'"]

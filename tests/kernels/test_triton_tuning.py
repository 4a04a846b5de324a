"""Tiles of KDA's Triton kernels that are measured on a chip: every choice computes the same, and the fastest one is kept."""

import itertools
import json
import logging

import pytest
import torch

from watersmeet.kernels import dispatch, kda

pytest.importorskip("triton")


@pytest.fixture
def configs(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    from watersmeet.kernels.kda import triton_configs

    forget = triton_configs.tuned.cache_clear
    forget()
    yield triton_configs
    forget()


@pytest.mark.slow
@pytest.mark.usefixtures("poisoned")
def test_every_choice_computes_the_definition(device, configs):
    r = torch.Generator().manual_seed(0)
    n = lambda *s: torch.randn(*s, generator=r)  # noqa: E731
    q, k = (torch.nn.functional.normalize(n(1, 67, 1, 48), dim=-1) for _ in range(2))
    inputs = [x.bfloat16() for x in (q, k, n(1, 67, 1, 80))] + [-5 * torch.rand(1, 67, 1, 48), torch.rand(1, 67, 1)]
    way = n(1, 67, 1, 80)

    def run(form, kind):
        leaves = [x.to(device, kind or x.dtype).requires_grad_() for x in inputs]
        with dispatch.forced(form):
            o, _ = kda(*leaves, gate_lower_bound=-5.0)
            return o, *torch.autograd.grad(o, leaves, way.to(device, o.dtype))

    want, tried = run("reference", torch.float64), []
    for trial in configs.trials(torch.version.hip is not None):
        tried.append(trial)
        for got, right in zip(run("triton", None), want, strict=True):
            assert (got.double() - right).abs().max() <= 2e-2 * right.abs().max().clamp(min=1.0), trial
    hip = torch.version.hip is not None
    for kernel in configs.CHOICES:
        assert {trial[kernel] for trial in tried} == set(configs.choices(kernel, hip))


def test_the_fastest_is_kept_and_used_from_then_on(device, configs, monkeypatch):
    from watersmeet.kernels.kda import triton_tune

    ticks = itertools.count(100, -1)  # every launch faster than the one before: the last choice of each kernel wins
    best = triton_tune.tune(device, lambda work: float(next(ticks)), T=5, H=1, K=16, V=16, streams=2)
    hip = torch.version.hip is not None
    assert best == {kernel: configs.choices(kernel, hip)[-1] for kernel in configs.CHOICES}
    chip = torch.cuda.get_device_name() if device.type == "cuda" else "interpreter"
    path = configs.file_of(chip)
    assert configs.read(path, hip=hip) == best
    assert [p.name for p in path.parent.iterdir()] == [path.name]  # nothing half-written is left
    monkeypatch.setattr(configs, "tuned", lambda: configs.read(path, hip=hip))
    assert configs.configuration("chunk_tiles", torch.bfloat16, 128, hip) == best["chunk_tiles"]
    # what no choice was measured for keeps its default
    assert configs.configuration("chunk_tiles", torch.float32, 128, hip) == configs.CONFIGS["chunk_tiles"][1]
    assert configs.configuration("chunk_states", torch.bfloat16, 256, hip) == configs.WIDE["chunk_states"][0]


def test_a_file_of_something_else_is_passed_over_with_a_warning(configs, tmp_path, caplog):
    import triton

    good = {"keys": 16, "values": 0, "warps": 8, "stages": 2}
    cases = {
        "broken": "{",
        "no object": "[1]",
        "other version": json.dumps({"triton": "0.0", "kernels": {"chunk_tiles": good}}),
        "no such kernel": json.dumps({"triton": triton.__version__, "kernels": {"chunk": good}}),
        "no such choice": json.dumps({"triton": triton.__version__, "kernels": {"chunk_tiles": good | {"warps": 3}}}),
        "no such field": json.dumps({"triton": triton.__version__, "kernels": {"chunk_tiles": good | {"x": 3}}}),
    }
    for name, text in cases.items():
        path = tmp_path / f"{name}.json"
        path.write_text(text)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "watersmeet.kernels"):
            assert configs.read(path, hip=False) == {}, name
        assert str(path) in caplog.text, name
    caplog.clear()
    assert configs.read(tmp_path / "absent.json", hip=False) == {} and not caplog.text
    path.write_text(json.dumps({"triton": triton.__version__, "kernels": {"chunk_tiles": good}}))
    assert configs.read(path, hip=False) == {"chunk_tiles": configs.Config(**good)}

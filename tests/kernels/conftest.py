"""What the tests of Triton kernels share.

Without a GPU the kernels run in Triton's interpreter; that is decided when they are first imported, so it is set here.
"""

import json
import os
import subprocess
import sys

import pytest
import torch

GPU = torch.cuda.is_available()
if not GPU:
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session")
def device():
    """Where Triton kernels run in these tests."""
    return torch.device("cuda" if GPU else "cpu")


@pytest.fixture
def poisoned(monkeypatch):
    """Memory that a launcher takes for its outputs starts as NaN, so what a kernel forgets to write is seen."""

    def poison(x):
        if x.is_floating_point():
            return x.fill_(float("nan"))
        return x.fill_(-(2**30)) if x.dtype in (torch.int32, torch.int64) else x

    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        make = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args, make=make, **options: poison(make(*args, **options)))


@pytest.fixture(scope="session")
def compiled():
    """`compiled("conv", "--quick")` -> reports of compiling that operator's kernels, made in a process that does not interpret."""

    def run(*words):
        pytest.importorskip("triton")
        environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
        done = subprocess.run(
            [sys.executable, "-P", "-m", "watersmeet.kernels.compile_check", *words],
            capture_output=True, text=True, env=environment, check=False,
        )  # fmt: skip
        assert done.returncode in (0, 1) and done.stdout, done.stderr[-3000:]
        return [json.loads(line) for line in done.stdout.splitlines()]

    return run

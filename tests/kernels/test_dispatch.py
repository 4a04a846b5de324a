"""The choice between forms, and the check of compiled kernels itself."""

import json
import logging
import os
import subprocess
import sys
import types

import pytest
import torch

from watersmeet.kernels import compile_check, dispatch

CPU = torch.zeros(1)


def test_the_cpu_takes_the_torch_form_and_says_why_once(caplog, monkeypatch):
    monkeypatch.setattr(dispatch, "_said", set())
    with caplog.at_level(logging.INFO, logger="watersmeet.kernels"):
        assert [dispatch.form("some_operator", CPU) for _ in range(3)] == ["chunked"] * 3
    assert caplog.messages == ["some_operator uses its chunked form, because it is the fastest form for this device"]


@pytest.mark.parametrize("form", ["reference", "chunked"])
def test_a_forced_form_is_taken(form):
    with dispatch.forced(form):
        assert dispatch.form("some_operator", CPU) == form
    assert dispatch.form("some_operator", CPU) == "chunked"


def test_triton_on_the_cpu_needs_its_interpreter(monkeypatch):
    monkeypatch.setattr(dispatch, "has_triton", lambda: True)
    with dispatch.forced("triton"):
        monkeypatch.setattr(dispatch, "interpreting", lambda: True)
        assert dispatch.form("some_operator", CPU) == "triton"
        assert dispatch.form("some_operator", CPU, triton=False) == "chunked"
        with pytest.raises(RuntimeError, match=r"some_operator was forced.*float64"):
            dispatch.form("some_operator", CPU.double())
        monkeypatch.setattr(dispatch, "interpreting", lambda: False)
        with pytest.raises(RuntimeError, match=r"some_operator was forced.*on cpu.*TRITON_INTERPRET"):
            dispatch.form("some_operator", CPU)
        monkeypatch.setattr(dispatch, "has_triton", lambda: False)
        with pytest.raises(RuntimeError, match=r"not installed"):
            dispatch.form("some_operator", CPU)


def on_gpu(dtype):
    """What the choice reads of a tensor on a GPU, where there is none."""
    return types.SimpleNamespace(
        device=torch.device("cuda"), dtype=dtype, is_floating_point=lambda: dtype.is_floating_point
    )


def test_a_gpu_takes_triton_where_it_can(monkeypatch):
    monkeypatch.setattr(dispatch, "has_triton", lambda: True)
    assert dispatch.form("some_operator", on_gpu(torch.bfloat16)) == "triton"
    assert dispatch.form("some_operator", on_gpu(torch.float64)) == "chunked"
    monkeypatch.setattr(dispatch, "has_triton", lambda: False)
    assert dispatch.form("some_operator", on_gpu(torch.bfloat16)) == "chunked"


def test_a_wrong_variable_is_named(monkeypatch):
    monkeypatch.setenv(dispatch.VARIABLE, "fast")
    with pytest.raises(ValueError, match=r"'fast'.*reference, chunked, triton"):
        dispatch._read_environment()


FAULTY = '''
import triton
import triton.language as tl

from watersmeet.kernels.compile_check import Case


@triton.jit
def gather(x_ptr, y_ptr, n, SIZE: tl.constexpr):
    """Keeps SIZE values a thread alive across a loop; many of them cannot stay in registers."""
    at = tl.arange(0, SIZE)
    kept = tl.load(x_ptr + at)
    for i in range(n):
        kept = kept * kept + tl.load(x_ptr + at + i)
    tl.store(y_ptr + at, kept)


@triton.jit
def multiply(x_ptr, y_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    square = at[:, None] * SIZE + at[None, :]
    tl.store(y_ptr + square, tl.dot(tl.load(x_ptr + square), tl.load(x_ptr + SIZE * SIZE + square)))


def compile_cases():
    gather_types, multiply_types = {"x_ptr": "*fp32", "y_ptr": "*fp32", "n": "i32"}, {"x_ptr": "*bf16", "y_ptr": "*fp32"}
    return [
        Case(name="fine", kernel=gather, arguments=gather_types, constants={"SIZE": 256}, num_warps=1),
        Case(name="spills", kernel=gather, arguments=gather_types, constants={"SIZE": 4096}, num_warps=1,
             options={"maxnreg": 40}, chips=("sm_90",)),
        Case(name="too wide", kernel=multiply, arguments=multiply_types, constants={"SIZE": 256}, num_warps=8),
        Case(name="broken", kernel=multiply, arguments=multiply_types, constants={"SIZE": 100}),
    ]
'''


def test_the_compile_check_finds_what_it_looks_for(tmp_path):
    """A check that cannot fail proves nothing: three faulty kernels and a sound one."""
    pytest.importorskip("triton")
    (tmp_path / "faulty.py").write_text(FAULTY)
    program = (
        "import json, dataclasses, faulty\n"
        "from watersmeet.kernels.compile_check import check\n"
        "print(json.dumps([dataclasses.asdict(r) for r in check(faulty.compile_cases(), ['sm_90', 'gfx942'])]))"
    )
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=False,
        env=environment | {"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    reports = {(r["name"], r["chip"]): r for r in json.loads(done.stdout)}
    for chip in ("sm_90", "gfx942"):
        assert not reports["fine", chip]["problems"] and reports["fine", chip]["registers"] > 0
        assert any("does not compile" in text for text in reports["broken", chip]["problems"])
    assert any("spilled" in text for text in reports["spills", "sm_90"]["problems"])
    assert any("local memory" in text for text in reports["spills", "sm_90"]["problems"])
    assert any("shared memory" in text for text in reports["too wide", "gfx942"]["problems"])


def test_spills_are_read_from_the_notes_of_an_hsaco():
    report = compile_check.Report(name="x", chip="gfx942")
    notes = {"vgpr_count": 512, "vgpr_spill_count": 7, "sgpr_spill_count": 2, "private_segment_fixed_size": 64}
    compile_check._read_amdgcn("".join(f"    .{key}: {value}\n" for key, value in notes.items()), report)
    assert (report.registers, report.spills, report.local) == (512, 9, 64)
    with pytest.raises(RuntimeError, match="lack"):
        compile_check._read_amdgcn("", report)


def test_a_case_must_name_all_arguments():
    kernel = types.SimpleNamespace(arg_names=["a", "b"])
    pytest.importorskip("triton")
    with pytest.raises(ValueError, match="differ in the arguments b"):
        compile_check.compile_case(
            compile_check.Case(name="x", kernel=kernel, arguments={"a": "i32"}, constants={}), "sm_80"
        )

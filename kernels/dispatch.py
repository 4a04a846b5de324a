"""Which form of an operator runs: the readable definition, the fast torch form, or Triton; the reason is logged once.

``WATERSMEET_KERNELS=reference``, ``=chunked`` or ``=triton`` forces the choice; it is read once, when torch is first
needed. In code (tests, bisecting a numerical problem) use the context manager :func:`forced`. With ``TRITON_INTERPRET=1``
the Triton form, when it is forced, also takes tensors of the CPU; nothing is compiled then and everything is slow.
"""

import contextlib
import functools
import importlib.util
import logging
import os
from collections.abc import Iterator

import torch
from torch import Tensor

logger = logging.getLogger("watersmeet.kernels")

FORMS = ("reference", "chunked", "triton")
VARIABLE = "WATERSMEET_KERNELS"
TRITON_TYPES = (torch.float32, torch.bfloat16, torch.float16)


def _read_environment() -> str | None:
    value = os.environ.get(VARIABLE, "").strip().lower()
    if not value:
        return None
    if value not in FORMS:
        raise ValueError(f"{VARIABLE} is {value!r}, but it must be one of {', '.join(FORMS)}, or be unset")
    return value


_choice: str | None = _read_environment()
_said: set[tuple[str, str]] = set()


_found = importlib.util.find_spec("triton") is not None


def has_triton() -> bool:
    """True when the library can be imported; a CPU build of torch does not bring it."""
    return _found


@functools.cache
def interpreting() -> bool:
    """True when Triton runs its kernels in Python on the CPU; kernels keep the answer of their first import."""
    if not has_triton():
        return False
    import triton  # only here: importing it takes a while

    return bool(triton.knobs.runtime.interpret)


def form(operator: str, *tensors: Tensor, triton: bool = True) -> str:
    """The form in which ``operator`` runs on these tensors: "reference", "chunked" or "triton".

    Args:
        operator: its public name, for the log and for errors.
        tensors: what it computes with; the first one's device decides.
        triton: False for an operator that has no Triton form; forcing that form then means the torch form.

    Raises:
        RuntimeError: the Triton form is forced and cannot run here.
    """
    chosen, reason = _choose(operator, tensors, triton)
    if not torch.compiler.is_compiling() and (operator, chosen) not in _said:
        _said.add((operator, chosen))
        logger.info("%s uses its %s form, because %s", operator, chosen, reason)
    return chosen


def _choose(operator: str, tensors: tuple[Tensor, ...], triton: bool) -> tuple[str, str]:
    if _choice == "reference" or _choice == "chunked":
        return _choice, f"{VARIABLE} asks for it"
    if not triton:
        return "chunked", "it is the only fast form"
    on_gpu = bool(tensors) and tensors[0].device.type == "cuda"  # ROCm calls its devices so too
    wrong = next((x.dtype for x in tensors if x.is_floating_point() and x.dtype not in TRITON_TYPES), None)
    if _choice == "triton" and torch.compiler.is_compiling():
        return "triton", ""  # whether it can run is asked again when the operator runs
    if _choice == "triton":
        problem = None
        if not has_triton():
            problem = "triton is not installed; install watersmeet[gpu]"
        elif wrong is not None:
            problem = f"a tensor is {wrong}; use float32, bfloat16 or float16"
        elif not on_gpu and not interpreting():
            device = tensors[0].device if tensors else "cpu"
            problem = f"the tensors are on {device}; move them to a GPU, or set TRITON_INTERPRET=1 to run slowly there"
        if problem:
            raise RuntimeError(f"{operator} was forced to its triton form, but {problem}")
        return "triton", f"{VARIABLE} asks for it"
    if not on_gpu:
        return "chunked", "it is the fastest form for this device"
    if not has_triton():
        return "chunked", "triton is not installed"
    if wrong is not None:
        return "chunked", f"Triton kernels do not compute in {wrong}"
    return "triton", "it is the fastest form for this device"


@contextlib.contextmanager
def forced(form: str | None) -> Iterator[None]:
    """Force ``form`` ("reference", "chunked", "triton" or None for automatic) inside a ``with`` block."""
    global _choice
    if form is not None and form not in FORMS:
        raise ValueError(f"form is {form!r}, but it must be one of {', '.join(FORMS)}, or None")
    before, _choice = _choice, form
    try:
        yield
    finally:
        _choice = before

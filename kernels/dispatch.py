"""Which form of an operator runs: the readable definition or the fast one, with the reason logged once an operator.

``WATERSMEET_KERNELS=reference`` or ``=chunked`` forces the choice; it is read once, when torch is first needed. In code
(tests, bisecting a numerical problem) use the context manager :func:`forced`.
"""

import contextlib
import logging
import os
from collections.abc import Iterator

import torch

logger = logging.getLogger("watersmeet.kernels")

FORMS = ("reference", "chunked")
VARIABLE = "WATERSMEET_KERNELS"


def _read_environment() -> str | None:
    value = os.environ.get(VARIABLE, "").strip().lower()
    if not value:
        return None
    if value not in FORMS:
        raise ValueError(f"{VARIABLE} is {value!r}, but it must be one of {', '.join(FORMS)}, or be unset")
    return value


_choice: str | None = _read_environment()
_said: set[tuple[str, str]] = set()


def use_reference(operator: str) -> bool:
    """True when ``operator`` must run its definition instead of its fast form."""
    form = _choice or "chunked"
    if not torch.compiler.is_compiling() and (operator, form) not in _said:
        _said.add((operator, form))
        reason = f"{VARIABLE} asks for it" if _choice else "it is the fastest form for this device"
        logger.info("%s uses its %s form, because %s", operator, form, reason)
    return form == "reference"


@contextlib.contextmanager
def forced(form: str | None) -> Iterator[None]:
    """Force ``form`` ("reference", "chunked" or None for automatic) inside a ``with`` block."""
    global _choice
    if form is not None and form not in FORMS:
        raise ValueError(f"form is {form!r}, but it must be one of {', '.join(FORMS)}, or None")
    before, _choice = _choice, form
    try:
        yield
    finally:
        _choice = before

"""Words of the command line that several commands of training share."""

from __future__ import annotations

from typing import Any

from watersmeet.core.errors import UsageError


def read_lora(text: str) -> dict[str, Any]:
    """`r=16,alpha=32,targets=q_proj+o_proj` as the table `[lora]`; alpha and targets may be left out.

    Raises UsageError for anything else.
    """
    form = "r=16, or r=16,alpha=32,targets=q_proj+experts.w13"
    out: dict[str, Any] = {}
    for word in text.split(","):
        name, sign, value = word.strip().partition("=")
        if name not in ("r", "alpha", "targets") or not sign or not value or name in out:
            raise UsageError(f"--lora is {text!r}, expected {form}")
        try:
            out[name] = int(value) if name == "r" else float(value) if name == "alpha" else value.split("+")
        except ValueError:
            raise UsageError(f"--lora has {name}={value!r}, expected a number; e.g. {form}") from None
    if out.get("r", 0) < 1:
        raise UsageError(f"--lora is {text!r}, expected a rank of at least 1: {form}")
    return out


def check_device(device: str | None) -> str | None:
    """ "cpu", "cuda" or None (a GPU when there is one). Raises UsageError for other words and for a GPU that is not there."""
    if device not in (None, "cpu", "cuda"):
        raise UsageError(f"--device is {device!r}, expected cpu or cuda")
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise UsageError("--device is cuda, but torch sees no GPU here; leave it out or say cpu")
    return device

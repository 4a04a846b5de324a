"""What every operator asks of its arguments, with errors that say what was found."""

import contextlib
from collections.abc import Sequence

import torch
from torch import Tensor


def same_place(operator: str, **tensors: Tensor | None) -> None:
    """Floating tensors on the device of the first one.

    Raises:
        ValueError: another device. TypeError: a tensor of integers where numbers are computed.
    """
    first_name, first = next((name, x) for name, x in tensors.items() if x is not None)
    for name, x in tensors.items():
        if x is None:
            continue
        if not x.is_floating_point():
            raise TypeError(f"{operator} got {name} in {x.dtype}; expected a floating dtype")
        if x.device != first.device:
            raise ValueError(
                f"{operator} got {first_name} on {first.device} and {name} on {x.device}; move them to one device"
            )


def int_vector(operator: str, name: str, x: Tensor) -> None:
    """One dimension of int32 or int64, at least one number."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{operator} got {name} as {type(x).__name__}; expected an int32 or int64 tensor")
    if x.dim() != 1 or x.dtype not in (torch.int32, torch.int64) or x.shape[0] < 1:
        raise ValueError(
            f"{operator} got {name} {tuple(x.shape)} in {x.dtype}; expected one dimension of int32 or int64"
        )


def bounds(operator: str, name: str, x: Tensor, end: int) -> None:
    """Numbers that rise from 0 to ``end``. On a GPU the check runs there, and a failure shows up at the next synchronisation.

    Raises:
        ValueError: on the CPU.
    """
    if x.device.type != "cpu":
        good = (x[0] == 0) & (x[-1] == end) & (x.diff() >= 0).all()
        torch._assert_async(good, f"{operator}: {name} must rise from 0 to {end}")
        return
    numbers: Sequence[int] = x.tolist()
    if numbers[0] != 0 or numbers[-1] != end or any(a > b for a, b in zip(numbers, numbers[1:], strict=False)):
        shown = numbers if len(numbers) <= 16 else [*numbers[:8], "...", *numbers[-8:]]
        raise ValueError(f"{operator} got {name} {shown}; expected numbers that rise from 0 to {end}")


def device_of(x: Tensor) -> contextlib.AbstractContextManager[object]:
    """For launches: they go to the current device, which is another one where a model lies on several."""
    return torch.cuda.device(x.device) if x.device.type == "cuda" else contextlib.nullcontext()

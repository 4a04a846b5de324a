"""Models larger than memory: layers that are read from the files each time they run, through accelerate's hooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from watersmeet.core.errors import ConfigError
from watersmeet.core.model import Model

if TYPE_CHECKING:
    from watersmeet.core.official.load import Weights

DeviceMap = str | Mapping[str, Any]


def split_map(
    model: Model,
    device_map: DeviceMap | None,
    max_memory: Mapping[Any, int | str] | None,
    device: torch.device,
    source: Weights,
) -> tuple[torch.device, tuple[str, ...]]:
    """The device that computes, and the prefixes of the names of layers that stay in the files.

    Only whole layers can be away; what stands outside the layers is used all the time.
    """
    if device_map is None:
        return device, ()
    count = model.config.num_hidden_layers
    if isinstance(device_map, str):
        if device_map != "auto":
            raise ConfigError(f"device_map is {device_map!r}, expected 'auto' or an object of module names and devices")
        return _auto(model, max_memory, device, source)
    main, away = None, []
    names = [f"layers.{i}" for i in range(count)]
    outside = [name for name, _ in model.named_children() if name != "layers"]
    for name, place in device_map.items():
        covered = names if name in ("", "layers") else [name] if name in names else []
        if not covered and name.split(".")[0] not in outside:
            raise ConfigError(f"device_map names {name!r}, expected a layer 'layers.0'..'layers.{count - 1}' or one of {', '.join(outside)}")  # fmt: skip
        if place == "disk":
            if not covered:
                raise ConfigError(f"device_map sends {name!r} to disk, but only layers can be there")
            away += [f"{layer}." for layer in covered]
            continue
        found = torch.device(place)
        if main is not None and found != main:
            raise ConfigError(
                f"device_map names the devices {main} and {found}, but one device computes; others can be 'disk'"
            )
        main = found
    return main or device, tuple(away)


def _auto(
    model: Model, max_memory: Mapping[Any, int | str] | None, device: torch.device, source: Weights
) -> tuple[torch.device, tuple[str, ...]]:
    """As many layers as the memory of the computing device takes, first ones first; the rest stays in the files."""
    from accelerate.utils import get_max_memory
    from accelerate.utils.modeling import convert_file_size_to_int

    given = get_max_memory(dict(max_memory) if max_memory is not None else None)
    cards = [key for key in given if key not in ("cpu", "disk")]
    if device.type == "cpu" and cards and max_memory is None:
        device = torch.device("cuda", int(cards[0])) if isinstance(cards[0], int) else torch.device(cards[0])
    key: Any = "cpu" if device.type == "cpu" else device.index or 0
    room = convert_file_size_to_int(given[key]) if key in given else 0
    size: dict[str, int] = {}
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        part = ".".join(name.split(".")[:2]) + "." if name.startswith("layers.") else ""
        size[part] = size.get(part, 0) + tensor.numel() * source.dtype_of(name).itemsize
    room -= size.pop("", 0)
    if sum(size.values()) <= room:
        return device, ()
    room -= max(size.values())  # one layer that is away must fit while it runs
    away = list(size)
    while away and size[away[0]] <= room:
        room -= size[away.pop(0)]
    return device, tuple(away)


def attach(model: Model, away: tuple[str, ...], device: torch.device, source: Weights) -> None:
    """Let each layer that is away fetch its weights before it runs and forget them afterwards."""
    if not away:
        return
    from accelerate.hooks import ModelHook, add_hook_to_module

    class FromFiles(ModelHook):  # type: ignore[misc]
        """accelerate's own hook loses buffers of submodules that are in no file, and knows no assembled tensors."""

        def __init__(self, prefix: str, names: list[str]) -> None:
            self.prefix, self.names = prefix, names

        def init_hook(self, module: nn.Module) -> nn.Module:
            for name in self.names:
                put(module, name, module_tensor(module, name).to("meta"))
            return module

        def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
            for name in self.names:
                put(module, name, source[self.prefix + name].to(device))
            return args, kwargs

        def post_forward(self, module: nn.Module, output: Any) -> Any:
            self.init_hook(module)
            return output

    every = [*model.named_parameters(), *model.named_buffers()]
    source.shapes.update({name: tensor.shape for name, tensor in every})
    for parameter in (tensor for name, tensor in every if name.startswith(away)):
        parameter.requires_grad_(False)
    for prefix in away:
        names = [name.removeprefix(prefix) for name in source.owners if name.startswith(prefix)]
        add_hook_to_module(model.get_submodule(prefix.rstrip(".")), FromFiles(prefix, names))


def module_tensor(module: nn.Module, name: str) -> torch.Tensor:
    """A parameter or buffer by its dotted name."""
    parent, _, leaf = name.rpartition(".")
    tensor: torch.Tensor = getattr(module.get_submodule(parent), leaf)
    return tensor


def put(model: nn.Module, name: str, tensor: torch.Tensor) -> None:
    """Make `tensor` the parameter or buffer of this name."""
    parent, _, leaf = name.rpartition(".")
    module = model.get_submodule(parent)
    if leaf in module._parameters:
        old = module._parameters[leaf]
        learns = old is not None and old.requires_grad and tensor.is_floating_point()
        module._parameters[leaf] = nn.Parameter(tensor, requires_grad=learns)
    else:
        module._buffers[leaf] = tensor

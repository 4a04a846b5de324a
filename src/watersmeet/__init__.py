"""watersmeet: text, pictures and whatever a plugin brings become one stream of tokens, read by one transformer.

    ws = watersmeet.load("nano")
    ws.run("screenshot-to-code", image="shot.png")

Names are loaded on first use, so `import watersmeet` stays cheap and imports no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from watersmeet.api import Completion as Completion
    from watersmeet.api import Engine as Engine
    from watersmeet.api import load as load
    from watersmeet.core.checkpoint import load_checkpoint as load_checkpoint
    from watersmeet.core.checkpoint import save_checkpoint as save_checkpoint
    from watersmeet.core.config import ModelConfig as ModelConfig
    from watersmeet.core.config import preset as preset
    from watersmeet.core.errors import ConfigError as ConfigError
    from watersmeet.core.errors import DecodeError as DecodeError
    from watersmeet.core.errors import UsageError as UsageError
    from watersmeet.core.errors import WatersmeetError as WatersmeetError
    from watersmeet.core.generate import generate as generate
    from watersmeet.core.model.model import Model as Model
    from watersmeet.core.stream import Packed as Packed
    from watersmeet.core.stream import Span as Span
    from watersmeet.core.stream import Stream as Stream
    from watersmeet.core.stream import content_key as content_key
    from watersmeet.core.stream import pack as pack
    from watersmeet.pipelines.models import open_model as open_model
    from watersmeet.plugins.hookspecs import hookimpl as hookimpl
    from watersmeet.plugins.processors import ProcessorEncoder as ProcessorEncoder
    from watersmeet.plugins.registry import get_registry as get_registry
    from watersmeet.plugins.result import Result as Result
    from watersmeet.plugins.settings import read_settings as read_settings
    from watersmeet.plugins.sources import read_source as read_source
    from watersmeet.plugins.specs import ModalitySpec as ModalitySpec
    from watersmeet.plugins.specs import PipelineSpec as PipelineSpec
    from watersmeet.plugins.vectors import VectorEmbedder as VectorEmbedder

_HOMES = {
    "Completion": "api",
    "ConfigError": "core.errors",
    "DecodeError": "core.errors",
    "Engine": "api",
    "ModalitySpec": "plugins.specs",
    "Model": "core.model.model",
    "ModelConfig": "core.config",
    "Packed": "core.stream",
    "PipelineSpec": "plugins.specs",
    "ProcessorEncoder": "plugins.processors",
    "Result": "plugins.result",
    "Span": "core.stream",
    "Stream": "core.stream",
    "UsageError": "core.errors",
    "VectorEmbedder": "plugins.vectors",
    "WatersmeetError": "core.errors",
    "content_key": "core.stream",
    "generate": "core.generate",
    "get_registry": "plugins.registry",
    "hookimpl": "plugins.hookspecs",
    "load": "api",
    "load_checkpoint": "core.checkpoint",
    "open_model": "pipelines.models",
    "pack": "core.stream",
    "preset": "core.config",
    "read_settings": "plugins.settings",
    "read_source": "plugins.sources",
    "save_checkpoint": "core.checkpoint",
}
__all__ = ["__version__", *_HOMES]  # every name is a string


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(sorted(_HOMES))}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})

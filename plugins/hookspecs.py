"""What a plugin may implement. Hooks only collect specs; later calls are dispatched by name through the registry."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from watersmeet.plugins.specs import ModalitySpec, PipelineSpec

PROJECT = "watersmeet"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Decorator that marks a plugin's function as the implementation of the hook of the same name."""


@hookspec
def register_modalities() -> Iterable[ModalitySpec]:  # type: ignore[empty-body]
    """Return the specs of the modalities this plugin brings."""


@hookspec
def register_pipelines() -> Iterable[PipelineSpec]:  # type: ignore[empty-body]
    """Return the specs of the pipelines this plugin brings."""

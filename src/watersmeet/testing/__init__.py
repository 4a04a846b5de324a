"""For people who write plugins: checks of what they wrote, and stand-ins for what it runs in.

    ModalityTests, PipelineTests   base classes; a subclass of five lines is a conformance test
    isolated_plugins, tmp_plugin   a process with only the plugins that a test gives it
    ScriptedModel                  a model whose replies come from a function
    examine, Subject               the checks of `ModalityTests` as values

Nothing here needs pytest but the base classes while pytest runs them. `watersmeet.testing.fixtures` has fixtures.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from watersmeet.testing.isolation import IsolatedPlugins as IsolatedPlugins
    from watersmeet.testing.isolation import TmpPlugin as TmpPlugin
    from watersmeet.testing.isolation import isolated_plugins as isolated_plugins
    from watersmeet.testing.isolation import tmp_plugin as tmp_plugin
    from watersmeet.testing.modality import MODALITY_CHECKS as MODALITY_CHECKS
    from watersmeet.testing.modality import ModalityTests as ModalityTests
    from watersmeet.testing.modality import examine as examine
    from watersmeet.testing.pipeline import PIPELINE_CHECKS as PIPELINE_CHECKS
    from watersmeet.testing.pipeline import PipelineSubject as PipelineSubject
    from watersmeet.testing.pipeline import PipelineTests as PipelineTests
    from watersmeet.testing.pipeline import examine_pipeline as examine_pipeline
    from watersmeet.testing.scripted import ScriptedModel as ScriptedModel
    from watersmeet.testing.subject import Subject as Subject

_HOMES = {
    "IsolatedPlugins": "isolation",
    "MODALITY_CHECKS": "modality",
    "ModalityTests": "modality",
    "PIPELINE_CHECKS": "pipeline",
    "PipelineSubject": "pipeline",
    "PipelineTests": "pipeline",
    "ScriptedModel": "scripted",
    "Subject": "subject",
    "TmpPlugin": "isolation",
    "examine": "modality",
    "examine_pipeline": "pipeline",
    "isolated_plugins": "isolation",
    "tmp_plugin": "isolation",
}
__all__ = [*_HOMES]  # every name is a string


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(sorted(_HOMES))}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})

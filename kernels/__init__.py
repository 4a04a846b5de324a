"""Operators: one folder each, a readable definition beside its fast forms.

The public functions are loaded on first use, so importing this package does not import torch::

    from watersmeet.kernels import kda, kda_gate, short_conv, attnres, expert_glu, situ_glu, swi_glu, mla_decode
"""

if __name__ != "watersmeet.kernels":
    raise ImportError(f"import this package as watersmeet.kernels, not as {__name__!r}")

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .attnres import attnres as attnres
    from .conv import short_conv as short_conv
    from .experts import expert_glu as expert_glu
    from .experts import situ_glu as situ_glu
    from .experts import swi_glu as swi_glu
    from .kda import kda as kda
    from .kda import kda_gate as kda_gate
    from .mla import mla_decode as mla_decode
    from .mxfp4 import mxfp4_decode as mxfp4_decode
    from .mxfp4 import mxfp4_encode as mxfp4_encode
    from .newton_schulz import newton_schulz as newton_schulz

_HOMES = {
    "kda": "kda",
    "kda_gate": "kda",
    "short_conv": "conv",
    "attnres": "attnres",
    "expert_glu": "experts",
    "situ_glu": "experts",
    "swi_glu": "experts",
    "mxfp4_decode": "mxfp4",
    "mxfp4_encode": "mxfp4",
    "mla_decode": "mla",
    "newton_schulz": "newton_schulz",
}
__all__ = list(_HOMES)


class _Package(types.ModuleType):
    """The import system binds a subpackage to its parent; here a function of the same name must win over the folder."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _HOMES and isinstance(value, types.ModuleType):
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(sorted(_HOMES))}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})

"""Static descriptions of what a plugin brings. Cheap to build: heavy parts are named, not imported."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from watersmeet.core.errors import PluginError
from watersmeet.plugins.guard import attempt, describe

CONTRACT = 1
"""Version of the contract between host and plugins. Raised only when an old plugin could no longer work."""

OLDEST_CONTRACT = 1


class ContractError(PluginError):
    """A plugin is written for a contract that this host does not understand."""


_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
_TARGET = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def is_name(name: object) -> bool:
    """Whether a modality, a pipeline or a plugin may be called that: lower-case words joined by "-" or "_"."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


@dataclass(frozen=True)
class LazyTarget:
    """A class or function written as "module:attr", imported when `resolve` is called for the first time."""

    path: str

    def __post_init__(self) -> None:
        if not isinstance(self.path, str) or not _TARGET.fullmatch(self.path):
            raise PluginError(f"target {self.path!r} is not of the form 'package.module:attribute'")

    def resolve(self) -> Any:
        """Import the module and return the attribute. Python caches the module, so a second call is cheap.

        Raises PluginError when the import fails or the attribute does not exist; also when the module calls
        sys.exit, which must not end a host that only wanted to look at it.
        """
        found: Any
        module_name, _, attribute = self.path.partition(":")
        # a class may need libraries that start threads, so only what is raised, printed or forked is held back
        found, error = attempt(lambda: importlib.import_module(module_name), strict=False)
        if error is not None:
            raise PluginError(f"target {self.path!r}: import failed with {describe(error)}") from error
        for part in attribute.split("."):
            try:
                found = getattr(found, part)
            except AttributeError as error:
                raise PluginError(f"target {self.path!r}: {module_name} has no attribute {attribute!r}") from error
        return found


Target = str | LazyTarget | type


def _checked_target(owner: str, field: str, target: Any) -> LazyTarget | type:
    if isinstance(target, str):
        target = LazyTarget(target)
    if not isinstance(target, (LazyTarget, type)):
        raise PluginError(f"{owner}: {field} is {target!r}, expected a class or a string 'package.module:attribute'")
    return target


def _words(owner: str, field: str, value: Any) -> tuple[str, ...]:
    # a text is a sequence of texts too, and (x) without a comma is x
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise PluginError(f"{owner}: {field} is {value!r}, expected a tuple of media types, e.g. ('text/csv',)")
    words = tuple(value)
    if wrong := [word for word in words if not isinstance(word, str)]:
        raise PluginError(f"{owner}: {field} holds {wrong[0]!r}, expected only texts, e.g. 'text/csv'")
    return words


def _check_common(spec: ModalitySpec | PipelineSpec, kind: str) -> str:
    if not is_name(spec.name):
        raise PluginError(f"{kind} name {spec.name!r} must be lower-case words joined by '-' or '_', e.g. 'my-sensor'")
    owner = f"{kind} {spec.name!r}"
    known = isinstance(spec.contract, int) and not isinstance(spec.contract, bool)
    if not known or not OLDEST_CONTRACT <= spec.contract <= CONTRACT:
        raise ContractError(
            f"{owner} is written for contract {spec.contract!r} but this watersmeet understands "
            f"{OLDEST_CONTRACT} to {CONTRACT}; update whichever of the two is older"
        )
    return owner


@dataclass(frozen=True, kw_only=True)
class ModalitySpec:
    """One modality: how items become spans, and how spans become vectors.

    name         lower-case, unique; the `modality` of its spans
    contract     version of the contract the plugin was written for
    media_types  what it reads, e.g. ("text/csv",); shown in lists
    encoder      class, see `parts.Encoder`
    embedder     class, see `parts.Embedder`
    decoder      class that turns ids back into items (for modalities that are written), or None
    head         class for outputs that are not ids of a vocabulary, or None
    atomic       a span must never be cut (a picture); False where cutting anywhere is fine (running text)
    reads        items can be model input
    writes       items can be model output; training on targets of a modality without it is refused
    summary      one line for lists
    """

    name: str
    contract: int = 1  # who says nothing wrote for the first one, whatever the host has come to
    media_types: tuple[str, ...] = ()
    encoder: Target
    embedder: Target
    decoder: Target | None = None
    head: Target | None = None
    atomic: bool = False
    reads: bool = True
    writes: bool = False
    summary: str = ""

    def __post_init__(self) -> None:
        owner = _check_common(self, "modality")
        object.__setattr__(self, "media_types", _words(owner, "media_types", self.media_types))
        for field in ("encoder", "embedder", "decoder", "head"):
            target = getattr(self, field)
            if target is not None or field in ("encoder", "embedder"):
                object.__setattr__(self, field, _checked_target(owner, field, target))
        if self.writes and self.decoder is None:
            raise PluginError(f"{owner} says writes=True but names no decoder")


@dataclass(frozen=True, kw_only=True)
class PipelineSpec:
    """One task a user can run by name.

    name       lower-case, unique
    contract   version of the contract the plugin was written for
    summary    one line for lists
    inputs     what it takes, e.g. ("image/png", "image/jpeg")
    pipeline   class, see `parts.Pipeline`
    own_model  it brings a model of its own: none is loaded for it, and it gets None where others get the user's model
    """

    name: str
    contract: int = 1  # who says nothing wrote for the first one, whatever the host has come to
    summary: str = ""
    inputs: tuple[str, ...] = ()
    pipeline: Target
    own_model: bool = False

    def __post_init__(self) -> None:
        owner = _check_common(self, "pipeline")
        object.__setattr__(self, "inputs", _words(owner, "inputs", self.inputs))
        object.__setattr__(self, "pipeline", _checked_target(owner, "pipeline", self.pipeline))


def resolve(target: Target) -> Any:
    """The class behind a target of any allowed form."""
    if isinstance(target, str):
        target = LazyTarget(target)
    return target.resolve() if isinstance(target, LazyTarget) else target

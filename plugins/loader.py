"""Find and load plugins one at a time, so that a broken one never takes the others down.

The order for each entry point is: block, import, check hook names, call, check specs. Whatever goes wrong is kept in
the plugin's record and raised only when somebody asks for what that plugin should have brought.
"""

from __future__ import annotations

import difflib
import importlib.metadata
import itertools
import os
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import pluggy

from watersmeet.core.errors import PluginError
from watersmeet.plugins import hookspecs
from watersmeet.plugins.guard import attempt, describe
from watersmeet.plugins.specs import ModalitySpec, PipelineSpec

GROUP = "watersmeet.plugins"
VARIABLE = "WATERSMEET_PLUGINS"
ISOLATED = "WATERSMEET_ISOLATED"
"""Environment variable of tests: where it is set, no installed package but watersmeet is looked at, in any process."""

_MOST_SPECS = 1000

LOADED, FAILED, BLOCKED = "loaded", "failed", "blocked"


@dataclass(frozen=True, kw_only=True)
class PluginRecord:
    """What became of one entry point.

    plugin is the entry point's name; distribution and version tell which installed package brought it. `error` is one
    line for a failed plugin and "" otherwise, `cause` the exception behind it. `seconds` is how long loading took.
    """

    plugin: str
    target: str
    distribution: str
    version: str
    state: str
    error: str = ""
    cause: BaseException | None = None
    modalities: tuple[ModalitySpec, ...] = ()
    pipelines: tuple[PipelineSpec, ...] = ()
    seconds: float = 0.0

    @property
    def own(self) -> bool:
        """Whether it is a plugin of watersmeet itself."""
        return normalise(self.distribution) == hookspecs.PROJECT

    @property
    def owner(self) -> str:
        """The plugin and its package for messages: "series (my-package 0.3)"."""
        return f"{self.plugin} ({self.distribution} {self.version})".replace(" )", ")")


@dataclass(frozen=True, kw_only=True)
class Found:
    """An entry point and the installed package it belongs to."""

    entry_point: importlib.metadata.EntryPoint
    distribution: str
    version: str


def normalise(name: str) -> str:
    """Package-name normalisation: case and runs of '-', '_', '.' do not matter."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _installed() -> Iterable[Any]:
    if os.environ.get(ISOLATED):
        return [importlib.metadata.distribution(hookspecs.PROJECT)]
    return importlib.metadata.distributions()


def find_plugins(distributions: Iterable[Any] | None = None) -> list[Found]:
    """Entry points of the group over all installed packages, the host's own first, then by name. Imports nothing.

    Plugins that the program registered itself come last. A package with unreadable metadata is passed over: it cannot
    say that it has a plugin for us.
    """
    found: list[Found] = []
    seen: set[str] = set()
    for distribution in _installed() if distributions is None else distributions:
        try:
            points = [point for point in distribution.entry_points if point.group == GROUP]
            if not points:
                continue
            name, version = str(distribution.metadata["Name"]), str(distribution.version)
        except Exception:  # metadata is written by others and may be damaged in any way
            continue
        # an editable install beside an old copy lists one package twice; the first on the path is the imported one
        if normalise(name) in seen:
            continue
        seen.add(normalise(name))
        found += [Found(entry_point=point, distribution=name, version=version) for point in points]
    found.sort(key=lambda item: (item.distribution != hookspecs.PROJECT, item.distribution, item.entry_point.name))
    if distributions is None:
        from watersmeet.plugins.registered import found_registered

        found += found_registered()
    return found


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which plugins may load: the meaning of the environment variable `WATERSMEET_PLUGINS`.

    Not set: all. A comma list of plugin or package names: only those. Empty: none. "-name" blocks one; a list of
    nothing but blocks lets all others load. Blocking wins over allowing.
    """

    allowed: frozenset[str] | None
    blocked: frozenset[str]

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Choice:
        """Read the variable from `environment` (default: the process's own)."""
        value = (os.environ if environment is None else environment).get(VARIABLE)
        if value is None:
            return cls(allowed=None, blocked=frozenset())
        words = [word.strip() for word in value.split(",") if word.strip()]
        blocked = frozenset(normalise(word[1:]) for word in words if word.startswith("-"))
        allowed = frozenset(normalise(word) for word in words if not word.startswith("-"))
        return cls(allowed=None if blocked and not allowed else allowed, blocked=blocked)

    def permits(self, found: Found) -> bool:
        """Whether this plugin may be imported."""
        names = {normalise(found.entry_point.name), normalise(found.distribution)}
        return not names & self.blocked and (self.allowed is None or bool(names & self.allowed))


def _collect(plugin: Any) -> tuple[tuple[ModalitySpec, ...], tuple[PipelineSpec, ...]]:
    """Check a plugin object's hooks, call them, and check what they return."""
    if isinstance(plugin, type):
        plugin = plugin()
    # one manager a plugin: an exception in one hook cannot abort the call of another plugin's hook
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    known = sorted(name for name in vars(hookspecs) if name.startswith("register_"))
    try:
        name = manager.register(plugin)
    except pluggy.PluginValidationError as error:
        raise PluginError(f"hooks take no arguments: {error}") from error
    callers = manager.get_hookcallers(plugin) or []
    try:
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        unknown = sorted(caller.name for caller in callers if not caller.has_spec())
        close = difflib.get_close_matches(unknown[0], known, n=1) if unknown else []
        hint = f"did you mean {close[0]!r}?" if close else f"hooks are {', '.join(known)}"
        raise PluginError(f"it implements unknown hook {unknown[0] if unknown else error!r}; {hint}") from error
    if not callers:
        raise PluginError(f"{name} implements no hook; mark one of {', '.join(known)} with @hookimpl")
    implemented = {caller.name for caller in callers}
    brought: list[Any] = []
    for hook, kind in (("register_modalities", ModalitySpec), ("register_pipelines", PipelineSpec)):
        results = getattr(manager.hook, hook)()
        if hook in implemented and not results:
            raise PluginError(f"{hook} returned None, expected a list of {kind.__name__}; is a return missing?")
        brought.append(_specs(hook, results, kind))
    return brought[0], brought[1]


def _specs(hook: str, results: list[Any], kind: type) -> tuple[Any, ...]:
    specs: list[Any] = []
    for result in results:
        if isinstance(result, (kind, str, bytes)) or not isinstance(result, Iterable):
            raise PluginError(f"{hook} returned a {type(result).__name__}, expected a list of {kind.__name__}")
        # a list that never ends would be the end of the host
        specs.extend(itertools.islice(result, _MOST_SPECS))
    for spec in specs:
        if not isinstance(spec, kind):
            raise PluginError(f"{hook} returned a list with a {type(spec).__name__}, expected only {kind.__name__}")
    names = [spec.name for spec in specs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise PluginError(f"{hook} returned the name {twice[0]!r} twice")
    return tuple(specs)


def _unknown_field(error: BaseException) -> str:
    """A field that specs do not have, in our words; "" for any other error."""
    match = re.search(
        r"(ModalitySpec|PipelineSpec)\.__init__\(\) got an unexpected keyword argument '(\w+)'", f"{error!r}"
    )
    if match is None or not isinstance(error, TypeError):
        return ""
    kind, name = match.groups()
    known = [item.name for item in fields(ModalitySpec if kind == "ModalitySpec" else PipelineSpec)]
    close = difflib.get_close_matches(name, known, n=1)
    hint = (
        f"did you mean {close[0]!r}?" if close else f"fields are {', '.join(known)}; a newer watersmeet may have more"
    )
    return f"{kind} has no field {name!r}; {hint}"


def load_plugin(found: Found, choice: Choice) -> PluginRecord:
    """Load one plugin and say what became of it. Raises nothing but KeyboardInterrupt."""
    point = found.entry_point
    common: dict[str, Any] = {
        "plugin": point.name,
        "target": point.value,
        "distribution": found.distribution,
        "version": found.version,
    }
    if not choice.permits(found):
        return PluginRecord(state=BLOCKED, **common)
    started = time.perf_counter()
    brought, error = attempt(lambda: _collect(point.load()))
    seconds = time.perf_counter() - started
    if brought is None or error is not None:
        text = (_unknown_field(error) or describe(error)) if error is not None else "it brought nothing"
        return PluginRecord(state=FAILED, error=text, cause=error, seconds=seconds, **common)
    modalities, pipelines = brought
    return PluginRecord(state=LOADED, modalities=modalities, pipelines=pipelines, seconds=seconds, **common)

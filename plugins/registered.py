"""Plugins that a program registers itself, without a package: known to the processes that it starts, too."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import sys
import types
from typing import Any

from watersmeet.core.errors import PluginError
from watersmeet.plugins.loader import GROUP, Found, normalise
from watersmeet.plugins.specs import LazyTarget

REGISTERED = "WATERSMEET_REGISTERED"
"""Environment variable through which started processes learn of registered plugins: a JSON list of [name, target]."""

DISTRIBUTION = "(registered)"


def register_plugin(plugin: Any, *, name: str) -> None:
    """Add a plugin to this process and to all that it starts from now on.

    plugin: a module, a class or an object at the top of a module, or its name as "module" or "module:attribute". What
    was registered under the name before is replaced. Workers import it for themselves, so it must be importable there:
    raises PluginError for something that was defined in a script, in a notebook or inside a function.
    """
    from watersmeet.plugins.registry import reset_registry

    if not normalise(name):
        raise PluginError("register_plugin: the name is empty; give the plugin one, e.g. 'my-sensor'")
    target = plugin if isinstance(plugin, str) else _target(plugin)
    if ":" in target:
        LazyTarget(target)  # says what is wrong with its form
    _write({**registered(), name: target})
    reset_registry()


def unregister_plugin(name: str) -> None:
    """Take a plugin away again. Raises PluginError when none of that name was registered."""
    from watersmeet.plugins.registry import reset_registry

    left = registered()
    if name not in left:
        raise PluginError(f"no plugin {name!r} is registered; there are: {', '.join(left) or 'none'}")
    del left[name]
    _write(left)
    reset_registry()


def registered() -> dict[str, str]:
    """Targets of the registered plugins by name. Raises PluginError when the variable was damaged by somebody."""
    value = os.environ.get(REGISTERED, "")
    if not value:
        return {}
    try:
        pairs = json.loads(value)
        return {str(name): str(target) for name, target in pairs}
    except (ValueError, TypeError) as error:
        raise PluginError(
            f"environment variable {REGISTERED} is {value!r}, expected a JSON list of [name, target]; unset it"
        ) from error


def found_registered() -> list[Found]:
    """The registered plugins in the form of found ones."""
    return [
        Found(
            entry_point=importlib.metadata.EntryPoint(name, target, GROUP),
            distribution=DISTRIBUTION,
            version="",
        )
        for name, target in registered().items()
    ]


def _write(targets: dict[str, str]) -> None:
    if targets:
        os.environ[REGISTERED] = json.dumps(list(targets.items()))
    else:
        os.environ.pop(REGISTERED, None)


def _target(plugin: Any) -> str:
    """The words by which another process imports an object."""
    if isinstance(plugin, types.ModuleType):
        module, attribute = plugin.__name__, ""
    else:
        module, attribute = _home(plugin)
    target = f"{module}:{attribute}" if attribute else module
    if module == "__main__":
        raise PluginError(
            f"register_plugin: {target} is part of the running script, which workers do not run; "
            "move the plugin to a module of its own and register that"
        )
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split(".") if attribute else []:
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise PluginError(
            f"register_plugin: workers could not import {target} ({error}); "
            "move the plugin to the top of a module that can be imported"
        ) from error
    if found is not plugin:
        raise PluginError(
            f"register_plugin: {target} is another object than the one given; register the module or the name itself"
        )
    return target


def _home(plugin: Any) -> tuple[str, str]:
    """Module and name of a class, or of an object that stands at the top of its class's module."""
    if isinstance(plugin, type):
        return plugin.__module__, plugin.__qualname__
    module = type(plugin).__module__
    names = [name for name, value in vars(sys.modules.get(module, object)).items() if value is plugin]
    if not names:
        raise PluginError(
            f"register_plugin: the {type(plugin).__name__} has no name at the top of module {module}, by which workers "
            "could find it; give it one, or register its class"
        )
    return module, names[0]

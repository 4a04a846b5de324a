"""A process in which only those plugins exist that a test gives it, and its child processes likewise."""

from __future__ import annotations

import importlib
import itertools
import os
import re
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from watersmeet.core.errors import PluginError
from watersmeet.plugins.loader import ISOLATED, VARIABLE
from watersmeet.plugins.registered import REGISTERED, register_plugin, unregister_plugin
from watersmeet.plugins.registry import Registry, get_registry, reset_registry

_numbers = itertools.count()


@dataclass(frozen=True, kw_only=True)
class TmpPlugin:
    """A plugin that was written for one test. name: of the plugin; module: by which it is imported; path: its file."""

    name: str
    module: str
    path: Path


class IsolatedPlugins:
    """The plugins of watersmeet and those added here; what is installed beside it cannot leak into a test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._modules: list[str] = []

    @property
    def registry(self) -> Registry:
        """What this process sees now."""
        return get_registry()

    def add(self, plugin: Any, *, name: str) -> None:
        """Register a module, class or object that can be imported; see `register_plugin`."""
        register_plugin(plugin, name=name)

    def remove(self, name: str) -> None:
        """Take it away again."""
        unregister_plugin(name)

    def write(self, source: str, *, name: str) -> TmpPlugin:
        """Write a module with this source (its indentation is taken off) and register it."""
        module = f"tmp_plugin_{re.sub(r'[^0-9a-z]+', '_', name.lower())}_{os.getpid()}_{next(_numbers)}"
        path = self.folder / f"{module}.py"
        path.write_text(textwrap.dedent(source), encoding="utf-8")
        self._modules.append(module)
        importlib.invalidate_caches()
        register_plugin(module, name=name)
        return TmpPlugin(name=name, module=module, path=path)

    def discover(self) -> NoReturn:
        """Refused: a test that depends on what happens to be installed fails elsewhere."""
        raise PluginError("a test looks at no installed plugin; give it those it needs with add() or write()")

    def forget(self) -> None:
        """Drop the written modules, so that another test's of the same name are read anew."""
        for module in self._modules:
            sys.modules.pop(module, None)


@contextmanager
def isolated_plugins() -> Iterator[IsolatedPlugins]:
    """Within the block, this process and those it starts see the plugins of watersmeet and what is added; nothing else."""
    kept = {name: os.environ.get(name) for name in (ISOLATED, VARIABLE, REGISTERED, "PYTHONPATH")}
    path = list(sys.path)
    with tempfile.TemporaryDirectory(prefix="watersmeet-plugins-") as name:
        folder = Path(name)
        os.environ[ISOLATED] = "1"
        os.environ.pop(VARIABLE, None)
        os.environ.pop(REGISTERED, None)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [name, kept["PYTHONPATH"]]))
        sys.path.insert(0, name)
        reset_registry()
        plugins = IsolatedPlugins(folder)
        try:
            yield plugins
        finally:
            sys.path[:] = path
            plugins.forget()
            for variable, value in kept.items():
                if value is None:
                    os.environ.pop(variable, None)
                else:
                    os.environ[variable] = value
            reset_registry()


@contextmanager
def tmp_plugin(source: str, *, name: str = "tmp-plugin") -> Iterator[TmpPlugin]:
    """An isolated process with one plugin of this source."""
    with isolated_plugins() as plugins:
        yield plugins.write(source, name=name)

"""Fixtures for pytest. In a `conftest.py`: pytest_plugins = ["watersmeet.testing.fixtures"]

plugin_manager   an `IsolatedPlugins`: only the plugins that the test adds, in this process and its children
tmp_plugin       writes a plugin's source and registers it: tmp_plugin(source, name="my-sensor")
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from watersmeet.testing.isolation import IsolatedPlugins, TmpPlugin, isolated_plugins


@pytest.fixture
def plugin_manager() -> Iterator[IsolatedPlugins]:
    """Only the plugins that the test adds."""
    with isolated_plugins() as plugins:
        yield plugins


@pytest.fixture
def tmp_plugin(plugin_manager: IsolatedPlugins) -> Callable[..., TmpPlugin]:
    """Write a plugin's source and register it."""

    def write(source: str, *, name: str = "tmp-plugin") -> TmpPlugin:
        return plugin_manager.write(source, name=name)

    return write

"""The plugin contract: hook specifications, specs, loader and registry.

A plugin is a small module named by an entry point of group `watersmeet.plugins`:

    from watersmeet.plugins import ModalitySpec, hookimpl

    @hookimpl
    def register_modalities():
        return [ModalitySpec(name="series", encoder="pkg.parts:Encoder", embedder="pkg.parts:Embedder")]

Nothing in this package imports torch: listing plugins stays cheap, heavy parts are resolved on first use.
"""

if __name__ != "watersmeet.plugins":
    raise ImportError(f"import this package as watersmeet.plugins, not as {__name__!r}")

from watersmeet.plugins.hookspecs import hookimpl
from watersmeet.plugins.registered import register_plugin, unregister_plugin
from watersmeet.plugins.registry import Registry, get_registry
from watersmeet.plugins.specs import CONTRACT, LazyTarget, ModalitySpec, PipelineSpec

__all__ = [
    "CONTRACT",
    "LazyTarget",
    "ModalitySpec",
    "PipelineSpec",
    "Registry",
    "get_registry",
    "hookimpl",
    "register_plugin",
    "unregister_plugin",
]

"""Look-up by name over everything the plugins bring, with errors that name owners and near misses.

A plugin is imported when something it may bring is asked for, not before: a run that needs none of a package is neither
slowed down nor broken by it. A bare name is looked for in this order, and the first place that has it decides:

1. the plugins of watersmeet itself, so that no package can change what a built-in name means;
2. the plugins whose entry point has that name;
3. all plugins.

"package:name" and "plugin:name" reach what another place hides.
"""

from __future__ import annotations

import difflib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Any, Generic, TypeVar

from watersmeet.core.errors import PluginError
from watersmeet.plugins.hookspecs import PROJECT
from watersmeet.plugins.loader import (
    BLOCKED,
    FAILED,
    VARIABLE,
    Choice,
    Found,
    PluginRecord,
    find_plugins,
    load_plugin,
    normalise,
)
from watersmeet.plugins.specs import ModalitySpec, PipelineSpec, Target, resolve

SpecT = TypeVar("SpecT", ModalitySpec, PipelineSpec)


class _Shelf:
    """Plugins in load order, each loaded when it is first looked at."""

    def __init__(self, plugins: Iterable[PluginRecord | Found], choice: Choice) -> None:
        self.plugins = list(plugins)
        self.choice = choice
        self._lock = threading.RLock()
        self._busy = False

    def named(self, index: int) -> tuple[str, str]:
        """Normalised names of a plugin and of its package; nothing is imported to know them."""
        plugin = self.plugins[index]
        name = plugin.plugin if isinstance(plugin, PluginRecord) else plugin.entry_point.name
        return normalise(name), normalise(plugin.distribution)

    def record(self, index: int) -> PluginRecord:
        """What became of a plugin; loads it the first time. Raises PluginError while another one is loading."""
        with self._lock:
            plugin = self.plugins[index]
            if isinstance(plugin, Found):
                if self._busy:
                    raise PluginError(
                        "a plugin asked for another one while plugins are loading; ask inside a function instead"
                    )
                self._busy = True
                try:
                    plugin = load_plugin(plugin, self.choice)
                finally:
                    self._busy = False
                self.plugins[index] = plugin
            return plugin

    def records(self, fits: Callable[[str, str], bool] = lambda plugin, package: True) -> list[PluginRecord]:
        """The plugins whose names fit, loaded."""
        return [self.record(index) for index in range(len(self.plugins)) if fits(*self.named(index))]


class _Table(Generic[SpecT]):
    """Specs of one kind by name; a name may have several owners until somebody asks for it."""

    def __init__(self, kind: str, shelf: _Shelf, attribute: str) -> None:
        self.kind, self.shelf, self.attribute = kind, shelf, attribute

    def specs(self) -> tuple[SpecT, ...]:
        """All specs by name; of a name with several owners, each."""
        owned = self._owned(self.shelf.records())
        return tuple(spec for name in sorted(owned) for spec, _ in owned[name])

    def get(self, name: str) -> tuple[SpecT, PluginRecord]:
        """Spec and owner of a name, or of "plugin:name" / "package:name"."""
        qualifier, _, bare = str(name).rpartition(":")
        wanted = normalise(qualifier or bare)
        if qualifier:
            records = self.shelf.records(lambda plugin, package: wanted in (plugin, package))
            owners = self._owned(records).get(bare, [])
        else:
            owners = self._first(bare, wanted)
        if len(owners) == 1:
            return owners[0]
        if len(owners) > 1:
            raise PluginError(self._several(bare, [record for _, record in owners]))
        raise self._missing(name, wanted, bare)

    def _first(self, bare: str, wanted: str) -> list[tuple[SpecT, PluginRecord]]:
        own = self.shelf.records(lambda plugin, package: package == PROJECT)
        if owners := self._owned(own).get(bare):
            return owners
        namesakes = self.shelf.records(lambda plugin, package: plugin == wanted)
        if owners := self._owned(namesakes).get(bare):
            return owners
        # who asks for it wants to know why it is broken, not to get another package's thing of the same name
        if any(record.state == FAILED for record in namesakes):
            return []
        return self._owned(self.shelf.records()).get(bare, [])

    def _owned(self, records: Iterable[PluginRecord]) -> dict[str, list[tuple[SpecT, PluginRecord]]]:
        owned: dict[str, list[tuple[SpecT, PluginRecord]]] = {}
        for record in records:
            for spec in getattr(record, self.attribute):
                owners = owned.setdefault(spec.name, [])
                # the same plugin module named by two entry points is one registration, not a collision
                if spec not in [other for other, _ in owners]:
                    owners.append((spec, record))
        return owned

    def _several(self, bare: str, owners: list[PluginRecord]) -> str:
        names = " and ".join(record.owner for record in owners)
        packages = {record.distribution for record in owners}
        words = [record.plugin if len(packages) < len(owners) else record.distribution for record in owners]
        choices = " or ".join(repr(f"{word}:{bare}") for word in words)
        return f"{self.kind} {bare!r} is brought by {names}; ask for {choices}, or block one in {VARIABLE}"

    def _missing(self, name: str, wanted: str, bare: str) -> PluginError:
        named = [r for r in self.shelf.records(lambda plugin, package: wanted in (plugin, package))]
        for record in named:
            if record.state == FAILED:
                error = PluginError(f"{self.kind} {name!r}: plugin {record.owner} failed to load: {record.error}")
                error.__cause__ = record.cause
                return error
        for record in named:
            if record.state == BLOCKED:
                return PluginError(
                    f"{self.kind} {name!r}: plugin {record.owner} is blocked by the environment variable {VARIABLE}"
                )
        records = self.shelf.records()
        owned = self._owned(records)
        message = f"there is no {self.kind} {name!r}"
        if close := difflib.get_close_matches(bare, owned, n=1, cutoff=0.5):
            message += f"; did you mean {close[0]!r}?"
        else:
            message += f"; there are: {', '.join(sorted(owned)) or 'none'}"
        # a broken plugin may be the one that should have brought it
        if failed := [record.owner for record in records if record.state == FAILED]:
            message += f" (failed to load: {', '.join(failed)})"
        return PluginError(message)


class Names(Set[str]):
    """Names of all specs of one kind but one. Asking whether a name is among them loads only what may bring it."""

    def __init__(self, table: _Table[Any], without: str = "") -> None:
        self._table, self._without = table, without

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str) or ":" in name or name == self._without:
            return False
        try:
            self._table.get(name)
        except PluginError:
            # a name with several owners is still one that there is
            return name in self._all()
        return True

    def _all(self) -> list[str]:
        return list(dict.fromkeys(spec.name for spec in self._table.specs() if spec.name != self._without))

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __reduce__(self) -> tuple[Any, ...]:
        # a worker has a registry of its own
        return _names_here, (self._without,)


def _names_here(without: str) -> Names:
    return get_registry().modality_names(without=without)


class Registry:
    """Everything the plugins bring. `get_registry` gives the process's own.

    plugins: records of plugins, or found ones, which are loaded when something of theirs may be asked for. choice:
    which of those may load; without it, what the environment variable says.
    """

    def __init__(self, plugins: Iterable[PluginRecord | Found], choice: Choice | None = None) -> None:
        self._shelf = _Shelf(plugins, Choice.from_environment() if choice is None else choice)
        self._modalities: _Table[ModalitySpec] = _Table("modality", self._shelf, "modalities")
        self._pipelines: _Table[PipelineSpec] = _Table("pipeline", self._shelf, "pipelines")

    def records(self) -> tuple[PluginRecord, ...]:
        """What became of each plugin, in load order; also of those that failed or were blocked. Loads all."""
        return tuple(self._shelf.records())

    def raise_failures(self) -> None:
        """Strict mode: load all, and raise PluginError naming every plugin that failed."""
        failed = [record for record in self.records() if record.state == FAILED]
        if failed:
            lines = "; ".join(f"{record.owner}: {record.error}" for record in failed)
            raise PluginError(f"{len(failed)} plugin(s) failed to load: {lines}") from failed[0].cause

    def modalities(self) -> tuple[ModalitySpec, ...]:
        """Specs of all modalities, by name. Loads all plugins; `modality_names` need not."""
        return self._modalities.specs()

    def pipelines(self) -> tuple[PipelineSpec, ...]:
        """Specs of all pipelines, by name. Loads all plugins."""
        return self._pipelines.specs()

    def modality_names(self, *, without: str = "") -> Names:
        """Names of all modalities but one, for `in`. Pickled, it is that of the registry where it arrives."""
        return Names(self._modalities, without)

    def modality(self, name: str) -> ModalitySpec:
        """Spec of one modality. Raises PluginError: unknown (did you mean), failed, blocked, or several owners."""
        return self._modalities.get(name)[0]

    def pipeline(self, name: str) -> PipelineSpec:
        """Spec of one pipeline. Raises PluginError like `modality`."""
        return self._pipelines.get(name)[0]

    def modality_owner(self, name: str) -> PluginRecord:
        """Record of the plugin that brings a modality."""
        return self._modalities.get(name)[1]

    def pipeline_owner(self, name: str) -> PluginRecord:
        """Record of the plugin that brings a pipeline."""
        return self._pipelines.get(name)[1]

    def resolve_modality(self, name: str, part: str) -> Any:
        """Class of one part ("encoder", "embedder", "decoder", "head") of a modality, imported now.

        Raises PluginError when the modality has no such part or the import fails.
        """
        spec, record = self._modalities.get(name)
        target: Target | None = getattr(spec, part)
        if target is None:
            raise PluginError(f"modality {name!r} of {record.owner} has no {part}")
        return _resolved(target, f"modality {name!r} of {record.owner}: {part}")

    def resolve_pipeline(self, name: str) -> Any:
        """Class of a pipeline, imported now. Raises PluginError when the import fails."""
        spec, record = self._pipelines.get(name)
        return _resolved(spec.pipeline, f"pipeline {name!r} of {record.owner}")

    def encoder(
        self, name: str, settings: Mapping[str, Any] | None = None, files: Mapping[str, bytes] | None = None
    ) -> Any:
        """New encoder of a modality; `files` are those a checkpoint kept beside the settings."""
        return self.resolve_modality(name, "encoder")(_with_files(settings, files))

    def embedder(self, name: str, hidden_size: int, settings: Mapping[str, Any] | None = None) -> Any:
        """New embedder (torch.nn.Module) of a modality."""
        return self.resolve_modality(name, "embedder")(hidden_size, dict(settings or {}))

    def decoder(
        self, name: str, settings: Mapping[str, Any] | None = None, files: Mapping[str, bytes] | None = None
    ) -> Any:
        """New decoder of a modality; `files` are those a checkpoint kept beside the settings."""
        return self.resolve_modality(name, "decoder")(_with_files(settings, files))


def _with_files(settings: Mapping[str, Any] | None, files: Mapping[str, bytes] | None) -> dict[str, Any]:
    return dict(settings or {}) | ({"files": dict(files)} if files else {})


def _resolved(target: Target, what: str) -> Any:
    try:
        return resolve(target)
    except PluginError as error:
        raise PluginError(f"{what}: {error}") from error.__cause__


_lock = threading.RLock()
_registry: Registry | None = None


def get_registry() -> Registry:
    """The registry of this process, made on the first call; every process of a run calls it for itself."""
    global _registry
    with _lock:
        if _registry is None:
            _registry = Registry(find_plugins())
        return _registry


def reset_registry() -> None:
    """Forget the loaded plugins, so that the next `get_registry` looks again. For tests and long-lived shells."""
    global _registry
    with _lock:
        _registry = None

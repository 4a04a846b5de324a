"""Look-up by name over everything the plugins brought, with errors that name owners and near misses."""

from __future__ import annotations

import difflib
import threading
from collections.abc import Iterable, Mapping
from typing import Any, Generic, TypeVar

from watersmeet.core.errors import PluginError
from watersmeet.plugins.loader import BLOCKED, FAILED, VARIABLE, PluginRecord, load_plugins, normalise
from watersmeet.plugins.specs import ModalitySpec, PipelineSpec, Target, resolve

SpecT = TypeVar("SpecT", ModalitySpec, PipelineSpec)


class _Table(Generic[SpecT]):
    """Specs of one kind by name; a name may have several owners until somebody asks for it."""

    def __init__(self, kind: str, records: Iterable[PluginRecord], attribute: str) -> None:
        self.kind = kind
        self.records = tuple(records)
        self.owners: dict[str, list[tuple[SpecT, PluginRecord]]] = {}
        for record in self.records:
            for spec in getattr(record, attribute):
                owners = self.owners.setdefault(spec.name, [])
                # the same plugin module named by two entry points is one registration, not a collision
                if spec not in [other for other, _ in owners]:
                    owners.append((spec, record))

    def specs(self) -> tuple[SpecT, ...]:
        """All specs by name; of a name with several owners, each."""
        return tuple(spec for name in sorted(self.owners) for spec, _ in self.owners[name])

    def get(self, name: str) -> tuple[SpecT, PluginRecord]:
        """Spec and owner of a name, or of "plugin:name" / "package:name" where the bare name is taken twice."""
        qualifier, _, bare = name.rpartition(":")
        owners = self.owners.get(bare, [])
        if qualifier:
            wanted = normalise(qualifier)
            owners = [
                (spec, record)
                for spec, record in owners
                if wanted in (normalise(record.plugin), normalise(record.distribution))
            ]
        if len(owners) == 1:
            return owners[0]
        if len(owners) > 1:
            names = " and ".join(record.owner for _, record in owners)
            choices = " or ".join(repr(f"{record.distribution}:{bare}") for _, record in owners)
            if len({record.distribution for _, record in owners}) < len(owners):
                choices = " or ".join(repr(f"{record.plugin}:{bare}") for _, record in owners)
            raise PluginError(
                f"{self.kind} {bare!r} is brought by {names}; ask for {choices}, or block one in {VARIABLE}"
            )
        raise PluginError(self._missing(name, qualifier or bare, bare)) from self._cause(qualifier or bare)

    def _named(self, word: str, state: str) -> PluginRecord | None:
        wanted = normalise(word)
        for record in self.records:
            if record.state == state and wanted in (normalise(record.plugin), normalise(record.distribution)):
                return record
        return None

    def _cause(self, word: str) -> BaseException | None:
        record = self._named(word, FAILED)
        return record.cause if record else None

    def _missing(self, name: str, word: str, bare: str) -> str:
        if record := self._named(word, FAILED):
            return f"{self.kind} {name!r}: plugin {record.owner} failed to load: {record.error}"
        if record := self._named(word, BLOCKED):
            return f"{self.kind} {name!r}: plugin {record.owner} is blocked by the environment variable {VARIABLE}"
        message = f"there is no {self.kind} {name!r}"
        if close := difflib.get_close_matches(bare, self.owners, n=1, cutoff=0.5):
            message += f"; did you mean {close[0]!r}?"
        else:
            message += f"; there are: {', '.join(sorted(self.owners)) or 'none'}"
        # a broken plugin may be the one that should have brought it
        if failed := [record.owner for record in self.records if record.state == FAILED]:
            message += f" (failed to load: {', '.join(failed)})"
        return message


class Registry:
    """Everything the plugins brought. Build one from records for tests; `get_registry` gives the process's own."""

    def __init__(self, records: Iterable[PluginRecord]) -> None:
        self._records = tuple(records)
        self._modalities: _Table[ModalitySpec] = _Table("modality", self._records, "modalities")
        self._pipelines: _Table[PipelineSpec] = _Table("pipeline", self._records, "pipelines")

    def records(self) -> tuple[PluginRecord, ...]:
        """What became of each plugin, in load order; also of those that failed or were blocked."""
        return self._records

    def raise_failures(self) -> None:
        """Strict mode: raise PluginError naming every plugin that failed to load."""
        failed = [record for record in self._records if record.state == FAILED]
        if failed:
            lines = "; ".join(f"{record.owner}: {record.error}" for record in failed)
            raise PluginError(f"{len(failed)} plugin(s) failed to load: {lines}") from failed[0].cause

    def modalities(self) -> tuple[ModalitySpec, ...]:
        """Specs of all modalities, by name."""
        return self._modalities.specs()

    def pipelines(self) -> tuple[PipelineSpec, ...]:
        """Specs of all pipelines, by name."""
        return self._pipelines.specs()

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
_loading = False


def get_registry() -> Registry:
    """The registry of this process, loaded on the first call; every process of a run calls it for itself.

    Raises PluginError when a plugin asks for it while it is being imported, which could only see a part of it.
    """
    global _registry, _loading
    with _lock:
        if _registry is None:
            if _loading:
                raise PluginError(
                    "a plugin asked for the registry while plugins are loading; ask inside a function instead"
                )
            _loading = True
            try:
                _registry = Registry(load_plugins())
            finally:
                _loading = False
        return _registry


def reset_registry() -> None:
    """Forget the loaded plugins, so that the next `get_registry` looks again. For tests and long-lived shells."""
    global _registry
    with _lock:
        _registry = None

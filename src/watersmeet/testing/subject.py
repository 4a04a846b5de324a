"""A modality under examination: its parts, its examples and what was encoded of them, each made once."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

from watersmeet.core.errors import DecodeError, PluginError, WatersmeetError
from watersmeet.plugins.guard import describe
from watersmeet.plugins.loader import FAILED, normalise
from watersmeet.plugins.registry import Registry, get_registry
from watersmeet.plugins.survey import LIMIT_S, Seen, survey
from watersmeet.testing.checks import CheckFailure
from watersmeet.testing.samples import Samples, known_types, samples_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from watersmeet.core.stream import Span
    from watersmeet.plugins.specs import ModalitySpec
    from watersmeet.testing.worker import Print


def equal(left: Any, right: Any) -> bool:
    """Whether an item and what was decoded of its tokens are the same."""
    return bool(left == right)


@dataclass(frozen=True, kw_only=True)
class Example:
    """An item and its spans."""

    item: Any
    spans: tuple[Span, ...]

    @property
    def n(self) -> int:
        """Tokens of all its spans."""
        return sum(span.n for span in self.spans)


@dataclass(kw_only=True)
class Subject:
    """What is examined, and with what.

    modality   its name
    settings   of the encoder; files: what belongs to them, as a checkpoint keeps it
    items      at least two different examples; without them, made-up ones of the spec's media types
    extremes   odd items: tiny, silent, huge. They may be refused with DecodeError
    largest    items of which one gives exactly `max_tokens` tokens; without them, those of `Encoder.largest()`
    damaged    items that must be refused with DecodeError
    variants   settings that give other tokens; without them, some are tried
    markers    strings by which the plugin marks its media, where it has such
    same       compares an item with what was decoded of its tokens
    limit_s    seconds that importing the plugin may take
    pool       where spawned workers run; without it, a process of its own
    """

    modality: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    items: Sequence[Any] | None = None
    extremes: Sequence[Any] = ()
    largest: Sequence[Any] | None = None
    damaged: Sequence[Any] = ()
    variants: Sequence[Mapping[str, Any]] = ()
    markers: Sequence[str] = ()
    same: Callable[[Any, Any], bool] = equal
    limit_s: float = LIMIT_S
    hidden_size: int = 48
    pool: Executor | None = None

    @cached_property
    def registry(self) -> Registry:
        """The registry of this process."""
        return get_registry()

    @cached_property
    def seen(self) -> Seen:
        """The plugin as a child process saw it, which the import cannot harm."""
        named = survey(only=self.modality.rpartition(":")[0] or self.modality, limit_s=self.limit_s)
        bare = self.modality.rpartition(":")[2]
        for one in named:
            if any(item.kind == "modality" and item.name == bare for item in one.brings):
                return one
        for one in named:
            if one.state == FAILED:
                return one
        owner = self.registry.modality_owner(self.modality)
        [one, *_] = [
            one
            for one in survey(only=owner.plugin, limit_s=self.limit_s)
            if normalise(one.distribution) == normalise(owner.distribution)
        ]
        return one

    @cached_property
    def spec(self) -> ModalitySpec:
        """The spec. Raises PluginError when the plugin cannot be loaded."""
        if self.seen.state == FAILED:
            raise PluginError(f"plugin {self.seen.plugin} failed to load: {self.seen.error}")
        return self.registry.modality(self.modality)

    def new_encoder(self, settings: Mapping[str, Any] | None = None) -> Any:
        """A fresh encoder, by default with the settings under examination."""
        if settings is not None:
            return self.registry.encoder(self.modality, settings, files=self.files)
        try:
            return self.registry.encoder(self.modality, self.settings, files=self.files)
        except WatersmeetError:
            raise
        except Exception as error:  # the plugin's own code
            raise CheckFailure(
                f"Encoder(settings) with settings {dict(self.settings)} raised {describe(error)}"
            ) from error

    @cached_property
    def encoder(self) -> Any:
        """One encoder for all that does not need a fresh one."""
        return self.new_encoder()

    @cached_property
    def embedder_class(self) -> Any:
        """The class of the embedder."""
        return self.registry.resolve_modality(self.modality, "embedder")

    def new_embedder(self, hidden_size: int | None = None) -> Any:
        """A fresh embedder, always with the same weights."""
        import torch

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.embedder_class(hidden_size or self.hidden_size, dict(self.encoder.settings))

    @cached_property
    def samples(self) -> list[Samples]:
        """Made-up media of the types that the spec names."""
        return samples_of(self.spec.media_types)

    @cached_property
    def examples(self) -> list[Example]:
        """Encoded examples, at least two. Raises CheckFailure where there are none, else what the encoder raises."""
        given = self.items
        if given is None:
            make = getattr(self.encoder, "examples", None)
            given = list(make()) if callable(make) else None
        if given is not None:
            found = [self._example(item) for item in given]
        else:
            found = [one for item in _ordinary(self.samples) if (one := self._accepted(item)) is not None]
        if len(found) < 2:
            known = ", ".join(known_types())
            raise CheckFailure(
                f"{len(found)} examples to encode, expected at least two different ones; give items(), a method "
                f"examples() of the encoder, --item FILE twice, or a media type that examples can be made of ({known})"
            )
        return found

    def _example(self, item: Any) -> Example:
        if lacking := [name for name in ("settings", "files", "encode") if not hasattr(self.encoder, name)]:
            raise CheckFailure(f"the encoder has no {lacking[0]}, expected the attributes settings, files and encode")
        found = self.encoder.encode(item)
        if not isinstance(found, list) or any(type(span).__name__ != "Span" for span in found):
            what = type(found).__name__ if not isinstance(found, list) else f"list with a {_odd_one(found)}"
            raise CheckFailure(f"encode gave a {what}, expected a list of Span")
        return Example(item=item, spans=tuple(found))

    def _accepted(self, item: Any) -> Example | None:
        """A made-up item may be none of those that this encoder reads."""
        try:
            return self._example(item)
        except DecodeError:
            return None

    @cached_property
    def odd_items(self) -> list[Any]:
        """Given and made-up extremes."""
        return [*self.extremes, *(item for one in self.samples for item in one.extreme)]

    @cached_property
    def prints(self) -> list[list[Print]]:
        """Digests and keys of the examples, as the first encoder gave them."""
        from watersmeet.testing.worker import prints

        return [prints(one.spans) for one in self.examples]

    @cached_property
    def there(self) -> tuple[str, list[list[Print]]]:
        """Package and prints as a spawned process has them, with another hash seed than this one."""
        from watersmeet.testing.worker import encode_there

        items = [one.item for one in self.examples]
        with _workers(self.pool) as pool:
            return pool.submit(encode_there, self.modality, self.encoder, items).result(timeout=600)


def _odd_one(found: list[Any]) -> str:
    return next(type(span).__name__ for span in found if type(span).__name__ != "Span")


def _ordinary(samples: Sequence[Samples]) -> list[Any]:
    return [item for one in samples for item in one.ordinary]


@contextmanager
def _workers(pool: Executor | None) -> Iterator[Executor]:
    if pool is not None:
        yield pool
        return
    with spawning() as own:
        yield own


@contextmanager
def spawning() -> Iterator[Executor]:
    """One spawned worker whose strings hash otherwise than here."""
    kept = os.environ.get("PYTHONHASHSEED")
    os.environ["PYTHONHASHSEED"] = "20011" if kept != "20011" else "20012"
    try:
        with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
            pool.submit(int).result()  # the process begins here, with the seed of the moment
            yield pool
    finally:
        if kept is None:
            del os.environ["PYTHONHASHSEED"]
        else:
            os.environ["PYTHONHASHSEED"] = kept

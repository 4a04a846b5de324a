"""Checks 1 to 3: the plugin's module, its contract, and its encoder in another process."""

from __future__ import annotations

from concurrent.futures.process import BrokenProcessPool
from typing import Protocol

from watersmeet.core.errors import PluginError
from watersmeet.plugins.guard import describe
from watersmeet.plugins.loader import BLOCKED, FAILED, VARIABLE
from watersmeet.plugins.survey import Seen
from watersmeet.testing.checks import CheckFailure, NotApplicable, NotLoaded
from watersmeet.testing.subject import Subject


class Loadable(Protocol):
    """What the first checks look at: the plugin as a child process saw it."""

    @property
    def seen(self) -> Seen: ...


def loads_light(subject: Loadable) -> None:
    """1: the module can be looked at without cost and without effect."""
    try:
        seen = subject.seen
    except PluginError as error:
        raise CheckFailure(str(error)) from error
    if seen.state == BLOCKED:
        raise CheckFailure(f"plugin {seen.plugin} is blocked by the environment variable {VARIABLE}")
    if seen.state == FAILED:
        if seen.class_ == "ContractError":
            raise NotApplicable("not loaded, see check 2 (contract)")
        raise CheckFailure(f"plugin {seen.plugin} ({seen.target}) failed to load: {seen.error}")
    if seen.heavy:
        raise CheckFailure(f"importing {seen.target} imports {', '.join(seen.heavy)}")
    if seen.printed:
        raise CheckFailure(f"importing {seen.target} prints {seen.printed[:60]!r}")


def contract_is_known(subject: Loadable) -> None:
    """2: the plugin is written for a contract that this host keeps."""
    seen = _seen_or_none(subject)
    if seen is not None and seen.state == FAILED and seen.class_ == "ContractError":
        raise CheckFailure(seen.error)
    if seen is None or seen.state == FAILED:
        raise NotApplicable("not loaded, see check 1 (light)")


def spec_is_there(subject: Loadable) -> None:
    """Without a spec there is nothing to check; 1 and 2 have said why."""
    seen = _seen_or_none(subject)
    if seen is None or seen.state != "loaded":
        raise NotLoaded("the plugin is not loaded, see checks 1 and 2")


def _seen_or_none(subject: Loadable) -> Seen | None:
    """None where no plugin brings what is examined, which check 1 says."""
    try:
        return subject.seen
    except PluginError:
        return None


def works_in_workers(subject: Subject) -> None:
    """3: a spawned process has the same plugin, and its encoder gives the same columns there."""
    spec_is_there(subject)
    here = [[columns for columns, _ in one] for one in subject.prints]
    try:
        owner, there = subject.there
    except BrokenProcessPool as error:
        raise CheckFailure("the worker process ended while it encoded") from error
    except Exception as error:  # pickling and unpickling run the plugin's code
        raise CheckFailure(
            f"the encoder cannot be sent to a spawned process and used there: {describe(error)}"
        ) from error
    own = subject.registry.modality_owner(subject.modality).distribution
    if owner != own:
        raise CheckFailure(f"modality {subject.modality!r} comes from {own} here and from {owner} in a worker")
    for index, one in enumerate(there):
        if [columns for columns, _ in one] != here[index]:
            raise CheckFailure(f"item {index} gives other columns in a spawned process than here")

"""Whether a checkpoint belongs to this run: the list of what differs.

Training goes on to the bit only under the recipe it was begun with. What may change is what changes no number: where the run
lives, how often it logs and saves, the held-out data, and the number of steps, which extends a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from watersmeet.core.errors import ConfigError
from watersmeet.core.training.config import config_from_dict

_MAY_CHANGE = ("config.val_options", "config.schedule.steps", "config.batch.prefetch", "config.batch.max_bad_fraction")
_MAY_NOT_CHANGE_IN_RUN = ("config.run.precision",)


def _flat(prefix: str, given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        return {prefix: list(given) if isinstance(given, tuple) else given}
    return {k: v for name, item in given.items() for k, v in _flat(f"{prefix}.{name}", item).items()}


def _matters(name: str) -> bool:
    if name.startswith(("config.run.", "config.model.")):
        # the model's own configuration is compared instead of how it was asked for
        return name in _MAY_NOT_CHANGE_IN_RUN
    return not any(name == entry or name.startswith(entry + ".") for entry in _MAY_CHANGE)


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Sentences "name was x, is y", sorted; `then` and `now` hold "config", "model" and "samples".

    Settings that a checkpoint is too old to know had their default value then.
    """
    then = dict(then)
    with suppress(ConfigError):  # a setting that no longer exists shows up as a difference below
        then["config"] = config_from_dict(dict(then["config"])).to_dict()
    flat = []
    for side in (then, now):
        values = _flat("config", side["config"]) | _flat("model", side["model"])
        values["number of training samples"] = side["samples"]
        flat.append(values)
    before, after = flat
    return [
        f"{name} was {before.get(name)!r}, is {after.get(name)!r}"
        for name in sorted(set(before) | set(after))
        if _matters(name) and before.get(name) != after.get(name)
    ]

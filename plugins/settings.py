"""Settings of a plugin: a frozen dataclass says which there are, and a wrong one is an error that says what was meant."""

from __future__ import annotations

import difflib
import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from watersmeet.core.errors import ConfigError, WatersmeetError

FILES = "files"
"""The key under which a checkpoint hands an encoder its files; it is no setting."""

SettingsT = TypeVar("SettingsT")


def read_settings(
    kind: type[SettingsT],
    values: Mapping[str, Any] | None,
    owner: str,
    *,
    error: type[WatersmeetError] = ConfigError,
) -> SettingsT:
    """The dataclass `kind` from plain values, defaults filled in and the key "files" left out.

    owner: whose settings they are, for messages. A whole number does for a float and a list for a tuple; a bool is no
    number. `field(default=8, metadata={"least": 1, "most": 64})` bounds a number; any other rule is the affair of
    `kind.__post_init__`, which may raise ValueError with the rest of the sentence. Raises `error` naming the setting, what was found
    and what was expected; for an unknown name, the nearest one that there is.
    """
    known = {item.name: item for item in fields(kind)}  # type: ignore[arg-type]  # a dataclass, said the caller
    hints = get_type_hints(kind)
    given: dict[str, Any] = {}
    for name, value in (values or {}).items():
        if name == FILES:
            continue
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(known) or 'none'}"
            raise error(f"{owner} has no setting {name!r}; {hint}")
        fitted = _fit(value, hints[name])
        if fitted is MISSING:
            raise error(f"{owner}: setting {name} is {value!r}, expected {_words(hints[name])}")
        least, most = (known[name].metadata.get(bound) for bound in ("least", "most"))
        if fitted is not None and ((least is not None and fitted < least) or (most is not None and fitted > most)):
            bounds = [f"at {word} {bound}" for word, bound in (("least", least), ("most", most)) if bound is not None]
            raise error(f"{owner}: setting {name} is {value!r}, expected {' and '.join(bounds)}")
        given[name] = fitted
    missing = [
        name
        for name, item in known.items()
        if name not in given and item.init and item.default is MISSING and item.default_factory is MISSING
    ]
    if missing:
        raise error(f"{owner}: setting {missing[0]} is missing, expected {_words(hints[missing[0]])}")
    try:
        return kind(**given)
    except ValueError as reason:
        if isinstance(reason, WatersmeetError):
            raise
        raise error(f"{owner}: {reason}") from reason


def _fit(value: Any, hint: Any) -> Any:
    """The value as the type has it, or MISSING where it does not fit."""
    origin = get_origin(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        return next((fit for arm in get_args(hint) if (fit := _fit(value, arm)) is not MISSING), MISSING)
    if hint is type(None):
        return None if value is None else MISSING
    if hint is float:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return float(value) if number and math.isfinite(value) else MISSING
    if hint is int:
        return value if isinstance(value, int) and not isinstance(value, bool) else MISSING
    if origin is tuple:
        return _fit_tuple(value, get_args(hint))
    plain = origin or hint
    # a class that is not plain data could not have come from JSON; the dataclass may take it as it is
    return value if not isinstance(plain, type) or isinstance(value, plain) else MISSING


def _fit_tuple(value: Any, arms: tuple[Any, ...]) -> Any:
    if not isinstance(value, (list, tuple)):
        return MISSING
    if len(arms) == 2 and arms[1] is Ellipsis:
        arms = (arms[0],) * len(value)
    if arms and len(arms) != len(value):
        return MISSING
    fitted = tuple(_fit(item, arm) for item, arm in zip(value, arms or (Any,) * len(value), strict=True))
    return MISSING if MISSING in fitted else fitted


def _words(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", type(None): "null"}
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(_words(arm) for arm in get_args(hint))
    if get_origin(hint) is tuple:
        arms = get_args(hint)
        many = len(arms) == 2 and arms[1] is Ellipsis
        return f"a list of {'' if many else f'{len(arms)} times '}{_words(arms[0])}" if arms else "a list"
    return names.get(hint, getattr(hint, "__name__", str(hint)))

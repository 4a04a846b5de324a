"""What a run of screenshot-to-code can be told with `--set`."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, Self

from watersmeet.core.errors import UsageError

TARGETS = ("html", "tailwind", "react")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Defaults that run.

    target       "html", "tailwind" or "react"
    title        the page's title; by default the name of the picture's file
    max_tokens   how many markup symbols the model may write for one window of the picture
    temperature  0 takes the most likely symbol each time
    seed         of sampling, when temperature is above 0
    alternatives also try what plain geometry makes of the model's tree, and keep what renders closest
    """

    target: str = "html"
    title: str = ""
    max_tokens: int = 900
    temperature: float = 0.0
    seed: int = 0
    alternatives: bool = True

    def __post_init__(self) -> None:
        if self.target not in TARGETS:
            raise UsageError(f"target is {self.target!r}; choose one of {', '.join(TARGETS)}")
        if not 16 <= self.max_tokens <= 8192:
            raise UsageError(f"max_tokens is {self.max_tokens}; expected 16 to 8192")
        if not 0.0 <= self.temperature <= 2.0:
            raise UsageError(f"temperature is {self.temperature}; expected 0 to 2")

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """Settings from names and strings (as typed after `--set`) or values. Raises UsageError naming what is wrong."""
        known = {f.name: type(f.default) for f in fields(cls)}
        parsed: dict[str, Any] = {}
        for name, value in values.items():
            if name not in known:
                close = get_close_matches(name, known, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"
                raise UsageError(f"there is no setting {name!r}; {hint}")
            parsed[name] = _value(name, value, known[name])
        return cls(**parsed)


def _value(name: str, value: Any, kind: type) -> Any:
    if kind is bool and isinstance(value, str):
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if value.lower() not in words:
            raise UsageError(f"setting {name} is {value!r}; expected true or false")
        return words[value.lower()]
    try:
        return kind(value)
    except (TypeError, ValueError) as error:
        raise UsageError(f"setting {name} is {value!r}; expected {kind.__name__}") from error

"""What a check is, and how a list of them is worked through. What is checked stands in the modules beside this one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from watersmeet.core.errors import WatersmeetError
from watersmeet.plugins.guard import describe

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"

SubjectT = TypeVar("SubjectT")


class CheckFailure(WatersmeetError):
    """The plugin breaks a rule of the contract; the message says what was found."""


class NotApplicable(Exception):
    """The rule says nothing about this plugin; the message says why."""


class NotLoaded(NotApplicable):
    """There is nothing to hold the rule against."""


@dataclass(frozen=True, kw_only=True)
class Check(Generic[SubjectT]):
    """One rule.

    number   place in the list, from 1
    name     a word, part of the test's name
    rule     what is demanded, one sentence
    reason   what goes wrong for users where it is broken
    fix      what to change
    needs    numbers of checks without which this one would only repeat their failure
    run      raises CheckFailure, or NotApplicable
    """

    number: int
    name: str
    rule: str
    reason: str
    fix: str
    needs: tuple[int, ...] = ()
    run: Callable[[SubjectT], None]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a check came to. detail: what was found, or why it was skipped. cause: what was raised. blocked: it was skipped
    because one that it needs failed."""

    check: Check[Any]
    state: str
    detail: str = ""
    cause: BaseException | None = None
    blocked: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for --json."""
        return {
            "number": self.check.number,
            "name": self.check.name,
            "rule": self.check.rule,
            "reason": self.check.reason,
            "fix": self.check.fix,
            "state": self.state,
            "detail": self.detail,
        }

    def sentence(self) -> str:
        """A failure in words: found, why it matters, what to change."""
        return f"{self.detail}. Why it matters: {self.check.reason} What to change: {self.check.fix}"


class Examination(Generic[SubjectT]):
    """A list of checks and what they are held against; each runs once, after those it needs."""

    def __init__(self, checks: Iterable[Check[SubjectT]], subject: SubjectT) -> None:
        self.checks = {check.number: check for check in checks}
        self.subject = subject
        self._outcomes: dict[int, Outcome] = {}

    def outcome(self, number: int) -> Outcome:
        """What one check came to."""
        if number not in self._outcomes:
            self._outcomes[number] = self._run(self.checks[number])
        return self._outcomes[number]

    def outcomes(self) -> list[Outcome]:
        """All of them, by number."""
        return [self.outcome(number) for number in sorted(self.checks)]

    def _run(self, check: Check[SubjectT]) -> Outcome:
        broken = [number for number in check.needs if self._stands_in_the_way(number)]
        if broken:
            detail = f"waits for check {broken[0]} ({self.checks[broken[0]].name})"
            return Outcome(check=check, state=SKIPPED, detail=detail, blocked=True)
        try:
            check.run(self.subject)
        except NotApplicable as reason:
            return Outcome(check=check, state=SKIPPED, detail=str(reason), blocked=isinstance(reason, NotLoaded))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a plugin may raise anything, and the other checks shall still run
            text = str(error) if isinstance(error, CheckFailure) else describe(error)
            return Outcome(check=check, state=FAILED, detail=text, cause=error)
        return Outcome(check=check, state=PASSED)

    def _stands_in_the_way(self, number: int) -> bool:
        outcome = self.outcome(number)
        return outcome.state == FAILED or outcome.blocked


def failed(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Those that failed."""
    return [outcome for outcome in outcomes if outcome.state == FAILED]

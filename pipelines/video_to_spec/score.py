"""How near a specification comes to what is known of a recording.

A found step stands for a true one if both are of one action and start within a second of each other; each step stands
for one at most, and the assignment is optimal: as many pairs as there can be, and of those the nearest in time. Texts
are the same if they are after Unicode normalisation (NFKC) and with runs of white space as one space.
"""

import unicodedata
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self

import numpy as np

from watersmeet.pipelines.video_to_spec.spec import Evidence, Spec, Step
from watersmeet.pipelines.video_to_spec.truth import Truth

NEAR_S = 1.0
CITED_S = 1e-3  # a cited time is a frame's time to the millisecond


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What was counted over one recording or the sum over several; `late_s` is the sum of start-time errors in seconds."""

    recordings: int = 0
    true_steps: int = 0
    found_steps: int = 0
    matched: int = 0
    whole: int = 0
    near: int = 0  # matched by time alone
    near_action: int = 0  # of those with the right action
    target: int = 0
    typed: int = 0  # matched steps of action `type`
    typed_right: int = 0
    late_s: float = 0.0
    screens_exact: int = 0
    dropdowns: int = 0
    dropdowns_found: int = 0
    claims: int = 0
    unproven: int = 0

    def __add__(self, other: Self) -> Self:
        return type(self)(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Shares from 0 to 1 (None where nothing could be counted); `start_error_s` in seconds, `unproven` a count.

    step_f1: of steps with the right action and time. whole: F1 of steps whose action, time, target and text are right
    together. unproven: steps, features, patterns and screens that cite a time or frame which the recording does not have.
    action: of steps matched by time alone. target, typed: of matched steps, and of matched `type` steps.
    """

    step_f1: float | None
    whole: float | None
    action: float | None
    target: float | None
    typed: float | None
    start_error_s: float | None
    screens_exact: float | None
    dropdowns: float | None
    unproven: int


def scores_of(counts: Counts) -> Scores:
    """Shares from counts; those over several recordings weigh every step alike."""
    c = counts
    return Scores(
        step_f1=_share(2 * c.matched, c.true_steps + c.found_steps),
        whole=_share(2 * c.whole, c.true_steps + c.found_steps),
        action=_share(c.near_action, c.near),
        target=_share(c.target, c.matched),
        typed=_share(c.typed_right, c.typed),
        start_error_s=_share(c.late_s, c.matched),
        screens_exact=_share(c.screens_exact, c.recordings),
        dropdowns=_share(c.dropdowns_found, c.dropdowns),
        unproven=c.unproven,
    )


def count(found: Spec, truth: Truth) -> Counts:
    """Compare `found` with what is known of its recording."""
    true = truth.spec.steps
    pairs = match_steps(found.steps, true)
    near = match_steps(found.steps, true, any_action=True)
    typed = [(a, b) for a, b in pairs if b.action == "type"]
    proofs = [proof for _, proof in found.proofs()]
    dropdowns = truth.of_kind("dropdown")
    claimed = [e.t_s for claim in found.patterns if same_text(claim.name, "dropdown") for e in claim.evidence]
    return Counts(
        recordings=1,
        true_steps=len(true),
        found_steps=len(found.steps),
        matched=len(pairs),
        whole=sum(same_text(a.target, b.target) and same_text(a.text, b.text) for a, b in pairs),
        near=len(near),
        near_action=sum(a.action == b.action for a, b in near),
        target=sum(same_text(a.target, b.target) for a, b in pairs),
        typed=len(typed),
        typed_right=sum(same_text(a.text, b.text) for a, b in typed),
        late_s=sum(abs(a.start_s - b.start_s) for a, b in pairs),
        screens_exact=int(len(found.screens) == len(truth.spec.screens)),
        dropdowns=len(dropdowns),
        dropdowns_found=sum(any(one.start_s <= t < one.end_s for t in claimed) for one in dropdowns),
        claims=len(proofs) + len(found.screens),
        unproven=sum(not all(is_shown(e, truth.times_us) for e in proof) for proof in proofs)
        + sum(not _is_time(screen.first_seen_s, truth.times_us) for screen in found.screens),
    )


def is_shown(evidence: Evidence, times_us: Sequence[int]) -> bool:
    """Whether the recording has the cited frame at the cited time."""
    return evidence.frame < len(times_us) and abs(times_us[evidence.frame] / 1e6 - evidence.t_s) <= CITED_S


def _is_time(time_s: float, times_us: Sequence[int]) -> bool:
    near = bisect_left(times_us, time_s * 1e6 - CITED_S * 1e6)
    return near < len(times_us) and abs(times_us[near] / 1e6 - time_s) <= CITED_S


def same_text(a: str | None, b: str | None) -> bool:
    """Whether two texts are the same; None is only the same as None."""
    return _normal(a) == _normal(b)


def match_steps(found: Sequence[Step], true: Sequence[Step], *, any_action: bool = False) -> list[tuple[Step, Step]]:
    """(found, true) one to one, in order of the found ones; with `any_action` by time alone, the right action first of equals."""
    if not found or not true:
        return []
    # half a second of every start otherwise, also where nothing is scored
    from scipy.optimize import linear_sum_assignment

    late = np.abs(np.array([[a.start_s - b.start_s for b in true] for a in found], dtype=np.float64))
    other = np.array([[a.action != b.action for b in true] for a in found])
    # decimals of a millionth, as times are written: 1.0 s is near whatever the floats say
    fits = np.round(late, 6) <= NEAR_S
    if any_action:
        late = late + 1e-4 * other
    else:
        fits &= ~other
    # one pair more outweighs every sum of distances
    gain = np.where(fits, 4.0 * (min(late.shape) + 1) - late, 0.0)
    rows, columns = linear_sum_assignment(gain, maximize=True)
    return [(found[i], true[j]) for i, j in zip(rows.tolist(), columns.tolist(), strict=True) if fits[i, j]]


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _normal(text: str | None) -> str | None:
    return None if text is None else " ".join(unicodedata.normalize("NFKC", text).split())

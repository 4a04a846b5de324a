"""Which line of the result stands for which line of the reference.

The matching of Design2Code with its constants: the cost of a pair is minus its `SequenceMatcher` ratio on lower-cased
text, pairs whose neighbours fit too get a bonus, the assignment is optimal, neighbouring lines are joined when that
makes the match better by more than 0.05, and pairs below a ratio of 0.5 are no match. Lines come from the DOM and not
from recoloured pixels, and of equal texts the nearer one is taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np
from scipy.optimize import linear_sum_assignment

from watersmeet.pipelines.score.facts import ScoredLine

LEAST_RATIO = 0.5
NEIGHBOUR_BONUS = 0.1
JOIN_GAIN = 0.05
_NEARNESS = 1e-3  # only decides between equal texts


@dataclass(frozen=True, kw_only=True)
class Group:
    """One line, or neighbouring lines joined to be compared as one: indices into the side's lines."""

    members: tuple[int, ...]
    line: ScoredLine


@dataclass(frozen=True, kw_only=True)
class Matching:
    """Pairs of groups with their text ratios, and the groups of either side that found no partner."""

    pairs: tuple[tuple[Group, Group, float], ...]
    lost: tuple[Group, ...]
    extra: tuple[Group, ...]


def match_lines(reference: Sequence[ScoredLine], result: Sequence[ScoredLine], diagonal: float) -> Matching:
    """Match all lines; `diagonal` of the page in px makes distances comparable."""
    left = [Group(members=(i,), line=line) for i, line in enumerate(reference)]
    right = [Group(members=(i,), line=line) for i, line in enumerate(result)]
    cache: dict[tuple[str, str], float] = {}
    for _ in range(4):  # lines broken into more than a few pieces stay unmatched, as they should
        ratios = _ratios(left, right, cache)
        rows, columns = _assign(left, right, ratios, diagonal)
        joined_left = _join(left, right, rows, columns, ratios, cache)
        if joined_left is not None:
            left = joined_left
            continue
        joined_right = _join(right, left, columns, rows, ratios.T, cache)
        if joined_right is None:
            break
        right = joined_right
    ratios = _ratios(left, right, cache)
    rows, columns = _assign(left, right, ratios, diagonal)
    good = [(int(i), int(j)) for i, j in zip(rows, columns, strict=True) if ratios[i, j] >= LEAST_RATIO]
    taken_left, taken_right = {i for i, _ in good}, {j for _, j in good}
    return Matching(
        pairs=tuple((left[i], right[j], float(ratios[i, j])) for i, j in good),
        lost=tuple(g for i, g in enumerate(left) if i not in taken_left),
        extra=tuple(g for j, g in enumerate(right) if j not in taken_right),
    )


def _ratio(a: str, b: str, cache: dict[tuple[str, str], float]) -> float:
    """The ratio of two lower-cased texts; 0 where cheap bounds show that it is below the least that counts."""
    if a == b:
        return 1.0
    found = cache.get((a, b))
    if found is None:
        matcher = SequenceMatcher(None, a, b)
        low = matcher.real_quick_ratio() < LEAST_RATIO or matcher.quick_ratio() < LEAST_RATIO
        found = 0.0 if low else matcher.ratio()
        cache[a, b] = found
    return found


def _text(line: ScoredLine) -> str:
    return " ".join(line.text.lower().split())


def _ratios(left: list[Group], right: list[Group], cache: dict[tuple[str, str], float]) -> np.ndarray:
    a, b = [_text(g.line) for g in left], [_text(g.line) for g in right]
    return np.array([[_ratio(x, y, cache) for y in b] for x in a], dtype=np.float64).reshape(len(a), len(b))


def _assign(
    left: list[Group], right: list[Group], ratios: np.ndarray, diagonal: float
) -> tuple[np.ndarray, np.ndarray]:
    if not left or not right:
        return np.zeros(0, dtype=int), np.zeros(0, dtype=int)
    centers = [np.array([g.line.box.center for g in side]) for side in (left, right)]
    distance = np.linalg.norm(centers[0][:, None] - centers[1][None], axis=2) / max(diagonal, 1.0)
    cost = -ratios
    # the two best pairs around a pair, as in reading on from it
    padded = np.pad(cost, 1)
    around = [
        padded[1 + di : padded.shape[0] - 1 + di, 1 + dj : padded.shape[1] - 1 + dj]
        for di in (-1, 0, 1)
        for dj in (-1, 0, 1)
        if (di, dj) != (0, 0)
    ]
    bonus = NEIGHBOUR_BONUS * np.sort(np.stack(around), axis=0)[:2].sum(axis=0)
    return linear_sum_assignment(cost + np.where(cost < -LEAST_RATIO, bonus, 0.0) + _NEARNESS * distance)


def _join(
    side: list[Group],
    other: list[Group],
    rows: np.ndarray,
    columns: np.ndarray,
    ratios: np.ndarray,
    cache: dict[tuple[str, str], float],
) -> list[Group] | None:
    """`side` with neighbours joined where that helps, or None if nothing helps."""
    partner = dict(zip(rows.tolist(), columns.tolist(), strict=True))
    gains: list[tuple[float, int]] = []
    for i in range(len(side) - 1):
        candidates = [partner[k] for k in (i, i + 1) if k in partner]
        good = [ratios[k, partner[k]] for k in (i, i + 1) if k in partner and ratios[k, partner[k]] >= LEAST_RATIO]
        # a line without a partner does not count as a bad match: joining it to a good one would hide that it is lost
        now = sum(good) / len(good) if good else LEAST_RATIO
        if not candidates or now > 1.0 - JOIN_GAIN:
            continue
        text = f"{_text(side[i].line)} {_text(side[i + 1].line)}"
        best = max(_ratio(text, _text(other[j].line), cache) for j in candidates)
        if best - now > JOIN_GAIN and best >= LEAST_RATIO:
            gains.append((best - now, i))
    used: set[int] = set()
    for _, i in sorted(gains, reverse=True):
        if i not in used and i + 1 not in used:
            used |= {i, i + 1}
    starts = {i for _, i in gains if i in used and i + 1 in used}
    if not starts:
        return None
    out: list[Group] = []
    i = 0
    while i < len(side):
        if i in starts and (not out or out[-1] is not side[i]):
            out.append(_joined(side[i], side[i + 1]))
            i += 2
        else:
            out.append(side[i])
            i += 1
    return out


def _joined(a: Group, b: Group) -> Group:
    longer = a if len(a.line.text) >= len(b.line.text) else b
    line = ScoredLine(
        text=f"{a.line.text} {b.line.text}",
        box=a.line.box.union(b.line.box),
        color=longer.line.color,
        kind=longer.line.kind,
    )
    return Group(members=a.members + b.members, line=line)

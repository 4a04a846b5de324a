"""From named marks to a table: which pixel is which value, and which name belongs to which bar."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from watersmeet import DecodeError
from watersmeet_chart_to_table.marks import Mark


@dataclass(frozen=True, kw_only=True)
class Table:
    """rows: (name, value) along the axis of the names. warnings: one sentence for everything that was guessed."""

    rows: tuple[tuple[str, float], ...]
    warnings: tuple[str, ...] = ()

    def to_csv(self) -> str:
        """Lines of name and value under a headline."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(("name", "value"))
        writer.writerows((name, f"{value:.4g}") for name, value in self.rows)
        return out.getvalue()


def read_table(bars: Sequence[Mark], ticks: Sequence[Mark], names: Sequence[Mark]) -> Table:
    """The table of a chart. Raises DecodeError where bars, or two numbers of the axis, are missing."""
    if not bars:
        raise DecodeError("no bars were found in the picture; is it a bar chart with plain colours?")
    numbers = [(mark, mark.number) for mark in ticks]
    read = [(mark, value) for mark, value in numbers if value is not None]
    if len(read) < 2:
        raise DecodeError(
            f"{len(read)} numbers of an axis were read, at least 2 are needed to know what a length means"
        )
    lying = _spread(read, 0) > _spread(read, 1)
    along, across = (0, 1) if lying else (1, 0)
    slope, start = _fit([mark.centre[along] for mark, _ in read], [value for _, value in read])
    zero = -start / slope
    rows, warnings = [], []
    for bar in sorted(bars, key=lambda mark: mark.centre[across]):
        ends = (bar.box[along], bar.box[along + 2])
        # a bar has one end at zero; the other one is its value
        far = max(ends, key=lambda end: abs(end - zero))
        name = _name_of(bar, names, across)
        if not name:
            warnings.append(f"the bar at {bar.centre[across]:.0f} px has no name")
        rows.append((name, slope * far + start))
    return Table(rows=tuple(rows), warnings=tuple(warnings))


def _spread(read: Sequence[tuple[Mark, float]], axis: int) -> float:
    """How far numbers lie apart along an axis; those of one column lie in one place across it."""
    places = [mark.centre[axis] for mark, _ in read]
    return float(np.percentile(places, 75) - np.percentile(places, 25))


def _fit(places: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """Value = slope * place + start through most of the points: a number that was misread must not tilt the axis."""
    best, fewest = (0.0, 0.0), -1.0
    x, y = np.array(places), np.array(values)
    for i, j in itertools.combinations(range(len(x)), 2):
        if abs(x[i] - x[j]) < 4 or y[i] == y[j]:
            continue
        slope = (y[j] - y[i]) / (x[j] - x[i])
        # within three pixels
        near = np.abs(y - (y[i] + slope * (x - x[i]))) <= 3 * abs(slope)
        weight = near.sum() + abs(x[i] - x[j]) / (1 + np.ptp(x))
        if weight > fewest:
            fewest = weight
            best = tuple(np.polyfit(x[near], y[near], 1))
    if fewest < 0 or best[0] == 0:
        raise DecodeError("the numbers of the axis do not differ, so no length could be read")
    return float(best[0]), float(best[1])


def _name_of(bar: Mark, names: Sequence[Mark], across: int) -> str:
    """The name beside the bar's middle; a name of two lines is joined."""
    low, high = bar.box[across], bar.box[across + 2]
    slack = 0.35 * (high - low)
    beside = [name for name in names if low - slack <= name.centre[across] <= high + slack]
    if not beside:
        return ""
    nearest = min(abs(name.centre[across] - bar.centre[across]) for name in beside)
    taken = [name for name in beside if abs(name.centre[across] - bar.centre[across]) <= nearest + 3]
    return " ".join(name.text.strip(" -_|") for name in sorted(taken, key=lambda name: name.box[1]))

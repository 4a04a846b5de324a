"""How well charts of fonts, colours and sizes that were never trained on are read, beside rules without a model.

    python score.py 60

A cell is right when the name is the chart's (apart from capitals and I, l, 1) and the value is within 2 % of the chart's largest.
"""

import sys
from collections.abc import Sequence

import numpy as np
from watersmeet_chart_to_table.draw import HELD_OUT, Chart, draw
from watersmeet_chart_to_table.marks import Mark
from watersmeet_chart_to_table.pipeline import find_marks, name_marks
from watersmeet_chart_to_table.table import Table, read_table

from watersmeet import DecodeError

CLOSE = 0.02


def by_rules(marks: Sequence[Mark]) -> list[str]:
    """Without a model: numbers of one column or row are ticks, the boxes that share most edges are bars, words below or left of
    them are names."""
    numbers = [mark for mark in marks if mark.text and mark.number is not None]
    # right edges of a column, top edges of a row
    lines = [[m for m in numbers if abs(m.box[i] - n.box[i]) <= 3] for i in (2, 1) for n in numbers]
    ticks = max(lines, key=len, default=[])
    boxes = [mark for mark in marks if not mark.text]
    groups = [
        [m for m in boxes if abs((m.box[i + 2] - m.box[i]) - (n.box[i + 2] - n.box[i])) <= 2]
        for i in (0, 1)
        for n in boxes
    ]
    bars = max(groups, key=len, default=[])
    return [
        "tick" if mark in ticks else "bar" if mark in bars else "name" if mark.text and mark not in numbers else "other"
        for mark in marks
    ]


def table_of(marks: Sequence[Mark], labels: Sequence[str]) -> Table:
    try:
        picked = [
            [m for m, label in zip(marks, labels, strict=True) if label == sort] for sort in ("bar", "tick", "name")
        ]
        return read_table(*picked)
    except DecodeError:
        return Table(rows=())


def right_cells(table: Table, chart: Chart) -> int:
    """How many (name, value) pairs of the chart are in the table."""
    found = {_plain(name): value for name, value in table.rows}
    largest = max(abs(value) for value in chart.values)
    return sum(
        abs(found.get(_plain(name), np.inf) - value) <= CLOSE * largest
        for name, value in zip(chart.names, chart.values, strict=True)
    )


def _plain(name: str) -> str:
    return name.lower().replace("i", "l").replace("1", "l").replace(" ", "")


def main(count: int) -> None:
    rng = np.random.default_rng(7)
    total, scores = 0, {"the model": 0, "rules": 0, "the true mean for every bar": 0}
    for _ in range(count):
        chart = draw(rng, HELD_OUT)
        marks = find_marks(chart.picture)
        total += len(chart.names)
        scores["the model"] += right_cells(table_of(marks, name_marks(marks, chart.picture.size)), chart)
        scores["rules"] += right_cells(table_of(marks, by_rules(marks)), chart)
        middle = float(np.mean(chart.values))
        constant = Table(rows=tuple((name, middle) for name in chart.names))
        scores["the true mean for every bar"] += right_cells(constant, chart)
    for name, right in scores.items():
        print(f"{name}: {right} of {total} cells right, {right / total:.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) == 2 else 60)

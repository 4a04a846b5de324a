"""Training data: drawn charts as marks whose labels are known, and the data set that `watersmeet train` opens.

python -m watersmeet_chart_to_table.teach FILE.npz 1500
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch

from watersmeet import Span, Stream, content_key
from watersmeet_chart_to_table.draw import TRAIN, Chart, draw
from watersmeet_chart_to_table.encode import LABELS, Encoder
from watersmeet_chart_to_table.marks import Mark, find_boxes

NO_LOSS = -100
SAME = 0.6  # share of two boxes that must be common to both


def marks_of(chart: Chart, rng: np.random.Generator) -> tuple[list[Mark], list[int]]:
    """Marks as they would be found, texts with the faults of a reader, and the label of each."""
    marks, labels = [], []
    for box, text, label in chart.texts:
        if rng.random() < 0.03:
            continue  # not read
        moved = tuple(np.array(box) + rng.normal(0, 1.0, 4) + [-1, -2, 1, 2])
        read = text.replace("\N{MINUS SIGN}", "-")
        if label == "tick" and rng.random() < 0.15:
            read += " -"  # the tick itself, read as a dash
        marks.append(Mark(box=moved, text=read))
        labels.append(LABELS.index(label))
    for mark in find_boxes(np.asarray(chart.picture), marks):
        marks.append(mark)
        labels.append(LABELS.index("bar") if any(_common(mark.box, bar) > SAME for bar in chart.bars) else 0)
    order = rng.permutation(len(marks))
    return [marks[i] for i in order], [labels[i] for i in order]


def _common(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    """Intersection over union, half a pixel of slack for flat bars."""
    w, h = min(a[2], b[2]) - max(a[0], b[0]) + 1, min(a[3], b[3]) - max(a[1], b[1]) + 1
    areas = [(box[2] - box[0] + 1) * (box[3] - box[1] + 1) for box in (a, b)]
    return max(0.0, w) * max(0.0, h) / (sum(areas) - max(0.0, w) * max(0.0, h))


def write(path: str, count: int, seed: int = 1) -> None:
    """Draw `count` charts and keep their tokens."""
    encoder, rng = Encoder(), np.random.default_rng(seed)
    lengths, data, coords, labels = [], [], [], []
    while len(lengths) < count:
        chart = draw(rng, TRAIN)
        marks, found = marks_of(chart, rng)
        if not 4 <= len(marks) <= encoder.settings["max_marks"]:
            continue
        seen, _ = encoder.encode((*chart.picture.size, marks))
        lengths.append(seen.n)
        data.append(seen.data.numpy())
        coords.append(seen.coords.numpy())
        labels += found
    np.savez_compressed(
        path, lengths=lengths, data=np.concatenate(data), coords=np.concatenate(coords), labels=np.array(labels)
    )


class Charts:
    """The data set of a recipe: every chart is seen, then asked about, mark by mark."""

    def __init__(self, split: str, *, path: str) -> None:
        self.modalities = {"chart-marks": Encoder().settings}
        self.output_modality, self.vocab_size = "chart-marks", len(LABELS)
        kept = np.load(path, allow_pickle=False)
        ends = np.cumsum(kept["lengths"])
        # the last tenth is held out
        first, last = (0, int(0.9 * len(ends))) if split == "train" else (int(0.9 * len(ends)), len(ends))
        self._ranges = list(zip([0, *ends[:-1]], ends, strict=True))[first:last]
        self._columns = {name: torch.from_numpy(kept[name]) for name in ("data", "coords", "labels")}

    def __len__(self) -> int:
        return len(self._ranges)

    def sample(self, index: int, rng: np.random.Generator) -> Stream:
        """The chart's marks in an order of their own, so that none is known by where it stands."""
        start, end = self._ranges[index]
        order = torch.from_numpy(rng.permutation(end - start))
        data, coords, labels = (self._columns[name][start:end][order] for name in ("data", "coords", "labels"))
        spans = []
        for asked in (0.0, 1.0):
            columns: dict[str, Any] = {"targets": labels.long() if asked else torch.full((len(order),), NO_LOSS)}
            if asked:
                data = torch.cat([data[:, :-1], torch.ones(len(order), 1)], dim=1)
            key = content_key("chart-marks", index, order, asked)
            spans.append(Span(modality="chart-marks", data=data, coords=coords, key=key, **columns))
        return Stream(spans=tuple(spans))


if __name__ == "__main__":
    write(sys.argv[1], int(sys.argv[2]))

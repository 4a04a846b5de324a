"""Marks of a chart as tokens. Shapes: n marks, F numbers a mark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch

from watersmeet import DecodeError, Span, VectorEmbedder, content_key, read_settings
from watersmeet_chart_to_table.marks import Mark

VERSION = 1
LABELS = ("other", "bar", "tick", "name")
"""What a mark can be; the ids that the model writes. tick: a number of the value axis; name: what a bar is called."""

FEATURES = 25
ALIGNED = 3.0  # px within which two edges are one


@dataclass(frozen=True, kw_only=True)
class Settings:
    """max_marks: of one chart."""

    max_marks: int = field(default=400, metadata={"least": 4})


class Encoder:
    """Encodes {"width": px, "height": px, "marks": [{"box": [4 px], "text": "", "colour": [3]}]} or (width, height, marks)."""

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        self.settings = asdict(read_settings(Settings, settings, "chart-marks"))
        self.files: dict[str, bytes] = {}

    @property
    def max_tokens(self) -> int:
        """Each mark stands twice: first all are seen, then each is asked about."""
        return 2 * int(self.settings["max_marks"])

    def examples(self) -> list[Any]:
        """Items of both forms, for whoever wants to see one."""
        bar, tick = Mark(box=(10, 20, 30, 90), colour=(40, 80, 200)), {"box": [0, 10, 8, 20], "text": "20"}
        return [(100, 100, [bar]), {"width": 200, "height": 100, "marks": [tick, {"box": [50, 20, 70, 90]}]}]

    def largest(self) -> Any:
        """An item of `max_tokens` tokens."""
        return 1000, 1000, [Mark(box=(i, i, i + 5, i + 5)) for i in range(self.settings["max_marks"])]

    def encode(self, item: Any) -> list[Span]:
        """Two spans of the same n tokens: data [n, F] float32 (see `features`), coords [n, 4] int64 the box in thousandths of the
        picture. The model names a mark at its second place. Raises DecodeError for an item of another form."""
        width, height, marks = _read(item)
        if not 1 <= len(marks) <= self.settings["max_marks"]:
            raise DecodeError(f"chart with {len(marks)} marks, expected 1 to {self.settings['max_marks']}")
        data = torch.from_numpy(features(width, height, marks))
        boxes = np.array([mark.box for mark in marks]) / [width, height, width, height]
        coords = torch.from_numpy(np.clip(np.round(boxes * 1000), 0, 1000).astype(np.int64))
        spans = []
        for place in ("seen", "asked"):
            # one column says which of the two it is
            column = torch.full((len(marks), 1), float(place == "asked"))
            key = content_key("chart-marks", VERSION, self.settings, place, width, height, data, coords)
            spans.append(Span(modality="chart-marks", data=torch.cat([data, column], 1), coords=coords, key=key))
        return spans


class Embedder(VectorEmbedder):
    """The ready-made one."""

    def __init__(self, hidden_size: int, settings: Mapping[str, Any]) -> None:
        super().__init__(hidden_size, features=FEATURES + 1, coords=4)


def _read(item: Any) -> tuple[float, float, Sequence[Mark]]:
    try:
        if isinstance(item, Mapping):
            marks = [
                Mark(
                    box=tuple(map(float, m["box"])),
                    text=str(m.get("text", "")),
                    colour=tuple(m.get("colour", (0, 0, 0))),
                )
                for m in item["marks"]
            ]
            item = (item["width"], item["height"], marks)
        width, height, marks = item
        width, height = float(width), float(height)
        edges = np.array([mark.box for mark in marks], dtype=np.float64).reshape(-1, 4)
        numbers = np.array([mark.colour for mark in marks], dtype=np.float64).reshape(-1, 3)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DecodeError(
            f"not the marks of a chart ({type(error).__name__}: {error}); expected width, height and marks with box, text, colour"
        ) from error
    if not (0 < width < 1e6 and 0 < height < 1e6 and np.isfinite(edges).all() and np.isfinite(numbers).all()):
        raise DecodeError(f"chart of {width} x {height} px with edges or colours that are no numbers")
    return width, height, marks


def features(width: float, height: float, marks: Sequence[Mark]) -> np.ndarray:
    """[n, F] float32: what it is, where, how large, and with how many others of its kind it shares an edge or a middle."""
    box_n4 = np.array([mark.box for mark in marks], dtype=np.float64)
    is_text = np.array([bool(mark.text) for mark in marks])
    number = [mark.number for mark in marks]
    is_number = np.array([value is not None for value in number])
    x0, y0, x1, y1 = box_n4.T
    scale = np.array([width, height, width, height])
    kind = is_text.astype(int) + is_number
    lines = {
        "left": x0,
        "top": y0,
        "right": x1,
        "bottom": y1,
        "x": (x0 + x1) / 2,
        "y": (y0 + y1) / 2,
        "w": x1 - x0,
        "h": y1 - y0,
    }
    alike = kind[:, None] == kind[None, :]
    shared = [((np.abs(line[:, None] - line[None, :]) <= ALIGNED) & alike).sum(1) - 1 for line in lines.values()]
    text_columns = [
        [len(mark.text) / 10, sum(c.isalpha() for c in mark.text) / 10, sum(c.isdigit() for c in mark.text) / 5]
        for mark in marks
    ]
    size = [0.0 if value is None else float(np.sign(value) * np.log10(1 + abs(value)) / 4) for value in number]
    colours = np.array([mark.colour for mark in marks], dtype=np.float64) / 255
    columns = [
        is_text[:, None],
        is_number[:, None],
        2 * box_n4 / scale - 1,
        (x1 - x0)[:, None] / width,
        (y1 - y0)[:, None] / height,
        np.log((x1 - x0 + 1) / (y1 - y0 + 1))[:, None] / 3,
        np.log1p(np.stack(shared, 1)) / 2,
        np.array(text_columns),
        np.array(size)[:, None],
        colours,
        np.full((len(marks), 1), len(marks) / 100),
    ]
    return np.clip(np.concatenate(columns, axis=1), -8, 8).astype(np.float32)

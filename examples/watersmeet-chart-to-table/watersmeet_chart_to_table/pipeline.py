"""The task: picture, marks, labels, table, CSV."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from watersmeet import DecodeError, Result, Stream, WatersmeetError, get_registry, load_checkpoint, pack, read_settings
from watersmeet_chart_to_table.encode import LABELS, Encoder
from watersmeet_chart_to_table.marks import Mark, find_boxes
from watersmeet_chart_to_table.table import Table, read_table

OWN = Path(str(resources.files("watersmeet_chart_to_table").joinpath("model")))


@dataclass(frozen=True, kw_only=True)
class Settings:
    """model: another model folder than the one that comes with the package. max_pixels: of a picture."""

    model: str = str(OWN)
    max_pixels: int = field(default=16_000_000, metadata={"least": 1})


class ChartToTable:
    """The pipeline. It has a model of its own and asks no other."""

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        self.settings = read_settings(Settings, settings, "chart-to-table")

    def run(self, inputs: Sequence[Any], model: Any, out_dir: Path, progress: Callable[[str, float], None]) -> Result:
        """Write table.csv below `out_dir`, or one for each picture. Raises DecodeError for a picture that shows no bar chart;
        then nothing is written."""
        tables = {}
        for index, item in enumerate(inputs):
            progress(f"reading {item}", index / len(inputs))
            name = "table.csv" if len(inputs) == 1 else f"{Path(item).stem}.csv"
            if name in tables:
                raise WatersmeetError(f"two inputs would both be written to {name}; rename one")
            tables[name] = self.read(item)
        Path(out_dir).mkdir(parents=True, exist_ok=True)
        for name, table in tables.items():
            beside = Path(out_dir) / f".{name}.part"
            beside.write_text(table.to_csv(), encoding="utf-8")
            beside.replace(Path(out_dir) / name)
        progress("done", 1.0)
        rows = sum(len(table.rows) for table in tables.values())
        return Result(
            out_dir=Path(out_dir),
            files=tuple(tables),
            warnings=tuple(warning for table in tables.values() for warning in table.warnings),
            summary=f"{Path(out_dir) / next(iter(tables))}  {rows} bars",
        )

    @staticmethod
    def examples(folder: Path) -> list[Path]:
        """A chart for `watersmeet plugins check`, written into `folder`."""
        from watersmeet_chart_to_table.draw import HELD_OUT, draw

        path = folder / "chart.png"
        draw(np.random.default_rng(0), HELD_OUT).picture.save(path)
        return [path]

    def read(self, item: Any) -> Table:
        """The table of one picture: a path, bytes or a Pillow image. Raises DecodeError naming the picture."""
        name = str(item) if isinstance(item, (str, Path)) else "the picture"
        registry = get_registry()
        picture, _ = registry.encoder("image", {"max_pixels": self.settings.max_pixels}).open_image(item)
        marks = find_marks(picture)
        try:
            labels = name_marks(marks, picture.size, self.settings.model)
            sorts = {label: [m for m, found in zip(marks, labels, strict=True) if found == label] for label in LABELS}
            return read_table(sorts["bar"], sorts["tick"], sorts["name"])
        except DecodeError as error:
            raise DecodeError(f"{name}: {error}") from error


def find_marks(picture: Image.Image) -> list[Mark]:
    """Texts, read by the recogniser of the regions modality, and boxes of one colour."""
    regions = get_registry().encoder("regions").read(picture)
    sides = ("x0", "y0", "x1", "y1")
    texts = [Mark(box=tuple(record["box"][side] for side in sides), text=record["text"]) for record in regions["texts"]]
    return [*texts, *find_boxes(np.asarray(picture), texts)]


def name_marks(marks: Sequence[Mark], size: tuple[int, int], model: str = str(OWN)) -> list[str]:
    """What the model takes each mark for. Raises DecodeError for a chart without marks or with too many."""
    opened, encoder = _opened(model)
    seen, asked = encoder.encode((*size, marks))
    packed = pack([Stream(spans=(seen, asked))], opened.modality_names)
    with torch.inference_mode():
        logits = opened.logits(opened(packed))[seen.n :]
    return [LABELS[index] for index in logits.argmax(-1).tolist()]


@cache
def _opened(model: str) -> tuple[Any, Encoder]:
    loaded = load_checkpoint(Path(model), get_registry().embedder)
    return loaded.model.eval(), Encoder(loaded.processor["modalities"]["chart-marks"])

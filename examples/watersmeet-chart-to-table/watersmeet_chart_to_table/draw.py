"""Bar charts with their tables, drawn by matplotlib: what the model learns from and what it is measured on."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
from PIL import Image

matplotlib.use("Agg")
from matplotlib import pyplot as plt

WORDS = (
    "Alpha Beta Gamma Delta North South East West Apples Pears Plums Nuts Paris Rome Oslo Cairo Lima Berlin Red Blue Green Retail "
    "Energy Health Labour Sports Rural Urban Mon Tue Wed Thu Fri Cats Dogs Birds Steel Wood Glass Rice Maize Wheat Coal Wind Solar"
).split()
TITLES = ("Sales by region", "Units sold", "Survey results", "Output 2019", "Visitors", "Average score", "Tons a year")


@dataclass(frozen=True, kw_only=True)
class Look:
    """What charts of a set look like. fonts: families. colours: those of bars, as matplotlib names them. dpi: least and most."""

    fonts: tuple[str, ...]
    colours: tuple[str, ...]
    dpi: tuple[int, int]
    width: tuple[float, float]


TRAIN = Look(
    fonts=("DejaVu Sans", "Liberation Sans"),
    colours=(
        "#1f77b4",
        "#ff7f0e",
        "#2ca02c",
        "#d62728",
        "#9467bd",
        "#8c564b",
        "#555555",
        "#17becf",
        "#003f5c",
        "#e377c2",
    ),
    dpi=(80, 120),
    width=(5.0, 7.5),
)
HELD_OUT = Look(
    fonts=("Liberation Serif", "DejaVu Serif", "Liberation Mono"),
    colours=("#ffb000", "#648fff", "#dc267f", "#1b9e77", "#7570b3", "#66a61e", "#b2182b", "#4d4d4d"),
    dpi=(95, 150),
    width=(4.2, 9.0),
)


@dataclass(frozen=True, kw_only=True)
class Chart:
    """picture: RGB. names, values: the table, in the order of the axis. texts: (box px, words, label) of all that is written. bars:
    boxes px."""

    picture: Image.Image
    names: tuple[str, ...]
    values: tuple[float, ...]
    texts: tuple[tuple[tuple[float, float, float, float], str, str], ...]
    bars: tuple[tuple[float, float, float, float], ...]


def draw(rng: np.random.Generator, look: Look) -> Chart:
    """A chart with one series: upright or lying bars, with or without grid, edges, numbers on the bars, years as names."""
    count = int(rng.integers(3, 11))
    names = _names(count, rng)
    values = _values(count, rng)
    lying, text_size = bool(rng.random() < 0.35), float(rng.uniform(8, 12))
    with plt.rc_context({"font.family": str(rng.choice(look.fonts)), "font.size": text_size}):
        size = (rng.uniform(*look.width), rng.uniform(3.2, 5.0))
        figure, axes = plt.subplots(figsize=size, dpi=int(rng.integers(*look.dpi)), layout="constrained")
        several = rng.random() < 0.25
        colours = list(rng.choice(look.colours, count)) if several else str(rng.choice(look.colours))
        style = {"color": colours, "edgecolor": "black" if rng.random() < 0.2 else None}
        thick = float(rng.uniform(0.45, 0.9))
        if lying:
            container = axes.barh(names, values, height=thick, **style)
        else:
            container = axes.bar(names, values, width=thick, **style)
        if rng.random() < 0.3:
            axes.grid(axis="x" if lying else "y", color="#dddddd")
            axes.set_axisbelow(True)
        if rng.random() < 0.2:
            axes.bar_label(container, fmt="%.4g", padding=2)
        if rng.random() < 0.5:
            axes.spines[["top", "right"]].set_visible(False)
        if rng.random() < 0.8:
            axes.set_title(str(rng.choice(TITLES)))
        if rng.random() < 0.6:
            (axes.set_xlabel if lying else axes.set_ylabel)(str(rng.choice(("Units", "Tons", "Share", "Count"))))
        if min(values) < 0:
            (axes.axvline if lying else axes.axhline)(0, color="black", linewidth=0.8)
        chart = _measured(figure, axes, container, names, values, lying)
        plt.close(figure)
    return chart


def _names(count: int, rng: np.random.Generator) -> list[str]:
    if rng.random() < 0.3:
        first = int(rng.integers(1985, 2015))
        return [str(first + i) for i in range(count)]
    return [str(word) for word in rng.choice(WORDS, count, replace=False)]


def _values(count: int, rng: np.random.Generator) -> list[float]:
    values = rng.uniform(0.05, 1.0, count) * 10 ** rng.uniform(0, 4)
    if rng.random() < 0.15:
        values[rng.random(count) < 0.4] *= -1
    return [float(f"{value:.3g}") for value in values]


def _measured(
    figure: plt.Figure, axes: plt.Axes, container: Sequence, names: Sequence[str], values: Sequence[float], lying: bool
) -> Chart:
    out = io.BytesIO()
    figure.savefig(out, format="png")
    picture = Image.open(out).convert("RGB")
    height = picture.height

    def box(artist: object) -> tuple[float, float, float, float]:
        extent = artist.get_window_extent()
        return extent.x0, height - extent.y1, extent.x1, height - extent.y0

    x, y = axes.get_xticklabels(), axes.get_yticklabels()
    ticks, named, limits = (x, y, axes.get_xlim()) if lying else (y, x, axes.get_ylim())
    # matplotlib keeps a tick beyond either end of the axis, which is not drawn
    drawn = [(text, "tick") for text in ticks if limits[0] <= text.get_position()[0 if lying else 1] <= limits[1]]
    drawn += [(text, "name") for text in named]
    drawn += [(text, "other") for text in (axes.title, axes.xaxis.label, *axes.texts)]
    return Chart(
        picture=picture,
        names=tuple(names),
        values=tuple(values),
        texts=tuple((box(text), text.get_text(), label) for text, label in drawn if text.get_text()),
        bars=tuple(box(bar) for bar in container),
    )

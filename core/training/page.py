"""One HTML file with the curves of a run, drawn from its JSONL log: no server, no script from elsewhere, opens offline."""

from __future__ import annotations

import html
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from watersmeet.core.errors import UsageError
from watersmeet.core.training.log import read_log

_COLOURS = ("#1f4e8c", "#c4511b", "#3b7d4f", "#7a4fa3", "#a8821a", "#2a8c8c", "#b03060", "#555555")
FILE_NAME = "curves.html"
"""Name of the page in a run's folder."""

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 620, 220, 58, 24
_POINTS = 600
_STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 1320px; color: #222; padding: 0 1em }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(560px, 1fr)); gap: 18px }
figure { margin: 0 } figcaption { font-weight: 600 } svg { width: 100%; height: auto }
text { font-size: 11px; fill: #555 } .key { font-size: 12px; color: #444 } .key b { font-size: 15px }
table { border-collapse: collapse; font-size: 11px } td { width: 13px; height: 13px; padding: 0 } th { font-weight: 400; padding: 0 6px }
"""

Points = list[tuple[float, float]]


def _number(value: Any) -> float | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None


def _series(records: Iterable[Mapping[str, Any]], key: str) -> Points:
    return [(r["step"], number) for r in records if (number := _number(r.get(key))) is not None]


def _by_name(records: Sequence[Mapping[str, Any]], key: str) -> dict[str, Points]:
    found: dict[str, Points] = {}
    for record in records:
        for name, value in (record.get(key) or {}).items():
            if (number := _number(value)) is not None:
                found.setdefault(str(name), []).append((record["step"], number))
    return found


def _thin(points: Points) -> Points:
    """At most `_POINTS` points; those that are left out are averaged into their neighbours."""
    if len(points) <= _POINTS:
        return points
    size = -(-len(points) // _POINTS)
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    return [(group[-1][0], sum(y for _, y in group) / len(group)) for group in groups]


def _chart(title: str, lines: Mapping[str, Points], *, log: bool = False, level: float | None = None) -> str:
    """One SVG line chart as a figure; empty without points. `level` draws a dashed line."""
    lines = {name: _thin([p for p in points if not log or p[1] > 0]) for name, points in lines.items()}
    lines = {name: points for name, points in lines.items() if points}
    if not lines:
        return ""
    move = math.log10 if log else float
    xs = [x for points in lines.values() for x, _ in points]
    ys = [move(y) for points in lines.values() for _, y in points] + ([move(level)] if level else [])
    low_x, high_x, low_y, high_y = min(xs), max(xs), min(ys), max(ys)
    if high_y - low_y < 1e-12:
        low_y, high_y = low_y - 0.5, high_y + 0.5

    def at(x: float, y: float) -> str:
        across = _LEFT + (x - low_x) / max(high_x - low_x, 1e-9) * (_WIDTH - _LEFT - 8)
        down = 8 + (high_y - y) / (high_y - low_y) * (_HEIGHT - _BOTTOM - 8)
        return f"{across:.1f},{down:.1f}"

    parts = []
    for step in range(5):
        y = low_y + (high_y - low_y) * step / 4
        end, label = at(high_x, y), 10**y if log else y
        start = at(low_x, y).split(",")
        parts.append(f'<path d="M{start[0]},{start[1]} L{end}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 5}" y="{float(start[1]) + 4:.1f}" text-anchor="end">{label:.4g}</text>')
    for x in {low_x, high_x}:
        parts.append(f'<text x="{at(x, low_y).split(",")[0]}" y="{_HEIGHT - 6}" text-anchor="middle">{x:g}</text>')
    if level:
        parts.append(
            f'<path d="M{at(low_x, move(level))} L{at(high_x, move(level))}" stroke="#888" stroke-dasharray="5 4"/>'
        )
    keys = []
    for index, (name, points) in enumerate(lines.items()):
        colour = _COLOURS[index % len(_COLOURS)]
        if len(points) == 1:
            across, down = at(points[0][0], move(points[0][1])).split(",")
            parts.append(f'<circle cx="{across}" cy="{down}" r="2.5" fill="{colour}"/>')
        else:
            path = " ".join(at(x, move(y)) for x, y in points)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.4"/>')
        keys.append(f'<span><b style="color:{colour}">&#9644;</b> {html.escape(name)} {points[-1][1]:.4g}</span>')
    return (
        f'<figure><figcaption>{html.escape(title)}</figcaption><svg viewBox="0 0 {_WIDTH} {_HEIGHT}">'
        f'{"".join(parts)}</svg><div class="key">{" &nbsp; ".join(keys)}</div></figure>'
    )


def _shade(value: float) -> str:
    """Blue below the mean load, white at it, red above; full colour at nothing and at three times the mean."""
    if value < 1:
        mix = 1 - max(value, 0.0)
        return f"rgb({255 - 200 * mix:.0f},{255 - 150 * mix:.0f},255)"
    mix = min((value - 1) / 2, 1.0)
    return f"rgb(255,{255 - 190 * mix:.0f},{255 - 220 * mix:.0f})"


def _heat(title: str, rows: Sequence[Sequence[float]], label: str, *, scale: float = 1.0) -> str:
    """A table of coloured cells; the number of a cell is its tooltip."""
    body = []
    for index, row in enumerate(rows):
        cells = "".join(
            f'<td style="background:{_shade(value * scale)}" title="{label} {index}, {place}: {value:g}"></td>'
            for place, value in enumerate(row)
        )
        body.append(f"<tr><th>{label} {index}</th>{cells}</tr>")
    return f"<figure><figcaption>{html.escape(title)}</figcaption><table>{''.join(body)}</table></figure>"


def _heats(train: Sequence[Mapping[str, Any]]) -> list[str]:
    out = []
    measured = [record for record in train if record.get("load_by_modality")]
    if measured:
        last = measured[-1]
        for name, rows in last["load_by_modality"].items():
            out.append(_heat(f"expert load, {name} tokens, step {last['step']} (1 = mean)", rows, "layer"))
    deep = [record for record in train if record.get("depth")]
    if deep:
        title = f"depth weights of the residual reads, step {deep[-1]['step']} (white = even)"
        rows = [[round(weight * len(row), 3) for weight in row] for row in deep[-1]["depth"]]
        out.append(_heat(title, rows, "read"))
    return out


def write_page(log: Path, page: Path, *, title: str = "training run", clip: float = 0.0) -> Path:
    """Write the page of `log` to `page`. Raises UsageError when the log holds no training step."""
    records = read_log(log)
    train = [record for record in records if record.get("kind") == "train"]
    held_out = [record for record in records if record.get("kind") == "eval"]
    if not train:
        raise UsageError(f"{log}: no training step in it, nothing to draw")
    charts = [
        _chart("loss (nats a token)", {"train": _series(train, "loss"), "held out": _series(held_out, "loss")}),
        _chart("loss by modality", _by_name(train, "loss_by_modality")),
        _chart("held-out loss by modality", _by_name(held_out, "loss_by_modality")),
        _chart("learning rate", {"Muon": _series(train, "lr"), "AdamW": _series(train, "adamw_lr")}),
        _chart("gradient norm", {"all": _series(train, "grad_norm")} | _by_name(train, "grad_norms"), log=True),
        _chart("update RMS / rate", _by_name(train, "update_rms")),
        _chart("max attention logit", {"largest head": _series(train, "max_logit")}, log=True, level=clip or None),
        _chart("expert load / mean", {"busiest": _series(train, "load_max"), "idlest": _series(train, "load_min")}),
        _chart("busiest expert by modality", _by_name(train, "load_max_by_modality")),
        _chart("experts above a tenth of the mean load", {"fraction": _series(train, "used")}),
        _chart("tokens a second", {"tokens/s": _series(train, "tokens_per_second")}),
    ]
    notes = [f"<li>step {r['step']}: {html.escape(str({k: v for k, v in r.items() if k not in ('kind', 'step')}))}</li>"
             for r in records if r.get("kind") == "note"][-50:]  # fmt: skip
    body = f"<h1>{html.escape(title)}</h1><p>{len(train)} steps logged, last step {train[-1]['step']}</p>"
    body += f'<div class="charts">{"".join(chart for chart in [*charts, *_heats(train)] if chart)}</div>'
    body += f"<h2>Notes</h2><ul>{''.join(notes)}</ul>" if notes else ""
    page = Path(page)
    page.parent.mkdir(parents=True, exist_ok=True)
    beside = page.with_name(page.name + ".tmp")
    beside.write_text(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style><body>{body}</body></html>",
        encoding="utf-8",
    )
    os.replace(beside, page)
    return page

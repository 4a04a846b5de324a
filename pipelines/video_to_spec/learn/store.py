"""What was seen in a recording, with what is to be written about it, as two files: NAME.json and NAME.npz (its patches)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from watersmeet.core.geometry import Box
from watersmeet.pipelines.data.samples import DataError
from watersmeet.pipelines.video_to_spec.observed import Moment, Observed, SeenText
from watersmeet.pipelines.video_to_spec.watch.page import Line
from watersmeet.pipelines.video_to_spec.watch.sight import Patches, Sight, Turn

VERSION = 2
_MEASURES = ("pause_s", "lasting_s", "still_s", "way", "pressed", "reach", "scrolled", "kept", "letters")


@dataclass(frozen=True, kw_only=True, eq=False)
class Lesson:
    """Turns with the markup that is to be written about each, and the settings of the video encoder that saw them."""

    turns: tuple[Turn, ...]
    written: tuple[tuple[str, ...], ...]
    settings: Mapping[str, Any]


def write_lesson(sight: Sight, written: Sequence[Sequence[str]], settings: Mapping[str, Any], path: Path) -> None:
    """Write `path` (.json), last, and beside it the patches (.npz)."""
    record = {
        "version": VERSION,
        "settings": dict(settings),
        "turns": [_plain(turn) for turn in sight.turns],
        "written": [list(one) for one in written],
    }
    full = [turn.patches for turn in sight.turns if len(turn.patches.time_us)]
    arrays = {
        "counts": np.array([len(turn.patches.time_us) for turn in sight.turns], dtype=np.int64),
        "data": np.concatenate([one.data for one in full]) if full else np.zeros((0, 0), np.uint8),
        "coords": np.concatenate([one.coords for one in full]) if full else np.zeros((0, 2), np.int64),
        "time_us": np.concatenate([one.time_us for one in full]) if full else np.zeros(0, np.int64),
    }
    part = path.with_suffix(f".{os.getpid()}.part.npz")
    np.savez_compressed(part, **arrays)  # type: ignore[arg-type]
    part.replace(path.with_suffix(".npz"))
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_text(json.dumps(record, ensure_ascii=False), encoding="utf-8")
    part.replace(path)


def read_lesson(path: Path) -> Lesson:
    """Read what `write_lesson` wrote. Raises DataError for what another version wrote."""
    record = json.loads(path.read_text("utf-8"))
    if record.get("version") != VERSION:
        raise DataError(
            f"{path} is a lesson of version {record.get('version')}, expected {VERSION}; make it again with "
            "`watersmeet data lessons`"
        )
    with np.load(path.with_suffix(".npz"), allow_pickle=False) as arrays:
        counts, data, coords, time_us = (arrays[name] for name in ("counts", "data", "coords", "time_us"))
    ends = np.cumsum(counts).tolist()
    turns = []
    for plain, end, count in zip(record["turns"], ends, counts.tolist(), strict=True):
        part = slice(end - count, end)
        turns.append(_turn(plain, Patches(data=data[part], coords=coords[part], time_us=time_us[part])))
    return Lesson(
        turns=tuple(turns), written=tuple(tuple(one) for one in record["written"]), settings=record["settings"]
    )


def _plain(turn: Turn) -> dict[str, Any]:
    observed = turn.observed
    return {
        "width": observed.width,
        "height": observed.height,
        "moments": [asdict(moment) for moment in observed.moments],
        "boxes": [_corners(box) for box in observed.boxes],
        "under": [dict(line.record) for line in turn.under],
        "before": [dict(line.record) for line in turn.before],
        "after": [dict(line.record) for line in turn.after],
        "on_screen": sorted(turn.on_screen),
        "areas": [_corners(box) for box in turn.areas],
        "point": turn.point,
        **{name: getattr(turn, name) for name in _MEASURES},
    }


def _corners(box: Box) -> list[float]:
    return [box.x0, box.y0, box.x1, box.y1]


def _box(corners: Sequence[float]) -> Box:
    return Box(x0=corners[0], y0=corners[1], x1=corners[2], y1=corners[3])


def _line(record: Mapping[str, Any]) -> Line:
    return Line(box=Box(**record["box"]), text=record["text"], record=record)


def _turn(plain: Mapping[str, Any], patches: Patches) -> Turn:
    under, before, after = (tuple(_line(record) for record in plain[name]) for name in ("under", "before", "after"))
    texts = [SeenText(text=line.text, box=line.box) for line in (*under, *before)]
    texts += [SeenText(text=line.text, box=line.box, came=True) for line in after]
    observed = Observed(
        width=plain["width"],
        height=plain["height"],
        moments=tuple(Moment(**moment) for moment in plain["moments"]),
        texts=tuple(texts),
        boxes=tuple(_box(corners) for corners in plain["boxes"]),
    )
    return Turn(
        observed=observed,
        patches=patches,
        under=under,
        before=before,
        after=after,
        on_screen=frozenset(plain["on_screen"]),
        areas=tuple(_box(corners) for corners in plain["areas"]),
        point=None if plain["point"] is None else (plain["point"][0], plain["point"][1]),
        **{name: plain[name] for name in _MEASURES},
    )

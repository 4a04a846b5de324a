"""What a text reader would see of a rendered page, and how it errs: simulated, since real reading takes seconds a page."""

import random
import unicodedata
from collections.abc import Sequence
from typing import Any

BLOCK_GAP = 0.85  # em; a reader joins what stands closer on one line
_CONFUSED = {
    "l": "1I",
    "I": "l1",
    "O": "0",
    "0": "O",
    "1": "l",
    "5": "S",
    "S": "5",
    "B": "8",
    "m": "rn",
    "e": "c",
    "c": "e",
    ".": ",",
    ",": ".",
    ":": ";",
    "g": "9",
}

Bounds = tuple[float, float, float, float]


def readable(text: str) -> str:
    """`text` without what no reader returns: glyphs of icon fonts, control characters, doubled spaces."""
    kept = "".join(
        c if unicodedata.category(c) not in ("Co", "Cc", "Cf", "Cn", "Zs", "Zl", "Zp") else " " for c in text
    )
    return " ".join(kept.split())


def seen_lines(lines: Sequence[tuple[Bounds, str]], frames: Sequence[Bounds] = ()) -> list[tuple[Bounds, str]]:
    """Lines of a rendered page as one would read them off the picture: neighbours on one line are joined.

    `frames` are boxes (buttons, fields, badges) whose edges keep texts apart. Very small and empty lines are left out.
    """
    rows = [
        (box, shown)
        for box, text in lines
        if (shown := readable(text)) and box[3] - box[1] >= 5 and box[2] - box[0] >= 2
    ]
    rows.sort(key=lambda row: (row[0][0], row[0][1]))
    out: list[tuple[Bounds, str]] = []
    for box, text in rows:
        for i in range(len(out) - 1, -1, -1):
            other, before = out[i]
            gap = box[0] - other[2]
            tall, low = box[3] - box[1], other[3] - other[1]
            shared = min(box[3], other[3]) - max(box[1], other[1])
            em = max(tall, low) / 1.15
            if -2 <= gap < BLOCK_GAP * em and shared > 0.6 * min(tall, low) and max(tall, low) < 1.5 * min(tall, low):
                edge = any(
                    f[1] <= max(box[1], other[1]) + 4
                    and f[3] >= min(box[3], other[3]) - 4
                    and any(other[2] - 2 <= x <= box[0] + 2 for x in (f[0], f[2]))
                    for f in frames
                )
                if not edge:
                    space = " " if gap > 0.12 * em else ""
                    out[i] = (
                        (min(other[0], box[0]), min(other[1], box[1]), max(other[2], box[2]), max(other[3], box[3])),
                        before + space + text,
                    )
                    break
        else:
            out.append((box, text))
    return out


def misread(text: str, rng: random.Random, rate: float) -> str:
    """`text` with a few characters confused, lost or run together."""
    out = []
    for char in text:
        if rng.random() >= rate:
            out.append(char)
        elif char in _CONFUSED and rng.random() < 0.6:
            out.append(rng.choice(_CONFUSED[char]))
        elif char != " " and rng.random() < 0.4:
            out.append(rng.choice("aeionrst.-"))
    return "".join(out) or text


def worn(regions: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """`regions` (plain form) as a worse reader would give them: some lost, joined, cut, moved, misread, invented."""
    level = rng.choice((0.3, 0.6, 1.0, 1.6))
    texts: list[dict[str, Any]] = []
    for item in regions["texts"]:
        if rng.random() < 0.02 * level:
            continue
        text = dict(item, box=_moved(item["box"], rng, 1.2 * level))
        if rng.random() < 0.35:
            text["text"] = misread(item["text"], rng, 0.03 * level)
        if rng.random() < 0.05 * level:
            text["weight"] = 1100 - item["weight"] if item["weight"] in (400, 700) else item["weight"]
        text["font_size"] = round(item["font_size"] * rng.uniform(1 - 0.06 * level, 1 + 0.06 * level), 1)
        last = texts[-1] if texts else None
        if last is not None and rng.random() < 0.25 * level and _beside(last["box"], text["box"], 1.5):
            last["box"] = _around(last["box"], text["box"])
            last["text"] += " " + text["text"]
            continue
        words = text["text"].split()
        if len(words) > 1 and rng.random() < 0.03 * level:
            at = rng.randint(1, len(words) - 1)
            left, right = _cut(text["box"], len(" ".join(words[:at])) / max(1, len(text["text"])))
            texts += [dict(text, box=left, text=" ".join(words[:at])), dict(text, box=right, text=" ".join(words[at:]))]
            continue
        texts.append(text)
    shapes = []
    for item in regions["shapes"]:
        small = item["kind"] in ("picture", "rule")
        if rng.random() < (0.05 if small else 0.025) * level:
            continue
        shapes.append(dict(item, box=_moved(item["box"], rng, 0.8 * level)))
        if item["kind"] == "fill" and rng.random() < 0.01 * level:  # noise that looks like something
            b = item["box"]
            w, h = (b["x1"] - b["x0"]) * rng.uniform(0.1, 0.6), (b["y1"] - b["y0"]) * rng.uniform(0.1, 0.6)
            if min(w, h) > 6:
                shapes.append(
                    dict(
                        item,
                        kind="picture",
                        box={
                            "x0": b["x0"] + w / 3,
                            "y0": b["y0"] + h / 3,
                            "x1": b["x0"] + w / 3 + w,
                            "y1": b["y0"] + h / 3 + h,
                        },
                    )
                )
    return regions | {"texts": texts, "shapes": shapes}


def _moved(box: dict[str, float], rng: random.Random, by: float) -> dict[str, float]:
    out = {side: round(value + rng.uniform(-by, by), 1) for side, value in box.items()}
    if out["x1"] - out["x0"] < 1 or out["y1"] - out["y0"] < 1:
        return dict(box)
    return {side: max(0.0, value) for side, value in out.items()}


def _beside(a: dict[str, float], b: dict[str, float], ems: float) -> bool:
    tall = min(a["y1"] - a["y0"], b["y1"] - b["y0"])
    return min(a["y1"], b["y1"]) - max(a["y0"], b["y0"]) > 0.6 * tall and -2 <= b["x0"] - a["x1"] < ems * tall


def _around(a: dict[str, float], b: dict[str, float]) -> dict[str, float]:
    return {
        "x0": min(a["x0"], b["x0"]),
        "y0": min(a["y0"], b["y0"]),
        "x1": max(a["x1"], b["x1"]),
        "y1": max(a["y1"], b["y1"]),
    }


def _cut(box: dict[str, float], share: float) -> tuple[dict[str, float], dict[str, float]]:
    middle = box["x0"] + (box["x1"] - box["x0"]) * share
    return dict(box, x1=middle - 1), dict(box, x0=middle + 1)

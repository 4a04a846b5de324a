"""The score set: how a rendered page compares with a reference, every number from 0 to 1, 1 best.

A page against itself scores 1, a blank page about 0, a page that failed 0 everywhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from watersmeet.core.geometry import Box
from watersmeet.pipelines.score import pixels
from watersmeet.pipelines.score.color import delta_e, to_lab
from watersmeet.pipelines.score.facts import PageFacts, ScoredLine
from watersmeet.pipelines.score.match import Group, Matching, match_lines

MEANINGS = {
    "LOOK": "mean of content, line IoU, fill and SSIM",
    "CODE": "mean of boxes, role, block without absolute elements, and block on pages that fit a phone",
    "content": "block times the mean of text, position and color",
    "block": "area of matched text lines, as a share of all lines of both sides",
    "text": "how alike the words of matched lines are",
    "position": "1 minus the larger offset of matched lines' centres, as a share of the page",
    "color": "text colour of matched lines, 1 minus CIEDE2000 / 100",
    "line_iou": "overlap of matched lines' boxes by area; unmatched lines count 0",
    "fill": "large coloured areas on a 32 x 20 grid; an empty page in the main colour is 0",
    "ssim": "structural similarity at quarter size; an empty page in the main colour is 0",
    "boxes": "F1 of pictures, buttons and inputs at an overlap of 0.5",
    "role": "share of lines that kept their kind: heading, link or button, field, label, code, cell, item",
    "fits": "no sideways scroll and no cut line at 390 px, as far as the reference has none",
    "flow": "1 minus the share of text in absolutely positioned elements, beyond the reference's own",
    "own_pixels": "1 unless pictures cover more of the page than in the reference, as a pasted screenshot does",
}


@dataclass(frozen=True, kw_only=True)
class Scores:
    """All scores of one page; None is what the reference cannot tell."""

    look: float
    code: float
    content: float
    block: float
    text: float
    position: float
    color: float
    line_iou: float
    fill: float
    ssim: float
    boxes: float | None
    role: float | None
    fits: float
    flow: float
    own_pixels: float
    unmatched_reference: tuple[ScoredLine, ...] = ()
    unmatched_result: tuple[ScoredLine, ...] = ()

    def to_json(self) -> dict[str, float | None]:
        """The numbers by name, in the order of `MEANINGS`."""
        names = {"LOOK": "look", "CODE": "code"}
        values = {name: getattr(self, names.get(name, name)) for name in MEANINGS}
        return {name: None if value is None else round(float(value), 4) for name, value in values.items()}


def failed_scores() -> Scores:
    """The scores of a page that did not come to be."""
    zeros: dict[str, Any] = {f.name: 0.0 for f in fields(Scores) if not f.name.startswith("unmatched")}
    return Scores(**zeros)


def score_pages(
    reference: PageFacts,
    result: PageFacts,
    result_390: PageFacts | None = None,
    reference_390: PageFacts | None = None,
) -> Scores:
    """Score `result` against `reference`, and its phone-width render against the reference's if there is one."""
    matching = match_lines(reference.lines, result.lines, float(np.hypot(reference.width, reference.height)))
    block, text, position, color = _block_scores(matching, reference, result)
    content = block * (text + position + color) / 3
    line_iou = _line_iou(matching)
    background = pixels.main_color(result.picture)
    shown = pixels.same_canvas(result.picture, reference.width, reference.height, background)
    own = _own_pixels(reference, result)
    fill, ssim = own * pixels.fill(reference.picture, shown), own * pixels.ssim(reference.picture, shown)
    boxes = None if reference.boxes is None else _boxes_f1(reference.boxes, result.boxes or ())
    role = _role(matching, reference.lines, result.lines)
    fits = _fits(result_390, reference_390)
    flow = 1.0 - max(0.0, result.absolute_share - reference.absolute_share)
    known = [v for v in (boxes, role, block * flow, block * fits) if v is not None]
    return Scores(
        # without a line to find, finding none is no merit
        look=(content + line_iou + fill + ssim) / 4 if reference.lines else (fill + ssim) / 2,
        code=sum(known) / len(known),
        content=content,
        block=block,
        text=text,
        position=position,
        color=color,
        line_iou=line_iou,
        fill=fill,
        ssim=ssim,
        boxes=boxes,
        role=role,
        fits=fits,
        flow=flow,
        own_pixels=own,
        unmatched_reference=tuple(g.line for g in matching.lost),
        unmatched_result=tuple(g.line for g in matching.extra),
    )


def _area(groups: Sequence[Group]) -> float:
    return sum(g.line.box.area for g in groups)


def _block_scores(matching: Matching, reference: PageFacts, result: PageFacts) -> tuple[float, float, float, float]:
    if not matching.pairs:
        both_empty = not matching.lost and not matching.extra
        return (1.0, 1.0, 1.0, 1.0) if both_empty else (0.0, 0.0, 0.0, 0.0)
    matched = sum(a.line.box.area + b.line.box.area for a, b, _ in matching.pairs)
    block = matched / max(matched + _area(matching.lost) + _area(matching.extra), 1e-9)
    offsets = []
    for a, b, _ in matching.pairs:
        (ax, ay), (bx, by) = a.line.box.center, b.line.box.center
        offsets.append(max(abs(ax - bx) / reference.width, abs(ay - by) / reference.height))
    labs = [to_lab(np.array([sides[k].line.color for sides in ((a, b) for a, b, _ in matching.pairs)])) for k in (0, 1)]
    color = np.maximum(0.0, 1.0 - delta_e(*labs) / 100.0).mean()
    text = sum(ratio for _, _, ratio in matching.pairs) / len(matching.pairs)
    return block, text, float(np.mean([max(0.0, 1.0 - o) for o in offsets])), float(color)


def _line_iou(matching: Matching) -> float:
    if not matching.pairs:
        return 1.0 if not matching.lost and not matching.extra else 0.0
    weights = [a.line.box.area + b.line.box.area for a, b, _ in matching.pairs]
    shared = sum(w * a.line.box.iou(b.line.box) for w, (a, b, _) in zip(weights, matching.pairs, strict=True))
    return shared / max(sum(weights) + _area(matching.lost) + _area(matching.extra), 1e-9)


def _own_pixels(reference: PageFacts, result: PageFacts) -> float:
    """Falls from 1 to 0 while pictures cover 15 to 50 % of the page more than in the reference, tiles included."""
    if reference.picture_cover is None or result.picture_cover is None:
        return 1.0
    excess = result.picture_cover - reference.picture_cover - 0.15
    return min(1.0, max(0.0, 1.0 - excess / 0.35))


def _boxes_f1(reference: Sequence[tuple[str, Box]], result: Sequence[tuple[str, Box]]) -> float | None:
    """F1 over pictures, buttons and inputs, matched within their kind; None if neither side has any."""
    if not reference and not result:
        return None
    hits = 0
    for kind in ("image", "button", "input"):
        a, b = ([box for k, box in side if k == kind] for side in (reference, result))
        if a and b:
            overlap = np.array([[x.iou(y) for y in b] for x in a])
            rows, columns = linear_sum_assignment(-np.where(overlap >= 0.5, overlap, 0.0))
            hits += int((overlap[rows, columns] >= 0.5).sum())
    return 2 * hits / (len(reference) + len(result))


def _role(matching: Matching, reference: Sequence[ScoredLine], result: Sequence[ScoredLine]) -> float | None:
    """Share of the reference's lines whose partner has the same kind; None if kinds are unknown or there are no lines."""
    if not reference or any(line.kind is None for line in reference):
        return None
    kept = 0
    for a, b, _ in matching.pairs:
        kinds = {result[j].kind for j in b.members}
        kept += sum(
            reference[i].kind in kinds if len(kinds) == 1 else reference[i].kind == b.line.kind for i in a.members
        )
    return kept / len(reference)


def _fits(result: PageFacts | None, reference: PageFacts | None) -> float:
    """1 if the phone-width page scrolls no further sideways and cuts no more lines than the reference does there."""
    if result is None:
        return 1.0
    allowed_scroll, allowed_cuts = (reference.overflow_x, reference.cut_lines) if reference is not None else (0.0, 0)
    if result.overflow_x > allowed_scroll + 1.0:
        return 0.0
    extra = max(0, result.cut_lines - allowed_cuts)
    return 1.0 - min(1.0, extra / max(1, len(result.lines)))

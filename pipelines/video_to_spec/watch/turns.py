"""A turn from an episode: what a model may refer to, in a fixed order that means something.

Moments stand in fixed places: `m0` the press that the first change answers (where none is seen, 0.11 s before it), `m1` the
first change, `m2` the end; `m3` and `m4` press and end of the episode before; then press and change of each further beat. Texts: what is under the pointer first, then what stood where something changed, then what came.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import cv2
import numpy as np

from watersmeet.core.geometry import Box
from watersmeet.pipelines.video_to_spec.observed import MAX_BOXES, Moment, Observed, SeenText
from watersmeet.pipelines.video_to_spec.watch.episodes import Beat, Episode
from watersmeet.pipelines.video_to_spec.watch.letters import bullets, without_caret
from watersmeet.pipelines.video_to_spec.watch.links import link_at
from watersmeet.pipelines.video_to_spec.watch.page import Line, Page, Reading, line_of
from watersmeet.pipelines.video_to_spec.watch.pointer import Track, joined, point_of
from watersmeet.pipelines.video_to_spec.watch.sight import Patches, Turn

ANSWER_US = 110_000  # from a press to the first frame that shows an answer
_UNDER, _BEFORE, _AFTER, _TITLES = 3, 7, 8, 4
_LIKELY, _LIT_US = 4, 1_500_000  # lines likely meant though no pointer is shown; from lighting up to a press
_REACH = 130.0  # px, of what is beside the pointer
_AT = 6.0  # px from a line at which the pointer is on it
_ROW = 12.0  # px between areas in which the same line is typed
_BESIDE = 90.0  # px, of what is beside what changed: labels of fields
SMALL = 0.12  # of the screen: changes beside which labels are looked for


class Before:
    """What is known when an episode begins, behind the episode `last`. `point` is where the pointer points,
    None if it was never seen; `hidden` what cannot be seen of `picture` because of it."""

    def __init__(
        self,
        page: Page,
        picture: np.ndarray,
        episode: Episode,
        last: Episode | None,
        track: Track,
        *,
        hidden: Box | None,
    ) -> None:
        self.episode, self.last, self.picture, self.hidden = episode, last, picture, hidden
        now = episode.start_us - 1
        pointer = track.at(now)
        self.point = None if pointer is None else point_of(pointer)
        self.still_us = track.still_us(now)
        self.way = track.way(last.start_us if last else 0, now)
        page.update(picture, [], hidden)  # what the pointer hid may be seen now
        self.lines = list(page.lines)


def opening(page: Page, picture: np.ndarray, time_us: int, pointer: Box | None, patches: Patches) -> Turn:
    """The turn of the first frame."""
    reading = page.update(picture, [], pointer)
    after = _titles(reading.come, _AFTER)
    height, width = picture.shape[:2]
    moments = (Moment(time_us=time_us, frame=0, shown_us=time_us),)
    whole = Box(x0=0, y0=0, x1=width, y1=height)
    return Turn(
        observed=_observed(width, height, moments, [], after, [whole]),
        patches=patches,
        under=(),
        before=(),
        after=tuple(after),
        on_screen=frozenset(line.text for line in page.lines),
        areas=(whole,),
        pause_s=0.0,
        lasting_s=0.0,
        point=None,
        still_s=None,
        way=0.0,
        pressed=False,
        reach=None,
        scrolled=0,
        kept=0.0,
        letters=False,
    )


def make_turn(
    page: Page,
    before: Before,
    picture: np.ndarray,
    *,
    hidden: Box | None,
    times_us: Sequence[int],
    patches: Patches,
    shapes: Callable[..., Any],
    brief: Sequence[Line] = (),
) -> Turn:
    """The turn of one episode, at whose end `picture` is shown, of which `hidden` cannot be seen. brief: lines that were there
    during the episode alone."""
    episode, last, point = before.episode, before.last, before.point
    height, width = picture.shape[:2]
    pictures = [picture]
    if episode.letters:
        picture = without_caret(picture, _typed_place(episode))
        pictures.append(picture)
    reading = page.update(picture, episode.areas, hidden)
    small = sum(area.area for area in episode.areas) < SMALL * width * height
    under = _under(before)
    likely = _likely(before, reading, width * height) if point is None else []
    old = _before(before.lines, reading, episode, point, small, [*under, *likely])
    old = [*[*likely, *old][: _BEFORE + _UNDER], *brief]
    new = _after(reading, pictures, episode, point, small)
    boxes = _boxes(before, under, point, shapes)
    total = len(reading.kept) + len(reading.gone)
    return Turn(
        observed=_observed(width, height, _moments(episode, last, times_us), [*under, *old], new, boxes),
        patches=patches,
        under=tuple(under),
        before=tuple(old),
        after=tuple(new),
        on_screen=frozenset(line.text for line in page.lines),
        areas=episode.areas,
        pause_s=(episode.start_us - (last.end_us if last else 0)) / 1e6,
        lasting_s=(episode.end_us - episode.start_us) / 1e6,
        point=point,
        still_s=None if before.still_us is None else before.still_us / 1e6,
        way=before.way,
        pressed=any(beat.press_us is not None for beat in episode.beats),
        reach=None if point is None else min(distance(area, point) for area in episode.areas),
        scrolled=reading.scrolled,
        kept=len(reading.kept) / total if total else 1.0,
        letters=episode.letters,
    )


def mended(turn: Turn, old: Line, new: Line) -> Turn:
    """The turn with the line `new` wherever it shows `old`: the pointer was on it when it was read, and is not any more."""

    def mend(line: Line) -> Line:
        # a bar may have been taken from its end
        return new if line.box == old.box and line.text and old.text.startswith(line.text) else line

    under, before, after = (tuple(mend(line) for line in lines) for lines in (turn.under, turn.before, turn.after))
    if (under, before, after) == (turn.under, turn.before, turn.after):
        return turn
    seen = turn.observed
    observed = _observed(seen.width, seen.height, seen.moments, [*under, *before], after, seen.boxes)
    return replace(turn, observed=observed, under=under, before=before, after=after)


def _observed(
    width: int,
    height: int,
    moments: tuple[Moment, ...],
    lines: Sequence[Line],
    came: Sequence[Line],
    boxes: Sequence[Box],
) -> Observed:
    texts = [SeenText(text=line.text, box=line.box) for line in lines]
    texts += [SeenText(text=line.text, box=line.box, came=True) for line in came]
    return Observed(width=width, height=height, moments=moments, texts=tuple(texts), boxes=tuple(boxes[:MAX_BOXES]))


def _moments(episode: Episode, last: Episode | None, times_us: Sequence[int]) -> tuple[Moment, ...]:
    def moment(time_us: int) -> Moment:
        time_us = max(time_us, times_us[0])
        frame = max(0, bisect_right(times_us, time_us) - 1)
        return Moment(time_us=time_us, frame=frame, shown_us=times_us[frame])

    def pressed(beat: Beat) -> int:
        return beat.time_us - ANSWER_US if beat.press_us is None else beat.press_us

    times = [pressed(episode.beats[0]), episode.start_us, episode.end_us]
    times += [pressed(last.beats[0]), last.end_us] if last else [times_us[0], times_us[0]]
    for beat in episode.beats[1:]:
        times += [pressed(beat), beat.time_us]
    return tuple(moment(time) for time in times)


def distance(box: Box, point: tuple[float, float]) -> float:
    """Px from a point to a box, 0 inside of it."""
    dx = max(box.x0 - point[0], 0.0, point[0] - box.x1)
    dy = max(box.y0 - point[1], 0.0, point[1] - box.y1)
    return float((dx * dx + dy * dy) ** 0.5)


def _gap(a: Box, b: Box) -> float:
    dx = max(a.x0 - b.x1, 0.0, b.x0 - a.x1)
    dy = max(a.y0 - b.y1, 0.0, b.y0 - a.y1)
    return float((dx * dx + dy * dy) ** 0.5)


def _under(before: Before) -> list[Line]:
    """The nearest lines to the pointer, first the link in the nearest if it is on one, and the block of lines that the nearest
    belongs to as one text."""
    lines, point = before.lines, before.point
    if point is None:
        return []
    near = sorted(lines, key=lambda line: (distance(line.box, point), line.box.area))
    found = [line for line in near[:_UNDER] if distance(line.box, point) <= _REACH]
    at = found[0] if found and distance(found[0].box, point) <= _AT else None
    link = None if at is None else link_at(before.picture, at, point, before.hidden)
    if link is not None:
        return [link, *found]
    block = _block(found[0], lines) if found else []
    if len(block) > 1:
        text = " ".join(line.text for line in block)
        found.append(line_of(text, Box.around([line.box for line in block]), found[0].record))
    return found


def _block(line: Line, lines: Sequence[Line]) -> list[Line]:
    """`line` with the lines directly above and below it that begin at the same edge."""
    block = [line]
    for step in (-1, 1):
        at = line
        while len(block) < 4:
            beside = [
                other
                for other in lines
                if other not in block
                and abs(other.box.x0 - at.box.x0) < 6
                and 0.5 < other.box.height / at.box.height < 2
                and -4 <= (other.box.y0 - at.box.y1 if step > 0 else at.box.y0 - other.box.y1) < 0.7 * at.box.height
            ]
            if not beside:
                break
            at = min(beside, key=lambda other: abs(other.box.y0 - at.box.y0))
            block.append(at)
    return sorted(block, key=lambda other: other.box.y0)


def _likely(before: Before, reading: Reading, area: float) -> list[Line]:
    """Without a pointer: lines that lit up shortly before the change, as below a pointer that is not drawn, and lines that
    are called like something that came: a link like the page that it leads to."""
    last, came = before.last, {line.text.casefold() for line in reading.come}
    lit: list[Line] = []
    if last is not None and before.episode.start_us - last.end_us <= _LIT_US and last.box.area < SMALL * area:
        lit = [line for line in before.lines if any(line.box.intersection(one) > 0 for one in last.areas)]
    named = [line for line in before.lines if line.text.casefold() in came and line not in lit]
    return [*lit[:2], *named][:_LIKELY]


def _before(
    lines: Sequence[Line],
    reading: Reading,
    episode: Episode,
    point: tuple[float, float] | None,
    small: bool,
    said: Sequence[Line],
) -> list[Line]:
    """Lines beyond those `said` that stood where something changed, the nearest to the pointer first; beside small changes labels
    too."""
    rest = [line for line in lines if line not in said]
    inside = [line for line in rest if any(line.box.intersection(area) > 0 for area in episode.areas)]
    gone = [line for line in inside if line in reading.gone]
    at = point or (episode.box.x0, episode.box.y0)
    order = sorted(gone, key=lambda line: distance(line.box, at))[: _BEFORE - 3]
    if small or episode.letters:
        place = episode.beats[-1].box if episode.letters else episode.box
        beside = sorted((line for line in rest if line not in order), key=lambda line: _gap(line.box, place))
        order += [line for line in beside if _gap(line.box, place) <= _BESIDE][: _BEFORE - len(order)]
    return order


def _after(
    reading: Reading, pictures: Sequence[np.ndarray], episode: Episode, point: tuple[float, float] | None, small: bool
) -> list[Line]:
    """Lines that came: what was typed first; of many the largest and the nearest to the pointer. pictures: of the end, with a
    caret and without."""
    come = list(reading.come)
    first: list[Line] = []
    if episode.letters:
        place = _typed_place(episode)
        # a caret may hide the last dot, and so may what is painted over a caret
        found = [bullets(picture, place, [line.box for line in come]) for picture in pictures]
        hidden = max((row for row in found if row is not None), key=lambda row: len(row.text), default=None)
        if hidden is not None:
            come = [line for line in come if line.box.intersection(hidden.box) == 0]
            first.append(hidden)
        on = sorted(
            (line for line in come if line.box.intersection(place) > 0), key=lambda line: -line.box.intersection(place)
        )
        first += [_without_bar(line) for line in on[:2]]
        come = [line for line in come if line not in on[:2]]
    rest = [line for line in come if line not in first]
    if small and len(rest) <= _AFTER:
        return first + rest
    titles = _titles(rest, _TITLES)
    at = point or episode.box.center
    others = sorted((line for line in rest if line not in titles), key=lambda line: distance(line.box, at))
    return first + titles + others[: _AFTER - len(titles)]


def _without_bar(line: Line) -> Line:
    """A line that was just typed without the caret behind it, where that was read as a bar."""
    text = line.text.rstrip("| ")
    if not line.text.endswith("|") or not text:
        return line
    return Line(box=line.box, text=text, record=dict(line.record) | {"text": text})


def _titles(lines: Sequence[Line], count: int) -> list[Line]:
    """The largest lines, the upper ones first among equals."""
    return sorted(lines, key=lambda line: (-round(float(line.record["font_size"]) / 2), line.box.y0))[:count]


def _boxes(
    before: Before, under: Sequence[Line], point: tuple[float, float] | None, shapes: Callable[..., Any]
) -> list[Box]:
    """Places that could be meant: what is below the pointer, then what changed, the largest first."""
    out: list[Box] = []
    episode = before.episode
    if point is not None:
        out.append(_control(before, under, point, shapes))
    changed = sorted(episode.areas, key=lambda area: -area.area)
    out += [episode.box, *changed[: MAX_BOXES - 2 - len(out)]]
    if episode.letters:
        out.append(_typed_place(episode))
    return out


def _typed_place(episode: Episode) -> Box:
    """Where letters came; the first beat is the press that made room for them. What changed elsewhere at the same time, as a clock
    does, is left out: letters came in the area that changed oftenest."""
    boxes = [beat.box for beat in episode.beats[1:]] or [episode.box]
    areas = joined(episode.areas, _ROW)
    often = max(areas, key=lambda area: (sum(box.intersection(area) > 0 for box in boxes), -area.area))
    parts = [part for part in (box.common(often) for box in boxes) if part is not None]
    return Box.around(parts or boxes)


def _control(before: Before, under: Sequence[Line], point: tuple[float, float], shapes: Callable[..., Any]) -> Box:
    """The smallest box drawn around the pointer; otherwise the line of text there with a margin, or a small square."""
    height, width = before.picture.shape[:2]
    x0, y0 = max(0, int(point[0]) - 260), max(0, int(point[1]) - 70)
    # what a codec leaves in a plain surface would make a picture of it, and so would letters
    crop = cv2.bilateralFilter(before.picture[y0 : min(height, y0 + 140), x0 : min(width, x0 + 520)], 7, 40, 5)
    seen = Box(x0=x0, y0=y0, x1=x0 + crop.shape[1], y1=y0 + crop.shape[0])
    texts = [line.box.shifted(-x0, -y0) for line in before.lines if seen.contains(line.box)]
    found, _ = shapes(crop, [(box.x0, box.y0, box.x1, box.y1) for box in texts])
    around = []
    for shape in found:
        box = Box(x0=shape.bounds[0], y0=shape.bounds[1], x1=shape.bounds[2], y1=shape.bounds[3]).shifted(x0, y0)
        if (
            shape.kind in ("fill", "outline")
            and distance(box, point) == 0
            and 14 <= box.height <= 120
            and box.width >= 14
        ):
            around.append(box)
    if around:
        return min(around, key=lambda box: box.area)
    if under and distance(under[0].box, point) < 12:
        box = under[0].box
        return Box(x0=box.x0 - 10, y0=box.y0 - 8, x1=box.x1 + 10, y1=box.y1 + 8).clipped(width, height)
    x, y = point
    return Box(x0=x - 16, y0=y - 16, x1=x + 16, y1=y + 16).clipped(width, height)

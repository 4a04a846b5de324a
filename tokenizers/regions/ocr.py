"""Find lines of text in a screenshot and read them, offline, with the models inside the rapidocr package.

The networks are PP-OCR's detector (Differentiable Binarization, arXiv:1911.08947) and its CTC recogniser. Around them
stands what screens need and scans do not: boxes snapped to the ink, lines cut where another block begins, long lines
read in pieces, spaces put where the pixels have them.

Legend: H, W rows and columns of the picture; T time steps of the recogniser; K its characters.
"""

import os
import threading
from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from watersmeet.core.errors import ConfigError
from watersmeet.tokenizers.regions.glyphs import coverage, ink_and_paper

THREADS = 2
DETECT_SIDE = 1600  # px: wider pictures are scaled down before detection
TILE = 1024  # px: taller pictures are detected in bands
TILE_OVERLAP = 96
READ_HEIGHT = 48  # px, the recogniser's own
READ_ASPECT = 16.0  # longer crops are cut at word gaps: the recogniser was trained on 6.7
BLOCK_GAP = 0.85  # em: a wider gap separates two texts
WORD_GAP = 0.24  # em: a wider gap is a space
MIN_SCORE = 0.55


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One visual line: the box around its ink (px), what it says, how sure the recogniser is, and its parts between gaps that a
    space could be, each with its box."""

    box: tuple[float, float, float, float]
    text: str = ""
    confidence: float = 0.0
    words: tuple[tuple[tuple[float, float, float, float], str], ...] = ()


def usable_cores() -> int:
    """Cores that this process may run on: two threads on one core would wait for each other."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Models:
    """Both networks. Loading takes about half a second, so it happens once a process, on first use."""

    def __init__(self) -> None:
        try:
            import onnxruntime
            import rapidocr
        except ImportError as error:
            raise ConfigError(f"reading text needs the packages rapidocr and onnxruntime: {error}") from error
        folder = Path(rapidocr.__file__).parent / "models"
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = min(THREADS, usable_cores())
        options.inter_op_num_threads = 1
        options.log_severity_level = 4
        # shapes change with every line; an arena would keep the largest of each
        options.enable_cpu_mem_arena = False

        def load(part: str) -> Any:
            files = sorted(folder.glob(f"*_{part}_*.onnx"))
            if not files:
                raise ConfigError(f"rapidocr has no {part} model in {folder}; install rapidocr 3.10 or newer")
            return onnxruntime.InferenceSession(str(files[-1]), options, providers=["CPUExecutionProvider"])

        self.detector, self.recogniser = load("det"), load("rec")
        names = self.recogniser.get_modelmeta().custom_metadata_map["character"].splitlines()
        self.characters = ["", *names, " "]
        self.latin_K = np.array([all(ord(c) < 0x250 or 0x2000 <= ord(c) < 0x2300 for c in s) for s in self.characters])

    def detect(self, batch: NDArray[np.float32]) -> NDArray[np.float32]:
        return self.detector.run(None, {self.detector.get_inputs()[0].name: batch})[0][0, 0]

    def recognise(self, batch: NDArray[np.float32]) -> NDArray[np.float32]:
        return self.recogniser.run(None, {self.recogniser.get_inputs()[0].name: batch})[0]


_lock = threading.Lock()


@lru_cache(maxsize=1)
def _load() -> _Models:
    return _Models()


def models() -> _Models:
    """The networks, loaded on first use."""
    with _lock:
        return _load()


# detection --------------------------------------------------------------------------------------------------------


def _text_map(image_HW3: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Probability of text at each pixel [H, W]; tall pictures go through in overlapping bands."""
    height, width = image_HW3.shape[:2]
    scale = min(1.0, DETECT_SIDE / width)
    if scale < 1:
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        small = cv2.resize(image_HW3, size, interpolation=cv2.INTER_AREA)
    else:
        small = image_HW3
    rows = small.shape[0]
    out = np.zeros(small.shape[:2], np.float32)
    top = 0
    while True:
        bottom = rows if rows - top <= TILE + TILE_OVERLAP else top + TILE
        band = small[top:bottom]
        padded = np.full((-(-band.shape[0] // 32) * 32, -(-band.shape[1] // 32) * 32, 3), 255, np.uint8)
        padded[: band.shape[0], : band.shape[1]] = band
        batch = (padded[..., ::-1].astype(np.float32) / 127.5 - 1).transpose(2, 0, 1)[None]
        found = models().detect(np.ascontiguousarray(batch))[: band.shape[0], : band.shape[1]]
        np.maximum(out[top:bottom], found, out=out[top:bottom])
        if bottom == rows:
            break
        top = bottom - TILE_OVERLAP
    return cv2.resize(out, (width, height), interpolation=cv2.INTER_LINEAR) if scale < 1 else out


def _cores(image_HW3: NDArray[np.uint8]) -> list[tuple[int, int, int, int]]:
    """Boxes of the middle parts of text lines, as the detector sees them."""
    probability = _text_map(image_HW3)
    count, labels, stats, _ = cv2.connectedComponentsWithStats((probability > 0.3).astype(np.uint8), connectivity=8)
    peak = np.zeros(count, np.float32)
    np.maximum.at(peak, labels.ravel(), probability.ravel())
    out = []
    for i in range(1, count):
        x, y, w, h, area = (int(v) for v in stats[i])
        if peak[i] >= 0.6 and min(w, h) >= 2 and area >= 6 and h <= 1.6 * w + 24:
            out.append((x, y, x + w, y + h))
    return out


@dataclass(frozen=True, slots=True)
class _Snapped:
    box: tuple[int, int, int, int]
    paper: tuple[int, int, int]


def _snap(image: NDArray[np.uint8], core: tuple[int, int, int, int]) -> list[_Snapped]:
    """Grow a core to the ink around it and cut it where gaps are too wide for one text."""
    height, width = image.shape[:2]
    x0, y0, x1, y1 = core
    tall = y1 - y0
    gx, gy = max(4, round(1.1 * tall)), max(3, round(0.75 * tall))
    bx0, by0, bx1, by1 = max(0, x0 - gx), max(0, y0 - gy), min(width, x1 + gx), min(height, y1 + gy)
    crop = image[by0:by1, bx0:bx1]
    if crop.shape[0] < 3 or crop.shape[1] < 2:
        return []
    # colours from the core's own surroundings, so that a neighbour's paper does not win
    ink_color, paper, flat = ink_and_paper(image[max(0, y0 - 2) : y1 + 2, max(0, x0 - 2) : x1 + 2])
    if flat:
        distance = np.abs(crop.astype(np.int16) - np.array(paper, np.int16)).max(-1)
        reach = max(abs(a - b) for a, b in zip(ink_color, paper, strict=True))
        ink = distance > max(8, 0.28 * reach)
    else:
        ink = coverage(crop, ink_color, paper) > 0.5
    own = ink[:, max(0, x0 - bx0) : x1 - bx0]
    filled = own.mean(1)
    # rows: from the core outwards until paper, a rule, or too far
    top, bottom = y0 - by0, y1 - by0
    while top > 0 and 0 < filled[top - 1] < 0.9:
        top -= 1
    while bottom < len(filled) and 0 < filled[bottom] < 0.9:
        bottom += 1
    while top < bottom - 1 and filled[top] in (0.0,):
        top += 1
    while bottom > top + 1 and filled[bottom - 1] == 0:
        bottom -= 1
    if bottom - top < 3:
        return []
    columns = ink[top:bottom].mean(0)
    used = columns > 0
    em = max(6.0, (bottom - top) / 0.82)
    runs = _runs(used)
    # frames of fields and buttons, and the edge of the next box, run on above and below the line; letters do not
    above, below = ink[max(0, top - 3) : top], ink[bottom : bottom + 3]
    runs = [
        r for r in runs if not (above[:, r[0] : r[1]].any(1).all() and below[:, r[0] : r[1]].any(1).all() and len(above) and len(below))
    ]  # fmt: skip
    # keep what touches the core's columns, or joins it without a wide gap
    groups: list[list[int]] = []
    for start, end in runs:
        if groups and start - groups[-1][1] < BLOCK_GAP * em:
            groups[-1][1] = end
        else:
            groups.append([start, end])
    out = []
    for start, end in groups:
        if end <= x0 - bx0 - 1 or start >= x1 - bx0 + 1 or end - start < 2:
            continue
        rows = np.flatnonzero(ink[top:bottom, start:end].any(1))
        if len(rows) < 3:
            continue
        box = (bx0 + start, by0 + top + int(rows[0]), bx0 + end, by0 + top + int(rows[-1]) + 1)
        out.append(_Snapped(box, paper))
    return out


def _runs(flags: NDArray[np.bool_]) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(np.int8), [0]])))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _holds(frame: tuple[int, int, int, int], top: int, bottom: int) -> bool:
    """True when a frame could be the box around a line from `top` to `bottom`: a stem of a letter is not."""
    tall = bottom - top
    return frame[1] <= top - 1 and frame[3] >= bottom + 1 and frame[2] - frame[0] >= 0.8 * tall


def _split_at_edges(lines: list[_Snapped], frames: list[tuple[int, int, int, int]]) -> list[_Snapped]:
    """Cut lines where the vertical edge of a box runs through them: the texts of two buttons are two texts."""
    out = []
    for line in lines:
        x0, y0, x1, y1 = line.box
        cuts = sorted({edge for f in frames if _holds(f, y0, y1) for edge in (f[0], f[2]) if x0 + 3 < edge < x1 - 3})
        start = x0
        for cut in [*cuts, x1]:
            if cut - start >= 3:
                out.append(_Snapped((start, y0, cut, y1), line.paper))
            start = cut
    return out


def _edge_between(
    a: tuple[int, int, int, int], b: tuple[int, int, int, int], frames: list[tuple[int, int, int, int]]
) -> bool:
    top, bottom = max(a[1], b[1]), min(a[3], b[3])
    return any(_holds(f, top, bottom) and any(a[2] - 2 <= edge <= b[0] + 2 for edge in (f[0], f[2])) for f in frames)


def _join(lines: list[_Snapped], frames: list[tuple[int, int, int, int]]) -> list[_Snapped]:
    """Put parts of one visual line together, and drop boxes found twice."""
    items = sorted(lines, key=lambda s: (s.box[0], s.box[1]))
    changed = True
    while changed:
        changed = False
        for i, a in enumerate(items):
            for j in range(i + 1, len(items)):
                b = items[j]
                ha, hb = a.box[3] - a.box[1], b.box[3] - b.box[1]
                em = max(6.0, max(ha, hb) / 0.82)
                gap = b.box[0] - a.box[2]
                if gap > BLOCK_GAP * em:
                    if b.box[0] > a.box[2] + 400:
                        break
                    continue
                both = min(a.box[3], b.box[3]) - max(a.box[1], b.box[1])
                if both < 0.55 * min(ha, hb) or max(ha, hb) > 2.2 * min(ha, hb):
                    continue
                if gap > 0 and _edge_between(a.box, b.box, frames):
                    continue
                box = (
                    min(a.box[0], b.box[0]),
                    min(a.box[1], b.box[1]),
                    max(a.box[2], b.box[2]),
                    max(a.box[3], b.box[3]),
                )
                if box[3] - box[1] > 1.5 * max(ha, hb):
                    continue
                items[i] = _Snapped(box, a.paper)
                del items[j]
                changed = True
                break
            if changed:
                break
    return items


def find_lines(
    image_HW3: NDArray[np.uint8], frames: list[tuple[int, int, int, int]]
) -> list[tuple[int, int, int, int]]:
    """Boxes around the ink of visual lines. `frames` are boxes whose edges separate texts."""
    height, width = image_HW3.shape[:2]
    if height < 6 or width < 4:
        return []
    snapped = [part for core in _cores(image_HW3) for part in _snap(image_HW3, core)]
    return [line.box for line in _split_at_edges(_join(snapped, frames), frames)]


# recognition ------------------------------------------------------------------------------------------------------


def _pieces(image: NDArray[np.uint8], box: tuple[int, int, int, int]) -> list[tuple[int, int]]:
    """x ranges in which a line is read: one, or several cut at the widest gaps when it is long for its height."""
    x0, y0, x1, y1 = box
    tall = y1 - y0 + 4
    longest = int(READ_ASPECT * tall)
    if x1 - x0 <= longest:
        return [(x0, x1)]
    crop = image[y0:y1, x0:x1]
    ink, paper, _ = ink_and_paper(crop)
    empty = _runs(coverage(crop, ink, paper).max(0) < 0.25)
    out, start = [], 0
    while (x1 - x0) - start > longest:
        window = [(b - a, (a + b) // 2) for a, b in empty if start + longest * 0.45 < (a + b) / 2 < start + longest]
        # the widest gaps are word gaps; among them the last one keeps the number of pieces small
        widest = max(window)[0] if window else 0
        wide = [g for g in window if g[0] >= max(2, 0.75 * widest)]
        cut = max(wide, key=lambda g: g[1])[1] if wide else max(window)[1] if window else start + longest
        out.append((x0 + start, x0 + cut))
        start = cut
    return [*out, (x0 + start, x1)]


def _prepare(image: NDArray[np.uint8], x0: int, y0: int, x1: int, y1: int) -> NDArray[np.uint8]:
    """Crop with a margin in the paper's colour, scaled to the recogniser's height."""
    height = image.shape[0]
    margin_y, margin_x = max(2, round((y1 - y0) * 0.16)), max(2, round((y1 - y0) * 0.2))
    ty, by = max(0, y0 - margin_y), min(height, y1 + margin_y)
    crop = image[ty:by, x0:x1]
    paper = ink_and_paper(crop)[1]
    full = np.empty((by - ty, x1 - x0 + 2 * margin_x, 3), np.uint8)
    full[:] = paper
    full[:, margin_x:-margin_x] = crop
    scaled = max(8, round(full.shape[1] * READ_HEIGHT / full.shape[0]))
    method = cv2.INTER_AREA if full.shape[0] > READ_HEIGHT else cv2.INTER_CUBIC
    return cv2.resize(full, (scaled, READ_HEIGHT), interpolation=method)


def _decode(scores_TK: NDArray[np.float32], characters: list[str]) -> tuple[str, list[float], list[int]]:
    """Greedy CTC: text, probability and time step of each character."""
    best = scores_TK.argmax(1)
    chosen = best != 0
    chosen[1:] &= best[1:] != best[:-1]
    steps = np.flatnonzero(chosen)
    text, sure, at = "", [], []
    for step in steps:
        for char in characters[best[step]]:
            text += char
            sure.append(float(scores_TK[step, best[step]]))
            at.append(int(step))
    return text, sure, at


@dataclass(frozen=True, slots=True)
class _Read:
    text: str
    sure: list[float]
    x: list[float]  # picture x of each character's middle


class ReadLines:
    """Lines that were read lately, by how they look, so that a screen that is shown again is not read again.

    A line is known if means of 4 x 4 px of its crop at the recogniser's height are those of one of the same width; a
    codec's noise hardly moves them, and another letter moves some by half of the way from ink to paper.
    """

    _MOST, _STEP = 4096, 12  # lines; of 255

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[int, bool], list[tuple[NDArray[np.int16], _Read]]] = OrderedDict()
        self._count = 0

    @staticmethod
    def _look(crop: NDArray[np.uint8]) -> NDArray[np.int16]:
        size = (max(1, crop.shape[1] // 4), crop.shape[0] // 4)
        return cv2.resize(crop, size, interpolation=cv2.INTER_AREA).astype(np.int16)

    def recall(self, crop: NDArray[np.uint8], latin: bool) -> _Read | None:
        """What was read of a crop that looked like this one."""
        key = (crop.shape[1], latin)
        if key not in self._known:
            return None
        self._known.move_to_end(key)
        look = self._look(crop)
        return next((read for other, read in self._known[key] if int(np.abs(look - other).max()) <= self._STEP), None)

    def keep(self, crop: NDArray[np.uint8], latin: bool, read: _Read) -> None:
        """Remember a reading; the widths that were asked for least lately are forgotten."""
        self._known.setdefault((crop.shape[1], latin), []).append((self._look(crop), read))
        self._count += 1
        while self._count > self._MOST:
            self._count -= len(self._known.popitem(last=False)[1])


def _recognise(
    image: NDArray[np.uint8], jobs: list[tuple[int, int, int, int]], latin: bool, memory: ReadLines | None = None
) -> list[_Read]:
    """Read crops; those of similar width share a batch, and those in `memory` are not read again."""
    net = models()
    crops = [_prepare(image, *job) for job in jobs]
    out: dict[int, _Read] = {}
    if memory is not None:
        for i, job in enumerate(jobs):
            known = memory.recall(crops[i], latin)
            if known is not None:
                out[i] = replace(known, x=[x + job[0] for x in known.x])
    order = sorted((i for i in range(len(jobs)) if i not in out), key=lambda i: crops[i].shape[1])
    position = 0
    while position < len(order):
        group = [order[position]]
        position += 1
        while position < len(order) and len(group) < 8:
            wide = crops[order[position]].shape[1]
            if wide > 1.25 * crops[group[0]].shape[1] + 24:
                break
            group.append(order[position])
            position += 1
        wide = max(crops[i].shape[1] for i in group)
        batch = np.zeros((len(group), 3, READ_HEIGHT, -(-wide // 8) * 8), np.float32)
        for row, i in enumerate(group):
            batch[row, :, :, : crops[i].shape[1]] = (
                crops[i][..., ::-1].transpose(2, 0, 1).astype(np.float32) / 127.5 - 1
            )
        scores = net.recognise(batch)
        if latin:
            scores = np.where(net.latin_K, scores, 0)
        for row, i in enumerate(group):
            x0, y0, x1, y1 = jobs[i]
            text, sure, at = _decode(scores[row], net.characters)
            step = batch.shape[3] / scores.shape[1]
            margin = max(2, round((y1 - y0) * 0.2))
            ratio = (x1 - x0 + 2 * margin) / crops[i].shape[1]
            out[i] = _Read(text, sure, [x0 - margin + (t + 0.5) * step * ratio for t in at])
            if memory is not None:
                memory.keep(crops[i], latin, replace(out[i], x=[x - x0 for x in out[i].x]))
    return [out[i] for i in range(len(jobs))]


_PLAIN = str.maketrans(
    {"，": ",", "：": ":", "（": "(", "）": ")", "；": ";", "！": "!", "？": "?", "。": ".", "’": "'", "‘": "'", "“": '"',
     "”": '"', "＄": "$", "％": "%", "＆": "&", "＋": "+", "－": "-", "／": "/", "＝": "=", "＠": "@", "＃": "#", "\u3000": " "}
)  # fmt: skip


def _space(read: _Read, gaps: list[tuple[int, int]]) -> _Read:
    """Insert the spaces that the pixels have and the recogniser left out."""
    text, sure, xs = list(read.text), list(read.sure), list(read.x)
    for start, end in sorted(gaps, reverse=True):
        middle = (start + end) / 2
        index = next((i for i, x in enumerate(xs) if x > middle), None)
        if index in (None, 0):
            continue
        assert index is not None
        near = text[max(0, index - 2) : index + 2]
        if " " in near:
            continue
        # a gap that lies between two characters; CTC peaks may sit a third of a letter off
        text.insert(index, " ")
        sure.insert(index, 1.0)
        xs.insert(index, middle)
    return _Read("".join(text), sure, xs)


def _word_gaps(image: NDArray[np.uint8], box: tuple[int, int, int, int]) -> list[tuple[int, int]]:
    """Gaps of a line that are wide enough for a space and stand out from the gaps between letters."""
    x0, y0, x1, y1 = box
    crop = image[y0:y1, x0:x1]
    ink, paper, _ = ink_and_paper(crop)
    gaps = [(a, b) for a, b in _runs(coverage(crop, ink, paper).max(0) < 0.3) if a > 0 and b < x1 - x0]
    if not gaps:
        return []
    widths = np.array([b - a for a, b in gaps], float)
    em = (y1 - y0) / 0.85
    letters = widths[widths < WORD_GAP * em]
    usual = float(np.median(letters)) if len(letters) else 0.0
    limit = max(WORD_GAP * em, 2.5 * usual, 3)
    return [(x0 + a, x0 + b) for a, b in gaps if b - a >= limit]


def _words(
    read: _Read, box: tuple[int, int, int, int], gaps: list[tuple[int, int]]
) -> tuple[tuple[tuple[float, float, float, float], str], ...]:
    """The line cut at its word gaps: into words where their number agrees with the spaces read, else where the letters are."""
    parts = read.text.split()
    x0, y0, x1, y1 = box
    if len(parts) != len(gaps) + 1:
        cuts = [bisect_right(read.x, (a + b) / 2) for a, b in gaps]
        parts = [_plain(read.text[a:b]) for a, b in pairwise([0, *cuts, len(read.text)])]
        if not all(parts):
            return ()
    starts = [x0, *(b for _, b in gaps)]
    ends = [*(a for a, _ in gaps), x1]
    return tuple(
        ((float(s), float(y0), float(e), float(y1)), w)
        for s, e, w in zip(starts, ends, map(_plain, parts), strict=True)
    )


def _plain(text: str) -> str:
    """With ASCII punctuation and single spaces."""
    return " ".join(text.translate(_PLAIN).split())


def _is_noise(text: str, confidence: float, box: tuple[int, int, int, int]) -> bool:
    """True for what icons, bullets and photographs are read as."""
    plain = [c for c in text if c.isalnum()]
    if confidence < MIN_SCORE or not text:
        return True
    if not plain:
        return len(text) < 3 and confidence < 0.93 and text not in "+-×<>…»«→←↑↓?!#$%&*/="
    if len(plain) == 1 and len(text) == 1:
        tall, wide = box[3] - box[1], box[2] - box[0]
        return confidence < 0.8 or wide > 1.3 * tall or ord(text) > 0x2E80
    return False


def read_lines(
    image_HW3: NDArray[np.uint8],
    frames: list[tuple[int, int, int, int]] | None = None,
    memory: ReadLines | None = None,
) -> list[Line]:
    """All lines of a picture [H, W, 3] uint8 RGB, unsorted. `frames` are boxes whose edges separate texts; `memory` has lines
    of earlier pictures of the same recording."""
    boxes = find_lines(image_HW3, frames or [])
    jobs = [(box, piece) for box in boxes for piece in _pieces(image_HW3, box)]
    reads = _recognise(image_HW3, [(p[0], b[1], p[1], b[3]) for b, p in jobs], latin=False, memory=memory)
    letters = "".join(r.text for r in reads)
    foreign = sum(ord(c) > 0x2E80 for c in letters)
    if foreign and foreign < 0.1 * len(letters):
        # a page in Latin script: ideographs are icons that were taken for letters; read those lines again without
        again = [i for i, r in enumerate(reads) if any(ord(c) > 0x2E80 for c in r.text)]
        better = _recognise(
            image_HW3,
            [(jobs[i][1][0], jobs[i][0][1], jobs[i][1][1], jobs[i][0][3]) for i in again],
            latin=True,
            memory=memory,
        )
        for i, read in zip(again, better, strict=True):
            reads[i] = read
    by_box: dict[tuple[int, int, int, int], list[_Read]] = {}
    for (box, _), read in zip(jobs, reads, strict=True):
        by_box.setdefault(box, []).append(read)
    out = []
    for box, parts in by_box.items():
        whole = parts[0]
        for part in parts[1:]:
            whole = _Read(
                f"{whole.text} {part.text}",
                [*whole.sure, 1.0, *part.sure],
                [*whole.x, part.x[0] if part.x else 0.0, *part.x],
            )
        gaps = _word_gaps(image_HW3, box)
        whole = _space(whole, gaps)
        text = _plain(whole.text)
        confidence = float(np.mean(whole.sure)) if whole.sure else 0.0
        if _is_noise(text, confidence, box):
            continue
        line = Line(box=tuple(float(v) for v in box), text=text, confidence=confidence)  # type: ignore[arg-type]
        out.append(replace(line, words=_words(whole, box, gaps)))
    return out

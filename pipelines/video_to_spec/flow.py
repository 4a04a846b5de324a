"""The flow graph of a specification as inline SVG: screens as boxes, steps that lead from one to another as arrows."""

import math
from collections import defaultdict
from dataclasses import dataclass

from watersmeet.core.geometry import Box
from watersmeet.pipelines.video_to_spec.spec import Spec

COLUMNS = 4
WIDE, HIGH = 190, 64  # of a box
GAP_X, GAP_Y = 90, 80
MARGIN = 30
_ALONG = (0.5, 0.42, 0.58, 0.34, 0.66, 0.26, 0.74, 0.18, 0.82)  # shares of an arrow at which its label may stand
_DIGIT, _LINE = 8.0, 16.0  # px of a letter of a label, and of its line


@dataclass(frozen=True, kw_only=True)
class Node:
    """A screen: its top left corner, title lines, and how many steps stay on it."""

    id: str
    title: str
    x: float
    y: float
    stays: int


@dataclass(frozen=True, kw_only=True)
class Edge:
    """Steps from one screen to another: the path of a curve and where its label stands."""

    path: str
    label: str
    first: int
    x: float
    y: float


@dataclass(frozen=True, kw_only=True)
class Flow:
    """The whole graph, `width` x `height` px."""

    width: float
    height: float
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]


def flow_of(spec: Spec) -> Flow:
    """Screens in rows in order of first sight; arrows bend, so that there and back are two."""
    stays: dict[str, int] = defaultdict(int)
    moves: dict[tuple[str, str], list[int]] = defaultdict(list)
    for step in spec.steps:
        if step.from_screen == step.to_screen:
            stays[step.from_screen] += 1
        else:
            moves[step.from_screen, step.to_screen].append(step.index)
    nodes = {
        screen.id: Node(
            id=screen.id,
            title=screen.title if len(screen.title) <= 24 else screen.title[:23] + "…",
            x=MARGIN + i % COLUMNS * (WIDE + GAP_X),
            y=MARGIN + i // COLUMNS * (HIGH + GAP_Y),
            stays=stays[screen.id],
        )
        for i, screen in enumerate(spec.screens)
    }
    edges: list[Edge] = []
    taken = [Box(x0=n.x, y0=n.y, x1=n.x + WIDE, y1=n.y + HIGH) for n in nodes.values()]
    for (a, b), indices in moves.items():
        edges.append(_edge(nodes[a], nodes[b], indices, taken))
    columns = min(COLUMNS, max(1, len(nodes)))
    rows = max(1, math.ceil(len(nodes) / COLUMNS))
    return Flow(
        width=2 * MARGIN + columns * WIDE + (columns - 1) * GAP_X,
        height=2 * MARGIN + rows * HIGH + (rows - 1) * GAP_Y,
        nodes=tuple(nodes.values()),
        edges=tuple(edges),
    )


def _edge(a: Node, b: Node, indices: list[int], taken: list[Box]) -> Edge:
    """The arrow from `a` to `b`; where its label stands is added to what is `taken`."""
    ax, ay, bx, by = a.x + WIDE / 2, a.y + HIGH / 2, b.x + WIDE / 2, b.y + HIGH / 2
    length = math.hypot(bx - ax, by - ay)
    # to the right of the way, so that two arrows between the same screens do not lie on each other
    bend = 22 + 0.06 * length
    cx, cy = (ax + bx) / 2 - (by - ay) / length * bend, (ay + by) / 2 + (bx - ax) / length * bend
    sx, sy = _border(ax, ay, cx, cy)
    tx, ty = _border(bx, by, cx, cy)
    label = ", ".join(str(i) for i in indices[:4]) + (" …" if len(indices) > 4 else "")
    places = []
    for share in _ALONG:
        rest = 1 - share
        x = rest * rest * sx + 2 * rest * share * cx + share * share * tx
        y = rest * rest * sy + 2 * rest * share * cy + share * share * ty
        half = _DIGIT * len(label) / 2 + 2
        places.append(Box(x0=x - half, y0=y - _LINE / 2, x1=x + half, y1=y + _LINE / 2))
    place = min(places, key=lambda box: sum(box.intersection(other) for other in taken))
    taken.append(place)
    x, y = place.center
    return Edge(
        path=f"M{sx:.1f} {sy:.1f} Q{cx:.1f} {cy:.1f} {tx:.1f} {ty:.1f}",
        label=label,
        first=indices[0],
        x=round(x, 1),
        y=round(y, 1),
    )


def _border(x: float, y: float, to_x: float, to_y: float) -> tuple[float, float]:
    """Where the line from the middle of a box to a point leaves the box."""
    dx, dy = to_x - x, to_y - y
    share = min(
        WIDE / 2 / abs(dx) if dx else math.inf,
        HIGH / 2 / abs(dy) if dy else math.inf,
    )
    share = min(1.0, share)
    return x + dx * share, y + dy * share

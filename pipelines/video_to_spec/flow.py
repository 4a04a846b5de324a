"""The flow graph of a specification as inline SVG: screens as boxes, steps that lead from one to another as arrows."""

import math
from collections import defaultdict
from dataclasses import dataclass

from watersmeet.pipelines.video_to_spec.spec import Spec

COLUMNS = 4
WIDE, HIGH = 190, 64  # of a box
GAP_X, GAP_Y = 90, 80
MARGIN = 30


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
    edges = tuple(_edge(nodes[a], nodes[b], indices) for (a, b), indices in moves.items())
    columns = min(COLUMNS, max(1, len(nodes)))
    rows = max(1, math.ceil(len(nodes) / COLUMNS))
    return Flow(
        width=2 * MARGIN + columns * WIDE + (columns - 1) * GAP_X,
        height=2 * MARGIN + rows * HIGH + (rows - 1) * GAP_Y,
        nodes=tuple(nodes.values()),
        edges=edges,
    )


def _edge(a: Node, b: Node, indices: list[int]) -> Edge:
    ax, ay, bx, by = a.x + WIDE / 2, a.y + HIGH / 2, b.x + WIDE / 2, b.y + HIGH / 2
    length = math.hypot(bx - ax, by - ay)
    # to the right of the way, so that two arrows between the same screens do not lie on each other
    bend = 22 + 0.06 * length
    cx, cy = (ax + bx) / 2 - (by - ay) / length * bend, (ay + by) / 2 + (bx - ax) / length * bend
    sx, sy = _border(ax, ay, cx, cy)
    tx, ty = _border(bx, by, cx, cy)
    label = ", ".join(str(i) for i in indices[:4]) + (" …" if len(indices) > 4 else "")
    return Edge(
        path=f"M{sx:.1f} {sy:.1f} Q{cx:.1f} {cy:.1f} {tx:.1f} {ty:.1f}",
        label=label,
        first=indices[0],
        x=round((sx + 2 * cx + tx) / 4, 1),
        y=round((sy + 2 * cy + ty) / 4, 1),
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

"""Reading order of boxes: every box before what lies in it, rows before columns only where things line up."""

from collections.abc import Sequence

Bounds = tuple[float, float, float, float]


def _inside(a: Bounds, b: Bounds) -> bool:
    """Most of `a` lies in `b`, which is clearly larger."""
    w = min(a[2], b[2]) - max(a[0], b[0])
    h = min(a[3], b[3]) - max(a[1], b[1])
    size_a = (a[2] - a[0]) * (a[3] - a[1])
    size_b = (b[2] - b[0]) * (b[3] - b[1])
    return w > 0 and h > 0 and w * h >= 0.85 * size_a and size_b > 1.02 * size_a


def _groups(boxes: Sequence[Bounds], items: list[int], axis: int) -> list[list[int]]:
    """Items parted at the gaps of their projection on x (axis 0) or y (axis 1)."""
    ordered = sorted(items, key=lambda i: (boxes[i][axis], boxes[i][axis + 2]))
    out: list[list[int]] = []
    end = float("-inf")
    for i in ordered:
        # one pixel of overlap is measuring noise, not contact
        if boxes[i][axis] >= end - 1:
            out.append([])
        out[-1].append(i)
        end = max(end, boxes[i][axis + 2])
    return out


def _aligned(boxes: Sequence[Bounds], columns: list[list[int]]) -> bool:
    """True when the entries of neighbouring columns stand at equal heights, as in a table or a row of fields."""
    smallest = min(columns, key=len)
    others = [i for column in columns if column is not smallest for i in column]
    if not others:
        return True
    hits = 0
    for i in smallest:
        middle = (boxes[i][1] + boxes[i][3]) / 2
        hits += any(abs((boxes[j][1] + boxes[j][3]) / 2 - middle) <= 4 for j in others)
    return hits >= 0.7 * len(smallest)


def _cut(boxes: Sequence[Bounds], items: list[int]) -> list[int]:
    if len(items) <= 1:
        return list(items)
    rows, columns = _groups(boxes, items, 1), _groups(boxes, items, 0)
    if len(rows) > 1 and (len(columns) == 1 or _aligned(boxes, columns)):
        return [i for row in rows for i in _cut(boxes, row)]
    if len(columns) > 1:
        return [i for column in columns for i in _cut(boxes, column)]

    # they interlock: plain order by rows of about a line's height, then x, large before small
    def key(i: int) -> tuple[float, float, float]:
        b = boxes[i]
        return b[1] // 8, b[0], -(b[2] - b[0]) * (b[3] - b[1])

    return sorted(items, key=key)


def reading_order(boxes: Sequence[Bounds], frames: Sequence[bool]) -> list[tuple[int, int, int]]:
    """(index, depth, parent or -1) of each box in reading order; only boxes marked in `frames` can contain others.

    Pre-order: a frame comes right before its contents. Siblings are cut recursively at empty rows or columns.
    """
    by_size = sorted(
        range(len(boxes)),
        key=lambda i: (-(boxes[i][2] - boxes[i][0]) * (boxes[i][3] - boxes[i][1]), i),
    )
    rank = {i: position for position, i in enumerate(by_size)}
    hosts = [i for i in by_size if frames[i]]
    children: dict[int, list[int]] = {-1: []}
    for i in by_size:
        parent = -1
        for host in hosts:  # largest first, so the last hit is the closest
            if rank[host] >= rank[i]:
                break
            if _inside(boxes[i], boxes[host]):
                parent = host
        children.setdefault(parent, []).append(i)
    out: list[tuple[int, int, int]] = []

    def visit(parent: int, depth: int) -> None:
        for i in _cut(boxes, sorted(children.get(parent, []))):
            out.append((i, depth, parent))
            visit(i, depth + 1)

    visit(-1, 0)
    return out

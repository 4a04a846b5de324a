"""What is left when flat boxes and text are taken away: pictures, icons and thin rules."""

import cv2
import numpy as np
from numpy.typing import NDArray

from watersmeet.tokenizers.regions.rects import Bounds

ICON = 64  # px: blobs up to this size are grouped more carefully


def blobs(ink_HW: NDArray[np.bool_], gap: int = 2) -> list[tuple[Bounds, int]]:
    """Boxes of connected ink, with the number of ink pixels; parts up to `2 * gap` px apart belong together."""
    if not ink_HW.any():
        return []
    mask = ink_HW.astype(np.uint8)
    wide = cv2.dilate(mask, np.ones((2 * gap + 1, 2 * gap + 1), np.uint8))
    count, labels, stats, _ = cv2.connectedComponentsWithStats(wide, connectivity=8)
    amount = np.bincount(labels.ravel(), ink_HW.ravel(), minlength=count)
    out = []
    for i in range(1, count):
        x, y, w, h, _area = (int(v) for v in stats[i])
        part = (labels[y : y + h, x : x + w] == i) & ink_HW[y : y + h, x : x + w]
        rows, columns = np.flatnonzero(part.any(1)), np.flatnonzero(part.any(0))
        box = (
            x + int(columns[0]),
            y + int(rows[0]),
            x + int(columns[-1]) + 1,
            y + int(rows[-1]) + 1,
        )
        out.append((box, int(amount[i])))
    return out


def merge_close(boxes: list[tuple[Bounds, int]], gap: int) -> list[tuple[Bounds, int]]:
    """Join boxes that overlap or lie within `gap` px, until nothing changes."""
    items = list(boxes)
    changed = True
    while changed and len(items) > 1:
        changed = False
        array = np.array([box for box, _ in items])
        for i in range(len(items)):
            near = (
                (array[:, 0] <= array[i, 2] + gap)
                & (array[:, 2] >= array[i, 0] - gap)
                & (array[:, 1] <= array[i, 3] + gap)
                & (array[:, 3] >= array[i, 1] - gap)
            )
            near[i] = False
            if near.any():
                group = [i, *np.flatnonzero(near)]
                joined = array[group]
                box = (
                    int(joined[:, 0].min()),
                    int(joined[:, 1].min()),
                    int(joined[:, 2].max()),
                    int(joined[:, 3].max()),
                )
                total = sum(items[j][1] for j in group)
                items = [item for j, item in enumerate(items) if j not in set(group)] + [(box, total)]
                changed = True
                break
    return items

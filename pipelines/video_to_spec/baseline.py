"""The naive reading of a recording that others are compared with: one frame a second, a click wherever two differ.

This is what tools do that sample frames: what happens between two samples is unseen, every change is a step of the
commonest action, and a large change is a new screen.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from watersmeet.core.errors import DecodeError
from watersmeet.pipelines.video_to_spec.spec import Corners, Evidence, Screen, Source, Spec, Step

NOISE = 24  # of 255, largest difference of the channels that codec noise makes
CHANGED = 0.001  # share of pixels that makes a step
NEW_SCREEN = 0.3  # share of pixels that makes a new screen

Sample = tuple[int, int, np.ndarray]
"""Number of the frame, its time in microseconds, the picture uint8 [height, width, 3]."""


def one_a_second(frames: Iterable[tuple[int, np.ndarray]]) -> Iterator[Sample]:
    """Of (time in microseconds, picture), the first frame of each second; a copy, since readers reuse their memory."""
    due = 0
    for number, (time_us, picture) in enumerate(frames):
        if time_us >= due:
            yield number, time_us, picture.copy()
            due = (time_us // 1_000_000 + 1) * 1_000_000


def difference_baseline(samples: Iterable[Sample], source: Source) -> Spec:
    """A specification from sampled frames alone. Raises DecodeError when there is none."""
    steps: list[Step] = []
    screens: list[Screen] = []
    before: np.ndarray | None = None
    for number, time_us, picture in samples:
        t_s = time_us / 1e6
        changed = _changed(before, picture)
        share = float(changed.mean())
        came_from = f"s{len(screens)}"
        if share > NEW_SCREEN:
            name = f"s{len(screens) + 1}"
            title = f"Screen {len(screens) + 1}"
            screens.append(Screen(id=name, title=title, first_seen_s=t_s, thumbnail=f"frames/{name}.png"))
        if before is not None and share > CHANGED:
            steps.append(
                Step(
                    index=len(steps) + 1,
                    start_s=t_s,
                    end_s=t_s,
                    action="click",
                    target=None,
                    text=None,
                    box=_around(changed),
                    from_screen=came_from,
                    to_screen=f"s{len(screens)}",
                    evidence=(Evidence(t_s=t_s, frame=number),),
                    confidence=min(1.0, share),
                )
            )
        before = picture
    if before is None:
        raise DecodeError(f"{source.path}: no frame was read")
    return Spec(source=source, screens=tuple(screens), steps=tuple(steps), features=(), patterns=(), open_questions=())


def _changed(before: np.ndarray | None, picture: np.ndarray) -> np.ndarray:
    """Pixels that differ by more than noise, bool [height, width]; all of them for the first picture."""
    if before is None or before.shape != picture.shape:
        return np.ones(picture.shape[:2], dtype=bool)
    return (np.maximum(picture, before) - np.minimum(picture, before)).max(axis=2) > NOISE


def _around(changed: np.ndarray) -> Corners:
    ys, xs = np.flatnonzero(changed.any(axis=1)), np.flatnonzero(changed.any(axis=0))
    return float(xs[0]), float(ys[0]), float(xs[-1] + 1), float(ys[-1] + 1)

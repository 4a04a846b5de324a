"""Learning-rate schedules as pure functions of the step.

Nothing but the step number is state, so a resumed run needs no scheduler file and a run is extended by raising
`schedule.steps` and starting again. WSD extends without loss from a checkpoint taken before its decay; resumed inside or
after the decay, the rate returns to its peak (a new plateau) and decays again at the new end.
"""

from __future__ import annotations

import math

from watersmeet.core.training.config import ScheduleSection


def lr_factor(schedule: ScheduleSection, step: int) -> float:
    """Factor of the peak rate for update number `step` (0-based).

    The smaller of a linear warm-up over `warmup` steps (the first update already uses 1/warmup, never 0) and of
    "wsd": 1 until `steps - decay_steps`, then linear to `final` at the last step;
    "cosine": half a cosine from 1 after the warm-up to `final` at the last step;
    "constant": 1.
    Steps past the end keep `final`.
    """
    warm = min((step + 1) / schedule.warmup, 1.0) if schedule.warmup else 1.0
    if schedule.kind == "constant":
        return warm
    length = schedule.decay_steps if schedule.kind == "wsd" else schedule.steps - schedule.warmup
    begin = schedule.steps - length
    if length > 0:
        done = min(max(step - begin + 1, 0) / length, 1.0)
    else:
        done = float(step >= schedule.steps)
    shape = 1 - done if schedule.kind == "wsd" else 0.5 * (1 + math.cos(math.pi * done))
    return min(warm, schedule.final + (1 - schedule.final) * shape)

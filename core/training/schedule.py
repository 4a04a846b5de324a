"""Learning-rate schedules as pure functions of the step.

Nothing but the step number is state, so a resumed run needs no scheduler file and a run is extended by raising
`schedule.steps` and starting again. WSD extends without loss from a checkpoint taken before its decay; resumed inside or
after the decay, the rate returns to its peak (a new plateau) and decays again at the new end.
"""

from __future__ import annotations

import math

from watersmeet.core.training.config import ScheduleSection


def lr_factor(schedule: ScheduleSection, step: int) -> float:
    """Factor of the peak rate for the update number `step` (0-based), in [final, 1].

    Linear warm-up over `warmup` steps (the first update already uses 1/warmup, never 0). Then
    "wsd": 1 until `steps - decay_steps`, then linear to `final` at the last step;
    "cosine": half a cosine from 1 to `final` at the last step; "constant": 1.
    Steps past the end keep `final`.
    """
    if step < schedule.warmup:
        return (step + 1) / schedule.warmup
    if schedule.kind == "constant":
        return 1.0
    if schedule.kind == "cosine":
        begin, length = schedule.warmup, schedule.steps - schedule.warmup
    else:
        begin, length = schedule.steps - schedule.decay_steps, schedule.decay_steps
    done = min(max(step - begin + 1, 0) / max(length, 1), 1.0)
    if length <= 0:
        done = 0.0 if step < schedule.steps else 1.0
    shape = 1 - done if schedule.kind == "wsd" else 0.5 * (1 + math.cos(math.pi * done))
    return schedule.final + (1 - schedule.final) * shape

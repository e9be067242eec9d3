"""The learning rate as a function of the step alone: a resumed run needs no state for it."""

import math
from dataclasses import dataclass

from include.runtime.settings import Settings

SCHEDULES = ("constant", "linear", "cosine")


@dataclass(frozen=True)
class ScheduleSettings:
    """Linear warm-up to `peak` over `warmup_steps`, then constant, or down to 0 at `total` steps."""

    peak: float
    warmup_steps: int
    total: int
    kind: str = "constant"

    @classmethod
    def of(cls, config: Settings, total: int) -> "ScheduleSettings":
        kind = config.text("schedule", SCHEDULES, "constant")
        return cls(config.number("learning_rate"), config.integer("warmup_steps", 0), total, kind)


def learning_rate_at(step: int, schedule: ScheduleSettings) -> float:
    """The rate of the update after `step` updates (so step 0 is the first)."""
    if step < schedule.warmup_steps:
        return schedule.peak * (step + 1) / schedule.warmup_steps
    if schedule.kind == "constant":
        return schedule.peak
    done = (step - schedule.warmup_steps) / max(1, schedule.total - schedule.warmup_steps)
    if schedule.kind == "linear":
        return schedule.peak * (1 - done)
    return schedule.peak * 0.5 * (1 + math.cos(math.pi * done))

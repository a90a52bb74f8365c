"""The learning rate at any point of training."""

from __future__ import annotations

import math

from wdae.stage1.config import ScheduleConfig


def rate_share(schedule: ScheduleConfig, progress: float) -> float:
    """The share of the full learning rate after ``progress`` (0 to 1) of training.

    >>> step = ScheduleConfig(drops=(0.5, 0.75), warm_up=0.1)
    >>> [round(rate_share(step, p), 6) for p in (0.05, 0.1, 0.49, 0.5, 0.8)]
    [0.5, 1.0, 1.0, 0.1, 0.01]
    >>> linear = ScheduleConfig(kind="linear", hold=0.5, final=0.1)
    >>> [round(rate_share(linear, p), 6) for p in (0.25, 0.5, 0.75, 1.0)]
    [1.0, 1.0, 0.55, 0.1]
    """
    if progress < schedule.warm_up:
        return progress / schedule.warm_up
    if schedule.kind == "step":
        return schedule.factor ** sum(progress >= drop for drop in schedule.drops)
    begin = max(schedule.hold, schedule.warm_up)
    fallen = min(1.0, max(0.0, (progress - begin) / (1.0 - begin)))
    left = 1.0 - fallen if schedule.kind == "linear" else 0.5 * (1.0 + math.cos(math.pi * fallen))
    return schedule.final + (1.0 - schedule.final) * left

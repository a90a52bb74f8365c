"""Losses and rates of training, read from the device now and then."""

from __future__ import annotations

import math
import statistics
import time

import torch
from torch import Tensor

from wdae.errors import RunError
from wdae.runtime.distributed import Team
from wdae.stage1.objective import NAMES


class Meter:
    """Losses summed on the device, and rates; the device is waited for only when they are read.

    Args:
        images_per_step: pictures through the network in a step, turned copies and all processes included.
        flops: floating-point operations of training on one picture.
    """

    def __init__(self, device: torch.device, images_per_step: int, flops: int, team: Team) -> None:
        self.images_per_step, self.flops, self.team = images_per_step, flops, team
        self.sums = torch.zeros(len(NAMES), device=device)
        self.pending = self.epoch_steps = 0
        self.epoch_rates: list[float] = []
        self.since = self.epoch_since = time.monotonic()

    def add(self, values: Tensor) -> None:
        """Take in the values of one step."""
        self.sums += values
        self.pending += 1
        self.epoch_steps += 1

    def read(self) -> dict[str, float]:
        """Means since the last reading, and the rate; refuses a loss that is no number."""
        means = (self.team.mean(self.sums) / max(self.pending, 1)).tolist()
        now = time.monotonic()
        rate = self.pending * self.images_per_step / max(now - self.since, 1e-9)
        self.pending, self.since = 0, now
        self.sums.zero_()
        line = dict(zip(NAMES, means, strict=True))
        if not math.isfinite(line["loss"]):
            raise RunError(
                "the loss is no longer a number; lower optimiser.learning_rate or add schedule.warm_up"
            )
        return {**line, "images_per_s": rate, "tflops": rate * self.flops / 1e12}

    def end_epoch(self) -> None:
        """Note the rate over the epoch (after :meth:`read`, which waited for the device)."""
        now = time.monotonic()
        self.epoch_rates.append(self.epoch_steps * self.images_per_step / max(now - self.epoch_since, 1e-9))
        self.epoch_steps, self.epoch_since = 0, now

    def pause_over(self) -> None:
        """Leave what happened since the last reading (validation, writing) out of the rates."""
        self.since = self.epoch_since = time.monotonic()

    @property
    def images_per_s(self) -> float:
        """The median rate of whole epochs; the first, which compiles, only where there is no other."""
        rates = self.epoch_rates[1:] or self.epoch_rates
        return statistics.median(rates) if rates else 0.0

    @property
    def tflops(self) -> float:
        """The same in 10¹² floating-point operations a second."""
        return self.images_per_s * self.flops / 1e12
